r"""Stochastic relaxation by Gaussians (Malagò & Pistone 2015).

A polynomial f is replaced by its mean F = E[f(x)] under N(mu, sigma^2), which is maximised over mu
and sigma. Where F is linear in the expectation parameters, for quadratic f, the natural flow is a
straight line in theta:

    theta(t) = theta(0) + t dF/deta
"""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from torch import Tensor

from nws.geometry import Moments, MultivariateGaussian, descend, euclidean, flow
from nws.geometry.metrics import Metric
from small_worlds import drawing, first
from small_worlds.half_plane import from_moments, to_moments

POLYNOMIALS = {"parabola": (0, 1, -3), "quartic": (0, 6, 8, -1, -2)}  # of x^0, x^1, ...
LINE, PLANE = MultivariateGaussian(1), MultivariateGaussian(2)
CURVATURE = torch.tensor([[26.0, 24.0], [24.0, 26.0]], dtype=torch.float64) / 2  # 1 and 25
START = torch.tensor([-3.0, 1.0], dtype=torch.float64)
KINDS = {
    "plain in (mu, sigma)": drawing.PLAIN,
    "plain in theta": drawing.THIRD,
    "natural": drawing.NATURAL,
}


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
    mean, read = mean_of(name), to_moments if coordinates == "(mu, sigma)" else LINE.moments
    return lambda point: -mean(read(point))


def paths(name: str, kind: str, starts: Tensor, times: Tensor) -> Tensor:
    """Flows from points (mu, sigma) in (mu, sigma): (T, B, 2).

    Args:
        name: Of the polynomial.
        kind: Of `KINDS`.
        starts: (B, 2).
        times: (T,).
    """
    if kind == "plain in (mu, sigma)":
        return flow(loss(name, "(mu, sigma)"), euclidean, starts, times)
    metric: Metric = LINE.fisher if kind == "natural" else euclidean
    thetas = flow(loss(name, "theta"), metric, LINE.from_moments(to_moments(starts)), times)
    return from_moments(LINE.moments(thetas))


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


def quadratic(theta: Tensor) -> Tensor:
    """E[x^T H x] / 2 in two dimensions, H with the eigenvalues 1 and 25: linear in eta."""
    mean, covariance = PLANE.moments(theta)
    return quadratic_of_mean(mean) + (CURVATURE * covariance).sum((-2, -1)) / 2


def quadratic_of_mean(mean: Tensor) -> Tensor:
    """mu^T H mu / 2, the part of it that the mean has."""
    return (mean @ CURVATURE * mean).sum(-1) / 2


def natural_steps(rate: float, steps: int) -> Moments:
    """Natural steps in theta from N(START, I): each adds rate H to the precision."""
    start = PLANE.from_moments(Moments(START, torch.eye(2, dtype=torch.float64)))
    return PLANE.moments(descend(quadratic, PLANE.fisher, start, rate, steps))


def plain_means(rate: float, steps: int) -> Tensor:
    """Means of plain steps in (mu, Sigma), mu <- mu - rate H mu: (steps + 1, 2)."""
    return descend(quadratic_of_mean, euclidean, START, rate, steps)


def steps_until(means: Tensor, share: float = 1e-2) -> float:
    """The first step at which the mean is within this share of its first distance."""
    distances = means.norm(dim=-1)
    return first(distances < share * distances[0])


@cache
def facts() -> dict[str, float]:
    """The numbers of docs/worlds/gaussian_relaxation.md."""
    start = torch.tensor([[-1.0, 1.0]], dtype=torch.float64)
    late = torch.tensor([0.0, 2.0], dtype=torch.float64)
    sigma = {kind: float(paths("parabola", kind, start, late)[-1, 0, 1]) for kind in KINDS}
    few, one = natural_steps(1.0, 100).mean, natural_steps(100.0, 5).mean
    coordinates = "plain in (mu, sigma)"
    return {
        **{f"parabola, sigma at time 2, {kind}": value for kind, value in sigma.items()},
        "parabola, p of sigma^2 ~ t^p, plain in theta": variance_power("plain in theta"),
        "parabola, p of sigma^2 ~ t^p, natural": variance_power("natural"),
        f"quartic, starts that end at sqrt(2), {coordinates}": share_at_optimum(coordinates),
        "quartic, starts that end at sqrt(2), natural": share_at_optimum("natural"),
        "quadratic, plain steps until 1% is left, rate 0.075": steps_until(plain_means(0.075, 200)),
        "quadratic, natural steps until 1% is left, rate 1": steps_until(few),
        "quadratic, natural steps until 1% is left, rate 100": steps_until(one),
    }


