"""The exact Fisher metric: one block for each unit, solved by a solver for each layer."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nws.errors import UserError, positive_int
from nws.natural.operators import Rows, UnitFisher
from nws.natural.solvers import ConjugateGradient, Solver


class Fisher:
    """F_j = sum_k w_k A''(a_kj) h_k h_k^T for each unit j (Amari 1998; Ay 2002).

    Of several processes each solves its share of every layer's units, and the directions are
    joined. A layer with fewer units than processes is solved by all of them.

    Args:
        solver: Makes the solver of one layer.
        memory: Updates whose rows make the matrix, all alike: the newest, and those before it.

    Raises:
        UserError: For a memory below 1.

    Example:
        >>> rows = Rows(torch.ones(4, 3), torch.full((4, 2), 0.25), lambda: torch.zeros(4, 2))
        >>> metric = Fisher()
        >>> metric.update([rows], torch.tensor(1.0))
        >>> metric.direction([torch.ones(2, 3)])[0]
        tensor([[0.2500, 0.2500, 0.2500],
                [0.2500, 0.2500, 0.2500]])
    """

    def __init__(self, solver: Callable[[], Solver] = ConjugateGradient, memory: int = 1) -> None:
        self._make_solver, self.memory = solver, positive_int("metric.memory", memory)
        self.solvers: list[Solver] = []
        self._past: list[list[tuple[Tensor, Tensor]]] = []  # of each update: H and S of each layer
        self._system: tuple[list[str], Tensor] | None = None  # the layers' names, and alpha
        self._widths: list[int] = []  # units of each layer

    def curvature(self, rows: Rows) -> Tensor:
        """What each row adds to each unit's block: (n, m)."""
        return rows.curvature

    def update(self, rows: Sequence[Rows], alpha: Tensor) -> None:
        """Take in the rows of each layer, and alpha: one solver a layer factors its blocks."""
        alpha = torch.as_tensor(alpha).to(rows[0].inputs).clone()  # it may change in place
        newest = [(layer.inputs, self.curvature(layer)) for layer in rows]
        self._past = [*self._past, newest][-self.memory :]
        self._system = [layer.name for layer in rows], alpha
        self._widths = [curvature.shape[1] for _, curvature in newest]
        self.solvers = self.solvers or [self._make_solver() for _ in rows]
        self._factor()

    def _factor(self) -> None:
        """Give the solvers the rows of all updates that are remembered."""
        if self._system is not None:
            names, alpha = self._system
            for number, (solver, name) in enumerate(zip(self.solvers, names, strict=True)):
                inputs, curvature = self._past[-1][number]
                if len(self._past) > 1:
                    inputs = torch.cat([layers[number][0] for layers in self._past])
                    curvature = torch.cat([layers[number][1] for layers in self._past])
                    curvature /= len(self._past)
                fisher = UnitFisher(inputs, curvature, name)
                solver.factor(fisher.of(own_units(fisher.shape[0])), alpha)

    def direction(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """(F_j + alpha I)^{-1} g_j, (m, d) for each layer."""
        pairs = zip(self.solvers, gradients, strict=True)
        parts = [solver.solve(g[own_units(len(g))]) for solver, g in pairs]
        return join_units(parts, [len(g) for g in gradients])

    def check(self) -> None:
        """Raise `UserError` for what a solver has found on a device since (synchronises there)."""
        for solver in self.solvers:
            if hasattr(solver, "check"):
                solver.check()

    def report(self) -> dict[str, float]:
        """The largest number of iterations and the worst residual of any layer."""
        reports: list[dict[str, float]]
        reports = [getattr(solver, "report", dict)() for solver in self.solvers]
        keys = dict.fromkeys(key for report in reports for key in report)
        found = [max(each[key] for each in reports if key in each) for key in keys]
        return dict(zip(keys, found, strict=True))

    def state_dict(self) -> dict[str, Any]:
        """The state of each layer's solver; and rows, where they are remembered."""
        solvers: list[dict[str, Any]]
        solvers = [getattr(solver, "state_dict", dict)() for solver in self.solvers]
        for solver, state, width in zip(self.solvers, solvers, self._widths, strict=False):
            for key in unit_state(solver, state):  # of the units of all processes
                state[key] = join_units([state[key]], [width])[0]
        return {"solvers": solvers} | ({"past": self._past} if self.memory > 1 else {})

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
        if self.memory > 1 and "past" in state:
            self._past = [list(map(tuple, layers)) for layers in state["past"]]
            self._factor()
        for solver, each in zip(self.solvers, states, strict=True):
            if hasattr(solver, "load_state_dict"):
                kept = {key: each[key] for key in unit_state(solver, each)}
                kept = {key: rows[own_units(len(rows))] for key, rows in kept.items()}
                solver.load_state_dict(each | kept)


def own_units(width: int) -> slice:
    """All units."""
    return slice(None)


def join_units(parts: Sequence[Tensor], widths: Sequence[int]) -> list[Tensor]:
    """Rows of all units of each layer."""
    return list(parts)


def unit_state(solver: Solver, state: dict[str, Any]) -> list[str]:
    """The entries of a solver's state that have one row a unit."""
    return [key for key in getattr(solver, "unit_state", ()) if key in state]
