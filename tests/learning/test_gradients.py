"""Local gradients against autograd of the networks' log-probabilities, for any family of units."""

from __future__ import annotations

from typing import Any

import pytest
import reference
import torch
from cases import CASES, EACH_UNITS, Case, assert_close, random_machine, seeded
from families import Counts, Gauss, Pair
from torch import Tensor

from nws.learning.gradients import Term, write_gradients
from nws.models import BeliefNetwork, HelmholtzMachine

FAMILIES: dict[str, tuple[Any, Any]] = {  # hidden units, visible units
    "pairs": (Pair(), None),
    "counts": (Counts(), None),
    "bipolar under gauss": ("bipolar", Gauss()),
    "pairs under gauss": (Pair(), Gauss()),
    "gauss under binary": (Gauss(), "binary"),
    "binary under counts": ("binary", Counts()),
}


def by_autograd(network: BeliefNetwork, terms: list[Term]) -> list[Tensor]:
    """The gradient of -sum_k w_k log p(rows_k), through `BeliefNetwork.log_prob`."""
    objective = sum(weights @ network.log_prob(trace.state_blocks) for trace, weights in terms)
    return list(torch.autograd.grad(-objective, list(network.parameters())))


def terms_of(machine: HelmholtzMachine, samples: int = 3) -> list[Term]:
    """Rows of both phases, with weights of both signs."""
    x = torch.rand(4, machine.sizes[0], generator=seeded(2)).double()
    traces = [machine.wake(x, samples, seeded(3)), machine.dream(6, seeded(4))]
    return [
        (trace, torch.randn(len(trace.values), generator=seeded(5), dtype=torch.float64))
        for trace in traces
    ]


def assert_gradients(network: BeliefNetwork, expected: list[Tensor], bound: float = 1e-10) -> None:
    for parameter, gradient in zip(network.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert_close(parameter.grad, gradient, bound)


@pytest.mark.parametrize("units", FAMILIES.values(), ids=FAMILIES)
def test_gradients_are_autograds_for_every_family(units: tuple[Any, Any]) -> None:
    machine = random_machine((4, 3, 2), units[0], visible=units[1])
    for parameter in machine.parameters():
        parameter.data.mul_(0.4)
    terms = terms_of(machine)
    for network in machine.networks:
        write_gradients(network, terms)
        assert_gradients(network, by_autograd(network, terms))
        # negative controls: one term alone, and weights without their signs
        for wrong in (terms[:1], [(trace, weights.abs()) for trace, weights in terms]):
            with pytest.raises(AssertionError):
                assert_gradients(network, by_autograd(network, wrong), 1e-4)


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_the_references(case: Case) -> None:
    """By the plain Bernoulli formulas, whatever dtype and device the machine has."""
    machine = case.machine()
    trace = machine.wake(case.data(soft=True), case.samples, case.rng())
    weights = torch.rand(len(trace.values), generator=seeded(5), dtype=torch.float64)
    weights /= weights.sum()
    for network, expected in zip(
        machine.networks,
        (reference.generator(machine), reference.recognition(machine)),
        strict=True,
    ):
        write_gradients(network, [(trace, weights.to(trace.values))])
        found = reference.flatten(network.layers, gradients=True)
        assert_close(found, -expected.gradient(reference.bits_of(trace), weights), case.tolerance)


@pytest.mark.parametrize("units", EACH_UNITS)
def test_gradients_are_written_not_added_and_leave_the_terms_alone(units: str) -> None:
    machine = random_machine((4, 3, 2), units)
    terms = terms_of(machine)
    before = [
        (trace.values.clone(), trace.generator_means.clone(), w.clone()) for trace, w in terms
    ]
    for network in machine.networks:
        write_gradients(network, terms)
        first = [parameter.grad.clone() for parameter in network.parameters()]
        for parameter in network.parameters():
            parameter.grad.fill_(torch.nan)
        write_gradients(network, terms)
        assert all(
            torch.equal(gradient, parameter.grad)
            for gradient, parameter in zip(first, network.parameters(), strict=True)
        )
    for (values, means, weights), (trace, now) in zip(before, terms, strict=True):
        assert torch.equal(values, trace.values) and torch.equal(weights, now)
        assert torch.equal(means, trace.generator_means)
