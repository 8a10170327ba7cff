"""Rows that a metric takes in, against slow loops over layers, units and samples."""

from __future__ import annotations

import math

import pytest
import reference
import torch
from cases import CASES, Case, assert_close, random_machine, row_weights, seeded
from families import Counts, Gauss, Pair
from torch import Tensor

from nws.learning.rows import layer_rows
from nws.models import HelmholtzMachine, Trace
from nws.natural import Rows

CASE = Case((3, 4, 2, 3), 3, 4, "bipolar")  # B = 4, K = 3


def slow_rows(
    network: reference.Network,
    bits: reference.Bits,
    weights: Tensor,
    samples: int,
    max_rows: int | None,
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Inputs (n, d), curvature (n, m) and squared errors (n, m) of each layer, number by number."""
    layers = []
    for (parent, child), inputs, logits in zip(
        network.connections, network.parents(bits), network.logits(bits), strict=True
    ):
        # which rows are one: all (no parents), the K of an image (parent x), or none
        size = {None: len(weights), 0: samples}.get(parent, 1)
        groups = [range(start, start + size) for start in range(0, len(weights), size)]
        stride = 1 if max_rows is None else math.ceil(len(groups) / max_rows)
        kept = groups[::stride]
        total = sum(float(weights[k]) for group in groups for k in group)
        part = sum(float(weights[k]) for group in kept for k in group)
        curvature = torch.zeros(len(kept), logits.shape[1], dtype=torch.float64)
        errors = torch.zeros_like(curvature)
        for row, group in enumerate(kept):
            for k in group:
                for j in range(logits.shape[1]):
                    p = 1 / (1 + math.exp(-float(logits[k, j])))
                    y, w = float(bits[child][k, j]), float(weights[k]) * total / part
                    curvature[row, j] += w * p * (1 - p)
                    errors[row, j] += w * (y - p) ** 2
        layers.append((inputs[[group[0] for group in kept]], curvature, errors))
    return layers


def assert_rows(found: list[Rows], expected: list[tuple[Tensor, Tensor, Tensor]]) -> None:
    for rows, (inputs, curvature, errors) in zip(found, expected, strict=True):
        assert_close(rows.inputs, inputs)
        assert_close(rows.curvature, curvature)
        assert_close(rows.squared_errors(), errors)


def exact_top(machine: HelmholtzMachine, weights: Tensor) -> Tensor:
    p = torch.sigmoid(machine.generator.layers[-1].bias.detach()).double().cpu()
    return (weights.sum() * p * (1 - p))[None]


@pytest.mark.parametrize("max_rows", [None, 100, 5, 3, 1])
@pytest.mark.parametrize("case", [case for case in CASES if "float64_cpu" in case.id])
def test_rows_are_the_loops_over_layers_samples_and_units(case: Case, max_rows: int | None) -> None:
    machine = case.machine()
    wake = machine.wake(case.data(soft=True), case.samples, case.rng())
    bits, weights = reference.bits_of(wake), row_weights(len(wake.values))
    slow = slow_rows(reference.recognition(machine), bits, weights, case.samples, max_rows)
    assert_rows(layer_rows(machine.recognition, [(wake, weights)], max_rows), slow)
    slow = slow_rows(reference.generator(machine), bits, weights, 1, max_rows)
    assert_close(slow[-1][1], exact_top(machine, weights))  # as the deepest layer has no parents
    assert_rows(layer_rows(machine.generator, [(wake, weights)], max_rows), slow)


def test_rows_have_the_sizes_and_names_that_messages_need() -> None:
    machine = CASE.machine()
    wake = machine.wake(CASE.data(), CASE.samples, CASE.rng())
    weights = row_weights(12)
    generator, recognition = (layer_rows(n, [(wake, weights)]) for n in machine.networks)
    assert [tuple(rows.inputs.shape) for rows in generator] == [(12, 5), (12, 3), (12, 4), (1, 1)]
    assert [tuple(rows.inputs.shape) for rows in recognition] == [(4, 4), (12, 5), (12, 3)]
    assert [tuple(rows.curvature.shape) for rows in recognition] == [(4, 4), (12, 2), (12, 3)]
    assert [rows.name for rows in recognition] == [f"recognition layer {i}" for i in range(3)]
    assert generator[3].name == "generator layer 3"
    for rows in [*generator, *recognition]:
        assert (rows.inputs[:, -1] == 1).all()
        assert rows.squared_errors().shape == rows.curvature.shape


def test_other_weights_or_samples_fail_the_same_comparison() -> None:
    """Negative controls."""
    machine = CASE.machine()
    wake = machine.wake(CASE.data(), CASE.samples, CASE.rng())
    bits, weights, q = reference.bits_of(wake), row_weights(12), reference.recognition(machine)
    found = layer_rows(machine.recognition, [(wake, weights)])
    assert_rows(found, slow_rows(q, bits, weights, CASE.samples, None))
    for wrong in [
        slow_rows(q, bits, row_weights(12, seed=6), CASE.samples, None),
        slow_rows(q, bits, weights, CASE.samples, 6),
        slow_rows(q, [1 - bits[0], *bits[1:]], weights, CASE.samples, None),
        [(inputs, errors, curvature) for inputs, curvature, errors in
         slow_rows(q, bits, weights, CASE.samples, None)],
    ]:  # fmt: skip
        with pytest.raises(AssertionError):
            assert_rows(found, wrong)


@pytest.mark.parametrize("max_rows", [None, 100, 5, 3, 1])
@pytest.mark.parametrize("images", [(1, 3), (2, 2), (1, 1, 1, 1)])
def test_rows_of_a_phase_in_parts_are_those_of_the_whole(
    images: tuple[int, ...], max_rows: int | None
) -> None:
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


def content(trace: Trace) -> list[Tensor]:
    return [
        trace.values.clone(),
        trace.states.clone(),
        trace.generator_means.clone(),
        trace.recognition_means.clone(),
    ]


@pytest.mark.parametrize(
    ("hidden", "visible"),
    [("binary", None), (Counts(), None), (Counts(), "binary"), (Pair(), Gauss())],
)
def test_the_trace_stays_as_it_is(hidden: object, visible: object) -> None:
    """Also for Poisson units, whose curvature is their mean, the same tensor."""
    machine = random_machine((3, 2, 2), hidden, visible=visible)
    for parameter in machine.parameters():
        parameter.data.mul_(0.3)
    trace = machine.wake(torch.full((2, 3), 0.5).double(), 3, seeded(1))
    before = content(trace)
    for network in machine.networks:
        first = layer_rows(network, [(trace, row_weights(6))])
        again = layer_rows(network, [(trace, row_weights(6))])
        for one, two in zip(first, again, strict=True):
            assert torch.equal(one.curvature, two.curvature)
            assert torch.equal(one.squared_errors(), two.squared_errors())
            assert torch.equal(one.squared_errors(), one.squared_errors())
    assert all(torch.equal(a, b) for a, b in zip(before, content(trace), strict=True))


@pytest.mark.parametrize("hidden", [Counts(), Pair(), Gauss()])
@pytest.mark.parametrize("visible", [None, "bipolar", Gauss()])
def test_rows_of_any_family_hold_its_curvature(hidden: object, visible: object) -> None:
    """By autograd of A, twice, at the logits that the networks' layers give."""
    machine = random_machine((3, 2, 2), hidden, visible=visible)
    for parameter in machine.parameters():
        parameter.data.mul_(0.3)
    trace, weights = machine.dream(7, seeded(1)), row_weights(7)
    for network in machine.networks:
        families = machine.units[network.upward :]
        logits = network.logits(trace.state_blocks)
        for rows, units, a, edge in zip(
            layer_rows(network, [(trace, weights)]),
            families,
            logits,
            sorted(network.edges, key=lambda edge: edge.position),
            strict=True,
        ):
            a = a.detach().requires_grad_()
            (slope,) = torch.autograd.grad(units.log_partition(a).sum(), a, create_graph=True)
            (curvature,) = torch.autograd.grad(slope.sum(), a)
            expected = weights[:, None] * curvature
            errors = weights[:, None] * (trace.value_blocks[edge.child] - slope.detach()).square()
            if edge.parent is None:
                expected, errors = expected.sum(0, keepdim=True), errors.sum(0, keepdim=True)
            assert_close(rows.curvature, expected)
            assert_close(rows.squared_errors(), errors)
