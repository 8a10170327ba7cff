"""Rows that a metric takes in: of parts, of any family of units, and without weight.

Which rows are kept, and their numbers, is tested by the direction that they make.
"""

from typing import Any

import pytest
import torch
from cases import assert_close, row_weights, seeded
from directions import CASE
from families import Counts, Gauss, Pair, small_machine

from nws.learning.rows import layer_rows


@pytest.mark.parametrize("max_rows", [None, 100, 5, 3, 1])
@pytest.mark.parametrize("images", [(1, 3), (2, 2), (1, 1, 1, 1)])
def test_rows_of_parts_are_those_of_the_whole(images: tuple[int, ...], max_rows: Any) -> None:
    machine, weights = CASE.machine(), row_weights(12)
    wake = machine.wake(CASE.data(), CASE.samples, CASE.rng())
    sizes = [CASE.samples * each for each in images]
    states = zip(*(block.split(sizes) for block in wake.state_blocks), strict=True)
    traces = [machine.evaluate(blocks, CASE.samples) for blocks in states]
    parts = list(zip(traces, weights.split(sizes), strict=True))
    for network in machine.networks:
        whole = layer_rows(network, [(wake, weights)], max_rows)
        names = [f"{network.name} layer {i}" for i in range(len(whole))]
        assert [rows.name for rows in whole] == names
        for rows, expected in zip(layer_rows(network, parts, max_rows), whole, strict=True):
            for name in ("inputs", "curvature", "weights"):
                assert_close(getattr(rows, name), getattr(expected, name))
            assert_close(rows.squared_errors(), expected.squared_errors())
            for mean, other in zip(rows.means, expected.means, strict=True):
                assert_close(mean, other)
    other = layer_rows(machine.recognition, parts[::-1], max_rows)  # the control
    assert not torch.equal(other[1].inputs, whole[1].inputs)


# hidden units, visible units
OWN = [("binary", None), (Counts(), "binary"), (Counts(), Gauss()), (Pair(), "bipolar"),
       (Pair(), None), (Gauss(), Gauss())]  # fmt: skip


@pytest.mark.parametrize("units", OWN, ids=str)
def test_rows_of_any_family_hold_its_curvature_and_leave_the_trace_alone(units: Any) -> None:
    """By autograd of A, twice, at the logits that the networks' layers give.

    Also for Poisson units, whose curvature is their mean, the same tensor.
    """
    machine = small_machine(units, (3, 2, 2), scale=0.3)
    trace, weights = machine.dream(7, seeded(1)), row_weights(7)
    tensors = (trace.values, trace.states, trace.generator_means, trace.recognition_means)
    before = [each.clone() for each in tensors]
    for network in machine.networks:
        logits, found = network.logits(trace.state_blocks), layer_rows(network, [(trace, weights)])
        for edge in network.edges:
            rows, family = found[edge.position], machine.units[edge.child]
            a = logits[edge.position].detach().requires_grad_()
            (slope,) = torch.autograd.grad(family.log_partition(a).sum(), a, create_graph=True)
            (curvature,) = torch.autograd.grad(slope.sum(), a)
            expected = weights[:, None] * curvature
            errors = weights[:, None] * (trace.value_blocks[edge.child] - slope.detach()).square()
            seen = [trace.state_blocks[parent] for parent in edge.parents]
            inputs = torch.cat([*seen, torch.ones(7, 1).double()], dim=1)
            if not edge.parents:
                expected, errors = expected.sum(0, keepdim=True), errors.sum(0, keepdim=True)
                inputs = inputs[:1]
            assert_close(rows.inputs, inputs)
            assert_close(rows.curvature, expected)
            assert_close(rows.squared_errors(), errors)
    assert all(map(torch.equal, before, tensors))


def test_kept_rows_without_weight_count_as_none() -> None:
    """Importance weights can be too small for the dtype in all rows that are kept."""
    machine = CASE.machine()
    trace, weights = machine.wake(CASE.data(), CASE.samples, CASE.rng()), torch.zeros(12).double()
    weights[1] = 1  # max_rows=4 keeps rows 0, 3, 6, 9
    for rows in layer_rows(machine.generator, [(trace, weights)], max_rows=4)[:-1]:
        mean, scale = rows.means
        assert all(bool((part == 0).all()) for part in (scale, rows.curvature, rows.weights))
        assert mean.isfinite().all()
