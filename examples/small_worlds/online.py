r"""Online maximum likelihood: one example at a time, at the rates alpha_k = 1 / k.

The natural gradient of log p(x; eta) is T(x) - eta, in every exponential family. So the step

    eta_k = eta_{k-1} + (T(x_k) - eta_{k-1}) / k

is the running mean of T, whose error is the Cramer-Rao bound at every k (Amari 1998, section 4). It
is mirror descent, too: the gradient in theta is taken from eta = dA / dtheta.
"""

from functools import cache, partial

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.func import grad

from nws.geometry import IndependentUnits, Moments, MultivariateGaussian, descend, proximal_step
from small_worlds import drawing
from small_worlds.half_plane import from_moments

BITS = IndependentUnits("binary", 2)
TRUTH = torch.tensor([0.5, 0.05], dtype=torch.float64)  # eta: a common bit and a rare one
FISHER = BITS.fisher(BITS.natural(TRUTH)).diagonal()  # of theta; that of eta is its inverse
RUNS, STEPS = 2000, 4000
FACTORS = (4.0, 12.0, 21.0, 60.0)  # c of the plain rates c / (c + k)


def error(eta: Tensor) -> Tensor:
    """(eta - eta*) . F (eta - eta*), F of eta, its mean over runs (R, 2); at best 2 / k."""
    return ((eta - TRUTH).square() / FISHER).sum(-1).mean(-1)


@cache
def errors() -> dict[str, Tensor]:
    """k times the error of each method after k examples: (STEPS,); plain: (FACTORS, STEPS)."""
    rng = torch.Generator().manual_seed(0)
    factors = torch.tensor(FACTORS, dtype=torch.float64)[:, None, None]
    eta, theta = torch.zeros(RUNS, 2, dtype=torch.float64), torch.zeros(1, RUNS, 2).double()
    natural, plain = [], []
    for k in range(1, STEPS + 1):
        x = (torch.rand(RUNS, 2, generator=rng, dtype=torch.float64) < TRUTH).double()
        eta = eta + (x - eta) / k
        theta = theta + factors / (factors + k) * (x - BITS.expectation(theta))
        natural.append(k * error(eta))
        plain.append(k * error(BITS.expectation(theta)))
    return {"natural": torch.stack(natural), "plain": torch.stack(plain, dim=1)}


def limit(factor: Tensor) -> Tensor:
    """k times the error of plain steps of rate c / k in the end, where c F_ii > 1 / 2: (...).

    Near the truth theta is an autoregressive process in each coordinate: the sum of
    (c F_ii)^2 / (2 c F_ii - 1). Elsewhere it is infinite.
    """
    share = factor[..., None] * FISHER
    terms = share.square() / (2 * share - 1)
    return terms.where(share > 0.5, torch.inf).sum(-1)


# --- mirror descent -------------------------------------------------------------------------------

LINE = MultivariateGaussian(1)


def gaussian(mean: float, deviation: float) -> Tensor:
    """eta of N(mean, deviation^2)."""
    moments = torch.tensor([[mean], [deviation**2]], dtype=torch.float64)
    return LINE.expectation(LINE.from_moments(Moments(moments[0], moments[1:])))


START, GOAL = gaussian(-1.0, 1.5), gaussian(1.0, 0.7)
RATE, COUNT = 0.2, 16


def loss(theta: Tensor) -> Tensor:
    """Mean of -log p(x; theta) over data whose moments are GOAL, but for a constant, in nats."""
    return LINE.log_partition(theta) - theta @ GOAL


def divergence(theta: Tensor, old: Tensor) -> Tensor:
    """KL(p_old || p_theta), the Bregman divergence of A; infinite where there is no Gaussian."""
    return LINE.kl(old, theta)


def mirror_path() -> Tensor:
    """theta' = argmin g . theta + KL(p_old || p_theta) / rate, found by Newton: eta (T, 2)."""
    theta = [LINE.natural(START)]
    for _ in range(COUNT):
        linear = partial(torch.dot, grad(loss)(theta[-1]))
        theta.append(proximal_step(linear, theta[-1], RATE, divergence))
    return LINE.expectation(torch.stack(theta))


