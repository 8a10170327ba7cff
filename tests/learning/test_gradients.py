"""Local gradients against autograd of the networks' log-probabilities, for any family of units."""

from typing import Any

import pytest
import torch
from cases import assert_close, by_autograd, seeded
from families import MIXED, small_machine
from torch import Tensor

from nws.learning.gradients import write_gradients
from nws.models import BeliefNetwork


def assert_gradients(network: BeliefNetwork, expected: list[Tensor], bound: float = 1e-10) -> None:
    for parameter, gradient in zip(network.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert_close(parameter.grad, gradient, bound)


@pytest.mark.parametrize("units", [*MIXED.values(), ("bipolar", None)], ids=str)
def test_gradients_are_autograds_for_every_family(units: tuple[Any, Any]) -> None:
    """Of rows of both phases with weights of both signs; written or added, terms left alone."""
    machine = small_machine(units, scale=0.4)
    x = torch.rand(4, 4, generator=seeded(2)).double()
    traces = [machine.wake(x, 3, seeded(3)), machine.dream(6, seeded(4))]
    rows = [torch.randn(len(each.values), generator=seeded(5)).double() for each in traces]
    terms = list(zip(traces, rows, strict=True))
    tensors = [*rows, *(t for each in traces for t in (each.values, each.generator_means))]
    before = [each.clone() for each in tensors]
    for network in machine.networks:
        write_gradients(network, terms)
        for parameter in network.parameters():
            parameter.grad.fill_(torch.nan)  # type: ignore[union-attr]
        write_gradients(network, terms)
        expected = by_autograd(network, terms)
        assert_gradients(network, expected)
        # negative controls: one term alone, and weights without their signs
        for wrong in (terms[:1], [(trace, weights.abs()) for trace, weights in terms]):
            with pytest.raises(AssertionError):
                assert_gradients(network, by_autograd(network, wrong), 1e-4)
        write_gradients(network, terms[1:], add=True)
        second = by_autograd(network, terms[1:])
        assert_gradients(network, [a + b for a, b in zip(expected, second, strict=True)])
    assert all(map(torch.equal, before, tensors))
