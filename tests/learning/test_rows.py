"""Rows that a metric takes in, against slow loops over layers, units and samples."""

import math
from typing import Any

import pytest
import reference
import torch
from cases import CASES, Case, assert_close, row_weights, seeded
from directions import CASE
from families import Counts, Gauss, Pair, small_machine
from torch import Tensor

from nws.learning.rows import layer_rows
from nws.natural import Rows

Slow = list[tuple[Tensor, Tensor, Tensor]]
each_cap = pytest.mark.parametrize("max_rows", [None, 100, 5, 3, 1])


def slow_rows(
    network: reference.Network, bits: reference.Bits, weights: Tensor, samples: int,
    max_rows: int | None,
) -> Slow:  # fmt: skip
    """Inputs (n, d), curvature (n, m) and squared errors (n, m) of each layer, number by number."""
    layers = []
    parts = zip(network.connections, network.parents(bits), network.logits(bits), strict=True)
    for (parent, child), inputs, logits in parts:
        # which rows are one: all (no parents), the K of an image (parent x), or none
        size = {None: len(weights), 0: samples}.get(parent, 1)
        groups = [range(start, start + size) for start in range(0, len(weights), size)]
        stride = 1 if max_rows is None else math.ceil(len(groups) / max_rows)
        kept = groups[::stride]
        part = sum(float(weights[k]) for group in kept for k in group)
        curvature = torch.zeros(len(kept), logits.shape[1], dtype=torch.float64)
        errors = torch.zeros_like(curvature)
        for row, group in enumerate(kept):
            for k in group:
                for j in range(logits.shape[1]):
                    p = 1 / (1 + math.exp(-float(logits[k, j])))
                    y, w = float(bits[child][k, j]), float(weights[k]) / part
                    curvature[row, j] += w * p * (1 - p)
                    errors[row, j] += w * (y - p) ** 2
        layers.append((inputs[[group[0] for group in kept]], curvature, errors))
    return layers


def assert_rows(found: list[Rows], expected: Slow) -> None:
    for rows, (inputs, curvature, errors) in zip(found, expected, strict=True):
        assert_close(rows.inputs, inputs)
        assert_close(rows.curvature, curvature)
        assert_close(rows.squared_errors(), errors)


@each_cap
@pytest.mark.parametrize("case", [case for case in CASES if "float64_cpu" in case.id])
def test_rows_are_the_loops_over_layers_samples_and_units(case: Case, max_rows: int | None) -> None:
    machine = case.machine()
    wake = machine.wake(case.data(soft=True), case.samples, case.rng())
    bits, weights = reference.bits_of(wake), row_weights(len(wake.values))
    slow = slow_rows(reference.recognition(machine), bits, weights, case.samples, max_rows)
    assert_rows(layer_rows(machine.recognition, [(wake, weights)], max_rows), slow)
    slow = slow_rows(reference.generator(machine), bits, weights, 1, max_rows)
    p = torch.sigmoid(machine.generator.layers[-1].bias.detach()).double()
    assert_close(slow[-1][1], (p * (1 - p))[None])  # the deepest layer has no parents
    assert_rows(layer_rows(machine.generator, [(wake, weights)], max_rows), slow)


def test_other_weights_or_samples_fail_the_same_comparison() -> None:
    machine = CASE.machine()
    wake = machine.wake(CASE.data(), CASE.samples, CASE.rng())
    bits, weights, q = reference.bits_of(wake), row_weights(12), reference.recognition(machine)
    found = layer_rows(machine.recognition, [(wake, weights)])
    assert [rows.name for rows in found] == [f"recognition layer {i}" for i in range(3)]
    right = slow_rows(q, bits, weights, CASE.samples, None)
    assert_rows(found, right)
    for wrong in [
        slow_rows(q, bits, row_weights(12, seed=6), CASE.samples, None),
        slow_rows(q, bits, weights, CASE.samples, 6),
        slow_rows(q, [1 - bits[0], *bits[1:]], weights, CASE.samples, None),
        [(inputs, errors, curvature) for inputs, curvature, errors in right],
    ]:
        with pytest.raises(AssertionError):
            assert_rows(found, wrong)


@each_cap
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
