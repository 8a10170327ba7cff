"""Figure: steepest descent on a quadratic function in three Mahalanobis metrics."""

import numpy as np
import torch
from matplotlib.figure import Figure

from nws.worlds import unit_balls as world
from nws.worlds.figures.drawing import (
    BLACK,
    NATURAL,
    PLAIN,
    THIRD,
    dot,
    legend,
    line,
    new_figure,
    star,
    surface,
)  # fmt: skip

BALL = {"color": BLACK, "linestyle": "-", "linewidth": 0.9}
TITLES = {"M = I": "$M = I$", "M = diag(A)": "$M = \\mathrm{diag}(A)$", "M = A": "$M = A$"}


def draw() -> Figure:
    """One panel for each metric: its unit ball at the start, and steps with exact line search."""
    figure = new_figure(6.8, 3.1)
    panels = figure.subplots(1, 3, sharey=True, subplot_kw={"box_aspect": 1})
    styles = PLAIN, THIRD, NATURAL
    levels = float(world.f(world.START)) * np.linspace(0, 2.6, 14) ** 2
    for axes, style, (name, matrix) in zip(panels, styles, world.METRICS.items(), strict=True):
        surface(axes, world.f, (-1.35, 2.05), (-2.75, 0.65), levels)
        radius = 0.45 * float(torch.linalg.det(matrix)) ** 0.25  # balls of the same area
        curve = radius * world.ball(matrix, 400)
        axes.fill(*(world.START + curve).T.numpy(), color=BLACK, alpha=0.07, linewidth=0)
        line(axes, world.START + curve, BALL)
        line(axes, world.line_search_path(matrix), style, marker=".", markersize=4)
        tip = world.START + radius * world.unit_step(world.START, matrix)
        axes.annotate(
            "", tip.tolist(), world.START.tolist(),
            arrowprops={"arrowstyle": "-|>", "color": BLACK, "shrinkA": 0, "shrinkB": 0},
        )  # fmt: skip
        dot(axes, world.START)
        star(axes, (0, 0))
        steps = len(world.line_search_path(matrix)) - 1
        text = f"{TITLES[name]}\n{steps} step{'s' * (steps > 1)} to $10^{{-6}}$ of f"
        axes.set(xlabel="$x_1$", title=text)
    panels[0].set_ylabel("$x_2$")
    names = "ball of the metric, and its steepest step", *world.METRICS
    legend(figure, dict(zip(names, (BALL, *styles), strict=True)))
    return figure
