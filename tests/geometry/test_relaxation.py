"""Stochastic relaxation: sampled gradients against sums over all states, and whole searches."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import STANDARD_ERRORS, assert_close, seeded
from torch import Tensor

from nws.errors import UserError
from nws.geometry.descent import descend
from nws.geometry.families import Interactions
from nws.geometry.gaussian import Moments, MultivariateGaussian
from nws.geometry.relaxation import ranked, relax, sampled_gradient

RING = Interactions(3, [(0,), (1,), (2,), (0, 1), (1, 2)])
THETA = torch.tensor([0.3, -0.5, 0.2, 0.6, -0.4], dtype=torch.float64)
SLOPES = torch.tensor([1.0, -2.0, 0.5, 3.0, 1.5], dtype=torch.float64)
REGRESSION = 1e-9  # least squares of some ten columns, not ill conditioned


def spanned(x: Tensor) -> Tensor:
    return RING.statistics(x) @ SLOPES + 4


def other(x: Tensor) -> Tensor:
    return spanned(x) + 2 * x.prod(-1)


def mean(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """E[f] by the sum over all states."""
    return lambda theta: RING.log_prob(RING.states, theta).exp() @ f(RING.states)


def test_the_sampled_gradient_is_its_formula() -> None:
    t = torch.randn(30, 4, generator=seeded(0), dtype=torch.float64)
    f = torch.randn(30, generator=seeded(1), dtype=torch.float64)
    together = torch.cov(torch.cat([t, f[:, None]], dim=1).T)
    c, g = together[:4, :4], together[:4, 4]
    assert_close(sampled_gradient(t, f, coordinates="eta"), g)
    for alpha in (0.0, 0.2, 10.0):
        damped = (1 + alpha) * torch.linalg.inv(c + alpha * torch.eye(4)) @ g
        assert_close(sampled_gradient(t, f, alpha), damped, REGRESSION)
        with pytest.raises(AssertionError):  # negative control: the plain gradient
            assert_close(g, damped, 1e-3)
    centred = torch.linalg.pinv(t[:3] - t[:3].mean(0))  # too few rows: the shortest solution
    assert_close(sampled_gradient(t[:3], f[:3]), centred @ (f[:3] - f[:3].mean()), REGRESSION)


def test_sampled_gradients_are_those_of_sums_within_their_errors() -> None:
    found = []
    for seed in range(200):
        x = RING.sample(THETA, 400, seeded(seed))
        t = RING.statistics(x)
        natural, plain = (sampled_gradient(t, other(x), coordinates=c) for c in ("theta", "eta"))
        found.append(torch.cat([natural, plain]))
    draws, slope = torch.stack(found), torch.func.grad(mean(other))(THETA)
    exact = torch.cat([torch.linalg.solve(RING.fisher(THETA), slope), slope])
    errors = draws.std(0) / math.sqrt(len(draws))
    errors[:5] += (exact[:5].abs() / 400 + 0.01) / STANDARD_ERRORS  # a quotient's bias: ~ 1 / N
    assert ((draws.mean(0) - exact).abs() < STANDARD_ERRORS * errors).all()
    assert ((draws.mean(0) - exact.roll(1)).abs() > STANDARD_ERRORS * errors).any()


def test_ranks_stand_for_values() -> None:
    values = torch.tensor([3.0, -1.0, 7.0, 0.5, 2.0], dtype=torch.float64)
    logs = torch.tensor([1, 3, 1, 1.5, 1], dtype=torch.float64).log()  # of 3 / rank, at least 0
    expected = -5 * logs / logs.sum()
    assert_close(ranked(values), expected)
    assert_close(ranked(values.exp() * 9), expected)  # any increasing function
    tied = ranked(torch.tensor([1.0, 0.0, 0.0, 5.0]).double())
    assert tied[1] == tied[2] < tied[0] <= tied[3]
    assert_close(tied.mean(), torch.tensor(-1.0))
    assert_close(ranked(torch.tensor([6, -1, 7, 2, 5])).double(), expected, 1e-6)  # whole numbers
    assert (ranked(-values) - expected).abs().max() > 1  # negative control


def test_steps_of_a_spanned_function_are_exact_ones() -> None:
    steps = relax(spanned, RING, THETA, 0.1, 60, rng=seeded(0))
    path = descend(mean(spanned), RING.fisher, THETA, 0.1, 5)
    for exact in path[1:]:
        assert_close(next(steps)[2], exact, REGRESSION)
    six = RING.states[[0, 1, 2, 4, 7, 3]]  # n + 1 points suffice
    assert_close(sampled_gradient(RING.statistics(six), spanned(six)), SLOPES, REGRESSION)
    wrong = next(relax(other, RING, THETA, 0.1, 60, rng=seeded(0)))[2]  # negative control
    exact = descend(mean(other), RING.fisher, THETA, 0.1, 1)[1]
    assert (wrong - exact).norm() > 0.001


@pytest.mark.parametrize("family", [MultivariateGaussian(2), MultivariateGaussian(3, [(0, 1)])])
def test_a_step_in_moments_is_straight_in_mu_and_sigma(family: MultivariateGaussian) -> None:
    start = family.from_moments(Moments(torch.ones(family.size), torch.eye(family.size))).double()
    move = 0.1 * torch.randn(family.dimension, generator=seeded(0), dtype=torch.float64)
    here = family.expectation(start)
    before, slope = torch.func.jvp(family.expected_moments, (here,), (move,))
    there = [family.expectation(family.moved(start, move, name)) for name in ("moments", "eta")]
    straight, bent = (family.expected_moments(eta).covariance - before.covariance for eta in there)
    kept = family.where < len(family.rows)
    assert_close(straight[kept], slope.covariance[kept])
    assert (bent - slope.covariance)[kept].abs().max() > 0.001  # the control


@pytest.mark.parametrize("coordinates", ["theta", "eta", "moments"])
def test_a_quadratic_function_ends_at_its_minimum(coordinates: str) -> None:
    chain = MultivariateGaussian(3, [(0, 1), (1, 2)])
    place = torch.tensor([0.5, -1.0, 2.0]).double()

    def f(x: Tensor) -> Tensor:
        gaps = x - place
        return (gaps.square() * torch.tensor([1.0, 9, 4])).sum(-1) + gaps[:, 0] * gaps[:, 1]

    start = chain.from_moments(Moments(torch.zeros(3).double(), torch.eye(3).double()))
    steps = relax(f, chain, start, 0.3, 60, 0.0, coordinates, ranked, seeded(0))
    *_, (_, values, theta) = itertools.islice(steps, 40)
    assert values.min() < 1e-3 and (chain.moments(theta).mean - place).norm() < 0.05
    assert f(torch.zeros(1, 3).double()) > 1  # where it began


def test_a_step_out_of_the_family_is_halved() -> None:
    line = MultivariateGaussian(1)
    start = torch.tensor([0.0, -0.5], dtype=torch.float64)
    one = torch.ones(1, requires_grad=True)  # as of a module
    step = next(relax(lambda x: -x[:, 0].square() * one, line, start, 0.7, 20, rng=seeded(0)))
    assert_close(step[2], torch.tensor([0, -0.5 + 0.7 / 2]).double(), 1e-7)  # not 0.2
    assert not step[2].requires_grad
    assert not line.contains(line.natural(torch.tensor([2.0, 4.0]).double()))  # no variance


@pytest.mark.parametrize(
    ("message", "options"),
    {
        "coordinates must be one of theta, eta, got 'mu'": {"coordinates": "mu"},
        "steps in eta invert no matrix": {"coordinates": "eta", "damping": 0.1},
        "rate must be a number above 0": {"rate": 0.0},
        "damping must be a number of at least 0": {"damping": -1.0},
        "samples must be a whole number of at least 2": {"samples": 1},
        "the objective must give 9 finite numbers": {"objective": lambda x: x.sum(-1) / 0},
        "objective must give 9 finite": {"objective": lambda x: x},
        "start must be a theta": {"start": THETA[:1]},
        "start must be": {"start": THETA * math.nan},
        "no part of a step": {"weigh": lambda values: values * 1e300, "rate": 1e300},
    }.items(),
)
def test_mistakes_have_messages(message: str, options: dict[str, object]) -> None:
    given = {"objective": spanned, "family": RING, "start": THETA, "rate": 1.0, "samples": 9}
    look: Any = next if {"objective", "weigh"} & {*options} else id  # others before a first step
    with pytest.raises(UserError, match=message):
        look(relax(**given | options))  # type: ignore[arg-type]