# --- the figure -----------------------------------------------------------------------------------


STARTS = {
    "parabola": [[-1.4, 0.9], [1.7, 1.2], [0.4, 1.4]],
    "quartic": [[-2.2, 0.8], [-1.6, 1.4], [-0.5, 0.3], [-0.8, 0.9], [1.9, 1.3]],
}


def draw() -> Figure:
    """Two polynomials in one dimension over (mu, sigma), and a quadratic function in two."""
    figure = drawing.new_figure(6.8, 2.65)
    left, middle, right = figure.subplots(1, 3, subplot_kw={"box_aspect": 1})
    _polynomial(left, "parabola", (-1.8, 2.0), np.linspace(-14, 0.1, 19), "$x - 3x^2$")
    drawing.star(left, (1 / 6, 0))
    levels = np.concatenate([np.linspace(-120, -10, 8), np.linspace(-6, 14, 11)])
    _polynomial(middle, "quartic", (-2.6, 2.4), levels, "$6x + 8x^2 - x^3 - 2x^4$")
    drawing.star(middle, (2**0.5, 0))
    drawing.star(middle, (-(2**0.5), 0), "white")
    _quadratic(right)
    names = ("plain in (µ, σ)", "plain in θ", "natural")
    drawing.legend(figure, dict(zip(names, KINDS.values(), strict=True)))
    return figure


def _polynomial(
    axes: Axes, name: str, x: tuple[float, float], levels: np.ndarray, title: str
) -> None:
    drawing.surface(axes, loss(name, "(mu, sigma)"), x, (0.0, 1.6), -levels[::-1])
    starts = torch.tensor(STARTS[name], dtype=torch.float64)
    times = torch.cat([torch.zeros(1), torch.logspace(-5, 1, 241)]).double()
    for kind, style in KINDS.items():
        for path in paths(name, kind, starts, times).unbind(1):
            drawing.line(axes, path, style, arrow=0.45)
    for start in starts:
        drawing.dot(axes, start)
    axes.set(xlabel="µ", ylabel="σ", title=f"E[f], f = {title}")


def _quadratic(axes: Axes) -> None:
    """Means of natural and plain steps, and the natural covariances as ellipses."""
    levels = np.linspace(0, 11, 12) ** 2
    drawing.surface(axes, quadratic_of_mean, (-4.0, 1.2), (-2.1, 3.1), levels)
    plain, natural = plain_means(0.075, 60), natural_steps(0.1, 120)
    drawing.line(axes, plain, drawing.PLAIN, arrow=0.3, marker=".", markersize=3, linewidth=0.8)
    drawing.line(axes, natural.mean, drawing.NATURAL, arrow=0.5)
    look: drawing.Style = {"fill": False, "edgecolor": drawing.BLUE, "linewidth": 0.8}
    for k in (0, 1, 3, 10, 40):
        values, vectors = torch.linalg.eigh(natural.covariance[k])
        angle = float(torch.rad2deg(torch.atan2(vectors[1, 1], vectors[0, 1])))
        small, large = (2 * 0.8 * values.sqrt()).tolist()
        centre = float(natural.mean[k, 0]), float(natural.mean[k, 1])
        axes.add_patch(Ellipse(centre, large, small, angle=angle, alpha=0.8, **look))
        drawing.dot(axes, centre, markersize=2.5, color=drawing.BLUE)
    drawing.dot(axes, START)
    drawing.star(axes, (0, 0))
    axes.set(xlabel="$\\mu_1$", ylabel="$\\mu_2$", title="E[f], f = $-x^T H x / 2$")
    drawing.note(axes, "ellipses: Σ of natural\nsteps 0, 1, 3, 10 and 40", (-3.7, -1.7))
