"""Figure: four ways down Rosenbrock's valley, and a regression in minutes and in seconds."""

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nws.worlds import rosenbrock as world
from nws.worlds.figures.drawing import (
    FOURTH,
    NATURAL,
    PLAIN,
    THIRD,
    Style,
    dot,
    legend,
    line,
    new_figure,
    note,
    star,
    surface,
)  # fmt: skip


def draw() -> Figure:
    """The parameters, the outputs, and the regression."""
    figure = new_figure(6.8, 2.8)
    left, middle, right = figure.subplots(1, 3, subplot_kw={"box_aspect": 1})
    proximal = world.proximal_path(1.0, 9, world.output_distance)
    paths: tuple[tuple[torch.Tensor, Style, Style], ...] = (
        (world.plain_path(), PLAIN, {}),
        (world.pullback_path(0.25, 40), FOURTH, {"marker": ".", "markersize": 3.5}),
        (world.pullback_flow(), NATURAL, {}),
        (world.proximal_path(1.0, 30), THIRD, {"marker": "^", "markersize": 3}),
        (proximal, NATURAL | {"linestyle": "none"}, {"marker": "s", "markersize": 3.4}),
    )  # fmt: skip
    surface(left, world.half_rosenbrock, (-1.7, 1.4), (-1.1, 1.5), np.array(LEVELS))
    r = (-9.5, 5.5), (-0.7, 2.7)
    surface(middle, lambda r: r.square().sum(-1) / 2, *r, levels=np.linspace(0, 11, 12) ** 2 / 2)
    for points, style, more in paths:
        line(left, points, style, **more)
        line(middle, world.outputs(points), style, **more)
    for axes, see in ((left, lambda x: x), (middle, world.outputs)):
        dot(axes, see(world.START))
        star(axes, see(torch.ones(2)))
    left.set(xlabel="x", ylabel="y", title="parameters")
    middle.set(xlabel="$r_1 = 10\\,(y - x^2)$", ylabel="$r_2 = 1 - x$", title="outputs")
    _regression(right)
    names = (
        "plain", "pullback, steps of rate 0.25", "pullback, exact flow", "proximal, rate 1",
        "proximal in the outputs, rate 1",
    )  # fmt: skip
    looks = {name: style | more for name, (_, style, more) in zip(names, paths, strict=True)}
    legend(figure, looks, 3)
    return figure


REGRESSION_LEVELS = (0.0, 0.02, 0.08, 0.2, 0.4, 0.7, 1.1, 1.7, 2.5, 4)
LEVELS = (0.0, 0.05, 0.3, 1, 2.5, 6, 12.1, 25, 50, 100, 200, 400)


def _regression(axes: Axes) -> None:
    times = torch.cat([torch.zeros(1), torch.logspace(-5, 1.7, 201)]).double()

    def loss(parameters: torch.Tensor) -> torch.Tensor:
        a, k = parameters[..., :1], parameters[..., 1:]
        return (a * (1 - torch.exp(-k * world.TIMES)) - world.GROWN).square().sum(-1) / 2

    surface(axes, loss, (0.7, 2.9), (0.0, 3.4), np.array(REGRESSION_LEVELS))
    minutes, seconds = (world.regression_flow("plain", unit, times) for unit in (1.0, 60.0))
    line(axes, minutes, PLAIN, arrow=0.4)
    line(axes, seconds, PLAIN | {"linestyle": ":"}, arrow=0.5)
    line(axes, world.regression_flow("pullback", 1.0, times), NATURAL, linewidth=3.4, alpha=0.35)
    line(axes, world.regression_flow("pullback", 60.0, times), NATURAL, arrow=0.5)
    note(axes, "plain,\nseconds", (1.06, 1.9))
    note(axes, "plain,\nminutes", (1.62, 0.25))
    note(axes, "pullback,\nboth", (1.28, 1.0))
    dot(axes, world.RATE_START)
    star(axes, minutes[-1])
    axes.set(xlabel="a", ylabel="k per minute", title="regression $a\\,(1 - e^{-kt})$")
