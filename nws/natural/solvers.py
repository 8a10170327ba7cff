"""Damped solves (F_j + alpha I) x_j = g_j for all units j of a layer at once: dense, low-rank and matrix-free.

Every solver has one interface: `factor` once, `solve` many times. n rows, d parents with the bias, m units:

    solver            how                                                             time                        memory
    cholesky          form the m blocks, batched Cholesky                             m (n d^2 + d^3/3)           m d^2
    woodbury          n x n capacitance matrices from one Gram matrix of all units    n^2 d + m n^3/3             m n^2
    sherman_morrison  fold the rows into all m inverses, `block` at a time            m n d^2                     m d^2
    pcg               conjugate gradient, all units at once, shared preconditioner    iterations 4 (n + r) d m    n (d + m)

alpha comes as a tensor of one element on the device, so that a schedule can change it without a synchronisation.
Sources: Woodbury 1950; Sherman & Morrison 1950; Hestenes & Stiefel 1952; Martens 2010 (damped, matrix-free).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from nws.errors import UserError, positive_int
from nws.natural.conjugate_gradient import (
    PreconditionedConjugateGradient,
    Preconditioner,
    shared_basis,
)
from nws.natural.direct_solvers import (
    DIRECT,
    DirectSolver,
    RunningInverse,
    State,
    check_damping,
    check_finite,
    units_at_once,
)
from nws.natural.operators import UnitFisher


class Solver(Protocol):
    """What all solvers share. There is one object for each layer or stack of layers, since some keep state from step to step."""

    @property
    def stacks(self) -> bool:
        """Whether it takes several layers at once, as a `FisherStack` holds them; then m, d here stand for (.., m, d)."""

    def factor(self, fisher: UnitFisher, damping: Tensor) -> None:
        """Take in a layer's Fisher matrix and alpha. Raises `UserError` where a block cannot be factored."""

    def solve(self, gradient: Tensor) -> Tensor:
        """x_j = (F_j + alpha I)^{-1} g_j for all units: (m, d) from G (m, d)."""

    def state_dict(self) -> State:
        """What later solves depend on beside the next Fisher matrix."""

    def load_state_dict(self, state: State) -> None:
        """Go on from a state."""

    def report(self) -> dict[str, float]:
        """What the last solve has to say of itself, for the log (may synchronise)."""


class Approximate:
    """The cheaper stand-ins for the blocks, solved in closed form.

    diagonal:  F_j ~ diag(F_j).
    kronecker: F_j ~ sbar_j A, one shared block A = sum_k w_k h_k h_k^T scaled by each unit's mean curvature sbar_j.
    """

    stacks = False

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def factor(self, fisher: UnitFisher, damping: Tensor) -> None:
        check_damping(fisher, damping, needed=True)
        check_finite(fisher, damping)
        if self.kind == "diagonal":
            self._diagonal = fisher.diagonal() + damping
        else:
            self._shared = Preconditioner.of(
                shared_basis(fisher, fisher.shape[1]), fisher.weights.sum(0), damping
            )

    def solve(self, gradient: Tensor) -> Tensor:
        return gradient / self._diagonal if self.kind == "diagonal" else self._shared(gradient)

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        pass

    def report(self) -> dict[str, float]:
        return {}


class AutoSolver:
    """For each layer the solver that the cost table says is cheapest, settled by the first Fisher matrix that it sees.

    `solves` is the number of solves that a factor serves (metric.refresh_every).
    """

    stacks = False  # each layer has its own choice

    def __init__(
        self,
        iterations: int | None = None,
        accuracy: float = 1e-2,
        max_bytes: int = 2**30,
        solves: int = 1,
    ) -> None:
        self._options: dict[str, dict[str, Any]] = {
            "pcg": {"iterations": iterations, "accuracy": accuracy},
            "cholesky": {"max_bytes": max_bytes},
            "woodbury": {"max_bytes": max_bytes},
        }
        self.max_bytes, self.solves = positive_int("solver.max_bytes", max_bytes), solves
        self._solver: Solver | None = None
        self._waiting: State | None = None  # a state that came before the choice of a solver
        make_solver(
            "pcg", **self._options["pcg"]
        )  # a wrong option is found here, not at the first step

    def factor(self, fisher: UnitFisher, damping: Tensor) -> None:
        if self._solver is None:
            room = self.max_bytes // fisher.inputs.element_size()
            costs = solver_costs(
                *fisher.shape, self._options["pcg"]["iterations"] or 3, self.solves, room
            )
            name = min(costs, key=costs.__getitem__)
            self._solver = make_solver(name, **self._options[name])
            if self._waiting is not None:
                self._solver.load_state_dict(self._waiting)
        self._solver.factor(fisher, damping)

    def solve(self, gradient: Tensor) -> Tensor:
        assert self._solver is not None
        return self._solver.solve(gradient)

    def state_dict(self) -> State:
        return (self._waiting or {}) if self._solver is None else self._solver.state_dict()

    def load_state_dict(self, state: State) -> None:
        if self._solver is None:
            self._waiting = state or None
        else:
            self._solver.load_state_dict(state)

    def report(self) -> dict[str, float]:
        return {} if self._solver is None else self._solver.report()


def solver_costs(
    n: int, d: int, m: int, iterations: int, solves: int, room: int = 2**28
) -> dict[str, float]:
    """Cost of one factoring and `solves` solves in multiply-adds of a large product, from the table at the top.

    Factoring many small matrices runs at a fifth of a large product's rate; a call of any kernel costs as much as 2e5.
    room: numbers that solver.max_bytes holds; factors that do not fit are made anew at each solve.
    """
    rank = min(16, n, d)
    factors = {
        "cholesky": m * (n * d**2 + 5 * d**3 / 3) + 10 * 2e5,
        "woodbury": n**2 * d + 5 * m * n**3 / 3 + 10 * 2e5,
    }
    uses = {"cholesky": 2 * m * d**2 + 2 * 2e5, "woodbury": m * (2 * n * d + 2 * n**2) + 5 * 2e5}
    costs = {"pcg": solves * iterations * (2 * (n + rank) * d * m + 15 * 2e5)}
    for name, factor in factors.items():
        costs[name] = (
            1 if units_at_once(DIRECT[name], n, d, m, 1, room)[1] else solves
        ) * factor + solves * uses[name]
    return costs


def make_solver(name: str = "pcg", solves: int = 1, **options: Any) -> Solver:
    """A solver of the `solver` group by its name, with its options. Raises `UserError` for an unknown name or option."""
    makers: dict[str, Callable[..., Solver]] = {
        "pcg": PreconditionedConjugateGradient,
        "auto": partial(AutoSolver, solves=solves),
        "cholesky": partial(DirectSolver, "cholesky"),
        "woodbury": partial(DirectSolver, "woodbury"),
        "sherman_morrison": _sherman_morrison,
    }
    if not isinstance(name, str) or name not in makers:
        raise UserError(f"solver.name must be one of {', '.join(makers)}, got {name!r}")
    try:
        return makers[name](**options)
    except TypeError as error:
        raise UserError(f"solver={name} does not take these options: {error}") from error


def _sherman_morrison(forgetting: float = 0.0, **options: Any) -> Solver:
    return (
        RunningInverse(forgetting, **options)
        if forgetting
        else DirectSolver("sherman_morrison", **options)
    )
