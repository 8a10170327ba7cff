"""Matrix-free damped solves by preconditioned conjugate gradient, all units of a layer at once."""

import logging

import torch
from torch import Tensor

from nws.errors import UserError, positive_int
from nws.natural.operators import CurvatureOperator, ReducedSystem, over_units
from nws.natural.preconditioners import Preconditioner, SharedPreconditioner
from nws.natural.solvers.cg import Iterations, Map, UntilAccurate, UntilResidual, cg
from nws.natural.solvers.solver import State, check_system, damped, fraction

log = logging.getLogger(__name__)

LIMIT = 100  # iterations, where their number is not given


class ConjugateGradient:
    """Preconditioned conjugate gradient with the last operator, `solver=pcg`.

    A layer with few rows is solved in their space, where an iteration is cheap
    (`operator.reduce`).

    Args:
        iterations: A fixed number, twice as many in the space of the rows; reads nothing from the
            device. None: as many as `accuracy` needs.
        accuracy: Relative error of the layer's solution to reach. The number of iterations is
            measured in steps 1, 2, 4, 8 .. and at each refresh of the preconditioner; the steps
            between take as many, and read nothing from the device.
        tolerance: Above 0: stop where the worst unit's relative residual is below it. Reads a
            number an iteration.
        rank: Eigenpairs of the shared preconditioner, next to the mean.
        preconditioner_every: Operators between refreshes of the eigenpairs.
        warm_start: Start from the last solve's solution.
        preconditioner: Another preconditioner in place of the shared one.

    Raises:
        UserError: For numbers that are out of range.
    """

    unit_state = ("last",)  # entries of the state with one row a unit

    def __init__(
        self,
        iterations: int | None = None,
        accuracy: float = 1e-2,
        tolerance: float = 0.0,
        rank: int = 15,
        preconditioner_every: int = 20,
        warm_start: bool = False,
        preconditioner: Preconditioner | None = None,
    ) -> None:
        self.iterations = (
            None if iterations is None else positive_int("solver.iterations", iterations)
        )
        self.accuracy = fraction("solver.accuracy", accuracy)
        self.tolerance = fraction("solver.tolerance", tolerance)
        self.every = positive_int("solver.preconditioner_every", preconditioner_every)
        self.warm_start = warm_start
        self.precondition = preconditioner or SharedPreconditioner(rank, self.every)
        self.used_iterations = 0
        self._age = 0  # operators so far
        self._count = 0  # iterations that the last measured solve needed; 0: the next one measures
        self._last: Tensor | None = None
        self._operator: CurvatureOperator | None = None
        self._solved: tuple[Tensor, Tensor] | None = None

    def factor(self, operator: CurvatureOperator, damping: Tensor) -> None:
        """Take in a layer's operator and alpha; `UserError` where they cannot be used."""
        check_system(operator, damping, waits=self._age % self.every == 0)
        self._check_last(operator)
        self._solved = None  # as large as the layer's gradient, twice
        self._operator, self._damping = operator, damping.clone()
        self._reduced: ReducedSystem | None = operator.reduce(self._damping)
        if self._reduced is None:
            self.precondition.update(operator, self._damping)
        if self._age % self.every == 0 or self._age & (self._age - 1) == 0:
            self._count = 0
        self._age += 1

    def solve(self, gradient: Tensor) -> Tensor:
        """About (C_j + alpha I)^{-1} g_j: (m, d)."""
        assert self._operator is not None
        right, start = gradient, self._last
        if start is not None:
            start = start * (gradient != 0).any(1, keepdim=True)
            right = gradient - damped(self._operator, self._damping, start)
        solve = self._solve_directly if self._reduced is None else self._solve_reduced
        solution = solve(gradient, right, start)
        self._solved = (gradient, solution)
        self._last = solution.clone() if self.warm_start else None
        return solution

    def _solve_directly(self, gradient: Tensor, right: Tensor, start: Tensor | None) -> Tensor:
        operator, damping = self._operator, self._damping
        assert operator is not None

        def size(x: Tensor) -> Tensor:
            return (_sum(x, start) * gradient).sum()

        stop = self._rule(gradient, size, lambda residual: residual.norm(dim=1))
        solution = cg(lambda v: damped(operator, damping, v), right, self.precondition, stop)
        self._take_count(stop)
        return _sum(solution, start)

    def _solve_reduced(self, gradient: Tensor, right: Tensor, start: Tensor | None) -> Tensor:
        """Iterations in the smaller space.

        An error e_j of y_j is one of H^T R_j e_j / alpha in x_j, whose square is below
        e_j . B_j e_j / alpha^2. So the size that belongs to the gains is alpha^2 |x|^2.
        """
        system = self._reduced
        assert system is not None
        entered = system.enter(right)

        def size(y: Tensor) -> Tensor:
            x = _sum(system.leave(right, entered, y), start)
            return (self._damping * x).square().sum()

        stop = self._rule(gradient, size, system.length, factor=2)
        solution = cg(system.matmul, entered, system.precondition, stop)
        self._take_count(stop)
        return _sum(system.leave(right, entered, solution), start)

    def _rule(
        self, gradient: Tensor, size: Map, length: Map, factor: int = 1
    ) -> Iterations | UntilAccurate | UntilResidual:
        operator = self._operator
        assert operator is not None
        limit = LIMIT if self.iterations is None else self.iterations * factor
        if self.tolerance:
            target = self.tolerance * gradient.norm(dim=1)
            return UntilResidual(target, length, limit, lambda numbers: numbers)
        if self.iterations is not None:
            return Iterations(limit)
        if self._count:
            return Iterations(self._count)
        total = lambda numbers: numbers
        return UntilAccurate(self.accuracy, size, limit, total)

    def _take_count(self, stop: Iterations | UntilAccurate | UntilResidual) -> None:
        if isinstance(stop, Iterations):
            self.used_iterations = stop.number
            return
        self.used_iterations = stop.iteration
        if isinstance(stop, UntilAccurate):
            self._count = stop.iteration
        elif stop.worst != 0:  # not a number is no success either
            assert self._operator is not None
            log.warning(
                "%s: conjugate gradient stopped after %d iterations with a relative residual of"
                " %.1e in its worst unit, above solver.tolerance %.1e; raise solver.iterations or"
                " damping.value",
                self._operator.name,
                stop.iteration,
                stop.worst * self.tolerance,
                self.tolerance,
            )

    def _check_last(self, operator: CurvatureOperator) -> None:
        if self._last is not None and self._last.shape != operator.shape:
            raise UserError(
                f"{operator.name}: pcg goes on from a state of {self._last.shape[1]} parents and"
                f" {self._last.shape[0]} units, these rows have {operator.shape[1]} and"
                f" {operator.shape[0]}; start a new run, or take another solver"
            )

    def report(self) -> dict[str, float]:
        """Iterations and the worst unit's relative residual of the last solve.

        Costs one more product, and a synchronisation.
        """
        if self._solved is None or self._operator is None:
            return {}
        gradient, solution = self._solved
        residual = gradient - damped(self._operator, self._damping, solution)
        worst = float(worst_ratio(residual, gradient))
        return {"iterations": self.used_iterations, "residual": worst}

    def state_dict(self) -> State:
        """Age, number of iterations, last solution where it is used, preconditioner."""
        state = {"age": torch.tensor(self._age), "count": torch.tensor(self._count)}
        if self._last is not None:
            state["last"] = self._last
        own = self.precondition.state_dict()
        return state | {f"preconditioner.{key}": value for key, value in own.items()}

    def load_state_dict(self, state: State) -> None:
        """Go on from a state."""
        self._age, self._count = int(state["age"]), int(state["count"])
        self._last = state.get("last") if self.warm_start else None
        if self._operator is not None:
            self._check_last(self._operator)
        prefix = "preconditioner."
        own = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        self.precondition.load_state_dict(own)


def _sum(solution: Tensor, start: Tensor | None) -> Tensor:
    return solution if start is None else solution + start


def worst_ratio(residual: Tensor, gradient: Tensor) -> Tensor:
    """max_j |r_j| / |g_j| over the units whose gradient is not zero."""
    lengths = gradient.norm(dim=1)
    return torch.where(lengths == 0, 0.0, residual.norm(dim=1) / lengths).max()
