"""Figure: KL balls, geodesics and three ways between two Gaussians."""

import math

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nws.worlds import univariate_gaussian as world
from nws.worlds.figures.drawing import (
    BLACK,
    NATURAL,
    PLAIN,
    THIRD,
    Style,
    dot,
    legend,
    line,
    new_figure,
    note,
)  # fmt: skip

GREY: Style = {"color": "#9a9a9a", "linestyle": "-", "linewidth": 0.8}
KL: Style = NATURAL
REVERSE: Style = {"color": NATURAL["color"], "linestyle": ":", "linewidth": 1.3}


def draw() -> Figure:
    """Isocontours of KL, geodesics, and densities half way."""
    figure = new_figure(6.8, 2.65)
    left, middle, right = figure.subplots(1, 3, subplot_kw={"box_aspect": 1})
    _balls(left)
    _geodesics(middle)
    _densities(right)
    entries = {
        "geodesic": NATURAL, "straight in η": PLAIN, "straight in θ": THIRD,
        "other geodesics from p": GREY,
    }  # fmt: skip
    legend(figure, entries)
    return figure


def _balls(axes: Axes) -> None:
    mu = torch.linspace(-2.0, 2.4, 241, dtype=torch.float64)
    sigma = torch.linspace(0.05, 4.4, 241, dtype=torch.float64)
    points = torch.stack(torch.meshgrid(mu, sigma, indexing="xy"), dim=-1)
    angles = torch.linspace(0, 2 * math.pi, 121, dtype=torch.float64)
    circle = 0.4 * torch.stack([angles.cos(), angles.sin()], dim=-1)
    for centre in world.CENTRES:
        for values, style in ((world.kl(centre, points), KL), (world.kl(points, centre), REVERSE)):
            axes.contour(
                mu, sigma, values, levels=[0.1], colors=style["color"],
                linestyles=style["linestyle"], linewidths=style["linewidth"],
            )  # fmt: skip
        line(axes, centre + circle, GREY)
        dot(axes, centre)
    names = {"KL(p ‖ q) = 0.1": KL, "KL(q ‖ p) = 0.1": REVERSE, "Euclidean, radius 0.4": GREY}
    handles = [Line2D([], [], label=name, **style) for name, style in names.items()]
    axes.legend(handles=handles, loc="upper left", handlelength=1.8)
    axes.set(xlabel="µ", ylabel="σ", title="balls around p", xlim=(-2.0, 2.4), ylim=(0, 4.4))


def _geodesics(axes: Axes) -> None:
    """A fan of geodesics from one point, and three ways between the two ends."""
    p, q = world.ENDS
    for end in np.linspace(-1.2, 4.6, 10):
        if abs(end - float(q[0])) > 0.2:
            line(axes, world.half_circle(p, torch.tensor([end, 0.04]).double(), 201), GREY)
    line(axes, world.half_circle(p, q), NATURAL, linewidth=2)
    line(axes, world.between("eta", p, q), PLAIN, linewidth=1.5)
    line(axes, world.between("theta", p, q), THIRD, linewidth=1.5)
    for point in world.ENDS:
        dot(axes, point)
    axes.set(xlabel="µ", ylabel="σ", title="geodesics", xlim=(-2.8, 4.4), ylim=(0, 2.6))
    note(axes, "p", (-2.2, 0.42), ha="right")
    note(axes, "q", (2.1, 0.55))


def _densities(axes: Axes) -> None:
    p, q = world.ENDS
    x = torch.linspace(-6, 6, 301, dtype=torch.float64)
    half = {
        "geodesic": (world.half_circle(p, q, 3)[1], NATURAL),
        "eta": (world.between("eta", p, q, 3)[1], PLAIN),
        "theta": (world.between("theta", p, q, 3)[1], THIRD),
    }

    def density(point: torch.Tensor) -> torch.Tensor:
        return world.FAMILY.log_prob(x[:, None], world.theta(world.to_log(point))).exp()

    for end in world.ENDS:
        axes.fill_between(x, density(end), color=BLACK, alpha=0.12, linewidth=0)
    for point, style in half.values():
        axes.plot(x, density(point), **style)
    axes.set(
        xlabel="x", ylabel="density", title="half way", ylim=(0, 0.95), xticks=[-4, -2, 0, 2, 4]
    )
    note(axes, "p", (-2.0, 0.83), ha="center")
    note(axes, "q", (2.0, 0.83), ha="center")
