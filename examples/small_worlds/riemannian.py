r"""Steps along geodesics of the univariate Gaussians, and along straight lines (retractions).

KL(p || q) from p = N(mu, sigma^2) to a fixed q is lowered. All steps have the same velocity, that
of the natural gradient, v = -rate G^{-1} dKL; they part in the line that they follow. The
exponential map follows the geodesic, and a retraction a straight line in some coordinates.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.func import jvp

from nws.geometry import fisher, gradient_in
from small_worlds import drawing, first
from small_worlds.half_plane import exponential, fisher_rao_distance, from_moments
from small_worlds.univariate_gaussian import FAMILY, kl, to_theta

Step = Callable[[Tensor, Tensor], Tensor]  # from a point and a velocity to a point
START = torch.tensor([-2.0, 0.5], dtype=torch.float64)  # (mu, sigma)
TARGET = torch.tensor([1.0, 1.0], dtype=torch.float64)
LINES = {
    "geodesic": drawing.NATURAL,
    "(mu, sigma)": drawing.PLAIN,
    "(mu, log sigma)": drawing.FOURTH,
    "theta": drawing.THIRD,
}
RATES = (0.5, 1.0)


def velocity(point: Tensor) -> Tensor:
    """-G^{-1} dKL in (mu, sigma), that of the rate 1."""
    return -gradient_in(fisher(FAMILY, to_theta), lambda p: kl(p, TARGET), point)


def straight(there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Step:
    """A retraction: the straight line in other coordinates with the same velocity."""

    def retraction(point: Tensor, move: Tensor) -> Tensor:
        return back(there(point) + jvp(there, (point,), (move,))[1])

    return retraction


STEPS: dict[str, Step] = {
    "geodesic": exponential,
    "(mu, sigma)": torch.add,
    "(mu, log sigma)": straight(
        lambda p: torch.stack([p[0], p[1].log()]), lambda p: torch.stack([p[0], p[1].exp()])
    ),
    "theta": straight(to_theta, lambda theta: from_moments(FAMILY.moments(theta))),
}


def descent(line: str, rate: float, steps: int) -> Tensor:
    """Points (mu, sigma) until a step leaves the half-plane, (at most steps + 1, 2)."""
    path = [START]
    for _ in range(steps):
        point = STEPS[line](path[-1], rate * velocity(path[-1]))
        if not point[1] > 0:
            break
        path.append(point)
    return torch.stack(path)


def gap(line: str, rate: float) -> float:
    """The Fisher length from the end of a first step along the geodesic to that of a line."""
    ends = (STEPS[each](START, rate * velocity(START)) for each in ("geodesic", line))
    return float(fisher_rao_distance(*ends))


def steps_until(line: str, rate: float) -> float:
    """The first step with a KL below 1e-3 nats, or nan."""
    return first(kl(descent(line, rate, 20), TARGET) < 1e-3)


@cache
def facts() -> dict[str, float]:
    """The numbers of docs/worlds/riemannian.md."""
    return {
        **{f"steps, rate {rate:g}, {line}": steps_until(line, rate)
           for rate in RATES for line in LINES},
        "gap of rate 0.1 by that of 0.05": gap("(mu, sigma)", 0.1) / gap("(mu, sigma)", 0.05),
    }  # fmt: skip


# --- the figure -----------------------------------------------------------------------------------


def draw() -> Figure:
    """One step of any rate, ten steps, and KL by steps."""
    figure = drawing.new_figure(6.8, 2.65)
    left, middle, right = figure.subplots(1, 3, subplot_kw={"box_aspect": 1})
    for axes in (left, middle):
        _surface(axes)
    rates, speed = torch.linspace(0, 1.5, 61, dtype=torch.float64), velocity(START)
    for line, style in LINES.items():
        ends = torch.stack([STEPS[line](START, rate * speed) for rate in rates])
        drawing.line(left, ends, style)
        for rate in RATES:
            drawing.dot(left, ends[int(rate * 40)], color=style["color"], markersize=3.5)
        path = descent(line, 0.5, 10)
        drawing.line(middle, path, style, marker=".", markersize=4)
        right.semilogy(kl(path, TARGET), **style)
    for axes in (left, middle):
        drawing.dot(axes, START)
        drawing.star(axes, TARGET)
    left.set(title="one step, rates 0 to 1.5; dots: 0.5, 1")
    middle.set(title="ten steps of rate 0.5")
    right.set(xlabel="step", title="KL(p ‖ q), nats, rate 0.5", ylim=(1e-5, 30), xticks=[0, 5, 10])
    names = ("geodesic", "straight in (µ, σ)", "straight in (µ, log σ)", "straight in θ")
    drawing.legend(figure, dict(zip(names, LINES.values(), strict=True)))
    return figure


def _surface(axes: Axes) -> None:
    levels = np.linspace(0.1, 3.0, 13) ** 2
    drawing.surface(axes, lambda p: kl(p, TARGET), (-2.6, 2.2), (0.02, 2.6), levels)
    axes.set(xlabel="µ", ylabel="σ")
