"""What all solvers of (C_j + alpha I) x_j = g_j share: the base class, and checks before a solve.

alpha is a tensor of one element on the device: a schedule changes it without a synchronisation.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nws.errors import Diverged
from nws.natural.operators import CurvatureOperator, Rows, UnitFisher
from nws.natural.preconditioners import State

SINGULAR = "it is singular to working precision; raise damping.value"


class Solver(ABC):
    """Damped solves for all units of one layer. Each layer has a solver, which may keep state."""

    masks = True  # whether it solves systems in which units see some parents alone

    @abstractmethod
    def factor(self, operator: CurvatureOperator, damping: Tensor) -> None:
        """Take in a layer's operator and alpha.

        Raises:
            UserError: Where a block cannot be factored.
        """

    @abstractmethod
    def solve(self, gradient: Tensor) -> Tensor:
        """x_j = (C_j + alpha I)^{-1} g_j for all units: (m, d) from G (m, d)."""

    def graph_key(self, factors: bool) -> Any:
        """As `Metric.graph_key`, of `solve` and, where it `factors`, of `factor` before it."""
        return None

    def skip(self, factors: bool) -> None:
        """Count what a graph did; by default nothing to do."""

    def check(self) -> None:
        """Raise `UserError` for what was found on a device (synchronises); by default nothing.

        A step does not wait for the device to say so. On the CPU the error came at once.
        """

    def report(self) -> dict[str, float]:
        """What the last solve says of itself, for the log (may synchronise); by default nothing."""
        return {}

    def state_dict(self) -> State:
        """What later solves depend on apart from the next operator; by default nothing."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Go on from a state; by default nothing to do."""


class IterativeSolver(Solver):
    """A solver by products with the operator: it counts its iterations."""

    used_iterations = 0  # of the last solve
    _operator: CurvatureOperator
    _damping: Tensor
    _solved: tuple[Tensor, Tensor] | None = None  # the last gradient and its solution

    def factor(self, operator: CurvatureOperator, damping: Tensor) -> None:
        self._solved = None  # as large as the layer's gradient, twice
        self._operator, self._damping = operator, damping.clone()

    def _finish(self, gradient: Tensor, solution: Tensor) -> Tensor:
        self._solved = gradient, solution
        if solution.device.type == "cpu":
            self.check()
        return solution

    def check(self) -> None:
        """Raise `UserError` where the last solution is not finite and its gradient is."""
        if self._solved is not None:
            gradient, solution = self._solved
            if not solution.sum().isfinite() and gradient.sum().isfinite():
                raise unfactorable(self._operator, self._damping, SINGULAR)

    def report(self) -> dict[str, float]:
        """Iterations and the worst unit's relative residual of the last solve; {} before it.

        Costs one more product, and a synchronisation.
        """
        if self._solved is None:
            return {}
        gradient, solution = self._solved
        lengths = gradient.norm(dim=1)
        residual = (gradient - damped(self._operator, self._damping, solution)).norm(dim=1)
        worst = float(torch.where(lengths == 0, 0.0, residual / lengths).max())
        return {"iterations": self.used_iterations, "residual": worst}


def check_system(operator: CurvatureOperator, damping: Tensor, waits: bool = False) -> None:
    """Raise `UserError` for an alpha or rows that no solver can use.

    On a device, where a look is a synchronisation, it looks only in a step that `waits` anyway.
    """
    if damping.device.type != "cpu" and not waits:
        return
    alpha = float(damping)
    if not 0 < alpha < math.inf:
        what = "> 0" if alpha <= 0 else "to a number, 0.02 to 1 is usual"
        raise unfactorable(operator, damping, f"set damping.value {what}")
    if not operator.finite:
        raise unfactorable(operator, damping, "its rows are not finite; lower optimizer.lr")


def check_rows(rows: Sequence[Rows], damping: Tensor | float, waits: bool = False) -> Tensor:
    """Return alpha in the dtype of the rows; `UserError` for alpha or rows of no use.

    Only the rows' means are looked at, unless something is wrong; on a device as `check_system`.
    """
    means = torch.cat([mean for layer in rows for mean in layer.means])
    damping = torch.as_tensor(damping).to(means)
    looks = waits or means.device.type == "cpu"
    if looks and not (means.sum() * damping.log()).isfinite():
        for layer in rows:
            fisher = UnitFisher(layer.inputs, layer.curvature, layer.name)
            check_system(fisher, damping, waits=waits)
    return damping


def says_itself(part: Any) -> bool:
    """Whether its `graph_key` is its own: a user's class does not inherit it from one of nws."""
    return type(part).__module__.startswith("nws.") or "graph_key" in vars(type(part))


def move(value: Any, like: Tensor) -> Any:
    """Nested state with its floating-point tensors on the device and in the dtype of `like`."""
    if isinstance(value, dict):
        return {key: move(each, like) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [move(each, like) for each in value]
    return value.to(like) if isinstance(value, Tensor) and value.is_floating_point() else value


def unfactorable(operator: CurvatureOperator, damping: Tensor, reason: str) -> Diverged:
    """The error that names the layer, its n and d, and alpha."""
    n, d = operator.rows, operator.shape[1]
    what = f"n={n} rows of d={d} parents with damping {float(damping):g}"
    return Diverged(f"{operator.name}: cannot factor a Fisher block from {what}: {reason}")


def damped(operator: CurvatureOperator, damping: Tensor, vectors: Tensor) -> Tensor:
    """(C_j + alpha I) v_j for all units: (m, d) from V (m, d)."""
    return operator.matmul(vectors).addcmul_(vectors, damping)
