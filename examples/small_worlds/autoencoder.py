r"""An autoencoder of one hidden unit, after Pascanu & Bengio 2014.

One input x, one hidden unit, one output: z = w tanh(w x + b), the weight w in both layers. With a
Gaussian output of unit variance the loss is the squared error, and the Fisher matrix is the
pullback J^T J of the outputs' Euclidean metric, averaged over the inputs.
"""

from functools import cache

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from nws.geometry import descend, euclidean, pullback
from nws.geometry.metrics import Metric
from small_worlds import drawing, first

INPUTS = torch.tensor([-0.5, 0.25, 0.5, 1.0, 1.5], dtype=torch.float64)
START = torch.tensor([-0.2, 2.4], dtype=torch.float64)  # (w, b)
RATES, DAMPINGS = (0.1, 0.5, 1.0), (1.0, 0.01)
#: the four paths that are drawn: kind, rate, damping
PATHS = {
    ("plain", 0.1, 0.0): drawing.PLAIN,
    ("natural", 1.0, 1.0): drawing.THIRD,
    ("natural", 0.5, 0.01): drawing.NATURAL,
    ("natural", 0.1, 0.01): drawing.FOURTH,
}


def outputs(parameters: Tensor) -> Tensor:
    """z / sqrt(N) of the N inputs, so that squares sum to a mean: (..., N)."""
    w, b = parameters[..., :1], parameters[..., 1:]
    return w * torch.tanh(w * INPUTS + b) / len(INPUTS) ** 0.5


def error(parameters: Tensor) -> Tensor:
    """E[(z - x)^2] / 2 of parameters (..., 2)."""
    return (outputs(parameters) - INPUTS / len(INPUTS) ** 0.5).square().sum(-1) / 2


@cache
def path(kind: str, rate: float, damping: float) -> Tensor:
    """Descent from START, plain or natural, 110 / rate steps: (steps + 1, 2)."""
    metric: Metric = pullback(outputs) if kind == "natural" else euclidean
    return descend(error, metric, START, rate, round(110 / rate), damping)


@cache
def least() -> float:
    """The least error, at the end of natural descent."""
    return float(error(path("natural", 0.5, 0.01)[-1]))


def steps_until(points: Tensor, bound: float = 1e-3) -> int:
    """The first step within a bound of the least error, or -1."""
    return first(error(points) - least() < bound)


@cache
def facts() -> dict[str, float]:
    """The numbers of docs/worlds/autoencoder.md."""
    found = {"error at the start": float(error(START)), "least error": least()}
    for rate in RATES:
        found[f"steps, plain, rate {rate:g}"] = steps_until(path("plain", rate, 0.0))
        for damping in DAMPINGS:
            steps = steps_until(path("natural", rate, damping))
            found[f"steps, natural, rate {rate:g}, damping {damping:g} I"] = steps
    return found


# --- the figure -----------------------------------------------------------------------------------


def draw() -> Figure:
    """The paths over (w, b), and the error by steps."""
    figure = drawing.new_figure(6.8, 3.3)
    left, right = figure.subplots(1, 2)
    levels = np.concatenate([[0.0, 0.02], np.geomspace(0.028, 4, 17)])
    drawing.surface(left, error, (-1.1, 2.0), (-1.5, 3.0), levels)
    names = {}
    for (kind, rate, damping), style in PATHS.items():
        points = path(kind, rate, damping)
        drawing.line(left, points, style, arrow=0.35)
        gap = error(points) - least()
        shown = int((gap > 1e-6).sum())
        right.plot(np.arange(1, shown + 1), gap[:shown], **style)
        text = f", damping {damping:g} I".replace(" 1 I", " I") if damping else ""
        names[f"{kind}, rate {rate:g}{text}"] = style
    drawing.dot(left, START)
    drawing.star(left, path("natural", 0.5, 0.01)[-1])
    left.set(xlabel="w", ylabel="b", title="paths on the error surface")
    right.set(xscale="log", yscale="log", xlabel="step", ylabel="error above the least one")
    right.set(title="error by steps", ylim=(1e-6, 1))
    right.grid(True)
    drawing.legend(figure, names, 2)
    return figure
