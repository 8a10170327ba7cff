r"""Stochastic relaxation by Gaussians (Malagò & Pistone 2015).

A polynomial f is replaced by its mean F = E[f(x)] under N(mu, sigma^2), which is maximised over mu
and sigma. Where F is linear in the expectation parameters, for quadratic f, the natural flow is a
straight line in theta:

    theta(t) = theta(0) + t dF/deta
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from nws.worlds.descent import descend, flow
from nws.worlds.gaussian import Moments, MultivariateGaussian
from nws.worlds.metrics import Metric, euclidean

POLYNOMIALS = {"parabola": (0, 1, -3), "quartic": (0, 6, 8, -1, -2)}  # of x^0, x^1, ...
LINE, PLANE = MultivariateGaussian(1), MultivariateGaussian(2)
CURVATURE = torch.tensor([[26.0, 24.0], [24.0, 26.0]], dtype=torch.float64) / 2  # 1 and 25
START = torch.tensor([-3.0, 1.0], dtype=torch.float64)


def moments(point: Tensor) -> Moments:
    """Those of a point (mu, sigma)."""
    return Moments(point[..., :1], point[..., 1:, None].square())


def mean_of(name: str) -> Callable[[Moments], Tensor]:
    """E[f] of a polynomial: E[x^n] = mu E[x^{n-1}] + (n - 1) sigma^2 E[x^{n-2}]."""
    coefficients = POLYNOMIALS[name]

    def mean(given: Moments) -> Tensor:
        mu, variance = given.mean[..., 0], given.covariance[..., 0, 0]
        powers = [torch.ones_like(mu), mu]
        for n in range(2, len(coefficients)):
            powers.append(mu * powers[-1] + (n - 1) * variance * powers[-2])
        return sum((c * power for c, power in zip(coefficients, powers, strict=True)), 0 * mu)

    return mean


def loss(name: str, coordinates: str) -> Callable[[Tensor], Tensor]:
    """-E[f] as a function of (mu, sigma), or of theta."""
    mean, read = mean_of(name), moments if coordinates == "(mu, sigma)" else LINE.moments
    return lambda point: -mean(read(point))


def paths(name: str, kind: str, starts: Tensor, times: Tensor) -> Tensor:
    """Flows from points (mu, sigma) in (mu, sigma): (T, B, 2).

    Args:
        name: Of the polynomial.
        kind: "plain in (mu, sigma)", "plain in theta" or "natural".
        starts: (B, 2).
        times: (T,).
    """
    if kind == "plain in (mu, sigma)":
        return flow(loss(name, "(mu, sigma)"), euclidean, starts, times)
    metric: Metric = LINE.fisher if kind == "natural" else euclidean
    thetas = flow(loss(name, "theta"), metric, LINE.from_moments(moments(starts)), times)
    mean, covariance = LINE.moments(thetas)
    return torch.cat([mean, covariance[..., 0].sqrt()], dim=-1)


def variance_power(kind: str) -> float:
    """p of sigma^2 ~ t^p at late times, for the parabola: from t = 1e4 to 1e5."""
    start = torch.tensor([[-1.0, 1.0]], dtype=torch.float64)
    times = torch.tensor([0.0, 1e4, 1e5], dtype=torch.float64)
    sigma = paths("parabola", kind, start, times)[:, 0, 1]
    return float(2 * (sigma[2] / sigma[1]).log10())


def grid() -> Tensor:
    """Starts of the quartic: mu from -2.5 to 2.5, sigma from 0.25 to 1.5, 11 x 6 of them."""
    axes = torch.linspace(-2.5, 2.5, 11), torch.linspace(0.25, 1.5, 6)
    return torch.cartesian_prod(*(axis.double() for axis in axes))


def share_at_optimum(kind: str) -> float:
    """The share of these starts that end at the higher maximum, sqrt(2), of the quartic."""
    ends = paths("quartic", kind, grid(), torch.tensor([0.0, 5.0], dtype=torch.float64))
    return float((ends[-1, :, 0] > 0).double().mean())


# --- two dimensions -------------------------------------------------------------------------------


def quadratic_in_eta(eta: Tensor) -> Tensor:
    """E[x^T H x] / 2 in two dimensions, H with the eigenvalues 1 and 25: linear in eta."""
    mean, covariance = PLANE.expected_moments(eta)
    second = covariance + mean[..., :, None] * mean[..., None, :]
    return (CURVATURE * second).sum((-2, -1)) / 2


def quadratic(theta: Tensor) -> Tensor:
    """The same in theta."""
    return quadratic_in_eta(PLANE.expectation(theta))


def natural_steps(rate: float, steps: int) -> Moments:
    """Natural steps in theta from N(START, I): each adds rate H to the precision."""
    start = PLANE.from_moments(Moments(START, torch.eye(2, dtype=torch.float64)))
    return PLANE.moments(descend(quadratic, PLANE.fisher, start, rate, steps))


def plain_means(rate: float, steps: int) -> Tensor:
    """Means of plain steps in (mu, Sigma), mu <- mu - rate H mu: (steps + 1, 2)."""
    return descend(lambda mu: mu @ CURVATURE @ mu / 2, euclidean, START, rate, steps)


def steps_until(means: Tensor, share: float = 1e-2) -> int:
    """The first step at which the mean is within this share of its first distance."""
    distances = means.norm(dim=-1)
    return int((distances < share * distances[0]).nonzero()[0])


@cache
def facts() -> dict[str, float]:
    """The numbers of docs/worlds/gaussian_relaxation.md."""
    start = torch.tensor([[-1.0, 1.0]], dtype=torch.float64)
    late = torch.tensor([0.0, 2.0], dtype=torch.float64)
    kinds = ("plain in (mu, sigma)", "plain in theta", "natural")
    sigma = {kind: float(paths("parabola", kind, start, late)[-1, 0, 1]) for kind in kinds}
    return {
        **{f"parabola, sigma at time 2, {kind}": value for kind, value in sigma.items()},
        "parabola, p of sigma^2 ~ t^p, plain in theta": variance_power("plain in theta"),
        "parabola, p of sigma^2 ~ t^p, natural": variance_power("natural"),
        "quartic, starts that end at sqrt(2), plain in (mu, sigma)": share_at_optimum(kinds[0]),
        "quartic, starts that end at sqrt(2), natural": share_at_optimum("natural"),
        "quadratic, plain steps until 1% is left, rate 0.075": steps_until(plain_means(0.075, 200)),
        "quadratic, natural steps until 1% is left, rate 1": steps_until(
            natural_steps(1.0, 100).mean
        ),
        "quadratic, natural steps until 1% is left, rate 100": steps_until(
            natural_steps(100.0, 5).mean
        ),
    }
