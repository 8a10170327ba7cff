"""A regression in minutes and in seconds: a panel of the world of Rosenbrock's function."""

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from nws.geometry import euclidean, flow, pullback
from nws.geometry.descent import half_squared_distance
from small_worlds import drawing

LEVELS = (0.0, 0.02, 0.08, 0.2, 0.4, 0.7, 1.1, 1.7, 2.5, 4)
TIMES = torch.tensor([0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0], dtype=torch.float64)  # minutes
NOISE = torch.tensor([0.03, -0.02, 0.02, -0.04, 0.01, 0.03, -0.02], dtype=torch.float64)
GROWN = 2 * (1 - torch.exp(-TIMES)) + NOISE
START = torch.tensor([1.0, 0.3], dtype=torch.float64)  # a, and k per minute


def predict(parameters: Tensor, times: Tensor) -> Tensor:
    """a (1 - e^{-k t}) of (..., 2), the unit of k being one over that of t: (..., T)."""
    return parameters[..., :1] * (1 - torch.exp(-parameters[..., 1:] * times))


def regression_flow(metric: str, per_minute: float, times: Tensor) -> Tensor:
    """The flow of least squares in a unit of time, told in minutes: (T, 2).

    Args:
        metric: "plain" or "pullback".
        per_minute: Units of time in a minute, 1 or 60.
        times: Of the flow, (T,).
    """
    units = torch.tensor([1.0, 1 / per_minute], dtype=torch.float64)

    def model(parameters: Tensor) -> Tensor:
        return predict(parameters, TIMES * per_minute)

    def loss(parameters: Tensor) -> Tensor:
        return half_squared_distance(model(parameters), GROWN)

    space = pullback(model) if metric == "pullback" else euclidean
    return flow(loss, space, (START * units)[None], times)[:, 0] / units


def unit_gap(metric: str) -> float:
    """The largest distance between the two flows at equal times up to 3, in (a, k per minute)."""
    times = torch.linspace(0, 3, 61, dtype=torch.float64)
    paths = [regression_flow(metric, per_minute, times) for per_minute in (1.0, 60.0)]
    return float((paths[0] - paths[1]).norm(dim=-1).max())


def draw(axes: Axes) -> None:
    """The flows on the surface of the loss."""
    times = torch.cat([torch.zeros(1), torch.logspace(-5, 1.7, 201)]).double()

    def loss(parameters: Tensor) -> Tensor:
        return half_squared_distance(predict(parameters, TIMES), GROWN)

    drawing.surface(axes, loss, (0.7, 2.9), (0.0, 3.4), np.array(LEVELS))
    minutes, seconds = (regression_flow("plain", unit, times) for unit in (1.0, 60.0))
    drawing.line(axes, minutes, drawing.PLAIN, arrow=0.4)
    drawing.line(axes, seconds, drawing.PLAIN | {"linestyle": ":"}, arrow=0.5)
    minutes_too, seconds_too = (regression_flow("pullback", unit, times) for unit in (1.0, 60.0))
    drawing.line(axes, minutes_too, drawing.NATURAL, linewidth=3.4, alpha=0.35)
    drawing.line(axes, seconds_too, drawing.NATURAL, arrow=0.5)
    drawing.note(axes, "plain,\nseconds", (1.06, 1.9))
    drawing.note(axes, "plain,\nminutes", (1.62, 0.25))
    drawing.note(axes, "pullback,\nboth", (1.28, 1.0))
    drawing.dot(axes, START)
    drawing.star(axes, minutes[-1])
    axes.set(xlabel="a", ylabel="k per minute", title="regression $a\\,(1 - e^{-kt})$")
