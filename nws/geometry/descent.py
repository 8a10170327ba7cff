"""Steepest descent in a metric: one step, a path of steps, the exact flow, the proximal step.

All points are float64 vectors (n,); objectives take one point and return one number. The direction
of steepest descent of f at x in the metric G is -G(x)^{-1} df/dx. Of all steps of the same small
length it lowers f most (Amari 1998, theorem 1).
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from scipy.integrate import solve_ivp
from scipy.optimize import minimize
from torch import Tensor
from torch.func import grad, hessian, vmap

from nws.errors import UserError, number, positive_int
from nws.geometry.metrics import Metric

Objective = Callable[[Tensor], Tensor]
EVALUATIONS, INFINITY = 20_000, 1e9  # a flow that needs more, or comes there, does not end
ACCURACY = 1e-10  # of the flow, relative and absolute, for each step of the solver


def gradient_in(metric: Metric, objective: Objective, x: Tensor, damping: float = 0.0) -> Tensor:
    """(G(x) + alpha I)^{-1} df/dx, the gradient in a metric: (n,)."""
    plain = grad(objective)(x)
    matrix = metric(x) + damping * torch.eye(len(x), dtype=x.dtype)
    return torch.linalg.solve(matrix, plain)


def descend(
    objective: Objective, metric: Metric, start: Tensor, rate: float, steps: int,
    damping: float = 0.0, project: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """Steps x <- x - rate (G(x) + alpha I)^{-1} df/dx.

    Args:
        objective: f.
        metric: G.
        start: The first point, (n,), or a batch of first points, (B, n).
        rate: The learning rate, above 0.
        steps: Their number, at least 1.
        damping: alpha, at least 0.
        project: Where given, what brings a point back to the space after each step.

    Returns:
        The path, (steps + 1, n) or (steps + 1, B, n). Too long steps may leave the space.

    Raises:
        UserError: For a rate, a damping or a number of steps out of range, or where the metric is
            singular.

    Examples:
        >>> square = lambda x: (x**2).sum() / 2
        >>> from nws.geometry.metrics import euclidean
        >>> descend(square, euclidean, torch.ones(1, dtype=torch.float64), rate=0.5, steps=2)[-1]
        tensor([0.2500], dtype=torch.float64)
    """
    rate = number("rate", rate, above=0)
    damping = number("damping", damping, least=0)
    direction = partial(gradient_in, metric, objective, damping=damping)
    slope, path = direction if start.ndim == 1 else vmap(direction), [start]
    for done in range(positive_int("steps", steps)):
        try:
            x = path[-1] - rate * slope(path[-1])
        except torch.linalg.LinAlgError as error:
            way = f"lower the rate, {rate:g}, or raise the damping, {damping:g}"
            raise UserError(f"the metric is singular after {done} steps; {way}") from error
        path.append(x if project is None else project(x))
    return torch.stack(path)


def flow(objective: Objective, metric: Metric, starts: Tensor, times: Tensor) -> Tensor:
    """The exact flow dx/dt = -G(x)^{-1} df/dx, by LSODA, for stiff flows too.

    Args:
        objective: f.
        metric: G.
        starts: First points, (B, n) or (n,).
        times: At which the flow is wanted, (T,), rising from 0.

    Returns:
        The points at these times, (T, B, n).

    Raises:
        UserError: Where the flow ends before the last time: it runs to infinity or out of the
            space.
    """
    return integrate(vmap(lambda x: -gradient_in(metric, objective, x)), starts, times)


def integrate(field: Callable[[Tensor], Tensor], starts: Tensor, times: Tensor) -> Tensor:
    """Follow dx/dt = field(x) from points (B, n); `flow` says what comes back and is raised."""
    shape, left = torch.atleast_2d(starts).shape, iter(range(EVALUATIONS))

    def derivative(_: float, x: np.ndarray) -> np.ndarray:
        if next(left, None) is None or not np.abs(x).max() < INFINITY:
            raise ArithmeticError("a flow that does not end")
        return field(torch.from_numpy(x).reshape(shape)).flatten().numpy()

    if times.ndim != 1 or len(times) < 2 or not (times.diff() > 0).all():
        raise UserError(f"times must rise, and be two or more, got {times}")
    span = float(times[0]), float(times[-1])
    try:
        solved = solve_ivp(
            derivative, span, starts.flatten().numpy(), method="LSODA", t_eval=times.numpy(),
            rtol=ACCURACY, atol=ACCURACY,
        )  # fmt: skip
        complete = solved.success and np.isfinite(solved.y).all()
    except (ArithmeticError, torch.linalg.LinAlgError):  # the metric is singular there
        complete = False
    if not complete:
        why = "it leaves its space or runs to infinity, or the metric is singular on its way"
        what = f"the flow ends before the time {span[1]:g}: {why}"
        raise UserError(f"{what}; ask for an earlier time")
    return torch.from_numpy(solved.y.T.copy()).reshape(len(times), *shape)


def half_squared_distance(x: Tensor, y: Tensor) -> Tensor:
    """|x - y|^2 / 2 of points (..., n): (...)."""
    return (x - y).square().sum(-1) / 2


def proximal_step(
    objective: Objective, start: Tensor, rate: float,
    divergence: Callable[[Tensor, Tensor], Tensor] = half_squared_distance,
) -> Tensor:  # fmt: skip
    """argmin_x f(x) + D(x, start) / rate, the implicit form of a step of steepest descent.

    To first order in the rate it is the step in the metric whose half square D is near `start`.

    Args:
        objective: f.
        start: The point before the step, (n,).
        rate: The learning rate, above 0.
        divergence: D, inf outside of its space; by default half the squared Euclidean distance.

    Returns:
        The local minimum that Newton's method with a trust region finds from `start`, (n,).

    Raises:
        UserError: Where no minimum is found.
    """

    def total(x: Tensor) -> Tensor:
        return objective(x) + divergence(x, start) / number("rate", rate, above=0)

    def as_numpy(function: Callable[[Tensor], Tensor]) -> Callable[[np.ndarray], np.ndarray]:
        return lambda x: function(torch.from_numpy(x)).numpy()

    found = minimize(
        as_numpy(total), start.numpy(), method="trust-exact",
        jac=as_numpy(grad(total)), hess=as_numpy(hessian(total)),
        options={"gtol": 1e-11, "maxiter": 100},
    )  # fmt: skip
    slope = float(grad(total)(torch.from_numpy(found.x)).norm())
    if not slope < 1e-6 * (1 + abs(float(found.fun))):
        raise UserError(f"the proximal step at {start.tolist()} found no minimum: {found.message}")
    return torch.from_numpy(found.x)
