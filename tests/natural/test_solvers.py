"""The contract of every damped solver, against dense float64 blocks, over one list of cases."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from cases import EXACT, FEW_ROWS, REALISTIC, SOLVER_CASES, SolverCase
from solving import (
    DIRECT,
    ROUNDING,
    SOLVERS,
    NoReads,
    Wrapped,
    condition,
    dense,
    each_solver,
    error,
    errors,
    factored,
    pcg,
    residual,
    saved,
    solve_dense,
    tight,
    without_looks,
)
from torch.utils._python_dispatch import TorchDispatchMode

from nws.errors import UserError
from nws.natural import UnitFisher
from nws.natural.metrics import Diagonal, Kronecker
from nws.natural.operators import Rows
from nws.natural.solvers import AutoSolver, Cholesky, ConjugateGradient, MinRes, ShermanMorrison

ITERATIVE = [name for name in SOLVERS if name.startswith(("pcg", "minres"))]
each_shape = pytest.mark.parametrize("shape", [(60, 9), (20, 33), (8, 40)], ids=str)

# --- the solution ---------------------------------------------------------------------------------


@each_solver
@pytest.mark.parametrize("case", SOLVER_CASES)
def test_the_solution_is_the_dense_one_of_each_unit(case: SolverCase, name: str) -> None:
    """Each solver factors once and solves twice.

    An iterative solver's residual is `tight`, and its error at most that times the condition
    number. MINRES has that residual in the norm of D^{-1}, with D the diagonal of the block.
    """
    fisher, solver, damping = case.fisher(), SOLVERS[name](case), case.damping
    damping = damping[None] if case.units == "bipolar" else damping  # of any shape
    solver.factor(fisher, damping)
    blocks, alpha = dense(fisher), float(damping)
    damping.fill_(1.0)  # which counts from the next factor on
    conditions = condition(blocks, alpha)
    left = tight(case) if name in (*ITERATIVE, "auto") else 0
    bound = (ROUNDING * torch.finfo(case.dtype).eps + left) * conditions
    if name == "minres":
        bound = bound * conditions.sqrt()
    for seed in (1, 2):
        gradient = case.gradient(seed)
        before = gradient.clone()
        solution = solver.solve(gradient)
        assert solution.shape == (case.m, case.d) and solution.dtype == case.dtype
        assert torch.equal(gradient, before)
        assert (errors(solution, solve_dense(blocks, alpha, gradient)) <= bound).all()


@each_solver
@each_shape
def test_units_without_gradient_get_no_direction(shape: tuple[int, int], name: str) -> None:
    case = SolverCase(*shape, 5, 0.2)
    solver, gradient, rest = factored(SOLVERS[name](case), case), case.gradient(), [1, 2, 4]
    gradient[[0, 3]] = 0
    solution = solver.solve(gradient)
    assert (solution[[0, 3]] == 0).all() and solution.isfinite().all()
    expected = solve_dense(dense(case.fisher())[rest], 0.2, gradient[rest])
    assert error(solution[rest], expected) < EXACT
    report = solver.report().get("residual", 0.0)
    if name in ITERATIVE:  # zeros are left out of it
        assert report == pytest.approx(
            residual(UnitFisher(case.fisher().inputs, case.fisher().curvature[:, rest]), 0.2,
                     solution[rest], gradient[rest]), rel=0.1, abs=1e-14
        )  # fmt: skip
    assert (solver.solve(torch.zeros_like(gradient)) == 0).all()


@each_solver
def test_an_operator_without_rows_is_solved_by_its_products_or_refused(name: str) -> None:
    """A solver sees only what the base class says; few rows are then solved as they stand."""
    for case in (SolverCase(320, 101, 6, 0.2), FEW_ROWS):
        solver, operator = SOLVERS[name](case), Wrapped(case.fisher(name="generator.2"))
        if name in ITERATIVE:
            solver.factor(operator, case.damping)
            expected = solve_dense(dense(case.fisher()), 0.2, case.gradient())
            assert error(solver.solve(case.gradient()), expected) < EXACT
        else:
            words = r"generator\.2: .*\(UnitFisher\), got Wrapped; take solver=pcg"
            with pytest.raises(UserError, match=words):
                solver.factor(operator, case.damping)


@pytest.mark.parametrize("make", [pcg, partial(MinRes, tolerance=0.0)], ids=["pcg", "minres"])
def test_few_iterations_miss_what_more_of_them_meet(make: Callable[[int], Any]) -> None:
    """Negative control: an under-converged solve breaks the bound that a converged one keeps."""
    expected = solve_dense(dense(REALISTIC.fisher()), 0.2, REALISTIC.gradient())
    solvers = [factored(make(count), REALISTIC) for count in (1, 2, 4, 8, 200)]
    found = [error(solver.solve(REALISTIC.gradient()), expected) for solver in solvers]
    assert found == sorted(found, reverse=True) and found[0] > 1e-2 and found[-1] < EXACT
    assert [solver.used_iterations for solver in solvers] == [1, 2, 4, 8, 200]


# --- reports and states ---------------------------------------------------------------------------


@each_solver
def test_a_report_is_of_the_last_solve_with_this_operator(name: str) -> None:
    case = SolverCase(48, 40, 5, 0.2)
    solver = factored(SOLVERS[name](case), case)
    assert solver.report() == {}
    true = residual(case.fisher(), 0.2, solver.solve(case.gradient()), case.gradient())
    report = solver.report()
    assert set(report) == ({"iterations", "residual"} if name in ITERATIVE else set())
    if report:
        assert 1 <= report["iterations"] <= 200
        assert report["residual"] == pytest.approx(true, rel=0.1, abs=1e-14)
    assert factored(solver, case, 2).report() == {}


STATES: dict[str, Callable[[], Any]] = {
    **DIRECT,
    "running": lambda: ShermanMorrison(forgetting=0.8),
    "auto": lambda: AutoSolver(2),
    "minres": MinRes,
    "pcg, fixed": lambda: pcg(3, preconditioner_every=3),
    "pcg": lambda: pcg(None, preconditioner_every=3),
    "pcg, tolerance": lambda: pcg(50, 1e-6, preconditioner_every=3),
}
each_space = pytest.mark.parametrize("case", [REALISTIC, FEW_ROWS], ids=["basis", "few rows"])


@pytest.mark.parametrize("rows_first", [False, True])
@each_space
@pytest.mark.parametrize("name", STATES)
def test_a_solver_goes_on_bit_for_bit_from_its_state(
    name: str, case: SolverCase, rows_first: bool
) -> None:
    """The state is saved between two refreshes of the basis, and the next one is at its time.

    With `metric.refresh_every` the loaded solver takes in the last rows first, and then its state.
    """
    case = SolverCase(case.n, case.d, 6, case.alpha)
    solver, other = STATES[name](), STATES[name]()
    for batch in range(5):
        factored(solver, case, batch).solve(case.gradient(batch))
    state = saved(solver)
    if rows_first:
        factored(other, case, 4).load_state_dict(state)
        assert torch.equal(solver.solve(case.gradient(9)), other.solve(case.gradient(9)))
    else:
        other.load_state_dict(state)
    for batch in range(5, 9):
        one, two = (
            factored(each, case, batch).solve(case.gradient(batch)) for each in (solver, other)
        )
        assert torch.equal(one, two)
    torch.testing.assert_close(saved(other), saved(solver), rtol=0, atol=0)
    fresh = factored(STATES[name](), case, 8).solve(case.gradient(8))
    remembers = name == "running" or (name.startswith("pcg") and case.n > case.d)
    if name != "auto":  # the control: what is in the state matters
        assert torch.equal(one, fresh) != remembers
    if name in (*DIRECT, "minres"):
        assert state == {}


# --- what it costs --------------------------------------------------------------------------------


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
    **{name: make for name, make in SOLVERS.items() if name not in (*ITERATIVE, "auto")},
    "pcg": lambda case: pcg(3),
    "minres": lambda case: MinRes(3, 0.0),
    "diagonal": lambda case: MetricAsSolver(Diagonal()),
    "kronecker": lambda case: MetricAsSolver(Kronecker()),
}


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("shape", [(60, 9), (8, 40)], ids=["n>d", "n<d"])
def test_more_units_are_no_more_calls(shape: tuple[int, int], name: str) -> None:
    """All units are worked on at once: there is no loop over them."""
    few, many = (calls(FIXED[name], SolverCase(*shape, m, 0.2)) for m in (2, 40))
    assert few == many


@each_space
@pytest.mark.parametrize(
    "make",
    [*(partial(pcg, 4, rank=rank) for rank in (0, 8, 101)), partial(MinRes, 4, 0.0)], ids=str,
)  # fmt: skip
def test_a_fixed_number_of_iterations_reads_nothing_from_the_device(
    make: Callable[[], Any], case: SolverCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver, fisher, damping = factored(make(), case), case.fisher(1), case.damping
    with pytest.raises(AssertionError, match="reads from the device"), NoReads():
        solver.factor(fisher, damping)  # looks at alpha and the rows, where they are on the CPU
    until = factored(pcg(4, 1e-6), case)
    without_looks(monkeypatch)
    with NoReads():
        solver.factor(fisher, damping)
        solver.solve(case.gradient())
        solver.solve(case.gradient(2))
    with pytest.raises(AssertionError, match="reads from the device"), NoReads():
        until.solve(case.gradient())  # the check sees what it is there for


# --- the choice of a solver -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "d", "m", "solves", "expected"),
    [
        (1000, 4, 50, 1, "cholesky"),
        (4, 800, 10, 1, "woodbury"),
        (320, 301, 784, 1, "pcg"),
        (320, 51, 75, 2, "pcg"),
        (320, 51, 75, 16, "cholesky"),
        (32, 101, 200, 1, "pcg"),
        (32, 101, 200, 4, "woodbury"),
        # factors that fit in a GiB serve all solves, others are made again at each
        (320, 301, 784, 1000, "cholesky"),
        (320, 301, 4096, 1000, "pcg"),
    ],
)
def test_auto_weighs_factoring_against_the_solves_that_follow(
    n: int, d: int, m: int, solves: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice is looked at here, not the work; other rows do not change it."""
    kinds = {**DIRECT, "pcg": ConjugateGradient}
    for kind in kinds.values():
        monkeypatch.setattr(kind, "factor", lambda *_: None)
    solver, taken = AutoSolver(solves=solves), []
    for rows in (n, 2 * n):
        solver.factor(UnitFisher(torch.ones(rows, d), torch.ones(rows, m)), torch.tensor(0.2))
        taken.append(solver.chosen)
    assert type(taken[0]) is kinds[expected] and taken[1] is taken[0]


