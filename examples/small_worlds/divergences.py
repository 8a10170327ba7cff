r"""How far apart are two models? A distance of functions, and the divergences of convex functions.

The distance of two regressors is that of their outputs at some inputs. A Bregman divergence is the
gap between a convex phi and its tangent, B(x, y) = phi(x) - phi(y) - phi'(y)(x - y); near y it is
half a square in the metric phi''(y).
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from nws.geometry import bregman, pullback
from small_worlds import drawing

Map = Callable[[Tensor], Tensor]

INPUTS = torch.tensor([0.5, 1.7, 2.5, 3.3], dtype=torch.float64)
REGRESSORS = torch.tensor([[1.0, 1.4], [1.6, 0.6]], dtype=torch.float64)  # (a, k)


def predict(parameters: Tensor, inputs: Tensor = INPUTS) -> Tensor:
    """a tanh(k x), at all inputs."""
    return parameters[0] * torch.tanh(parameters[1] * inputs)


def function_distance(p: Tensor, q: Tensor) -> float:
    """The square root of sum_i (f_p(x_i) - f_q(x_i))^2."""
    return float((predict(p) - predict(q)).norm())


def pullback_length(p: Tensor, step: Tensor) -> float:
    """Its second-order approximation for a step from p: sqrt(d . J^T J d)."""
    return float((step @ pullback(predict)(p) @ step).sqrt())


class Divergence(NamedTuple):
    """A convex function of positive numbers, (...) to (...)."""

    potential: Map  # phi
    slope: Map  # phi'
    metric: Map  # phi''

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """B(x, y) of numbers, (...)."""
        x, y = torch.broadcast_tensors(x, y)
        return bregman(lambda v: self.potential(v[..., 0]), self.slope, x[..., None], y[..., None])

    def near(self, x: Tensor, y: Tensor) -> Tensor:
        """phi''(y) (x - y)^2 / 2."""
        return self.metric(y) * (x - y).square() / 2


DIVERGENCES = {
    "squared error": Divergence(lambda x: x.square() / 2, lambda x: x, torch.ones_like),
    "KL": Divergence(lambda x: x * x.log() - x, torch.log, torch.reciprocal),
    "Itakura-Saito": Divergence(
        lambda x: -x.log(), lambda x: -1 / x, lambda x: 1 / x.square()
    ),
}  # fmt: skip
ONE, TWO = torch.tensor([1.0, 2.0], dtype=torch.float64)


@cache
def facts() -> dict[str, float]:
    """The numbers of docs/worlds/divergences.md."""
    p, q = REGRESSORS
    step = q - p
    turned = torch.stack([step[0], -step[1]])
    found = {
        "step in (a, k)": float(step.norm()),
        "distance at four points": function_distance(p, q),
        "to second order": pullback_length(p, step),
        "distance, k the other way": function_distance(p, p + turned),
        "to second order, k the other way": pullback_length(p, turned),
    }
    for name in ("KL", "Itakura-Saito"):
        found[f"{name}: B(1, 2)"] = float(DIVERGENCES[name](ONE, TWO))
        found[f"{name}: B(2, 1)"] = float(DIVERGENCES[name](TWO, ONE))
    return found


# --- the figure -----------------------------------------------------------------------------------


STYLES = dict(zip(DIVERGENCES, (drawing.PLAIN, drawing.NATURAL, drawing.THIRD), strict=True))
FINE: drawing.Style = {"linestyle": "-", "linewidth": 0.7}


def draw() -> Figure:
    """Two regressors, a gap to a tangent, and three divergences from one point."""
    figure = drawing.new_figure(6.8, 2.65)
    left, middle, right = figure.subplots(1, 3, subplot_kw={"box_aspect": 1})
    _regressors(left)
    _gap(middle)
    _divergences(right)
    drawing.legend(figure, STYLES | {"second order": {"color": drawing.GREY} | FINE})
    return figure


def _regressors(axes: Axes) -> None:
    x = torch.linspace(0, 3.8, 201, dtype=torch.float64)
    for parameters, name in zip(REGRESSORS, "pq", strict=True):
        axes.plot(x, predict(parameters, x), color=drawing.BLACK, linewidth=1.2)
        at = float(predict(parameters, x)[-1])
        drawing.note(axes, f"$f_{name}$", (3.86, at), va="center")
    low, high = (predict(each) for each in REGRESSORS)
    axes.vlines(INPUTS, low, high, color=drawing.ORANGE, linewidth=2)
    for each in (low, high):
        axes.plot(INPUTS, each, "o", color=drawing.BLACK, markersize=3.4)
    drawing.note(axes, "four differences", (1.55, 0.55))
    axes.set(xlabel="x", ylabel="output", title="two regressors", xlim=(0, 4.3), ylim=(0, 1.75))


def _gap(axes: Axes) -> None:
    kl = DIVERGENCES["KL"]
    x, y = torch.tensor([0.4, 1.9], dtype=torch.float64)
    line = torch.linspace(0.005, 3, 301, dtype=torch.float64)

    def tangent(at: Tensor) -> Tensor:
        return kl.potential(y) + kl.slope(y) * (at - y)

    axes.plot(line, kl.potential(line), **drawing.NATURAL)
    axes.plot(line, tangent(line), color=drawing.BLACK, linewidth=0.9)
    axes.vlines([float(x)], float(tangent(x)), float(kl.potential(x)), color=drawing.ORANGE, lw=2)
    for point, name, side in ((x, "x", -0.12), (y, "y", 0.12)):
        height = float(kl.potential(point))
        drawing.dot(axes, (float(point), height))
        drawing.note(axes, name, (float(point) + side, height - 0.12), ha="center")
    drawing.note(axes, "B(x, y)", (0.45, -1.17))
    drawing.note(axes, "tangent at y", (1.05, -1.55))
    title = "$\\phi = x\\,\\log x - x$ and its tangent"
    axes.set(xlabel="x", ylabel="$\\phi$", title=title, xlim=(0, 3), ylim=(-2.0, 0.3))


def _divergences(axes: Axes) -> None:
    x = torch.linspace(0.05, 5, 301, dtype=torch.float64)
    for name, divergence in DIVERGENCES.items():
        axes.plot(x, divergence.near(x, TWO), **(STYLES[name] | FINE), alpha=0.6)
        axes.plot(x, divergence(x, TWO), **STYLES[name])
    drawing.dot(axes, (2, 0), clip_on=False)
    axes.set(xlabel="x", ylabel="B(x, 2)", title="divergences from 2", xlim=(0, 5), ylim=(0, 2))
