"""Metrics, steepest descent, flows, proximal steps and geodesics against formulas."""

from __future__ import annotations

import math

import pytest
import torch
from cases import EXACT, assert_close, seeded
from torch import Tensor

from nws.errors import UserError
from nws.worlds import (
    IndependentUnits,
    descend,
    euclidean,
    fisher,
    flow,
    gradient_in,
    hessian,
    mahalanobis,
    proximal_step,
    pullback,
)  # fmt: skip
from nws.worlds.geodesics import christoffel, gaussian_curvature, geodesics

FLOW = 1e-7  # the solver's local errors of 1e-10, over some hundred steps
A = torch.tensor([[3.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
X = torch.tensor([0.7, -0.4], dtype=torch.float64)
BITS = IndependentUnits("binary", 2)


def quadratic(x: Tensor) -> Tensor:
    return x @ A @ x / 2


def test_each_metric_is_its_formula() -> None:
    assert_close(euclidean(X), torch.eye(2))
    assert_close(mahalanobis(A)(X), A)
    assert_close(hessian(quadratic)(X), A)
    jacobian = torch.tensor([[2 * X[0], 0.0], [X[1], X[0]]])
    outputs = pullback(lambda x: torch.stack([x[0] ** 2, x[0] * x[1]]), mahalanobis(A))
    assert_close(outputs(X), jacobian.mT.double() @ A @ jacobian.double())
    assert_close(fisher(BITS)(X), torch.diag(X.sigmoid() * (1 - X.sigmoid())))


def test_the_fisher_metric_in_other_coordinates_is_that_of_these_coordinates() -> None:
    eta = BITS.expectation(X)
    assert_close(fisher(BITS, BITS.natural)(eta), BITS.dual_fisher(eta))


def test_the_fisher_metric_is_the_second_order_of_kl() -> None:
    step = torch.tensor([1e-4, -2e-4], dtype=torch.float64)
    expected = step @ BITS.fisher(X) @ step / 2
    third_order = float(step.norm()) ** 3
    assert abs(float(BITS.kl(X, X + step) - expected)) < third_order


def test_steps_are_those_of_the_formula() -> None:
    path = descend(quadratic, mahalanobis(2 * A), X, rate=0.5, steps=3)
    assert_close(path, torch.stack([X * 0.75**k for k in range(4)]))
    damped = descend(quadratic, euclidean, X, rate=0.5, steps=1, damping=0.25)
    assert_close(damped[1], X - 0.5 / 1.25 * A @ X)
    batch = descend(quadratic, mahalanobis(2 * A), torch.stack([X, -X]), rate=0.5, steps=3)
    assert_close(batch[:, 1], -path)
    kept = descend(quadratic, euclidean, X, 0.5, 4, project=lambda x: x.clamp(0.1, 1))
    assert (kept[1:] >= 0.1).all()


def test_the_direction_is_steepest_of_all_in_its_unit_ball() -> None:
    metric = mahalanobis(A)
    steepest = -gradient_in(metric, cubic, X)
    steepest = steepest / (steepest @ A @ steepest).sqrt()
    others = torch.randn(1000, 2, generator=seeded(0), dtype=torch.float64)
    others = others / (others @ A * others).sum(-1).sqrt()[:, None]
    slope = torch.func.grad(cubic)(X)
    assert (others @ slope >= steepest @ slope - EXACT).all()
    wrong = -slope / (slope @ A @ slope).sqrt()  # negative control: the plain direction
    assert (others @ slope < wrong @ slope).any()


def cubic(x: Tensor) -> Tensor:
    return x[0] ** 3 + x[0] * x[1] - 2 * x[1]


def test_flows_are_their_exponentials() -> None:
    times, starts = torch.linspace(0, 2, 5).double(), torch.stack([X, X.flip(0)])
    path = flow(quadratic, euclidean, starts, times)
    expected = torch.stack([starts @ torch.linalg.matrix_exp(-A * t) for t in times])
    assert_close(path, expected, FLOW)
    newton = flow(quadratic, hessian(quadratic), starts, times)
    assert_close(newton, torch.stack([starts * math.exp(-t) for t in times]), FLOW)
    with pytest.raises(AssertionError):  # negative control
        assert_close(newton, expected, FLOW)


def test_a_flow_that_ends_says_so() -> None:
    def fall(x: Tensor) -> Tensor:
        return -(x[0] ** 3)  # to infinity at time 1 / 3 from 1

    times = torch.tensor([0.0, 1.0], dtype=torch.float64)
    with pytest.raises(UserError, match="the flow ends before the time 1"):
        flow(fall, euclidean, torch.ones(1, 1).double(), times)


def test_the_proximal_step_is_the_implicit_one() -> None:
    inverse = torch.linalg.inv(torch.eye(2) + 0.7 * A)
    assert_close(proximal_step(quadratic, X, 0.7), inverse @ X, FLOW)


def test_the_proximal_step_in_kl_is_the_natural_step_to_first_order() -> None:
    def loss(theta: Tensor) -> Tensor:
        return cubic(BITS.expectation(theta))

    gaps = []
    for rate in (1e-2, 5e-3):
        exact = proximal_step(loss, X, rate, BITS.kl)
        gaps.append(float((exact - X + rate * gradient_in(BITS.fisher, loss, X)).norm()))
    assert 3.8 < gaps[0] / gaps[1] < 4.2  # an error of second order in the rate
    plain = proximal_step(loss, X, 5e-3) - X + 5e-3 * gradient_in(BITS.fisher, loss, X)
    assert plain.norm() > 100 * gaps[1]  # negative control: the Euclidean one


def sphere(x: Tensor) -> Tensor:
    """(polar angle, longitude) on the unit sphere."""
    return torch.diag(torch.stack([torch.ones_like(x[0]), x[0].sin().square()]))


def test_curvature_and_geodesics_of_the_sphere() -> None:
    assert_close(gaussian_curvature(sphere, X), torch.tensor(1.0))
    gamma = christoffel(sphere, X)
    assert_close(gamma[0, 1, 1], -X[0].sin() * X[0].cos())
    assert_close(gamma[1, 0, 1], X[0].cos() / X[0].sin())
    assert_close(gaussian_curvature(euclidean, X), torch.tensor(0.0))
    start, velocity = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[0.4, 0.9]]).double()
    polar, longitude = geodesics(sphere, start, velocity, torch.linspace(0, 2, 9).double())[:, 0].mT
    x = [polar.sin() * longitude.cos(), polar.sin() * longitude.sin(), polar.cos()]
    on_sphere = torch.stack(x, dim=-1)
    _, _, turned = torch.linalg.svd(on_sphere)
    assert (on_sphere @ turned[2]).abs().max() < FLOW  # a great circle lies in a plane


def test_mistakes_have_messages() -> None:
    with pytest.raises(UserError, match="symmetric and positive definite"):
        mahalanobis(-A)
    with pytest.raises(UserError, match="rate must be a number above 0"):
        descend(quadratic, euclidean, X, 0.0, 1)
    with pytest.raises(UserError, match="damping must be a number of at least 0, got nan"):
        descend(quadratic, euclidean, X, 1.0, 1, damping=math.nan)
    with pytest.raises(UserError, match="steps must be"):
        descend(quadratic, euclidean, X, 1.0, 0)
    with pytest.raises(UserError, match="the metric is singular after 0 steps"):
        descend(quadratic, pullback(lambda x: x[:1]), X, 1.0, 1)
    with pytest.raises(UserError, match="found no minimum"):
        proximal_step(lambda x: -100 * x.square().sum(), X, 1.0)
