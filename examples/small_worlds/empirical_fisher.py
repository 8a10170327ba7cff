r"""True and empirical Fisher matrix of a logistic regression (Kunstner, Hennig & Balles 2019).

With p(y = 1 | x) = s(w . x), gradients g = (s - y) x of the loss, and labels of probability q(x),

    F = E_x[s (1 - s) x x^T]         labels from the model,
    E = E_x[(q (1 - s)^2 + (1 - q) s^2) x x^T]   labels from the data.

They agree where q = s: at the fit of a model that is right. All expectations are exact here, over
inputs (1, z) on a grid.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.func import vmap

from nws.geometry import descend, gradient_in
from nws.geometry.metrics import Metric
from nws.models.units import Binary
from small_worlds import drawing, first

UNIT = Binary()
GRID = torch.linspace(-2, 2, 41, dtype=torch.float64)
INPUTS = torch.stack([torch.ones_like(GRID), GRID], dim=-1)  # (41, 2): the bias, and z
TRUE = torch.tensor([0.5, 1.5], dtype=torch.float64)
LABELS = {  # the probability of y = 1 at each input
    "right model": UNIT.mean(INPUTS @ TRUE),
    "wrong model": 0.9 * torch.exp(-((GRID - 0.8) ** 2) / 0.5),  # a bump, which no line fits
}


def loss(q: Tensor) -> Callable[[Tensor], Tensor]:
    """The expected cross-entropy A(a) - q a, in nats, as a function of w."""

    def mean(w: Tensor) -> Tensor:
        a = (INPUTS * w[..., None, :]).sum(-1)
        return (UNIT.log_partition(a) - q * a).mean(-1)

    return mean


def true_fisher(w: Tensor) -> Tensor:
    """E_x[A''(a) x x^T]; for logistic regression also the Hessian of the loss."""
    weights = UNIT.curvature(UNIT.mean(INPUTS @ w))
    return INPUTS.mT @ (weights[:, None] * INPUTS) / len(INPUTS)


def empirical_fisher(q: Tensor) -> Metric:
    """E[g g^T] with labels of probability q."""

    def matrix(w: Tensor) -> Tensor:
        s = UNIT.mean(INPUTS @ w)
        weights = q * (1 - s).square() + (1 - q) * s.square()
        return INPUTS.mT @ (weights[:, None] * INPUTS) / len(INPUTS)

    return matrix


@cache
def fit(labels: str) -> Tensor:
    """The minimum of the loss, by Newton's method."""
    start = torch.zeros(2, dtype=torch.float64)
    return descend(loss(LABELS[labels]), true_fisher, start, 1.0, 30)[-1]


def difference(labels: str, w: Tensor) -> float:
    """|E - F| / |F| in the Frobenius norm."""
    true = true_fisher(w)
    return float((empirical_fisher(LABELS[labels])(w) - true).norm() / true.norm())


def directions(labels: str, w: Tensor) -> tuple[Tensor, Tensor]:
    """The directions of descent in the true and in the empirical metric."""
    f = loss(LABELS[labels])
    empirical = empirical_fisher(LABELS[labels])
    return -gradient_in(true_fisher, f, w), -gradient_in(empirical, f, w)


def compare(labels: str, w: Tensor) -> tuple[float, float]:
    """Degrees between the two directions, and the empirical length over the true one."""
    true, empirical = directions(labels, w)
    cosine = (true @ empirical) / (true.norm() * empirical.norm())
    ratio = float(empirical.norm() / true.norm())
    return float(torch.rad2deg(torch.acos(cosine.clamp(-1, 1)))), ratio


def path(labels: str, kind: str, far: float, rate: float = 0.1, steps: int = 120) -> Tensor:
    """Descent from a distance of the fit in the "true" or "empirical" metric: (steps + 1, 2)."""
    q = LABELS[labels]
    metric: Metric = true_fisher if kind == "true" else empirical_fisher(q)
    return descend(loss(q), metric, away(labels, far), rate, steps)


