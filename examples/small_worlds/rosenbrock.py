r"""Rosenbrock's function as a least-squares problem, and a regression in two units of time.

f = |r|^2 / 2 with outputs r = (10 (y - x^2), 1 - x) is half of Rosenbrock's function. The pullback
of the outputs' Euclidean metric is J^T J, so steepest descent in it is the method of Gauss and
Newton. Its flow is a straight line in the outputs: dr/dt = J dx/dt = -r.
"""

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from nws.geometry import descend, euclidean, flow, proximal_step, pullback
from nws.geometry.descent import half_squared_distance
from small_worlds import drawing, first, regression

START = torch.tensor([-1.2, 1.0], dtype=torch.float64)


def outputs(x: Tensor) -> Tensor:
    """r = (10 (y - x^2), 1 - x) of points (..., 2)."""
    return torch.stack([10 * (x[..., 1] - x[..., 0].square()), 1 - x[..., 0]], dim=-1)


def half_rosenbrock(x: Tensor) -> Tensor:
    """|r|^2 / 2."""
    return outputs(x).square().sum(-1) / 2


def output_distance(x: Tensor, y: Tensor) -> Tensor:
    """|r(x) - r(y)|^2 / 2 of points (..., 2), a dissimilarity of parameters."""
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
def plain_path(steps: int = 3300, rate: float = 1 / 501) -> Tensor:
    """Gradient descent; 501 is near the largest curvature at the minimum."""
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


def steps_until(path: Tensor, bound: float = 1e-2) -> float:
    """The first step with f below the bound, or nan."""
    return first(half_rosenbrock(path) < bound)


def second_order(x: Tensor) -> Tensor:
    """d . J^T J d / 2 with d = x - START and J at START: what `output_distance` is nearby."""
    matrix = pullback(outputs)(START)
    return (((x - START) @ matrix) * (x - START)).sum(-1) / 2


def single_steps(rates: Tensor) -> dict[str, Tensor]:
    """The distance in the outputs that one step from START goes: its square / 2, by rates."""
    natural = [pullback_path(rate, 1)[1] for rate in rates.tolist()]
    proximal = [proximal_path(rate, 1, output_distance)[1] for rate in rates.tolist()]
    steps = torch.stack(natural), torch.stack(proximal)
    found = [output_distance(each, START) for each in steps]
    return {
        "natural": found[0],
        "proximal": found[1],
        "natural, to second order": second_order(steps[0]),
    }


@cache
def facts() -> dict[str, float]:
    """The numbers of docs/worlds/rosenbrock.md."""
    whole, steps = pullback_path(1.0, 2), single_steps(torch.ones(1).double())
    return {
        "f at the start": float(half_rosenbrock(START)),
        "f after one pullback step of rate 1": float(half_rosenbrock(whole[1])),
        "f after two pullback steps of rate 1": float(half_rosenbrock(whole[2])),
        "steps until f < 0.01, plain": steps_until(plain_path()),
        "steps until f < 0.01, proximal, rate 0.1": steps_until(proximal_path(0.1, 70)),
        "steps until f < 0.01, proximal in the outputs, rate 1": steps_until(
            proximal_path(1.0, 10, output_distance)
        ),
        "dissimilarity, rate 1, natural": float(steps["natural"]),
        "dissimilarity, rate 1, proximal": float(steps["proximal"]),
        "bend in the outputs, plain": bend(plain_path()),
        "bend in the outputs, pullback steps of rate 0.25": bend(pullback_path(0.25, 40)),
        "bend in the outputs, pullback steps of rate 0.05": bend(pullback_path(0.05, 200)),
        "minutes against seconds, largest gap, plain": regression.unit_gap("plain"),
    }


# --- the figure -----------------------------------------------------------------------------------


LEVELS = (0.0, 0.05, 0.3, 1, 2.5, 6, 12.1, 25, 50, 100, 200, 400)
NEAR = np.linspace(0, 7, 8) ** 2 / 2


PULLBACK = drawing.FOURTH | {"marker": ".", "markersize": 3.5}
SECOND: drawing.Style = {"color": drawing.GREY, "linewidth": 0.9}
IN_OUTPUTS = drawing.NATURAL | {"linestyle": "none", "marker": "s", "markersize": 3.4}


def draw() -> Figure:
    """The parameters, the outputs, the regression; below them the dissimilarity from the start."""
    figure = drawing.new_figure(6.8, 5.2)
    above, below = figure.subplots(2, 3, subplot_kw={"box_aspect": 1})
    paths: dict[str, tuple[Tensor, drawing.Style]] = {
        "plain": (plain_path(), drawing.PLAIN),
        "pullback, steps of rate 0.25": (pullback_path(0.25, 40), PULLBACK),
        "pullback, exact flow": (pullback_flow(), drawing.NATURAL),
        "proximal, rate 1": (
            proximal_path(1.0, 30), drawing.THIRD | {"marker": "^", "markersize": 3},
        ),
        "proximal in the outputs, rate 1 (lower row: 0.25)": (
            proximal_path(1.0, 9, output_distance), IN_OUTPUTS,
        ),
    }  # fmt: skip
    _paths(above[0], above[1], list(paths.values()))
    regression.draw(above[2])
    exact, approximate, single = below
    _from_the_start(exact, partial(output_distance, START), "dissimilarity from the start")
    _from_the_start(approximate, second_order, "its second order")
    _single_steps(single)
    looks = {name: style for name, (_, style) in paths.items()}
    drawing.legend(figure, looks | {"natural step, to second order": SECOND}, 3)
    return figure


def _paths(left: Axes, right: Axes, paths: list[tuple[Tensor, drawing.Style]]) -> None:
    drawing.surface(left, half_rosenbrock, (-1.7, 1.4), (-1.1, 1.5), np.array(LEVELS))
    levels = np.linspace(0, 11, 12) ** 2 / 2
    drawing.surface(right, lambda r: r.square().sum(-1) / 2, (-9.5, 5.5), (-0.7, 2.7), levels)
    for points, style in paths:
        drawing.line(left, points, style)
        drawing.line(right, outputs(points), style)
    for axes, see in ((left, lambda x: x), (right, outputs)):
        drawing.dot(axes, see(START))
        drawing.star(axes, see(torch.ones(2)))
    left.set(xlabel="x", ylabel="y", title="parameters")
    right.set(xlabel="$r_1 = 10\\,(y - x^2)$", ylabel="$r_2 = 1 - x$", title="outputs")


def _from_the_start(axes: Axes, function: Callable[[Tensor], Tensor], title: str) -> None:
    """Contours, and the natural and the proximal path at rate 0.25."""
    drawing.surface(axes, function, (-1.7, 1.4), (-1.1, 1.9), NEAR)
    drawing.line(axes, pullback_path(0.25, 40), PULLBACK)
    drawing.line(axes, proximal_path(0.25, 30, output_distance), IN_OUTPUTS)
    drawing.dot(axes, START)
    drawing.star(axes, torch.ones(2))
    axes.set(xlabel="x", ylabel="y", title=title)


def _single_steps(axes: Axes) -> None:
    rates = torch.logspace(-2, 1, 31, dtype=torch.float64)
    styles = drawing.FOURTH, IN_OUTPUTS, SECOND
    for style, values in zip(styles, single_steps(rates).values(), strict=True):
        axes.plot(rates, values, **style)
    drawing.note(axes, "natural step", (0.9, 3e4), ha="right")
    drawing.note(axes, "proximal step", (0.6, 0.3))
    axes.set(xscale="log", yscale="log", xlabel="rate", ylabel="dissimilarity", title="one step")
