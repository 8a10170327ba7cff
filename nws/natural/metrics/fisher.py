"""The exact Fisher metric: one block for each unit, solved by a solver for each layer."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nws.errors import positive_int
from nws.natural.metrics.metric import Metric
from nws.natural.operators import Rows, Tensors, UnitFisher
from nws.natural.solvers import ConjugateGradient, Solver
from nws.natural.solvers.solver import says_itself


class Fisher(Metric):
    """F_j = sum_k w_k A''(a_kj) h_k h_k^T for each unit j (Amari 1998; Ay 2002).

    Args:
        solver: Makes the solver of one layer.
        memory: The matrix is the mean over so many of the newest updates.
    """

    def __init__(self, solver: Callable[[], Solver] = ConjugateGradient, memory: int = 1) -> None:
        self._make_solver, self.memory = solver, positive_int("metric.memory", memory)
        self.solvers: list[Solver] = []
        self._past: list[list[tuple[Tensor, Tensor]]] = []  # of each update: H and S of each layer
        # name, mask and low precision of each layer, and alpha
        self._system: tuple[list[tuple[Any, ...]], Tensor] | None = None

    def curvature(self, rows: Rows) -> Tensor:
        """What each row adds to each unit's block: (n, m)."""
        return rows.curvature

    def update(self, rows: Sequence[Rows], alpha: Tensor) -> None:
        """Take in the rows of each layer, and alpha: one solver a layer factors its blocks."""
        alpha = torch.as_tensor(alpha).to(rows[0].inputs).clone()  # it may change in place
        newest = [(layer.inputs, self.curvature(layer)) for layer in rows]
        self._past = [*self._past, newest][-self.memory :]
        self._system = [(layer.name, layer.mask, layer.low) for layer in rows], alpha
        self.solvers = self.solvers or [self._make_solver() for _ in rows]
        self._factor()

    def _factor(self) -> None:
        """Give the solvers the rows of all updates that are remembered."""
        if self._system is None:
            return
        layers, alpha = self._system
        for layer, solver, *past in zip(layers, self.solvers, *self._past, strict=True):
            inputs, curvature = past[-1]
            if len(past) > 1:
                inputs, curvature = (torch.cat(parts) for parts in zip(*past, strict=True))
                curvature /= len(past)
            solver.factor(UnitFisher(inputs, curvature, *layer), alpha)

    def direction(self, gradients: Tensors) -> list[Tensor]:
        return [solver.solve(g) for solver, g in zip(self.solvers, gradients, strict=True)]

    def graph_key(self, updates: bool) -> Any:
        keys = [says_itself(each) and each.graph_key(updates) for each in self.solvers]
        return keys if keys and all(keys) and self.memory == 1 else None

    def skip(self, updates: bool) -> None:
        for solver in self.solvers:
            solver.skip(updates)

    def check(self) -> None:
        for solver in self.solvers:
            solver.check()

    def report(self) -> dict[str, float]:
        """The largest number of iterations and the worst residual of any layer."""
        found: dict[str, float] = {}
        for solver in self.solvers:
            for key, value in solver.report().items():
                found[key] = max(found.get(key, value), value)
        return found

    def state_dict(self) -> dict[str, Any]:
        """The state of each layer's solver; and rows, where they are remembered."""
        state = {"solvers": [solver.state_dict() for solver in self.solvers]}
        return state | ({"past": self._past} if self.memory > 1 else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        states = state["solvers"]
        self.solvers = self.solvers or [self._make_solver() for _ in states]
        if self.memory > 1:
            self._past = [list(map(tuple, layers)) for layers in state["past"]]
            self._factor()
        for solver, each in zip(self.solvers, states, strict=True):
            solver.load_state_dict(each)