def steps_until_fit(labels: str, kind: str, far: float, bound: float = 1e-3) -> float:
    """Steps of rate 0.1 until the loss is within a bound (nats) of the least one."""
    f = loss(LABELS[labels])
    return first(f(path(labels, kind, far)) - f(fit(labels)) < bound)


def away(labels: str, far: float) -> Tensor:
    """A point at a distance from the fit, along (-1, -2) / sqrt(5)."""
    way = torch.tensor([-1.0, -2.0], dtype=torch.float64) / 5**0.5
    return fit(labels) + far * way


@cache
def facts() -> dict[str, float]:
    """The numbers of docs/worlds/empirical_fisher.md."""
    found: dict[str, float] = {}
    for labels in LABELS:
        found[f"{labels}, difference of the matrices at the fit"] = difference(labels, fit(labels))
        for far in (0.1, 3.0):
            angle, ratio = compare(labels, away(labels, far))
            found[f"{labels}, {far:g} from the fit, degrees between the directions"] = angle
            found[f"{labels}, {far:g} from the fit, empirical step over true step"] = ratio
        for kind in ("true", "empirical"):
            steps = steps_until_fit(labels, kind, 3.0)
            found[f"{labels}, steps of rate 0.1 from 3 away, {kind}"] = steps
    return found


# --- the figure -----------------------------------------------------------------------------------


def draw() -> Figure:
    """Losses and directions of a right and a wrong model, and how far the matrices are apart."""
    figure = drawing.new_figure(6.8, 2.7)
    panels = figure.subplots(1, 3, subplot_kw={"box_aspect": 1})
    for axes, labels in zip(panels, LABELS, strict=False):
        _directions(axes, labels)
    _difference(panels[2])
    names = "true Fisher matrix F", "empirical Fisher matrix E"
    drawing.legend(figure, dict(zip(names, (drawing.NATURAL, drawing.PLAIN), strict=True)))
    return figure


def _directions(axes: Axes, labels: str) -> None:
    f, best, half = loss(LABELS[labels]), fit(labels), 3.2
    x, y = best.tolist()
    levels = float(f(best)) + 2.4 * np.linspace(0, 1, 13) ** 2
    drawing.surface(axes, f, (x - half, x + half), (y - half, y + half), levels)
    side = torch.linspace(-half, half, 9, dtype=torch.float64)[1:-1]
    points = best + torch.cartesian_prod(side, side)
    points = points[(points - best).norm(dim=-1) > 0.1]
    metrics = (true_fisher, drawing.NATURAL), (empirical_fisher(LABELS[labels]), drawing.PLAIN)
    for metric, style in metrics:
        arrows = vmap(lambda w, metric=metric: -gradient_in(metric, f, w))(points)
        look = {"pivot": "tail", "alpha": 0.55, "width": 0.006, "scale": 16}
        drawing.field(axes, points, arrows, color=style["color"], **look)
    for far in (3.0, -2.2):
        for kind, (_, style) in zip(("true", "empirical"), metrics, strict=True):
            drawing.line(axes, path(labels, kind, far, 0.05, 150), style)
        drawing.dot(axes, away(labels, far))
    drawing.star(axes, best)
    axes.set(xlabel="bias $w_1$", ylabel="slope $w_2$", title=labels)


def _difference(axes: Axes) -> None:
    distances = np.linspace(0, 3.5, 71)
    lines = {"right model": "-", "wrong model": (0, (5, 2))}
    for labels, dashes in lines.items():
        values = [difference(labels, away(labels, float(far))) for far in distances]
        axes.plot(distances, values, color="black", linestyle=dashes, label=labels)
    axes.set(xlabel="distance from the fit", title="|E − F| / |F|", ylim=(0, None), xlim=(0, 3.5))
    axes.legend(loc="upper left")
