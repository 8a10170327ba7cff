r"""An autoencoder of one hidden unit, after Pascanu & Bengio 2014.

One input x, one hidden unit, one output: z = w tanh(w x + b), the weight w in both layers. With a
Gaussian output of unit variance the loss is the squared error, and the Fisher matrix is the
pullback J^T J of the outputs' Euclidean metric, averaged over the inputs.
"""

from functools import cache

import torch
from torch import Tensor

from nws.worlds.descent import descend
from nws.worlds.metrics import Metric, euclidean, pullback

INPUTS = torch.tensor([-0.5, 0.25, 0.5, 1.0, 1.5], dtype=torch.float64)
START = torch.tensor([-0.2, 2.4], dtype=torch.float64)  # (w, b)
RATES, DAMPINGS = (0.1, 0.5, 1.0), (1.0, 0.01)
#: the four paths that are drawn: kind, rate, damping
PATHS = (("plain", 0.1, 0.0), ("natural", 1.0, 1.0), ("natural", 0.5, 0.01), ("natural", 0.1, 0.01))


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
    below = (error(points) - least() < bound).nonzero()
    return int(below[0]) if len(below) else -1


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
