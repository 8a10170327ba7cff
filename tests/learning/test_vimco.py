"""VIMCO's gradients against autograd of the expected K-sample bound, by enumeration."""

from __future__ import annotations

import itertools

import pytest
import torch
from cases import EXACT, assert_close, random_machine
from conftest import Command, metrics
from torch import Tensor

from nws.errors import UserError
from nws.learning.vimco import vimco
from nws.learning.weighting import Weighting, importance
from nws.models import HelmholtzMachine
from nws.models.likelihood import all_values

SIZES, SAMPLES = (3, 2), 3


def tables(machine: HelmholtzMachine) -> tuple[Tensor, Tensor, Tensor]:
    """log p(x, h_k) and log q(h_k | x) of every tuple of K states, and the tuple's probability."""
    x = torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64)
    hidden = all_values(machine.units[1], SIZES[1]).double()
    states = [x.expand(len(hidden), -1), hidden]
    log_p, log_q = machine.generator.log_prob(states), machine.recognition.log_prob(states)
    tuples = torch.tensor(list(itertools.product(range(len(hidden)), repeat=SAMPLES)))
    return log_p[tuples], log_q[tuples], log_q[tuples].sum(1).exp()


def gradients(value: Tensor, machine: HelmholtzMachine) -> Tensor:
    found = torch.autograd.grad(value, list(machine.parameters()), allow_unused=True)
    pairs = zip(found, machine.parameters(), strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])


def expected(machine: HelmholtzMachine) -> Tensor:
    log_p, log_q, probability = tables(machine)
    return gradients((probability * (log_p - log_q).logsumexp(1)).sum(), machine)


def estimated(machine: HelmholtzMachine, weighting: Weighting) -> Tensor:
    """The expectation of what a step follows: sum_k w_k d log p(x, h_k) + v_k d log q(h_k | x)."""
    log_p, log_q, probability = tables(machine)
    weights_p, weights_q = (part.detach() for part in weighting(log_p, log_q))
    terms = (weights_p * log_p + weights_q * log_q).sum(1)
    return gradients((probability.detach() * terms).sum(), machine)


@pytest.mark.parametrize("seed", range(3))
def test_the_expected_gradient_is_that_of_the_bound(seed: int) -> None:
    machine = random_machine(SIZES, seed=seed)
    assert_close(estimated(machine, vimco), expected(machine), EXACT)


def test_importance_weights_give_another_gradient() -> None:
    """A negative control: reweighted wake-sleep follows another objective for q."""
    machine = random_machine(SIZES)
    assert (estimated(machine, importance) - expected(machine)).abs().max() > 1e-3


def test_weights_of_q_are_no_softmax() -> None:
    rng = torch.Generator().manual_seed(0)
    log_p, log_q = torch.randn(2, 50, 4, generator=rng, dtype=torch.float64)
    weights_p, weights_q = vimco(log_p, log_q)
    assert_close(weights_p.sum(1), torch.ones(50, dtype=torch.float64), EXACT)
    assert (weights_q < 0).any() and (weights_q > 0).any()


def test_one_sample_is_refused() -> None:
    with pytest.raises(UserError, match=r"algorithm\.samples of at least 2, got 1"):
        vimco(torch.zeros(3, 1), torch.zeros(3, 1))


@pytest.mark.parametrize("algorithm", ["vimco", "nvimco"])
def test_a_run_on_the_command_line(train: Command, algorithm: str) -> None:
    outcome = train(f"algorithm={algorithm}", "trainer.epochs=1", "optimizer.lr=0.01")
    assert outcome.code == 0 and outcome.err == "", outcome.err
    assert ("generator/damping" in metrics(outcome.run)[-1]) == (algorithm == "nvimco")
    assert (
        "algorithm.samples of at least 2"
        in train(f"algorithm={algorithm}", "algorithm.samples=1").message()
    )
