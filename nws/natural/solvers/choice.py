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
from nws.natural.solvers.direct import Cholesky, DirectSolver, Woodbury
from nws.natural.solvers.solver import Solver, State

CALL = 2e5  # multiply-adds of a large product in the time that a call of any kernel takes


class AutoSolver(Solver):
    """The cheapest solver, chosen by the first operator that it sees.

    Args:
        iterations: Of pcg; None: as many as `accuracy` needs.
        accuracy: Of pcg.
        max_bytes: Of the direct solvers.
        solves: Solves that a factor serves (metric.refresh_every), at least 1.

    Raises:
        UserError: For numbers that are out of range.
    """

    def __init__(
        self,
        iterations: int | None = None,
        accuracy: float = 1e-2,
        max_bytes: int = 2**30,
        solves: int = 1,
    ) -> None:
        self.solves = positive_int("solver.solves", solves)
        self._pcg = ConjugateGradient(iterations, accuracy)  # the one that has a state
        self._direct: dict[str, DirectSolver] = {
            "cholesky": Cholesky(max_bytes), "woodbury": Woodbury(max_bytes)
        }  # fmt: skip
        self.chosen: Solver | None = None

    def factor(self, operator: CurvatureOperator, damping: Tensor) -> None:
        """Choose a solver at the first call, and let it take in the operator."""
        if self.chosen is None:
            fisher = operator.with_rows()
            (n, d), m = fisher.inputs.shape, fisher.shape[0]
            costs = self.costs(n, d, m, fisher.inputs.element_size())
            self.chosen = self._direct.get(min(costs, key=costs.__getitem__), self._pcg)
        self.chosen.factor(operator, damping)

    def costs(self, n: int, d: int, m: int, bytes_each: int = 4) -> dict[str, float]:
        """Cost of one factoring and its solves, in multiply-adds of a large product.

        Many small factorings run at a fifth of a large product's rate. Factors that do not fit in
        memory are made again at each solve.
        """
        iteration = 2 * (n + min(16, n, d)) * d * m + 15 * CALL
        costs = {"pcg": (self._pcg.iterations or 3) * self.solves * iteration}
        table = {  # of one factoring, and of one solve
            "cholesky": (m * (n * d**2 + 5 * d**3 / 3) + 10 * CALL, 2 * m * d**2 + 2 * CALL),
            "woodbury": (
                n**2 * d + 5 * m * n**3 / 3 + 10 * CALL,
                m * (2 * n * d + 2 * n**2) + 5 * CALL,
            ),
        }
        for name, (factor, use) in table.items():
            fits = self._direct[name].units_at_once(n, d, m, bytes_each)[1]
            costs[name] = (1 if fits else self.solves) * factor + self.solves * use
        return costs

    def solve(self, gradient: Tensor) -> Tensor:
        """The chosen solver's solution, (m, d)."""
        assert self.chosen is not None
        return self.chosen.solve(gradient)

    def check(self) -> None:
        """Raise `UserError` for what the chosen solver has found on a device (synchronises)."""
        if self.chosen is not None:
            self.chosen.check()

    def report(self) -> dict[str, float]:
        """The chosen solver's report."""
        return {} if self.chosen is None else self.chosen.report()

    def state_dict(self) -> State:
        """That of pcg, whether it is the chosen one or not."""
        return self._pcg.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Go on from a state."""
        self._pcg.load_state_dict(state)
