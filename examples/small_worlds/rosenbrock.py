r"""Rosenbrock's function as a least-squares problem, and a regression in two units of time.

f = |r|^2 / 2 with outputs r = (10 (y - x^2), 1 - x) is half of Rosenbrock's function. The pullback
of the outputs' Euclidean metric is J^T J, so steepest descent in it is the method of Gauss and
Newton. Its flow is a straight line in the outputs: dr/dt = J dx/dt = -r.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from nws.geometry import descend, euclidean, flow, proximal_step, pullback
from nws.geometry.descent import half_squared_distance
from small_worlds import drawing, first

START = torch.tensor([-1.2, 1.0], dtype=torch.float64)


def outputs(x: Tensor) -> Tensor:
    """r = (10 (y - x^2), 1 - x) of points (..., 2)."""
    return torch.stack([10 * (x[..., 1] - x[..., 0].square()), 1 - x[..., 0]], dim=-1)


def half_rosenbrock(x: Tensor) -> Tensor:
    """|r|^2 / 2."""
    return outputs(x).square().sum(-1) / 2


def output_distance(x: Tensor, y: Tensor) -> Tensor:
    """|r(x) - r(y)|^2 / 2."""
    return half_squared_distance(outputs(x), outputs(y))


def proximal_path(
    rate: float, steps: int, divergence: Callable[[Tensor, Tensor], Tensor] = half_squared_distance
) -> Tensor:
    """Exact proximal steps from START, (steps + 1, 2)."""
    path = [START]
    for _ in range(steps):
        path.append(proximal_step(half_rosenbrock, path[-1], rate, divergence))
    return torch.stack(path)


@cache
def plain_path(steps: int = 6500, rate: float = 1 / 1001) -> Tensor:
    """Gradient descent; 1 / 1001 is near the inverse of the largest curvature at the minimum."""
    return descend(half_rosenbrock, euclidean, START, rate, steps)


def pullback_path(rate: float, steps: int) -> Tensor:
    """Steps of steepest descent in the pullback metric J^T J."""
    return descend(half_rosenbrock, pullback(outputs), START, rate, steps)


def pullback_flow(end: float = 8.0, count: int = 201) -> Tensor:
    """Its exact flow, (count, 2)."""
    times = torch.linspace(0, end, count, dtype=torch.float64)
    return flow(half_rosenbrock, pullback(outputs), START[None], times)[:, 0]


def bend(path: Tensor) -> float:
    """The largest distance of a path, in the outputs, from the line from its start to 0."""
    r = outputs(path)
    along = r[0] / r[0].norm()
    return float((r - (r @ along)[:, None] * along).norm(dim=-1).max())


def steps_until(path: Tensor, bound: float = 1e-2) -> int:
    """The first step with f below the bound, or -1."""
    return first(half_rosenbrock(path) < bound)


# --- the same regression in minutes and in seconds ------------------------------------------------

TIMES = torch.tensor([0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0], dtype=torch.float64)  # minutes
NOISE = torch.tensor([0.03, -0.02, 0.02, -0.04, 0.01, 0.03, -0.02], dtype=torch.float64)
GROWN = 2 * (1 - torch.exp(-TIMES)) + NOISE
RATE_START = torch.tensor([1.0, 0.3], dtype=torch.float64)  # a, and k per minute


def predict(parameters: Tensor, times: Tensor) -> Tensor:
    """a (1 - e^{-k t}), the unit of k being one over that of t."""
    return parameters[0] * (1 - torch.exp(-parameters[1] * times))


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
    return flow(loss, space, (RATE_START * units)[None], times)[:, 0] / units


def unit_gap(metric: str) -> float:
    """The largest distance between the two flows at equal times up to 3, in (a, k per minute)."""
    times = torch.linspace(0, 3, 61, dtype=torch.float64)
    paths = [regression_flow(metric, per_minute, times) for per_minute in (1.0, 60.0)]
    return float((paths[0] - paths[1]).norm(dim=-1).max())


@cache
def facts() -> dict[str, float]:
    """The numbers of docs/worlds/rosenbrock.md."""
    whole = pullback_path(1.0, 2)
    return {
        "f at the start": float(half_rosenbrock(START)),
        "f after one pullback step of rate 1": float(half_rosenbrock(whole[1])),
        "f after two pullback steps of rate 1": float(half_rosenbrock(whole[2])),
        "steps until f < 0.01, plain": steps_until(plain_path()),
        "steps until f < 0.01, proximal, rate 0.1": steps_until(proximal_path(0.1, 70)),
        "steps until f < 0.01, proximal in the outputs, rate 1": steps_until(
            proximal_path(1.0, 10, output_distance)
        ),
        "bend in the outputs, plain": bend(plain_path()),
        "bend in the outputs, pullback steps of rate 0.25": bend(pullback_path(0.25, 40)),
        "bend in the outputs, pullback steps of rate 0.05": bend(pullback_path(0.05, 200)),
        "minutes against seconds, largest gap, plain": unit_gap("plain"),
    }


# --- the figure -----------------------------------------------------------------------------------


LEVELS = (0.0, 0.05, 0.3, 1, 2.5, 6, 12.1, 25, 50, 100, 200, 400)
REGRESSION_LEVELS = (0.0, 0.02, 0.08, 0.2, 0.4, 0.7, 1.1, 1.7, 2.5, 4)


def draw() -> Figure:
    """The parameters, the outputs, and the regression."""
    figure = drawing.new_figure(6.8, 2.8)
    left, middle, right = figure.subplots(1, 3, subplot_kw={"box_aspect": 1})
    squares = {"linestyle": "none", "marker": "s", "markersize": 3.4}
    paths: dict[str, tuple[Tensor, drawing.Style]] = {
        "plain": (plain_path(), drawing.PLAIN),
        "pullback, steps of rate 0.25": (
            pullback_path(0.25, 40), drawing.FOURTH | {"marker": ".", "markersize": 3.5},
        ),
        "pullback, exact flow": (pullback_flow(), drawing.NATURAL),
        "proximal, rate 1": (
            proximal_path(1.0, 30), drawing.THIRD | {"marker": "^", "markersize": 3},
        ),
        "proximal in the outputs, rate 1": (
            proximal_path(1.0, 9, output_distance), drawing.NATURAL | squares,
        ),
    }  # fmt: skip
    drawing.surface(left, half_rosenbrock, (-1.7, 1.4), (-1.1, 1.5), np.array(LEVELS))
    levels = np.linspace(0, 11, 12) ** 2 / 2
    drawing.surface(
        middle, lambda r: r.square().sum(-1) / 2, (-9.5, 5.5), (-0.7, 2.7), levels
    )  # fmt: skip
    for points, style in paths.values():
        drawing.line(left, points, style)
        drawing.line(middle, outputs(points), style)
    for axes, see in ((left, lambda x: x), (middle, outputs)):
        drawing.dot(axes, see(START))
        drawing.star(axes, see(torch.ones(2)))
    left.set(xlabel="x", ylabel="y", title="parameters")
    middle.set(xlabel="$r_1 = 10\\,(y - x^2)$", ylabel="$r_2 = 1 - x$", title="outputs")
    _regression(right)
    drawing.legend(figure, {name: style for name, (_, style) in paths.items()}, 3)
    return figure


def _regression(axes: Axes) -> None:
    times = torch.cat([torch.zeros(1), torch.logspace(-5, 1.7, 201)]).double()

    def loss(parameters: Tensor) -> Tensor:
        a, k = parameters[..., :1], parameters[..., 1:]
        return (a * (1 - torch.exp(-k * TIMES)) - GROWN).square().sum(-1) / 2

    drawing.surface(axes, loss, (0.7, 2.9), (0.0, 3.4), np.array(REGRESSION_LEVELS))
    minutes, seconds = (regression_flow("plain", unit, times) for unit in (1.0, 60.0))
    drawing.line(axes, minutes, drawing.PLAIN, arrow=0.4)
    drawing.line(axes, seconds, drawing.PLAIN | {"linestyle": ":"}, arrow=0.5)
    minutes_too, seconds_too = (regression_flow("pullback", unit, times) for unit in (1.0, 60.0))
    drawing.line(axes, minutes_too, drawing.NATURAL, linewidth=3.4, alpha=0.35)
    drawing.line(axes, seconds_too, drawing.NATURAL, arrow=0.5)
    drawing.note(axes, "plain,\nseconds", (1.06, 1.9))
    drawing.note(axes, "plain,\nminutes", (1.62, 0.25))
    drawing.note(axes, "pullback,\nboth", (1.28, 1.0))
    drawing.dot(axes, RATE_START)
    drawing.star(axes, minutes[-1])
    axes.set(xlabel="a", ylabel="k per minute", title="regression $a\\,(1 - e^{-kt})$")
