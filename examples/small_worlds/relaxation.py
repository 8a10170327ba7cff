r"""Stochastic relaxation, F = E_p[f]: with formulas, and from samples (nws/geometry/relaxation.py).

If f is in the span of the statistics T, f = c . T + constant, then dF/deta = c, and the natural
flow is a straight line that leads to the minimum of f from everywhere:

    theta(t) = theta(0) - t c
"""

from functools import cache

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from nws.geometry import (
    Categorical,
    ExponentialFamily,
    Interactions,
    Moments,
    MultivariateGaussian,
    euclidean,
    flow,
    gradient_in,
    sampled_gradient,
)
from nws.geometry.metrics import Metric
from small_worlds import drawing, first, two_bits
from small_worlds.gaussian_relaxation import KINDS

# --- a quadratic function of two variables --------------------------------------------------------

PLANE = MultivariateGaussian(2)
SLOPES = torch.tensor([1.0, 2.0, -3.0, -2.0, -2.0], dtype=torch.float64)  # of f on T
COVARIANCE = torch.tensor([[1.0, -0.5], [-0.5, 2.0]], dtype=torch.float64)
MAXIMUM = torch.tensor([0.0, 0.5], dtype=torch.float64)
MEANS = torch.tensor([[-2.0, -1.5], [-2.0, 1.5], [1.8, 2.2], [2.0, -1.0], [0.0, -2.0]]).double()


def quadratic(x: Tensor) -> Tensor:
    """x1 + 2 x2 - 3 x1^2 - 2 x1 x2 - 2 x2^2 of points (..., 2), to be maximised."""
    return PLANE.statistics(x) @ SLOPES


def means(kind: str, times: Tensor) -> Tensor:
    """Those along the flows from `MEANS` with the covariance `COVARIANCE`: (T, B, 2)."""
    if kind == "plain in (mu, sigma)":  # there mu moves as if there were no Sigma
        return flow(lambda mean: -quadratic(mean), euclidean, MEANS, times)
    metric: Metric = PLANE.fisher if kind == "natural" else euclidean
    starts = PLANE.from_moments(Moments(MEANS, COVARIANCE.expand(len(MEANS), 2, 2)))
    path = flow(lambda theta: -SLOPES @ PLANE.expectation(theta), metric, starts, times)
    return PLANE.moments(path).mean


# --- two bits, in the span or not -----------------------------------------------------------------

PAIR = Interactions(2, [(0,), (1,), (0, 1)])


PAIR_SLOPES = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)  # of x1 + 2 x2 + 3 x1 x2


def pair_starts(side: int = 5) -> Tensor:
    """The independent bits of `two_bits.grid` among all distributions of two bits, in theta."""
    fields = two_bits.BITS.natural(two_bits.grid(side)) / 2  # of spins -1 and 1
    return torch.cat([fields, torch.zeros_like(fields[:, :1])], dim=-1)


def in_the_span(times: Tensor, side: int = 5) -> Tensor:
    """E[f] along the natural flows from these, straight lines: (T, side^2)."""
    thetas = pair_starts(side) - times[:, None, None] * PAIR_SLOPES
    return PAIR.expectation(thetas) @ PAIR_SLOPES


# --- polarisation ---------------------------------------------------------------------------------

GROUPS = Categorical(3)
CORNERS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 0.75**0.5]], dtype=torch.float64)


def shares(theta: Tensor) -> Tensor:
    """(p_0, p_1, p_2) of a point, (..., 3)."""
    eta = GROUPS.expectation(theta)
    return torch.cat([1 - eta.sum(-1, keepdim=True), eta], dim=-1)


def polarisation(p: Tensor) -> Tensor:
    """sum_i p_i^2 (1 - p_i) of (..., 3): 1/4 for two equal groups, 2/9 for three, 0 for one."""
    return (p.square() * (1 - p)).sum(-1)


def populations(count: int = 8) -> Tensor:
    """A grid of starts within the triangle, as theta: (B, 2)."""
    cells = [(i, j) for i in range(1, count) for j in range(1, count - i)]
    return GROUPS.natural(torch.tensor(cells, dtype=torch.float64) / count)