def natural_path(coordinates: str = "eta") -> Tensor:
    """Steps of the natural gradient in "eta" or "theta": eta (T, 2)."""
    if coordinates == "eta":
        return descend(lambda eta: loss(LINE.natural(eta)), LINE.dual_fisher, START, RATE, COUNT)
    path = descend(loss, LINE.fisher, LINE.natural(START), RATE, COUNT)
    return LINE.expectation(path)


def in_plane(eta: Tensor) -> Tensor:
    """(mu, sigma) of eta, (..., 2)."""
    return from_moments(LINE.expected_moments(eta))


@cache
def facts() -> dict[str, float]:
    """The numbers of docs/worlds/online.md."""
    natural, plain = errors()["natural"], errors()["plain"][:, -1]
    ends = zip(FACTORS, plain.tolist(), strict=True)
    grid = torch.logspace(1.1, 2, 9001, dtype=torch.float64)
    return {
        "natural, k = 10": float(natural[9]),
        f"natural, k = {STEPS:,}": float(natural[-1]),
        **{f"plain, c = {c:g}, k = {STEPS:,}": value for c, value in ends},
        "plain, c = 21, limit": float(limit(torch.tensor(21.0).double())),
        "plain, best c": float(grid[limit(grid).argmin()]),
        "plain, best c, limit": float(limit(grid).min()),
    }


# --- the figure -----------------------------------------------------------------------------------


def draw() -> Figure:
    """Errors by examples, errors by the factor of the rate, and mirror descent."""
    figure = drawing.new_figure(6.8, 2.75)
    left, middle, right = figure.subplots(1, 3, subplot_kw={"box_aspect": 1})
    _by_examples(left)
    _by_factor(middle)
    _mirror(right)
    entries = {
        "natural": drawing.NATURAL, "plain in θ": drawing.PLAIN,
        "natural steps in θ": drawing.THIRD, "Cramér-Rao bound": BOUND,
        "mirror descent": CIRCLES,
    }  # fmt: skip
    drawing.legend(figure, entries)
    return figure


BOUND: drawing.Style = {"color": drawing.BLACK, "linestyle": ":", "linewidth": 1}
CIRCLES: drawing.Style = {
    "color": drawing.ORANGE, "marker": "o", "markerfacecolor": "none", "linestyle": "none",
    "markersize": 5,
}  # fmt: skip


def _by_examples(axes: Axes) -> None:
    k = torch.arange(1, STEPS + 1)
    shown = torch.logspace(0, torch.tensor(float(STEPS)).log10(), 200).round().long().unique() - 1
    for c, values in zip(FACTORS, errors()["plain"], strict=True):
        if c in (4, 21):
            axes.plot(k[shown], values[shown], **drawing.PLAIN)
            drawing.note(axes, f"c = {c:g}", (60, 4.2 if c == 21 else 13))
    axes.plot(k[shown], errors()["natural"][shown], **drawing.NATURAL)
    axes.axhline(2, **BOUND)
    axes.set(xscale="log", yscale="log", xlabel="examples k", ylabel="k × error")
    axes.set(title="one example at a time", ylim=(0.9, 100))


def _by_factor(axes: Axes) -> None:
    c = torch.logspace(0.2, 2, 301, dtype=torch.float64)
    axes.plot(c, limit(c), **drawing.PLAIN)
    ends = errors()["plain"][:, -1]
    axes.plot(FACTORS, ends, "o", color=drawing.VERMILION, markersize=4)
    axes.axhline(2, **BOUND)
    axes.axhline(float(errors()["natural"][-1]), **drawing.NATURAL)
    axes.set(xscale="log", yscale="log", ylabel="k × error", ylim=(1.5, 100))
    axes.set(xlabel="c of the rates c / (c + k)", title=f"after {STEPS:,} examples")
    axes.set_xticks(FACTORS, [f"{each:g}" for each in FACTORS])
    axes.minorticks_off()


def _mirror(axes: Axes) -> None:
    drawing.line(axes, in_plane(natural_path()), drawing.NATURAL)
    drawing.line(axes, in_plane(natural_path("theta")), drawing.THIRD, marker=".", markersize=4)
    drawing.line(axes, in_plane(mirror_path()), CIRCLES)
    drawing.dot(axes, in_plane(START))
    drawing.star(axes, in_plane(GOAL))
    axes.set(xlabel="µ", ylabel="σ", title="steps of rate 0.2")
