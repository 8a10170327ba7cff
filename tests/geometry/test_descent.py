"""Metrics, steepest descent, flows, proximal steps and geodesics against formulas."""

import math

import pytest
import torch
from cases import assert_close
from small_worlds.half_plane import exponential, fisher_rao_distance, fisher_rao_geodesic
from torch import Tensor

from nws.errors import UserError
from nws.geometry import hessian
from nws.geometry.descent import descend, flow, gradient_in, proximal_step
from nws.geometry.families import IndependentUnits
from nws.geometry.gaussian import Moments, MultivariateGaussian
from nws.geometry.geodesics import christoffel, gaussian_curvature, geodesics
from nws.geometry.metrics import euclidean, fisher, mahalanobis, pullback

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
    jacobian = torch.tensor([[2 * X[0], 0.0], [X[1], X[0]]]).double()
    outputs = pullback(lambda x: torch.stack([x[0] ** 2, x[0] * x[1]]), mahalanobis(A))
    assert_close(outputs(X), jacobian.mT @ A @ jacobian)
    assert_close(fisher(BITS)(X), torch.diag(X.sigmoid() * (1 - X.sigmoid())))
    eta = BITS.expectation(X)
    assert_close(fisher(BITS, BITS.natural)(eta), BITS.dual_fisher(eta))


def test_steps_are_those_of_the_formula() -> None:
    path = descend(quadratic, mahalanobis(2 * A), X, rate=0.5, steps=3)
    assert_close(path, torch.stack([X * 0.75**k for k in range(4)]))
    damped = descend(quadratic, euclidean, X, rate=0.5, steps=1, damping=0.25)
    assert_close(damped[1], X - 0.5 / 1.25 * A @ X)
    batch = descend(quadratic, mahalanobis(2 * A), torch.stack([X, -X]), rate=0.5, steps=3)
    assert_close(batch[:, 1], -path)
    kept = descend(quadratic, euclidean, X, 0.5, 4, project=lambda x: x.clamp(0.1, 1))
    assert (kept[1:] >= 0.1).all()


def test_flows_are_their_exponentials() -> None:
    times, starts = torch.linspace(0, 2, 5).double(), torch.stack([X, X.flip(0)])
    path = flow(quadratic, euclidean, starts, times)
    expected = torch.stack([starts @ torch.linalg.matrix_exp(-A * t) for t in times])
    assert_close(path, expected, FLOW)
    assert_close(flow(quadratic, euclidean, X, times)[:, 0], expected[:, 0], FLOW)  # one start
    newton = flow(quadratic, hessian(quadratic), starts, times)
    assert_close(newton, torch.stack([starts * math.exp(-t) for t in times]), FLOW)
    with pytest.raises(AssertionError):  # negative control
        assert_close(newton, expected, FLOW)
    for wrong in (times[:1], times.flip(0)):
        with pytest.raises(UserError, match="times must rise"):
            flow(quadratic, euclidean, X, wrong)


def test_the_proximal_step_is_the_implicit_one() -> None:
    inverse = torch.linalg.inv(torch.eye(2) + 0.7 * A)
    assert_close(proximal_step(quadratic, X, 0.7), inverse @ X, FLOW)


def test_the_proximal_step_in_kl_is_the_natural_step_to_first_order() -> None:
    def loss(theta: Tensor) -> Tensor:
        x, y = BITS.expectation(theta)
        return x**3 + x * y - 2 * y

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


# --- univariate Gaussians, in (mu, log sigma) -----------------------------------------------------

LINE = MultivariateGaussian(1)


def theta(point: Tensor) -> Tensor:
    return LINE.from_moments(Moments(point[:1], (2 * point[1:, None]).exp()))


def test_the_gaussians_are_a_half_plane_of_curvature_minus_one_half() -> None:
    half_plane = fisher(LINE, theta)
    expected = torch.diag(torch.stack([(-2 * X[1]).exp(), torch.tensor(2.0).double()]))
    assert_close(half_plane(X), expected)
    assert_close(gaussian_curvature(half_plane, X), torch.tensor(-0.5))


def test_the_geodesic_of_the_equation_is_the_half_circle() -> None:
    p, q = torch.tensor([[-2.0, 0.5], [1.0, 0.8]], dtype=torch.float64)
    circle = fisher_rao_geodesic(p, q, 21)
    length = fisher_rao_distance(p, q)
    assert_close(circle[[0, -1]], torch.stack([p, q]))
    assert_close(fisher_rao_distance(circle[:-1], circle[1:]), length.expand(20) / 20)
    near, times = fisher_rao_geodesic(p, q, 1_000_001)[:3], torch.linspace(0, 1, 21).double()
    log = torch.stack([near[:, 0], near[:, 1].log()], dim=-1)
    velocity = (4 * log[1] - 3 * log[0] - log[2]) / 2e-6  # at p, to second order
    path = geodesics(fisher(LINE, theta), log[:1], velocity[None], times)[:, 0]
    assert_close(torch.stack([path[:, 0], path[:, 1].exp()], dim=-1), circle, FLOW)
    with pytest.raises(AssertionError):  # negative control: a straight line in these coordinates
        assert_close(torch.lerp(log[0], path[-1], times[:, None])[:, 0], circle[:, 0], 0.1)


def test_the_exponential_map_follows_the_geodesic() -> None:
    p = torch.tensor([[-2.0, 0.5], [1.0, 0.8], [0.3, 1.0]]).double()
    velocity = torch.tensor([[1.2, 0.4], [-0.3, -0.7], [0.0, 0.6]]).double()
    in_log = torch.stack([velocity[:, 0], velocity[:, 1] / p[:, 1]], dim=-1)
    start = torch.stack([p[:, 0], p[:, 1].log()], dim=-1)
    end = geodesics(fisher(LINE, theta), start, in_log, torch.tensor([0.0, 1]).double())[-1]
    found = exponential(p, velocity)
    assert_close(torch.stack([found[:, 0], found[:, 1].log()], dim=-1), end, FLOW)
    length = ((velocity[:, 0].square() + 2 * velocity[:, 1].square()) / p[:, 1].square()).sqrt()
    assert_close(fisher_rao_distance(p, found), length)
    far = exponential(p[2], torch.tensor([0.0, 40.0]).double())  # straight up
    assert_close(far[1].log(), torch.tensor(40.0))
    assert (found - p - velocity).norm(dim=-1).min() > 0.01  # negative control: a straight line


@pytest.mark.parametrize(
    ("message", "mistake"), {
        "symmetric and positive definite": lambda: mahalanobis(-A),
        "rate must be a number above 0": lambda: descend(quadratic, euclidean, X, 0.0, 1),
        "damping must be a number of at least 0, got nan":
            lambda: descend(quadratic, euclidean, X, 1.0, 1, damping=math.nan),
        "steps must be": lambda: descend(quadratic, euclidean, X, 1.0, 0),
        "the metric is singular after 0 steps":
            lambda: descend(quadratic, pullback(lambda x: x[:1]), X, 1.0, 1),
        "rate must be a number above 0, got -2": lambda: proximal_step(quadratic, X, -2.0),
        "found no minimum": lambda: proximal_step(lambda x: -100 * x.square().sum(), X, 1.0),
        "the flow ends before the time 1": lambda: flow(  # infinite at the time 1 / 3
            lambda x: -(x[0] ** 3), euclidean, torch.ones(1, 1).double(), torch.tensor([0.0, 1])
        ),
    }.items(),
)  # fmt: skip
def test_mistakes_have_messages(message: str, mistake: object) -> None:
    with pytest.raises(UserError, match=message):
        mistake()  # type: ignore[operator]