def polarised(kind: str, times: Tensor, starts: Tensor) -> Tensor:
    """Flows that raise the polarisation, as (p_0, p_1, p_2): (T, B, 3)."""
    metric: Metric = GROUPS.fisher if kind == "natural" else euclidean
    return shares(flow(lambda theta: -polarisation(shares(theta)), metric, starts, times))


def time_to_polarise(kind: str, end: float) -> float:
    """The time at which the flow from shares 1/2, 3/8 and 1/8 has come within 1e-3 of 1/4."""
    start = GROUPS.natural(torch.tensor([[0.375, 0.125]], dtype=torch.float64))
    times = torch.linspace(0, end, 4001, dtype=torch.float64)
    return first(polarisation(polarised(kind, times, start)[:, 0]) > 0.25 - 1e-3) * end / 4000


# --- sampled against exact ------------------------------------------------------------------------

SPINS = Interactions(4, [(0,), (1,), (2,), (3,), (0, 1), (1, 2), (2, 3), (0, 3)])
THETA = torch.tensor([0.3, -0.2, 0.1, 0.4, 0.5, -0.4, 0.3, 0.2], dtype=torch.float64)
COUNTS = [12, 30, 100, 300, 1000, 3000, 10000, 30000]
ERRORS = {
    "in η": drawing.PLAIN,
    "in θ, f not spanned": drawing.THIRD,
    "in θ, f spanned by T": drawing.NATURAL,
}


def energy(x: Tensor, spanned: bool) -> Tensor:
    """Of four spins: the ring's interactions, and that of all four where it is not spanned."""
    ring = x[..., 0] - x[..., 2] + (x * x.roll(1, -1) * torch.tensor([1, -2, 1, 1])).sum(-1)
    return ring if spanned else ring + x.prod(-1) + x[..., 0] * x[..., 2]


def exact(family: ExponentialFamily, theta: Tensor, spanned: bool, coordinates: str) -> Tensor:
    """The natural gradient by a sum over all states, (n,)."""
    assert isinstance(family, Interactions)
    values = energy(family.states, spanned)

    def mean(point: Tensor) -> Tensor:
        return family.log_prob(family.states, point).exp() @ values

    metric: Metric = family.fisher if coordinates == "theta" else euclidean
    return gradient_in(metric, mean, theta)


@cache
def error(name: str, count: int, draws: int = 50) -> float:
    """|sampled - exact| / |exact|, the root of its mean square over the draws."""
    spanned, coordinates = "not" not in name, "theta" if "θ" in name else "eta"
    expected = exact(SPINS, THETA, spanned, coordinates)
    rng, squares = torch.Generator().manual_seed(count), []
    for _ in range(draws):
        x = SPINS.sample(THETA, count, rng)
        t, values = SPINS.statistics(x), energy(x, spanned)
        found = sampled_gradient(t, values, coordinates=coordinates)
        squares.append((found - expected).square().sum())
    return float((torch.stack(squares).mean() / expected.square().sum()).sqrt())


@cache
def facts() -> dict[str, float]:
    """The numbers of docs/worlds/relaxation.md."""
    times = torch.tensor([0.0, 1.0], dtype=torch.float64)
    left = {kind: (means(kind, times)[-1, 0] - MAXIMUM).norm() for kind in KINDS}
    spanned = in_the_span(torch.tensor([8.0]).double(), 20)[-1] < -3.9
    ends = torch.tensor([0.0, 60.0], dtype=torch.float64)
    at_quarter = polarisation(polarised("natural", ends, populations())[-1]) > 0.249
    return {
        **{f"quadratic, {kind}": float(gap) for kind, gap in left.items()},
        "two bits, minimum, with x1 x2": float(spanned.double().mean()),
        "polarisation, starts at 1/4": float(at_quarter.double().mean()),
        **{f"polarisation, time, {kind}": time_to_polarise(kind, end)
           for kind, end in {"natural": 40.0, "plain in theta": 4000.0}.items()},
        **{f"error, N = {count}": error("in θ, f not spanned", count) for count in (100, 10000)},
        "error, N = 100, spanned": error("in θ, f spanned by T", 100),
    }  # fmt: skip


