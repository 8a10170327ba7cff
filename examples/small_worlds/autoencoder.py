r"""An autoencoder of one hidden unit, after Pascanu & Bengio 2014.

One input x, one hidden unit, one output: z = w tanh(w x + b), the weight w in both layers. With a
Gaussian output of unit variance the loss is half the squared error. The Fisher matrix is the
pullback J^T J of the outputs' Euclidean metric, averaged over the inputs.
"""

from functools import cache

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.func import hessian, jacrev

from nws.geometry import descend, euclidean, pullback
from nws.geometry.descent import half_squared_distance
from nws.geometry.metrics import Metric
from small_worlds import drawing, first

INPUTS = torch.tensor([-0.5, 0.25, 0.5, 1.0, 1.5], dtype=torch.float64)
START = torch.tensor([-0.2, 2.4], dtype=torch.float64)  # (w, b)
RATES = (0.1, 0.5, 1.0)
DAMPING = 0.01  # of all metrics but the plain one
#: the four paths at each rate; later ones lie above
PATHS = {
    "covariance": drawing.FOURTH,
    "plain": drawing.PLAIN,
    "Newton": drawing.THIRD,
    "natural": drawing.NATURAL,
}


def outputs(parameters: Tensor) -> Tensor:
    """z / sqrt(N) of the N inputs, so that squares sum to a mean: (..., N)."""
    w, b = parameters[..., :1], parameters[..., 1:]
    return w * torch.tanh(w * INPUTS + b) / len(INPUTS) ** 0.5


def error(parameters: Tensor) -> Tensor:
    """E[(z - x)^2] / 2 of parameters (..., 2)."""
    return half_squared_distance(outputs(parameters), INPUTS / len(INPUTS) ** 0.5)


def kl_from_start(parameters: Tensor) -> Tensor:
    """KL(start | parameters) of the Gaussian outputs, the mean over the inputs in nats: (...,)."""
    return half_squared_distance(outputs(parameters), outputs(START))


def covariance(parameters: Tensor) -> Tensor:
    """The centred covariance of the gradients of the inputs' errors: (2, 2)."""

    def errors(parameters: Tensor) -> Tensor:
        return (outputs(parameters) * len(INPUTS) ** 0.5 - INPUTS).square() / 2

    gradients = jacrev(errors)(parameters)
    return torch.cov(gradients.mT, correction=0)


METRICS: dict[str, Metric] = {
    "plain": euclidean, "natural": pullback(outputs), "Newton": hessian(error),
    "covariance": covariance,
}  # fmt: skip


@cache
def path(kind: str, rate: float, damping: float = DAMPING) -> Tensor:
    """Descent from START in a metric, 110 / rate steps: (steps + 1, 2). Plain has no damping."""
    damping = 0.0 if kind == "plain" else damping
    return descend(error, METRICS[kind], START, rate, round(110 / rate), damping)


@cache
def least() -> float:
    """The least error, at the end of natural descent."""
    return float(error(path("natural", 0.5)[-1]))


def steps_until(points: Tensor, bound: float = 1e-3) -> float:
    """The first step within a bound of the least error, or nan."""
    return first(error(points) - least() < bound)


@cache
def facts() -> dict[str, float]:
    """The numbers of docs/worlds/autoencoder.md."""
    found = {"error at the start": float(error(START)), "least error": least()}
    found["last error, Newton, rate 0.5"] = float(error(path("Newton", 0.5)[-1]))
    for kind in ("natural", "covariance"):
        found[f"KL of the first step, {kind}, rate 0.1"] = float(kl_from_start(path(kind, 0.1)[1]))
    for rate in RATES:
        found[f"steps, plain, rate {rate:g}"] = steps_until(path("plain", rate))
        found[f"steps, natural, rate {rate:g}"] = steps_until(path("natural", rate))
        identity = path("natural", rate, 1.0)
        found[f"steps, natural, rate {rate:g}, damping 1 I"] = steps_until(identity)
    return found


# --- the figure -----------------------------------------------------------------------------------


def draw() -> Figure:
    """The paths over (w, b), and the KL divergence from the start by steps, at each rate."""
    figure = drawing.new_figure(7.2, 5.0)
    axes = figure.subplots(2, 3, sharey="row")
    levels = np.concatenate([[0.0, 0.02], np.geomspace(0.028, 4, 17)])
    for upper, lower, rate in zip(*axes, RATES, strict=True):
        drawing.surface(upper, error, (-1.9, 2.0), (-1.5, 3.4), levels)
        for kind, style in PATHS.items():
            points = path(kind, rate)
            drawing.line(upper, points, style, arrow=0.35)
            lower.plot(np.arange(1, len(points)), kl_from_start(points[1:]), **style)
        drawing.dot(upper, START)
        drawing.star(upper, path("natural", 0.5)[-1])
        upper.set(xlabel="w", title=f"rate {rate:g}")
        lower.set(xscale="log", yscale="log", xlabel="step", ylim=(1e-3, 10))
        lower.grid(True)
    axes[0][0].set_ylabel("b")
    axes[1][0].set_ylabel("KL from the start (nats)")
    drawing.legend(figure, PATHS)
    return figure
