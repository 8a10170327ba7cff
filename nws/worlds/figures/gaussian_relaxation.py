"""Figure: how mu and sigma move in the stochastic relaxation of three polynomials."""

from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

from nws.worlds import gaussian_relaxation as world
from nws.worlds.figures.drawing import (
    NATURAL,
    PLAIN,
    THIRD,
    dot,
    legend,
    line,
    new_figure,
    note,
    star,
    surface,
)  # fmt: skip

KINDS = {"plain in (mu, sigma)": PLAIN, "plain in theta": THIRD, "natural": NATURAL}
STARTS = {
    "parabola": [[-1.4, 0.9], [1.7, 1.2], [0.4, 1.4]],
    "quartic": [[-2.2, 0.8], [-1.6, 1.4], [-0.5, 0.3], [-0.8, 0.9], [1.9, 1.3]],
}


def draw() -> Figure:
    """Two polynomials in one dimension over (mu, sigma), and a quadratic function in two."""
    figure = new_figure(6.8, 2.65)
    left, middle, right = figure.subplots(1, 3, subplot_kw={"box_aspect": 1})
    _polynomial(left, "parabola", (-1.8, 2.0), np.linspace(-14, 0.1, 19), "$x - 3x^2$")
    star(left, (1 / 6, 0))
    levels = np.concatenate([np.linspace(-120, -10, 8), np.linspace(-6, 14, 11)])
    _polynomial(middle, "quartic", (-2.6, 2.4), levels, "$6x + 8x^2 - x^3 - 2x^4$")
    star(middle, (2**0.5, 0))
    star(middle, (-(2**0.5), 0), "white")
    _quadratic(right)
    names = {"plain in (mu, sigma)": "plain in (µ, σ)", "plain in theta": "plain in θ"}
    legend(figure, {names.get(kind, kind): style for kind, style in KINDS.items()})
    return figure


def _polynomial(
    axes: Axes, name: str, x: tuple[float, float], levels: np.ndarray, title: str
) -> None:
    gain = world.loss(name, "(mu, sigma)")
    surface(axes, gain, x, (0.0, 1.6), -levels[::-1])
    starts = torch.tensor(STARTS[name], dtype=torch.float64)
    times = torch.cat([torch.zeros(1), torch.logspace(-5, 1, 241)]).double()
    for kind, style in KINDS.items():
        paths = world.paths(name, kind, starts, times)
        for k in range(len(starts)):
            line(axes, paths[:, k], style, arrow=0.45)
    for start in starts:
        dot(axes, start)
    axes.set(xlabel="µ", ylabel="σ", title=f"E[f], f = {title}")


def _quadratic(axes: Axes) -> None:
    """Means of natural and plain steps, and the natural covariances as ellipses."""
    x, y = (-4.0, 1.2), (-2.1, 3.1)

    def f(point: torch.Tensor) -> torch.Tensor:
        return (point @ world.CURVATURE * point).sum(-1) / 2

    surface(axes, f, x, y, np.linspace(0, 11, 12) ** 2)
    plain = world.plain_means(0.075, 60)
    line(axes, plain, PLAIN, arrow=0.3, marker=".", markersize=3, linewidth=0.8)
    natural = world.natural_steps(0.1, 120)
    line(axes, natural.mean, NATURAL, arrow=0.5)
    for k in (0, 1, 3, 10, 40):
        look: dict[str, Any] = {"fill": False, "edgecolor": NATURAL["color"], "linewidth": 0.8}
        values, vectors = torch.linalg.eigh(natural.covariance[k])
        angle = float(torch.rad2deg(torch.atan2(vectors[1, 1], vectors[0, 1])))
        small, large = (2 * 0.8 * values.sqrt()).tolist()
        centre = float(natural.mean[k, 0]), float(natural.mean[k, 1])
        axes.add_patch(Ellipse(centre, large, small, angle=angle, alpha=0.8, **look))
        dot(axes, centre, markersize=2.5, color=NATURAL["color"])
    dot(axes, world.START)
    star(axes, (0, 0))
    axes.set(xlabel="$\\mu_1$", ylabel="$\\mu_2$", title="E[f], f = $-x^T H x / 2$")
    note(axes, "ellipses: Σ of natural\nsteps 0, 1, 3, 10 and 40", (-3.7, -1.7))
