"""The contract of every damped solver, against dense float64 blocks, over one list of cases."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import solving
import torch
from cases import EXACT, REALISTIC, SOLVER_CASES, SolverCase, recorded, tolerance
from solving import DIRECT, SOLVERS, dense, each_solver, error, factored, pcg, saved, solve_dense

from nws.errors import UserError
from nws.natural import UnitFisher, natural_direction
from nws.natural.solvers import MinRes, ShermanMorrison, Woodbury

ITERATIVE = [name for name in SOLVERS if name.startswith(("pcg", "minres"))]


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
    conditions = solving.condition(blocks, alpha)
    left = solving.tight(case) if name in ITERATIVE else 0
    bound = (solving.ROUNDING * torch.finfo(case.dtype).eps + left) * conditions
    if name == "minres":
        bound = bound * conditions.sqrt()
    for seed in (1, 2):
        gradient = case.gradient(seed)
        before = gradient.clone()
        solution = solver.solve(gradient)
        assert solution.shape == (case.m, case.d) and solution.dtype == case.dtype
        assert torch.equal(gradient, before)
        expected = solve_dense(blocks, alpha, gradient)
        assert (solving.errors(solution, expected) <= bound).all()
        if name == "cholesky":  # the plain form of the package, too
            plain = natural_direction(fisher.inputs, fisher.curvature, gradient, alpha)
            assert (solving.errors(plain / (1 + alpha), expected) <= bound).all()


@each_solver
@pytest.mark.parametrize("shape", [(60, 9), (8, 40)], ids=str)
def test_units_without_gradient_get_no_direction_and_the_report_is_of_the_others(
    shape: tuple[int, int], name: str
) -> None:
    case = SolverCase(*shape, 5, 0.2)
    solver, gradient, rest = factored(SOLVERS[name](case), case), case.gradient(), [1, 2, 4]
    assert solver.report() == {}
    gradient[[0, 3]] = 0
    solution = solver.solve(gradient)
    assert (solution[[0, 3]] == 0).all() and solution.isfinite().all()
    expected = solve_dense(dense(case.fisher())[rest], 0.2, gradient[rest])
    assert error(solution[rest], expected) < EXACT
    report = solver.report()
    assert set(report) == ({"iterations", "residual"} if name in ITERATIVE else set())
    if report:
        true = solving.residual(case, solution, gradient)
        assert report["residual"] == pytest.approx(true, rel=0.1, abs=1e-14)
    assert (solver.solve(torch.zeros_like(gradient)) == 0).all()
    assert factored(solver, case, 2).report() == {}


@pytest.mark.parametrize("make", [pcg, partial(MinRes, tolerance=0.0)], ids=["pcg", "minres"])
def test_few_iterations_miss_what_more_of_them_meet(make: Callable[[int], Any]) -> None:
    """Negative control: an under-converged solve breaks the bound that a converged one keeps."""
    expected = solve_dense(dense(REALISTIC.fisher()), 0.2, REALISTIC.gradient())
    solvers = [factored(make(count), REALISTIC) for count in (1, 2, 4, 8, 200)]
    found = [error(solver.solve(REALISTIC.gradient()), expected) for solver in solvers]
    assert found == sorted(found, reverse=True) and found[0] > 1e-2 and found[-1] < EXACT
    assert [solver.used_iterations for solver in solvers] == [1, 2, 4, 8, 200]


STATES: dict[str, Callable[[], Any]] = {
    **DIRECT,
    "running": lambda: ShermanMorrison(forgetting=0.8),
    "minres": MinRes,
    "pcg, fixed": lambda: pcg(3, preconditioner_every=3),
    "pcg": lambda: pcg(None, preconditioner_every=3),
}


@pytest.mark.parametrize("rows_first", [False, True])
@pytest.mark.parametrize("shape", [(320, 101), (20, 90)], ids=["basis", "few rows"])
@pytest.mark.parametrize("name", STATES)
def test_a_solver_goes_on_bit_for_bit_from_its_state(
    name: str, shape: tuple[int, int], rows_first: bool
) -> None:
    """The state is saved between two refreshes of the basis, and the next one is at its time.

    With `metric.refresh_every` the loaded solver takes in the last rows first, and then its state.
    """
    case, solver, other = SolverCase(*shape, 6, 0.2), STATES[name](), STATES[name]()
    for batch in range(5):
        factored(solver, case, batch).solve(case.gradient(batch))
    if rows_first:
        factored(other, case, 4).load_state_dict(saved(solver))
        assert torch.equal(solver.solve(case.gradient(9)), other.solve(case.gradient(9)))
    else:
        other.load_state_dict(saved(solver))
    for batch in range(5, 9):
        gradient = case.gradient(batch)
        one, two = (factored(each, case, batch).solve(gradient) for each in (solver, other))
        assert torch.equal(one, two)
    torch.testing.assert_close(saved(other), saved(solver), rtol=0, atol=0)
    fresh = factored(STATES[name](), case, 8).solve(case.gradient(8))
    remembers = name == "running" or (name.startswith("pcg") and case.n > case.d)
    assert torch.equal(one, fresh) != remembers  # the control: what is in the state matters


@pytest.mark.parametrize("room", [1, 60_000, 120_000, 2**30])
@pytest.mark.parametrize("name", DIRECT)
def test_chunks_within_max_bytes_change_nothing_and_factors_serve_where_they_fit(
    name: str, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less room than one unit needs is one unit at a time."""
    case, kind = SolverCase(30, 24, 40, 0.2), DIRECT[name]
    made = recorded(monkeypatch, kind, "_factor", lambda _, solver, units: units)
    inverted = recorded(monkeypatch, torch, "cholesky_inverse", lambda _, factor: len(factor))
    solver, expected = factored(kind(room), case), dense(case.fisher())
    solver.load_state_dict(saved(solver))  # of no solve
    for seed in (1, 2, 3):
        gradient = case.gradient(seed)
        assert error(solver.solve(gradient), solve_dense(expected, 0.2, gradient)) < EXACT
        whole = seed > 1 and room == 2**30 and name != "sherman_morrison"  # it has inverses
        assert sum(inverted) == 40 * whole  # once, by the second solve
    chunks = len(range(0, 40, made[0].stop))
    assert len(made) == chunks * (1 if room == 2**30 else 3)
    assert (chunks == 40) == (room == 1) and (chunks == 1) == (room == 2**30)


