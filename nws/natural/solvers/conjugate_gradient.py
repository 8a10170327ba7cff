"""Matrix-free damped solves by preconditioned conjugate gradient, all units of a layer at once."""

import logging
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nws.errors import number, positive_int
from nws.natural.operators import CurvatureOperator, RowSpace
from nws.natural.preconditioners import Preconditioner, SharedPreconditioner
from nws.natural.solvers.cg import Map, Rule, UntilAccurate, UntilResidual, after, cg
from nws.natural.solvers.solver import IterativeSolver, State, check_system, damped

log = logging.getLogger(__name__)

LIMIT = 100  # iterations, where their number is not given
PREFIX = "preconditioner."  # of its entries in the state


class ConjugateGradient(IterativeSolver):
    """Preconditioned conjugate gradient with the last operator, `solver=pcg`.

    A layer with few rows is solved in their space, where an iteration is cheap
    (`operator.reduce`).

    Args:
        iterations: A fixed number, twice as many in the space of the rows; reads nothing from the
            device. None: as many as `accuracy` needs.
        accuracy: Relative error of the layer's solution to reach, at least 0 and below 1. The
            number of iterations is measured in steps 1, 2, 4, 8 .. and at each refresh of the
            preconditioner; the steps between take as many, and read nothing from the device.
        tolerance: Above 0: stop where the worst unit's relative residual is below it, in each
            solve. Reads a number an iteration.
        rank: Eigenpairs of the shared preconditioner, next to the mean.
        preconditioner_every: Operators between refreshes of the eigenpairs.
        preconditioner: Another preconditioner in place of the shared one.
    """

    def __init__(
        self, iterations: int | None = None, accuracy: float = 1e-2, tolerance: float = 0.0,
        rank: int = 15, preconditioner_every: int = 20,
        preconditioner: Preconditioner | None = None,
    ) -> None:  # fmt: skip
        if iterations is not None:
            iterations = positive_int("solver.iterations", iterations)
        self.iterations = iterations
        self.accuracy = number("solver.accuracy", accuracy, least=0, below=1)
        self.tolerance = number("solver.tolerance", tolerance, least=0, below=1)
        self.every = positive_int("solver.preconditioner_every", preconditioner_every)
        self.precondition = preconditioner or SharedPreconditioner(rank, self.every)
        self._age = 0  # operators so far
        self._reduced: RowSpace | None = None
        self._count = 0  # iterations that the last measured solve needed; 0: the next one measures
        self._captured: Any = None  # what a CUDA graph writes, and its iterations

    @property
    def _looks(self) -> bool:
        """Whether the next operator is one at which iterations are counted."""
        return self._age % self.every == 0 or self._age & (self._age - 1) == 0

    def factor(self, operator: CurvatureOperator, damping: Tensor) -> None:
        check_system(operator, damping, waits=self._age % self.every == 0)
        super().factor(operator, damping)
        self._reduced = operator.reduce(self._damping)
        if self._reduced is None:
            self.precondition.update(operator, self._damping)
        if self._looks:
            self._count = 0
        self._age += 1

    def solve(self, gradient: Tensor) -> Tensor:
        """About (C_j + alpha I)^{-1} g_j; on the CPU `UserError` for an alpha below the dtype."""
        system, damping = self._reduced, self._damping
        if system is None:
            quick = self._operator if self.tolerance else self._operator.rounded()
            first, later = (partial(damped, each, damping) for each in (self._operator, quick))
            stop = self._rule(gradient, lambda x: (x * gradient).sum(), lambda r: r.norm(dim=1))
            solution, used = cg(first, gradient, self.precondition, stop, later)
        else:
            # An error e_j of y_j is one of H^T R_j e_j / alpha in x_j, whose square is below
            # e_j . B_j e_j / alpha^2. So the size that belongs to the gains is alpha^2 |x|^2.
            right = system.enter(gradient)

            def size(y: Tensor) -> Tensor:
                return (damping * system.leave(gradient, right, y)).square().sum()

            stop = self._rule(gradient, size, system.length, factor=2)
            inner, used = cg(system.matmul, right, system.precondition, stop)
            solution = system.leave(gradient, right, inner)
        self._learn(stop, used)
        found = self._finish(gradient, solution)
        if found.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            self._captured = self._operator, self._damping, self._reduced, self._solved, used
        return found

    def _rule(self, gradient: Tensor, size: Map, length: Map, factor: int = 1) -> Rule:
        limit = LIMIT if self.iterations is None else self.iterations * factor
        if self.tolerance:
            return UntilResidual(self.tolerance * gradient.norm(dim=1), length, limit)
        if known := limit if self.iterations is not None else self._count:
            return after(known)
        return UntilAccurate(self.accuracy, size, limit)

    def _learn(self, stop: Rule, used: int) -> None:
        """Keep the number of iterations; warn of a tolerance that was missed."""
        self.used_iterations = used
        if isinstance(stop, UntilAccurate):
            self._count = used
        if isinstance(stop, UntilResidual) and stop.worst != 0:  # nan is no success either
            log.warning(
                "%s: conjugate gradient stopped after %d iterations with a relative residual of"
                " %.1e in its worst unit, above solver.tolerance %.1e; raise solver.iterations or"
                " damping.value",
                self._operator.name, used, stop.worst * self.tolerance, self.tolerance,
            )  # fmt: skip

    def graph_key(self, factors: bool) -> Any:
        near = True if self._reduced is not None else self.precondition.graph_key
        known = not self.tolerance and (self.iterations or self._count)
        return (near, known) if known and (not factors or (near and not self._looks)) else None

    def skip(self, factors: bool) -> None:
        self._age += factors
        self._operator, self._damping, self._reduced, self._solved, used = self._captured
        self.used_iterations = used
        if factors and self._reduced is None:
            self.precondition.skip()

    def state_dict(self) -> State:
        own = self.precondition.state_dict()
        state = {"age": torch.tensor(self._age), "count": torch.tensor(self._count)}
        return state | {f"{PREFIX}{key}": value for key, value in own.items()}

    def load_state_dict(self, state: State) -> None:
        self._age, self._count = int(state.get("age", 0)), int(state.get("count", 0))
        own = {k.removeprefix(PREFIX): v for k, v in state.items() if k.startswith(PREFIX)}
        self.precondition.load_state_dict(own)
