"""Figure: four paths on the error surface of an autoencoder of one hidden unit."""

import numpy as np
from matplotlib.figure import Figure

from nws.worlds import autoencoder as world
from nws.worlds.figures.drawing import (
    FOURTH,
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

STYLES = PLAIN, THIRD, NATURAL, FOURTH


def draw() -> Figure:
    """The paths over (w, b), and the error by steps."""
    figure = new_figure(6.8, 3.3)
    left, right = figure.subplots(1, 2)
    levels = np.concatenate([[0.0, 0.02], np.geomspace(0.028, 4, 17)])
    surface(left, world.error, (-1.1, 2.0), (-1.5, 3.0), levels)
    names = {}
    for style, (kind, rate, damping) in zip(STYLES, world.PATHS, strict=True):
        points = world.path(kind, rate, damping)
        line(left, points, style, arrow=0.35)
        gap = world.error(points) - world.least()
        shown = int((gap > 1e-6).sum())
        right.plot(np.arange(1, shown + 1), gap[:shown], **style)
        text = f", damping {damping:g} I".replace(" 1 I", " I") if damping else ""
        names[f"{kind}, rate {rate:g}{text}"] = style
    dot(left, world.START)
    star(left, world.path("natural", 0.5, 0.01)[-1])
    left.set(xlabel="w", ylabel="b", title="paths on the error surface")
    right.set(xscale="log", yscale="log", xlabel="step", ylabel="error above the least one")
    right.set(title="error by steps", ylim=(1e-6, 1))
    right.grid(True)
    legend(figure, names, 2)
    return figure
