"""`solver=auto`: for each layer the solver that a table of costs says is cheapest.

n rows, d parents with the bias, m units, r columns of the preconditioner:

    solver            how                                        flops                     memory
    cholesky          form the m blocks and factor them          m (2 n d^2 + d^3/3)       m d^2
    woodbury          n x n matrices from one Gram matrix        2 n^2 d + m n^3/3         m n^2
    sherman_morrison  fold the rows into all m inverses          4 m n d^2                 m d^2
    pcg               matrix-free, all units at once             iterations 4 (n + r) d m  n (d + m)
"""

from torch import Tensor

from nws.errors import positive_int
from nws.natural.operators import CurvatureOperator
from nws.natural.solvers.conjugate_gradient import ConjugateGradient
from nws.natural.solvers.direct import Cholesky, DirectSolver, Woodbury, with_rows
from nws.natural.solvers.solver import Solver, State


class AutoSolver:
    """The cheapest solver, chosen by the first operator that it sees.

    Args:
        iterations: Of pcg; None: as many as `accuracy` needs.
        accuracy: Of pcg.
        max_bytes: Of the direct solvers.
        solves: Solves that a factor serves (metric.refresh_every).
    """

    def __init__(
        self,
        iterations: int | None = None,
        accuracy: float = 1e-2,
        max_bytes: int = 2**30,
        solves: int = 1,
    ) -> None:
        self.iterations, self.solves = iterations, positive_int("solver.solves", solves)
        self._solvers: dict[str, Solver] = {
            "pcg": ConjugateGradient(iterations, accuracy),
            "cholesky": Cholesky(max_bytes),
            "woodbury": Woodbury(max_bytes),
        }
        self._solver: Solver | None = None
        self._waiting: State | None = None  # a state that came before the choice of a solver

    def factor(self, operator: CurvatureOperator, damping: Tensor) -> None:
        """Choose a solver at the first call, and let it take in the operator."""
        if self._solver is None:
            fisher = with_rows(operator)
            n, d = fisher.inputs.shape
            m = (fisher.whole or fisher).shape[0]  # the choice is that of one process
            costs = self.costs(n, d, m, fisher.inputs.element_size())
            self._solver = self._solvers[min(costs, key=costs.__getitem__)]
            if self._waiting is not None:
                self._solver.load_state_dict(self._waiting)
        self._solver.factor(operator, damping)

    def costs(self, n: int, d: int, m: int, bytes_each: int = 4) -> dict[str, float]:
        """Cost of one factoring and its solves, in multiply-adds of a large product.

        Many small factorings run at a fifth of a large product's rate; a call of any kernel costs
        as much as 2e5. Factors that do not fit in memory are made again at each solve.
        """
        rank = min(16, n, d)
        factors = {
            "cholesky": m * (n * d**2 + 5 * d**3 / 3) + 10 * 2e5,
            "woodbury": n**2 * d + 5 * m * n**3 / 3 + 10 * 2e5,
        }
        uses = {
            "cholesky": 2 * m * d**2 + 2 * 2e5,
            "woodbury": m * (2 * n * d + 2 * n**2) + 5 * 2e5,
        }
        iterations = (self.iterations or 3) * self.solves
        costs = {"pcg": iterations * (2 * (n + rank) * d * m + 15 * 2e5)}
        for name, factor in factors.items():
            solver = self._solvers[name]
            assert isinstance(solver, DirectSolver)
            room = solver.max_bytes // bytes_each
            times = 1 if solver.units_at_once(n, d, m, room)[1] else self.solves
            costs[name] = times * factor + self.solves * uses[name]
        return costs

    def solve(self, gradient: Tensor) -> Tensor:
        """The chosen solver's solution, (m, d)."""
        assert self._solver is not None
        return self._solver.solve(gradient)

    def check(self) -> None:
        """Raise `UserError` for what the chosen solver has found on a device (synchronises)."""
        if isinstance(self._solver, DirectSolver):
            self._solver.check()

    def state_dict(self) -> State:
        """The chosen solver's state."""
        return (self._waiting or {}) if self._solver is None else self._solver.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Go on from a state, which waits for the choice."""
        if self._solver is None:
            self._waiting = state or None
        else:
            self._solver.load_state_dict(state)

    def report(self) -> dict[str, float]:
        """The chosen solver's report."""
        return {} if self._solver is None else self._solver.report()