def test_woodbury_takes_the_smaller_side(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = recorded(monkeypatch, Woodbury, "_cholesky", lambda factor, *_: factor.shape[1])
    for shape in ((60, 9), (5, 33)):
        factored(Woodbury(), SolverCase(*shape, 4, 0.2))
    assert sides == [9, 5]


@pytest.mark.parametrize("max_bytes", [10_000, 2**30])
@pytest.mark.parametrize("shape", [(60, 9), (5, 33), (20, 40)], ids=str)
@pytest.mark.parametrize("forgetting", [0.3, 0.9])
def test_a_running_inverse_is_that_of_the_exponential_average(
    forgetting: float, shape: tuple[int, int], max_bytes: int
) -> None:
    """F̄_0 = F_0, F̄_t = f F̄_{t-1} + (1 - f) F_t; where alpha changes, its running mean damps."""
    case, solver = SolverCase(*shape, 4, 0.05), ShermanMorrison(max_bytes, forgetting)
    average, alpha = dense(case.fisher(seed=0)), 0.1
    for batch, newest in enumerate((0.1, 0.1, 0.1, 0.5, 0.02)):
        fisher, keep = case.fisher(seed=batch), forgetting if batch else 0.0
        resumed = ShermanMorrison(max_bytes, forgetting)
        resumed.load_state_dict(solver.state_dict())
        for each in (solver, resumed):
            each.factor(fisher, torch.tensor(newest, dtype=torch.float64))
        average = keep * average + (1 - keep) * dense(fisher)
        alpha, found = keep * alpha + (1 - keep) * newest, solver.solve(case.gradient())
        assert error(found, solve_dense(average, alpha, case.gradient())) < EXACT
        assert torch.equal(found, resumed.solve(case.gradient()))
    assert error(found, solve_dense(average, newest, case.gradient())) > 1e-2  # the control


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_running_inverse_stays_true_over_many_batches(dtype: torch.dtype) -> None:
    """It also stays symmetric: else rounding's asymmetry would double every 14 batches."""
    case = SolverCase(30, 9, 4, 0.2, dtype=dtype)
    solver, fishers = ShermanMorrison(forgetting=0.95), [*map(case.fisher, range(40))]
    blocks = [dense(fisher) for fisher in fishers]
    average = blocks[0]
    for batch in range(600):
        solver.factor(fishers[batch % 40], case.damping)
        average = 0.95 * average + 0.05 * blocks[batch % 40]
    expected = solve_dense(average, 0.2, case.gradient())
    assert error(solver.solve(case.gradient()), expected) < tolerance(dtype)


def refused(case: SolverCase, fisher: UnitFisher, solver: Any, alpha: float, words: str) -> None:
    """The error names the layer, n, d, alpha and an option; it may come as late as in `solve`."""
    fisher = UnitFisher(fisher.inputs, fisher.curvature, "recognition.1")
    named = rf"^recognition\.1: .* n={case.n} .* d={case.d} .* damping {alpha:g}: .*{words}"
    with pytest.raises(UserError, match=named):  # noqa: PT012
        solver.factor(fisher, torch.tensor(alpha, dtype=case.dtype))
        solver.solve(case.gradient())


@each_solver
@pytest.mark.parametrize("before", [0, 3], ids=lambda before: f"after {before} good ones")
def test_damping_and_rows_that_no_solver_can_use_are_errors(name: str, before: int) -> None:
    case = SolverCase(60, 9, 5, 0.2)
    solver, inputs, curvature = SOLVERS[name](case), case.fisher(), case.fisher()
    inputs.inputs[3, 4], curvature.curvature[3, 4] = math.nan, math.inf
    for seed in range(before):
        factored(solver, case, seed)
    for alpha in (0.0, -0.1, math.nan, math.inf):
        refused(case, case.fisher(), solver, alpha, "set damping.value")
    for fisher in (inputs, curvature):
        refused(case, fisher, solver, 0.2, "rows are not finite; lower optimizer.lr")


@pytest.mark.parametrize(("make", "alpha", "shape"), [
    (DIRECT["cholesky"], 1e-9, (5, 9)),
    (ShermanMorrison, 1e-9, (60, 9)), (partial(pcg, None), 1e-8, (60, 9)),
    (partial(pcg, None), 1e-8, (320, 101)), (partial(pcg, None), 1e-10, (20, 33)),
])  # fmt: skip
def test_damping_too_small_for_the_precision_is_an_error(
    make: Callable[[], Any], alpha: float, shape: tuple[int, int]
) -> None:
    case = SolverCase(*shape, 5 if shape[0] < 100 else 60, alpha, dtype=torch.float32)
    words = "singular to working precision; raise damping.value"
    refused(case, case.fisher(), make(), alpha, words)