def test_autos_options_reach_the_solvers_and_their_costs() -> None:
    solver = AutoSolver(accuracy=1e-3, max_bytes=12345)
    taken = factored(solver, SolverCase(320, 101, 60, 0.2)).chosen
    assert taken.accuracy == 1e-3 and taken.iterations is None
    taken = factored(AutoSolver(max_bytes=12345), SolverCase(60, 9, 5, 0.2)).chosen
    assert type(taken) is Cholesky and taken.max_bytes == 12345
    three, seven = (AutoSolver(count).costs(320, 101, 60)["pcg"] for count in (None, 7))
    assert seven == pytest.approx(three * 7 / 3)
    room = 4 * 320 * 301**2 * 4  # so that the factors fit as float32 numbers alone
    costs = partial(AutoSolver(solves=1000, max_bytes=room).costs, 320, 301, 784)
    assert costs(4)["cholesky"] < costs(8)["cholesky"]


# --- errors ---------------------------------------------------------------------------------------


STAND_INS = {
    "diagonal": lambda case: MetricAsSolver(Diagonal()),
    "kronecker": lambda case: MetricAsSolver(Kronecker()),
}
each_of_all = pytest.mark.parametrize("name", [*SOLVERS, *STAND_INS])


def failing(
    case: SolverCase, name: str, alpha: float, spoil: Callable[[UnitFisher], Any] | None = None,
    before: int = 0,
) -> str:  # fmt: skip
    """The error after some good ones, which must name the layer, n, d, alpha and an option.

    A solver may factor as late as in `solve`.
    """
    solver: Any = (SOLVERS | STAND_INS)[name](case)
    for seed in range(before):
        factored(solver, case, seed)
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


