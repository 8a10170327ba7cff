r"""Steepest descent on a quadratic function in Mahalanobis metrics.

The direction of steepest descent of f = x^T A x in the metric M is the step d that lowers f most to
first order in the unit ball d^T M d <= 1: d ~ -M^{-1} A x. With M = A it points to the minimum.
"""

import math
from functools import cache

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from nws.geometry import gradient_in, mahalanobis
from small_worlds import drawing

A = torch.tensor([[3.0, 1.4], [1.4, 0.8]], dtype=torch.float64)
START = torch.tensor([0.55, -1.6], dtype=torch.float64)
METRICS = {
    "M = I": torch.eye(2, dtype=torch.float64),
    "M = diag(A)": torch.diag(torch.diagonal(A)),
    "M = A": A,
}


def f(x: Tensor) -> Tensor:
    """x^T A x of points (..., 2)."""
    return (x @ A * x).sum(-1)


def unit_step(x: Tensor, matrix: Tensor) -> Tensor:
    """The steepest step of length 1 in the metric M."""
    d = -gradient_in(mahalanobis(matrix), f, x)
    return d / (d @ matrix @ d).sqrt()


def ball(matrix: Tensor, count: int = 400) -> Tensor:
    """The steps of length 1 in the metric M, a closed curve: (count, 2)."""
    angles = torch.arange(count, dtype=torch.float64) * (2 * math.pi / count)
    circle = torch.stack([angles.cos(), angles.sin()], dim=-1)
    return circle / (circle @ matrix * circle).sum(-1).sqrt()[:, None]


def line_search_path(matrix: Tensor, bound: float = 1e-6) -> Tensor:
    """Steps of steepest descent to the least f along the line, until f < bound f(START)."""
    path = [START]
    while f(path[-1]) > bound * f(START):
        d = unit_step(path[-1], matrix)
        path.append(path[-1] - (d @ A @ path[-1]) / (d @ A @ d) * d)
    return torch.stack(path)


def condition(matrix: Tensor) -> float:
    """The condition number of M^{-1/2} A M^{-1/2}, the curvature of f as the metric sees it."""
    values = torch.linalg.eigvals(torch.linalg.solve(matrix, A)).real
    return float(values.max() / values.min())


def angle_to_minimum(matrix: Tensor) -> float:
    """Degrees between the steepest step at START and the way to the minimum."""
    d = unit_step(START, matrix)
    across = abs(float(d[0] * START[1] - d[1] * START[0]))
    return math.degrees(math.atan2(across, -float(d @ START)))


@cache
def facts() -> dict[str, float]:
    """The numbers of docs/worlds/unit_balls.md."""
    found: dict[str, float] = {}
    for name, matrix in METRICS.items():
        found[f"condition number, {name}"] = condition(matrix)
        found[f"angle to the minimum in degrees, {name}"] = angle_to_minimum(matrix)
        found[f"steps with exact line search until f falls a millionfold, {name}"] = (
            len(line_search_path(matrix)) - 1
        )
    return found


# --- the figure -----------------------------------------------------------------------------------


BALL: drawing.Style = {"color": drawing.BLACK, "linestyle": "-", "linewidth": 0.9}
TITLES = {"M = I": "$M = I$", "M = diag(A)": "$M = \\mathrm{diag}(A)$", "M = A": "$M = A$"}


def draw() -> Figure:
    """One panel for each metric: its unit ball at the start, and steps with line search."""
    figure = drawing.new_figure(6.8, 3.1)
    panels = figure.subplots(1, 3, sharey=True, subplot_kw={"box_aspect": 1})
    styles = drawing.PLAIN, drawing.THIRD, drawing.NATURAL
    levels = float(f(START)) * np.linspace(0, 2.6, 14) ** 2
    for axes, style, (name, matrix) in zip(panels, styles, METRICS.items(), strict=True):
        drawing.surface(axes, f, (-1.35, 2.05), (-2.75, 0.65), levels)
        radius = 0.45 * float(torch.linalg.det(matrix)) ** 0.25  # balls of the same area
        curve = radius * ball(matrix)
        axes.fill(*(START + curve).T.numpy(), color=drawing.BLACK, alpha=0.07, linewidth=0)
        drawing.line(axes, START + curve, BALL)
        drawing.line(axes, line_search_path(matrix), style, marker=".", markersize=4)
        tip = START + radius * unit_step(START, matrix)
        axes.annotate(
            "", tip.tolist(), START.tolist(),
            arrowprops={"arrowstyle": "-|>", "color": drawing.BLACK, "shrinkA": 0, "shrinkB": 0},
        )  # fmt: skip
        drawing.dot(axes, START)
        drawing.star(axes, (0, 0))
        steps = len(line_search_path(matrix)) - 1
        text = f"{TITLES[name]}\n{steps} step{'s' * (steps > 1)} to $10^{{-6}}$ of f"
        axes.set(xlabel="$x_1$", title=text)
    panels[0].set_ylabel("$x_2$")
    names = "ball of the metric, and its steepest step", *METRICS
    drawing.legend(figure, dict(zip(names, (BALL, *styles), strict=True)))
    return figure
