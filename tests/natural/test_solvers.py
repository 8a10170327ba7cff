"""Every damped solver against dense float64 blocks, over one list of cases.

The tests also cover the error messages of all solvers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import EXACT, SOLVER_CASES, SolverCase
from solving import (
    DIRECT,
    ROUNDING,
    SOLVERS,
    dense,
    each_solver,
    error,
    errors,
    factored,
    pcg,
    solve_dense,
    tight,
)
from torch.utils._python_dispatch import TorchDispatchMode

from nws.errors import UserError
from nws.natural import UnitFisher, natural_direction
from nws.natural.metrics import Diagonal, Kronecker
from nws.natural.operators import Rows
from nws.natural.solvers import (
    AutoSolver,
    Cholesky,
    RunningInverse,
    ShermanMorrison,
    sherman_morrison,
)

# --- all solvers, all cases -----------------------------------------------------------------------


@each_solver
@pytest.mark.parametrize("case", SOLVER_CASES)
def test_every_solver_gives_the_dense_solution_of_each_unit(case: SolverCase, name: str) -> None:
    """Each solver factors once and solves twice.

    An iterative solver's residual is `tolerance`.
    Its error is at most that times the condition number.
    """
    fisher, solver = case.fisher(), SOLVERS[name](case)
    solver.factor(fisher, case.damping)
    blocks, alpha = dense(fisher), float(case.damping)
    condition = (torch.linalg.eigvalsh(blocks)[:, -1] + alpha) / alpha
    bound = (
        ROUNDING * torch.finfo(case.dtype).eps
        + (tight(case) if name.startswith(("pcg", "auto")) else 0)
    ) * condition
    for seed in (1, 2):
        gradient = case.gradient(seed)
        before = gradient.clone()
        solution = solver.solve(gradient)
        assert solution.shape == (case.m, case.d) and solution.dtype == case.dtype
        assert torch.equal(gradient, before)
        assert (errors(solution, solve_dense(blocks, alpha, gradient)) <= bound).all()


@each_solver
def test_the_damping_may_have_the_shape_of_one_element(name: str) -> None:
    case = SolverCase(60, 9, 5, 0.2)
    one, other = SOLVERS[name](case), SOLVERS[name](case)
    one.factor(case.fisher(), case.damping)
    other.factor(case.fisher(), case.damping[None])
    assert torch.equal(one.solve(case.gradient()), other.solve(case.gradient()))


@pytest.mark.parametrize("name", SOLVERS)
def test_damping_that_changes_in_place_counts_from_the_next_factor_on(name: str) -> None:
    """A schedule or an adaptation can change alpha between two refreshes.

    All solvers must take in the new value at the same time.
    """
    case = SolverCase(60, 40, 5, 0.2)
    damping = case.damping
    solver = SOLVERS[name](case)
    solver.factor(case.fisher(), damping)
    damping.fill_(1.0)
    expected = solve_dense(dense(case.fisher()), 0.2, case.gradient())
    assert error(solver.solve(case.gradient()), expected) < EXACT


@each_solver
@pytest.mark.parametrize("shape", [(60, 9), (20, 33)], ids=["n>d", "n<d"])
def test_units_without_gradient_get_no_direction(shape: tuple[int, int], name: str) -> None:
    case = SolverCase(*shape, 5, 0.2)
    if name == "pcg, warm start":
        pytest.skip("has its own test")
    solver = factored(SOLVERS[name](case), case)
    gradient = case.gradient()
    gradient[[0, 3]] = 0
    solution = solver.solve(gradient)
    assert (solution[[0, 3]] == 0).all() and solution.isfinite().all()
    rest = [1, 2, 4]
    assert (
        error(solution[rest], solve_dense(dense(case.fisher())[rest], 0.2, gradient[rest])) < EXACT
    )
    assert (solver.solve(torch.zeros_like(gradient)) == 0).all()


@each_solver
@pytest.mark.parametrize("shape", [(60, 9), (20, 33), (8, 40)], ids=["n>d", "n<d", "few rows"])
def test_every_solver_gives_the_directions_of_the_packages_reference(
    shape: tuple[int, int], name: str
) -> None:
    case = SolverCase(*shape, 5, 0.2)
    fisher, gradient = case.fisher(), case.gradient()
    solution = factored(SOLVERS[name](case), case).solve(gradient)
    expected = natural_direction(fisher.inputs, fisher.curvature, gradient, 0.2)
    assert error(1.2 * solution, expected) < EXACT


@each_solver
def test_reports_are_numbers(name: str) -> None:
    case = SolverCase(48, 40, 5, 0.2)
    solver = factored(SOLVERS[name](case), case)
    solver.solve(case.gradient())
    assert all(isinstance(value, int | float) for value in solver.report().values())


# --- all units at once ----------------------------------------------------------------------------


class Calls(TorchDispatchMode):
    """Counts the operations called inside."""

    count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def calls(make: Callable[[SolverCase], Any], case: SolverCase) -> int:
    fisher, gradient, solver = case.fisher(), case.gradient(), make(case)
    with Calls() as counted:
        solver.factor(fisher, case.damping)
        solver.solve(gradient)
    return counted.count


class MetricAsSolver:
    """A metric of one layer, called as a solver is."""

    def __init__(self, metric: Any) -> None:
        self.metric = metric

    def factor(self, fisher: UnitFisher, damping: torch.Tensor) -> None:
        rows = Rows(fisher.inputs, fisher.curvature, lambda: fisher.curvature, fisher.name)
        self.metric.update([rows], damping)

    def solve(self, gradient: torch.Tensor) -> torch.Tensor:
        return self.metric.direction([gradient])[0]


FIXED: dict[str, Callable[[SolverCase], Any]] = {
    **{name: make for name, make in SOLVERS.items() if not name.startswith(("pcg", "auto"))},
    "pcg": lambda case: pcg(3),
    "diagonal": lambda case: MetricAsSolver(Diagonal()),
    "kronecker": lambda case: MetricAsSolver(Kronecker()),
}


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("shape", [(60, 9), (8, 40)], ids=["n>d", "n<d"])
def test_more_units_are_no_more_calls(shape: tuple[int, int], name: str) -> None:
    """All units are worked on at once: there is no loop over them."""
    assert calls(FIXED[name], SolverCase(*shape, 40, 0.2)) == calls(
        FIXED[name], SolverCase(*shape, 2, 0.2)
    )


def test_rows_folded_in_together_are_fewer_calls() -> None:
    case = SolverCase(64, 9, 5, 0.2)
    one, many = (
        calls(SOLVERS[name], case) for name in ("sherman_morrison", "sherman_morrison, block 16")
    )
    assert many < one / 4


# --- errors ---------------------------------------------------------------------------------------


def failing(
    case: SolverCase, solver: Any, alpha: float, spoil: Callable[[UnitFisher], Any] | None = None
) -> str:
    """The error message, which must name the layer, n, d, alpha and an option.

    A solver may factor as late as in `solve`.
    """
    fisher = case.fisher(name="recognition.1")
    if spoil is not None:
        spoil(fisher)
    with pytest.raises(UserError) as raised:  # noqa: PT012
        solver.factor(fisher, torch.tensor(alpha, dtype=case.dtype))
        solver.solve(case.gradient())
    message = str(raised.value)
    for part in ("recognition.1: ", f"n={case.n} ", f"d={case.d} ", f"damping {alpha:g}: "):
        assert part in message, message
    assert ("damping.value" in message) != ("optimizer.lr" in message), message
    return message


@each_solver
@pytest.mark.parametrize("alpha", [-0.1, float("nan"), float("inf")])
def test_damping_that_is_not_positive_is_an_error(alpha: float, name: str) -> None:
    case = SolverCase(60, 9, 5, 0.2)
    failing(case, SOLVERS[name](case), alpha)


@each_solver
@pytest.mark.parametrize("shape", [(60, 9), (5, 9)], ids=["n>d", "n<d"])
def test_no_damping_is_an_error_where_the_solver_needs_some(
    shape: tuple[int, int], name: str
) -> None:
    case = SolverCase(*shape, 5, 0.2)
    if name in ("cholesky", "auto") and case.n > case.d:  # auto takes cholesky here
        pytest.skip("needs none")
    failing(case, SOLVERS[name](case), 0.0)


@pytest.mark.parametrize(
    ("name", "alpha", "shape"),
    [("cholesky", 1e-9, (5, 9)), ("woodbury", 1e-10, (60, 9)), ("sherman_morrison", 1e-9, (60, 9)),
     ("sherman_morrison, block 16", 1e-9, (60, 9)), ("running, first batch", 1e-9, (60, 9))],
)  # fmt: skip
def test_damping_too_small_for_the_precision_is_an_error(
    name: str, alpha: float, shape: tuple[int, int]
) -> None:
    case = SolverCase(*shape, 5, 0.2, dtype=torch.float32)
    assert "singular to working precision" in failing(case, SOLVERS[name](case), alpha)


@pytest.mark.parametrize("kind", [Diagonal, Kronecker])
@pytest.mark.parametrize("alpha", [0.0, -0.1, float("nan")])
def test_the_stand_ins_need_damping_too(alpha: float, kind: type) -> None:
    failing(SolverCase(60, 9, 5, 0.2), MetricAsSolver(kind()), alpha)


@pytest.mark.parametrize("kind", [Diagonal, Kronecker])
@pytest.mark.parametrize("part", ["inputs", "curvature"])
def test_the_stand_ins_refuse_rows_that_are_not_finite(kind: type, part: str) -> None:
    def spoil(fisher: UnitFisher) -> None:
        getattr(fisher, part)[3, 1] = float("nan")

    assert "not finite" in failing(SolverCase(60, 9, 5, 0.2), MetricAsSolver(kind()), 0.2, spoil)


def test_cholesky_takes_no_undamped_block_of_fewer_rows_than_parents() -> None:
    """One row too few: the last pivot is rounding of either sign, and must not decide."""
    for seed in range(20):
        fisher = SolverCase(8, 9, 1, 0.0).fisher(seed)
        with pytest.raises(UserError, match="n=8 rows of d=9"):
            Cholesky().factor(fisher, torch.tensor(0.0, dtype=torch.float64))


@pytest.mark.parametrize("max_bytes", [2**30, 1], ids=["one chunk", "chunks"])
@pytest.mark.parametrize("method", ["cholesky", "woodbury"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_chunks_that_are_not_finite_are_an_error(value: float, method: str, max_bytes: int) -> None:
    def spoil(fisher: UnitFisher) -> None:
        fisher.curvature[3, 4] = value  # one weight, in the last unit

    assert "not finite" in failing(SolverCase(60, 9, 5, 0.2), DIRECT[method](max_bytes), 0.2, spoil)


@each_solver
@pytest.mark.parametrize("before", [0, 1, 3], ids=lambda before: f"after {before} good ones")
def test_rows_that_are_not_finite_are_an_error(before: int, name: str) -> None:
    case = SolverCase(60, 9, 5, 0.2)
    solver = SOLVERS[name](case)
    for seed in range(before):
        factored(solver, case, seed)

    def spoil(fisher: UnitFisher) -> None:
        fisher.inputs[3, 1] = float("nan")

    assert "not finite" in failing(case, solver, 0.2, spoil)


BAD: list[tuple[str, Callable[[], Any]]] = [
    ("solver.max_bytes", lambda: Cholesky(max_bytes=0)),
    ("solver.block", lambda: ShermanMorrison(block=0)),
    ("solver.max_bytes", lambda: RunningInverse(0.9, max_bytes=0)),
    ("solver.block", lambda: RunningInverse(0.9, block=-1)),
    *[
        ("solver.forgetting", lambda value=value: RunningInverse(value))
        for value in (0, 1, -0.5, 1.5, float("nan"), True, "a")
    ],
    *[
        ("solver.forgetting", lambda value=value: sherman_morrison(value))
        for value in (1, -0.5, False, "", None)
    ],
    ("solver.iterations", lambda: pcg(0)),
    ("solver.iterations", lambda: pcg(2.5)),  # type: ignore[arg-type]
    *[
        ("solver.tolerance", lambda value=value: pcg(3, value))
        for value in (-1e-3, 1.0, float("nan"), True, "1e-3")
    ],
    *[
        ("solver.accuracy", lambda value=value: pcg(accuracy=value))
        for value in (-1e-3, 1.0, float("nan"), True, "1e-3")
    ],
    ("solver.rank", lambda: pcg(rank=-1)),
    ("solver.preconditioner_every", lambda: pcg(preconditioner_every=0)),
    ("solver.iterations", lambda: AutoSolver(iterations=0)),
    ("solver.accuracy must be a number of at least 0 and below 1, got 1", lambda: pcg(accuracy=1)),
    ("solver.accuracy", lambda: AutoSolver(accuracy=2)),
    ("solver.max_bytes", lambda: AutoSolver(max_bytes=0)),
    ("solver.solves", lambda: AutoSolver(solves=0)),
]


@pytest.mark.parametrize(
    ("setting", "make"), BAD, ids=[f"{name} {i}" for i, (name, _) in enumerate(BAD)]
)
def test_bad_settings_are_errors_that_name_them(setting: str, make: Callable[[], Any]) -> None:
    with pytest.raises(UserError, match=setting):
        make()
