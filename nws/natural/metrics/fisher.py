"""The exact Fisher metric: one block for each unit, solved by a solver for each layer."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nws.errors import UserError
from nws.natural.operators import Rows, UnitFisher
from nws.natural.solvers import ConjugateGradient, Solver


class Fisher:
    """F_j = sum_k w_k A''(a_kj) h_k h_k^T for each unit j (Amari 1998; Ay 2002).

    Args:
        solver: Makes the solver of one layer.

    Example:
        >>> rows = Rows(torch.ones(4, 3), torch.full((4, 2), 0.25), lambda: torch.zeros(4, 2))
        >>> metric = Fisher()
        >>> metric.update([rows], torch.tensor(1.0))
        >>> metric.direction([torch.ones(2, 3)])[0]
        tensor([[0.2500, 0.2500, 0.2500],
                [0.2500, 0.2500, 0.2500]])
    """

    def __init__(self, solver: Callable[[], Solver] = ConjugateGradient) -> None:
        self._make_solver = solver
        self.solvers: list[Solver] = []

    def curvature(self, rows: Rows) -> Tensor:
        """What each row adds to each unit's block: (n, m)."""
        return rows.curvature

    def update(self, rows: Sequence[Rows], alpha: Tensor) -> None:
        """Take in the rows of each layer, and alpha: one solver a layer factors its blocks."""
        alpha = torch.as_tensor(alpha).to(rows[0].inputs)
        self.solvers = self.solvers or [self._make_solver() for _ in rows]
        for solver, layer in zip(self.solvers, rows, strict=True):
            solver.factor(UnitFisher(layer.inputs, self.curvature(layer), layer.name), alpha)

    def direction(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """(F_j + alpha I)^{-1} g_j, (m, d) for each layer."""
        return [solver.solve(g) for solver, g in zip(self.solvers, gradients, strict=True)]

    def report(self) -> dict[str, float]:
        """The largest number of iterations and the worst residual of any layer."""
        reports: list[dict[str, float]]
        reports = [getattr(solver, "report", dict)() for solver in self.solvers]
        keys = dict.fromkeys(key for report in reports for key in report)
        return {key: max(each[key] for each in reports if key in each) for key in keys}

    def state_dict(self) -> dict[str, Any]:
        """The state of each layer's solver."""
        return {"solvers": [getattr(solver, "state_dict", dict)() for solver in self.solvers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state.

        Raises:
            UserError: For a state of another number of layers.
        """
        states = state["solvers"]
        self.solvers = self.solvers or [self._make_solver() for _ in states]
        if len(states) != len(self.solvers):
            raise UserError(
                f"the checkpoint's metric has {len(states)} solvers, {len(self.solvers)} were"
                " expected: another version of nws wrote it; take another solver or metric, or"
                " start a new run"
            )
        for solver, each in zip(self.solvers, states, strict=True):
            if hasattr(solver, "load_state_dict"):
                solver.load_state_dict(each)