@each_of_all
@pytest.mark.parametrize("alpha", [0.0, -0.1, math.nan, math.inf])
def test_damping_that_is_not_positive_is_an_error(alpha: float, name: str) -> None:
    failing(SolverCase(60, 9, 5, 0.2), name, alpha)


@pytest.mark.parametrize(
    ("name", "alpha", "shape"),
    [
        ("cholesky", 1e-9, (5, 9)),
        ("woodbury", 1e-10, (60, 9)),
        ("sherman_morrison", 1e-9, (60, 9)),
        ("sherman_morrison, block 16", 1e-9, (60, 9)),
        ("running, first batch", 1e-9, (60, 9)),
        ("pcg by accuracy", 1e-8, (60, 9)),
        ("pcg by accuracy", 1e-8, (320, 101)),
        ("pcg by accuracy", 1e-10, (20, 33)),
    ],
)
def test_damping_too_small_for_the_precision_is_an_error(
    name: str, alpha: float, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SOLVERS, "pcg by accuracy", lambda case: pcg(None))
    case = SolverCase(*shape, 5 if shape[0] < 100 else 60, alpha, dtype=torch.float32)
    assert "singular to working precision" in failing(case, name, alpha)


def test_a_solution_that_is_not_finite_is_told_of_later_on_a_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There `solve` does not wait, but `check` does. A gradient of nan is no fault of a solver."""
    case, solver = SolverCase(60, 9, 5, 1e-8, dtype=torch.float32), pcg(None)
    with monkeypatch.context() as patch:
        without_looks(patch)
        assert not factored(solver, case).solve(case.gradient()).isfinite().all()
    with pytest.raises(UserError, match="singular to working precision; raise damping.value"):
        solver.check()
    usual = factored(pcg(3), REALISTIC)
    assert not usual.solve(math.nan * REALISTIC.gradient()).isfinite().any()
    usual.check()


@each_of_all
@pytest.mark.parametrize("before", [0, 1, 3], ids=lambda before: f"after {before} good ones")
@pytest.mark.parametrize(("part", "value"), [("inputs", math.nan), ("curvature", math.inf)])
def test_rows_that_are_not_finite_are_an_error(
    part: str, value: float, before: int, name: str
) -> None:
    def spoil(fisher: UnitFisher) -> None:
        getattr(fisher, part)[3, 4] = value  # one number, of the last unit

    case = SolverCase(60, 9, 5, 0.2)
    assert "not finite" in failing(case, name, 0.2, spoil, before)