# --- the figure -----------------------------------------------------------------------------------


def draw() -> Figure:
    """Four panels: the quadratic function, two bits, polarisation, and errors by sample size."""
    figure = drawing.new_figure(5.9, 5.9)
    (quadratics, bits), (triangle, errors) = figure.subplots(2, 2, subplot_kw={"box_aspect": 1})
    _quadratic(quadratics)
    _two_bits(bits)
    _polarisation(triangle)
    _errors(errors)
    names = ("plain in (µ, Σ)", "plain in θ", "natural")
    drawing.legend(figure, dict(zip(names, KINDS.values(), strict=True)))
    return figure


def _quadratic(axes: Axes) -> None:
    drawing.surface(
        axes, quadratic, (-2.6, 2.6), (-2.6, 2.6), -(np.linspace(7, -0.8, 14)[:-1] ** 2)
    )
    times = torch.cat([torch.zeros(1), torch.logspace(-5, 1.5, 201)]).double()
    for kind, style in KINDS.items():
        for path in means(kind, times).unbind(1):
            drawing.line(axes, path, style, arrow=0.4)
    for mean in MEANS:
        drawing.dot(axes, mean)
    drawing.star(axes, MAXIMUM)
    axes.set(xlabel="$\\mu_1$", ylabel="$\\mu_2$", title="E[f] of a quadratic f, raised")


def _two_bits(axes: Axes) -> None:
    times = torch.linspace(0, 3, 121, dtype=torch.float64)
    independent = two_bits.mean_in_eta(two_bits.distributions("natural in theta", 5, 3.0, 121))
    looks = {
        "independent bits": (independent, drawing.PLAIN),
        "with $x_1 x_2$": (in_the_span(times), drawing.NATURAL),
    }
    for name, (values, style) in looks.items():
        for k, path in enumerate(values.unbind(1)):
            axes.plot(times, path, label=name if k == 0 else None, **(style | {"linewidth": 0.9}))
    axes.legend(loc="upper right")
    axes.set(xlabel="time", ylabel="E[f]", title="natural flows on two bits", ylim=(-4.3, 6.0))


def _polarisation(axes: Axes) -> None:
    side = torch.linspace(0, 1, 241, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(side, side, indexing="xy"), dim=-1)
    inside = grid.sum(-1) <= 1
    p = torch.cat([1 - grid.sum(-1, keepdim=True), grid], dim=-1)[inside]
    places = (p @ CORNERS).numpy()
    axes.tricontourf(
        places[:, 0], places[:, 1], polarisation(p).numpy(), levels=14, cmap=drawing.LOW_IS_DARK
    )
    axes.fill(*CORNERS.T.numpy(), fill=False, linewidth=0.6)
    times = torch.cat([torch.zeros(1), torch.logspace(-2, 1.7, 161)]).double()
    for kind in ("plain in theta", "natural"):
        for path in polarised(kind, times, populations()).unbind(1):
            drawing.line(axes, path @ CORNERS, KINDS[kind], arrow=0.5, linewidth=0.9)
    for start in shares(populations()):
        drawing.dot(axes, start @ CORNERS, markersize=2.4)
    for k in range(3):
        drawing.star(axes, (CORNERS[k] + CORNERS[k - 1]) / 2)
    drawing.dot(axes, CORNERS.mean(0), marker="X", markersize=6)
    axes.set(xlim=(-0.06, 1.06), ylim=(-0.13, 0.99), xticks=[], yticks=[])
    axes.set(title="polarisation of three groups, raised")
    axes.spines[["left", "bottom"]].set_visible(False)


def _errors(axes: Axes) -> None:
    for name, style in ERRORS.items():
        values = [max(error(name, count), 1e-17) for count in COUNTS]
        axes.loglog(COUNTS, values, label=name, marker="o", markersize=2.5, **style)
    axes.legend(loc="center right", handlelength=1.6)
    axes.set(xlabel="samples N", title="error of the sampled gradient", ylim=(1e-17, 30))
