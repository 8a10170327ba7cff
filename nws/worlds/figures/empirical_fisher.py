"""Figure: descent in the true and in the empirical Fisher metric on a logistic regression."""

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch.func import vmap

from nws.worlds import empirical_fisher as world
from nws.worlds.descent import gradient_in
from nws.worlds.figures.drawing import (
    NATURAL,
    PLAIN,
    dot,
    field,
    legend,
    line,
    new_figure,
    star,
    surface,
)  # fmt: skip

STARTS = 3.0, -2.2


def draw() -> Figure:
    """Losses and directions of a right and a wrong model, and how far the matrices are apart."""
    figure = new_figure(6.8, 2.7)
    panels = figure.subplots(1, 3, subplot_kw={"box_aspect": 1})
    for axes, labels in zip(panels, world.LABELS, strict=False):
        _directions(axes, labels)
    _difference(panels[2])
    legend(figure, {"true Fisher matrix F": NATURAL, "empirical Fisher matrix E": PLAIN})
    return figure


def _directions(axes: Axes, labels: str) -> None:
    f, fit = world.loss(world.LABELS[labels]), world.fit(labels)
    (x, y), half = fit.tolist(), 3.2
    low = float(f(fit))
    levels = low + 2.4 * np.linspace(0, 1, 13) ** 2
    surface(axes, f, (x - half, x + half), (y - half, y + half), levels)
    side = torch.linspace(-half, half, 9, dtype=torch.float64)[1:-1]
    points = fit + torch.cartesian_prod(side, side)
    points = points[(points - fit).norm(dim=-1) > 0.1]
    metrics = (world.true_fisher, NATURAL), (world.empirical_fisher(world.LABELS[labels]), PLAIN)
    for metric, style in metrics:
        arrows = vmap(lambda w, metric=metric: -gradient_in(metric, f, w))(points)
        look = {"pivot": "tail", "alpha": 0.55, "width": 0.006, "scale": 16}
        field(axes, points, arrows, color=style["color"], **look)
    for far in STARTS:
        for kind, (_, style) in zip(("true", "empirical"), metrics, strict=True):
            line(axes, world.path(labels, kind, far, 0.05, 150), style)
        dot(axes, world.away(labels, far))
    star(axes, fit)
    axes.set(xlabel="bias $w_1$", ylabel="slope $w_2$", title=labels)


def _difference(axes: Axes) -> None:
    distances = np.linspace(0, 3.5, 71)
    lines = {"right model": "-", "wrong model": (0, (5, 2))}
    for labels, dashes in lines.items():
        values = [world.difference(labels, world.away(labels, float(far))) for far in distances]
        axes.plot(distances, values, color="black", linestyle=dashes, label=labels)
    axes.set(xlabel="distance from the fit", title="|E − F| / |F|", ylim=(0, None), xlim=(0, 3.5))
    axes.legend(loc="upper left")
