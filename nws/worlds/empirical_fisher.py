r"""True and empirical Fisher matrix of a logistic regression (Kunstner, Hennig & Balles 2019).

With p(y = 1 | x) = s(w . x), gradients g = (s - y) x of the loss, and labels of probability q(x),

    F = E_x[s (1 - s) x x^T]         labels from the model,
    E = E_x[(q (1 - s)^2 + (1 - q) s^2) x x^T]   labels from the data.

They agree where q = s: at the fit of a model that is right. All expectations are exact here, over
inputs (1, z) on a grid.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from nws.models.units import Binary
from nws.worlds.descent import descend, gradient_in
from nws.worlds.metrics import Metric

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


def steps_until_fit(labels: str, kind: str, far: float, bound: float = 1e-3) -> int:
    """Steps of rate 0.1 until the loss is within a bound (nats) of the least one."""
    f = loss(LABELS[labels])
    return int((f(path(labels, kind, far)) - f(fit(labels)) < bound).nonzero()[0])


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
