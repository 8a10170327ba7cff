"""Every damped solver against dense float64 blocks, over one list of cases; solvers by name, and their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import EXACT, REALISTIC, SOLVER_CASES, SolverCase
from solving import (
    ROUNDING,
    SOLVERS,
    dense,
    each_solver,
    error,
    errors,
    factored,
    mean_block,
    pcg,
    saved,
    solve_dense,
    tight,
)
from torch.utils._python_dispatch import TorchDispatchMode

from nws.errors import UserError
from nws.natural.conjugate_gradient import PreconditionedConjugateGradient
from nws.natural.direct_solvers import DIRECT, DirectSolver, RunningInverse
from nws.natural.operators import UnitFisher
from nws.natural.solvers import Approximate, AutoSolver, Solver, make_solver, solver_costs

# --- all solvers, all cases -----------------------------------------------------------------------------------------


@each_solver
@pytest.mark.parametrize("case", SOLVER_CASES)
def test_every_solver_gives_the_dense_solution_of_each_unit(case: SolverCase, name: str) -> None:
    """Factored once, solved twice. An iterative solver's residual of `tolerance` is an error of at most that times the
    condition number."""
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
    """A schedule or an adaptation writes alpha anew between two refreshes; all solvers must take it in at the same time."""
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


# --- stand-ins ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [c for c in SOLVER_CASES if c.values[0].device == "cpu"])
def test_the_diagonal_and_kronecker_stand_ins_solve_what_they_say(case: SolverCase) -> None:
    fisher, gradient = case.fisher(), case.gradient()
    diagonals = dense(fisher).diagonal(dim1=1, dim2=2)
    mean_curvature = fisher.weights.double().sum(0)
    shared = mean_curvature[:, None, None] * mean_block(fisher)
    alpha = float(case.damping)
    condition = (torch.linalg.eigvalsh(shared)[:, -1].max() + alpha) / alpha
    bound = ROUNDING * torch.finfo(case.dtype).eps * float(condition)
    diagonal, kronecker = (
        factored(Approximate(kind), case).solve(gradient) for kind in ("diagonal", "kronecker")
    )
    assert (
        error(diagonal, gradient.double() / (diagonals + alpha))
        < ROUNDING * torch.finfo(case.dtype).eps
    )
    assert error(kronecker, solve_dense(shared, alpha, gradient)) < bound


def test_the_stand_ins_are_not_the_fisher_matrix() -> None:
    expected = solve_dense(dense(REALISTIC.fisher()), 0.2, REALISTIC.gradient())
    for kind in ("diagonal", "kronecker"):
        assert (
            error(factored(Approximate(kind), REALISTIC).solve(REALISTIC.gradient()), expected)
            > 1e-2
        )
    assert Approximate("diagonal").state_dict() == {}


# --- by name --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        ("pcg", {"iterations": 60, "rank": 8}, PreconditionedConjugateGradient),
        ("auto", {"iterations": 60}, AutoSolver),
        ("cholesky", {"max_bytes": 2**20}, DirectSolver),
        ("woodbury", {}, DirectSolver),
        ("sherman_morrison", {"block": 4}, DirectSolver),
        ("sherman_morrison", {"forgetting": 0.5}, RunningInverse),
    ],
    ids=str,
)
def test_each_name_makes_its_solver(name: str, options: dict[str, Any], kind: type) -> None:
    case = SolverCase(48, 40, 5, 0.2)
    solver = factored(make_solver(name, **options), case)
    assert type(solver) is kind
    assert (
        error(
            solver.solve(case.gradient()), solve_dense(dense(case.fisher()), 0.2, case.gradient())
        )
        < EXACT
    )
    assert all(isinstance(value, int | float) for value in solver.report().values())


@pytest.mark.parametrize(
    ("n", "d", "m", "solves", "expected"),
    [(1000, 4, 50, 1, "cholesky"), (4, 800, 10, 1, "woodbury"), (320, 301, 784, 1, "pcg"), (320, 785, 300, 1, "pcg"),
     (320, 21, 15, 1000, "cholesky")],
)  # fmt: skip
def test_auto_takes_the_cheapest_of_the_cost_table(
    n: int, d: int, m: int, solves: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = solver_costs(n, d, m, 3, solves)
    assert min(costs, key=costs.__getitem__) == expected
    made: list[str] = []
    solver = AutoSolver(solves=solves)
    monkeypatch.setattr(
        "nws.natural.solvers.make_solver",
        lambda name, **options: made.append(name) or make_solver(name, **options),
    )
    for kind in (
        DirectSolver,
        PreconditionedConjugateGradient,
    ):  # the choice is looked at, not the work
        monkeypatch.setattr(kind, "factor", lambda *_: None)
    for _ in range(2):
        solver.factor(UnitFisher(torch.ones(n, d), torch.ones(n, m)), torch.tensor(0.2))
    assert made == [expected]


@pytest.mark.parametrize(
    ("n", "d", "m", "solves", "expected"),
    [(320, 51, 75, 2, "pcg"), (320, 51, 75, 16, "cholesky"), (32, 101, 200, 1, "pcg"), (32, 101, 200, 4, "woodbury"),
     (320, 301, 784, 1000, "cholesky"), (320, 301, 4096, 1000, "pcg")],
)  # fmt: skip
def test_auto_weighs_factoring_against_the_solves_that_follow(
    n: int, d: int, m: int, solves: int, expected: str
) -> None:
    """The last two: factors that fit in a GiB serve all solves, others are made anew at each."""
    costs = solver_costs(n, d, m, 3, solves)
    assert min(costs, key=costs.__getitem__) == expected


@pytest.mark.parametrize(
    ("shape", "name"), [((60, 9), "cholesky"), ((4, 400), "woodbury"), ((320, 101), "pcg")]
)
def test_autos_options_reach_the_solver_that_it_takes(shape: tuple[int, int], name: str) -> None:
    solver = AutoSolver(accuracy=1e-3, max_bytes=12345)
    factored(solver, SolverCase(*shape, 5 if name != "pcg" else 60, 0.2))
    taken = solver._solver
    if isinstance(taken, PreconditionedConjugateGradient):
        assert name == "pcg" and taken.accuracy == 1e-3 and taken.iterations is None
    else:
        assert (
            isinstance(taken, DirectSolver)
            and taken._method is DIRECT[name]
            and taken.max_bytes == 12345
        )


class Calls(TorchDispatchMode):
    """Counts the operations called inside."""

    count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def calls(make: Callable[[SolverCase], Solver], case: SolverCase) -> int:
    fisher, gradient, solver = case.fisher(), case.gradient(), make(case)
    with Calls() as counted:
        solver.factor(fisher, case.damping)
        solver.solve(gradient)
    return counted.count


FIXED: dict[str, Callable[[SolverCase], Solver]] = {
    **{name: make for name, make in SOLVERS.items() if not name.startswith(("pcg", "auto"))},
    "pcg": lambda case: pcg(3),
    "diagonal": lambda case: Approximate("diagonal"),
    "kronecker": lambda case: Approximate("kronecker"),
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


def test_auto_goes_on_bit_for_bit_from_its_state() -> None:
    """Loaded before the first Fisher matrix tells which solver it is the state of."""
    solver, other = AutoSolver(), AutoSolver()
    factored(solver, REALISTIC, seed=1)
    other.load_state_dict(saved(solver))
    one, two = (factored(each, REALISTIC).solve(REALISTIC.gradient()) for each in (solver, other))
    assert torch.equal(one, two)
    assert not torch.equal(one, factored(AutoSolver(), REALISTIC).solve(REALISTIC.gradient()))


def test_auto_saved_again_before_a_step_keeps_its_state() -> None:
    solver, other = AutoSolver(), AutoSolver()
    factored(solver, REALISTIC)
    other.load_state_dict(saved(solver))
    assert saved(other).keys() == saved(solver).keys()


@pytest.mark.parametrize(
    ("name", "options", "part"),
    [
        ("newton", {}, "pcg, auto, cholesky, woodbury, sherman_morrison"),
        ("cholesky", {"rank": 3}, "rank"),
        ("pcg", {"forgetting": 0.5}, "forgetting"),
        ("auto", {"iterations": 0}, "solver.iterations"),
        ("auto", {"accuracy": 2}, "solver.accuracy"),
        ("auto", {"max_bytes": 0}, "solver.max_bytes"),
    ],
)
def test_unknown_names_and_options_are_errors(
    name: str, options: dict[str, Any], part: str
) -> None:
    with pytest.raises(UserError, match=part) as raised:
        make_solver(name, **options)
    assert name in str(raised.value) or part.startswith("solver.")


# --- errors ---------------------------------------------------------------------------------------------------------


def failing(
    case: SolverCase, solver: Solver, alpha: float, spoil: Callable[[UnitFisher], Any] | None = None
) -> str:
    """The message, which must name the layer, n, d, alpha and an option. A factor may be made as late as in `solve`."""
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
@pytest.mark.parametrize("alpha", [-0.1, float("nan")])
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


@pytest.mark.parametrize("kind", ["diagonal", "kronecker"])
@pytest.mark.parametrize("alpha", [0.0, -0.1])
def test_the_stand_ins_need_damping_too(alpha: float, kind: str) -> None:
    failing(SolverCase(60, 9, 5, 0.2), Approximate(kind), alpha)


def test_cholesky_takes_no_undamped_block_of_fewer_rows_than_parents() -> None:
    """One row too few: the last pivot is rounding of either sign, and must not decide."""
    for seed in range(20):
        fisher = SolverCase(8, 9, 1, 0.0).fisher(seed)
        with pytest.raises(UserError, match="n=8 rows of d=9"):
            DirectSolver("cholesky").factor(fisher, torch.tensor(0.0, dtype=torch.float64))


@pytest.mark.parametrize("max_bytes", [2**30, 1], ids=["one chunk", "chunks"])
@pytest.mark.parametrize("method", ["cholesky", "woodbury"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_chunks_that_are_not_finite_are_an_error(value: float, method: str, max_bytes: int) -> None:
    def spoil(fisher: UnitFisher) -> None:
        fisher.weights[3, 4] = value  # one weight, in the last unit

    assert "not finite" in failing(
        SolverCase(60, 9, 5, 0.2), DirectSolver(method, max_bytes), 0.2, spoil
    )


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
    ("solver.max_bytes", lambda: DirectSolver("cholesky", max_bytes=0)),
    ("solver.block", lambda: DirectSolver("sherman_morrison", block=0)),
    ("solver.max_bytes", lambda: RunningInverse(0.9, max_bytes=0)),
    ("solver.block", lambda: RunningInverse(0.9, block=-1)),
    *[
        ("solver.forgetting", lambda value=value: RunningInverse(value))
        for value in (0, 1, -0.5, 1.5, float("nan"), True)
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
]


@pytest.mark.parametrize(
    ("setting", "make"), BAD, ids=[f"{name} {i}" for i, (name, _) in enumerate(BAD)]
)
def test_bad_settings_are_errors_that_name_them(setting: str, make: Callable[[], Any]) -> None:
    with pytest.raises(UserError, match=setting):
        make()
