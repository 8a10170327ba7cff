"""What all solvers of (C_j + alpha I) x_j = g_j share: the protocol, and the checks before a solve.

alpha is a tensor of one element on the device, so that a schedule changes it without a
synchronisation.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from nws.errors import UserError, number
from nws.natural.operators import CurvatureOperator, Rows, UnitFisher

State = dict[str, Tensor]
NOT_FINITE = "its rows are not finite; lower optimizer.lr"


class Solver(Protocol):
    """Damped solves for all units of one layer. Each layer has a solver, which may keep state.

    A solver that keeps something for each unit names it in `unit_state`, keys of its state whose
    first dimension is that of the units. Of several processes each then keeps its units'.
    """

    def factor(self, operator: CurvatureOperator, damping: Tensor) -> None:
        """Take in a layer's operator and alpha.

        Raises:
            UserError: Where a block cannot be factored.
        """

    def solve(self, gradient: Tensor) -> Tensor:
        """x_j = (C_j + alpha I)^{-1} g_j for all units: (m, d) from G (m, d)."""

    def state_dict(self) -> State:
        """What later solves depend on apart from the next operator."""

    def load_state_dict(self, state: State) -> None:
        """Go on from a state."""

    def report(self) -> dict[str, float]:
        """What the last solve says of itself, for the log (may synchronise)."""


class Stateless:
    """The part of the protocol that is the same for solvers that keep nothing between steps."""

    def state_dict(self) -> State:
        """Nothing."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Nothing to do."""
        pass

    def report(self) -> dict[str, float]:
        """Nothing."""
        return {}


def check_system(
    operator: CurvatureOperator, damping: Tensor, zero: bool = False, waits: bool = False
) -> None:
    """Raise `UserError` for an alpha or rows that no solver can use.

    Looks at numbers on the CPU; on a device this is a synchronisation.

    Args:
        operator: Of the layer.
        damping: alpha.
        zero: Whether alpha = 0 is allowed.
        waits: Whether to look on a device too: in a step that waits for it anyway.
    """
    if damping.device.type != "cpu" and not waits:
        return
    alpha = float(damping)
    if not (0 < alpha < math.inf or (alpha == 0 and zero)):
        zero_only = "set damping.value > 0; only cholesky with n >= d does without"
        what = zero_only if alpha <= 0 else "set damping.value to a number, 0.02 to 1 is usual"
        raise unfactorable(operator, damping, what)
    if not operator.finite:
        raise unfactorable(operator, damping, NOT_FINITE)


def check_rows(rows: Sequence[Rows], damping: Tensor | float, waits: bool = False) -> Tensor:
    """Return alpha in the dtype of the rows; `UserError` for alpha or rows of no use.

    Args:
        rows: Of each layer; only their means are looked at, unless something is wrong.
        damping: alpha.
        waits: Whether to look on a device too, as `check_system` says.
    """
    means = torch.cat([mean for layer in rows for mean in layer.means])
    damping = torch.as_tensor(damping).to(means)
    looks = waits or means.device.type == "cpu"
    if looks and not (means.sum() * damping.log()).isfinite():
        for layer in rows:
            fisher = UnitFisher(layer.inputs, layer.curvature, layer.name)
            check_system(fisher, damping, waits=waits)
    return damping


def unfactorable(operator: CurvatureOperator, damping: Tensor, reason: str) -> UserError:
    """The error that names the layer, its n and d, and alpha."""
    n, d = operator.rows, operator.shape[1]
    what = f"n={n} rows of d={d} parents with damping {float(damping):g}"
    return UserError(f"{operator.name}: cannot factor a Fisher block from {what}: {reason}")


def damped(operator: CurvatureOperator, damping: Tensor, vectors: Tensor) -> Tensor:
    """(C_j + alpha I) v_j for all units: (m, d) from V (m, d)."""
    return operator.matmul(vectors).addcmul_(vectors, damping)


def fraction(name: str, value: object) -> float:
    """The value as a float, where it is a number of at least 0 and below 1; else `UserError`."""
    return number(name, value, "of at least 0 and below 1", lambda value: 0 <= value < 1)
