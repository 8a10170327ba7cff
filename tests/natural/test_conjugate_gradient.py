"""The solver pcg: fixed numbers of iterations, a tolerance, warm starts and its state.

The tests also cover what the solver reads from the device.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from cases import EXACT, FEW_ROWS, REALISTIC, SolverCase, assert_close
from solving import (
    NEVER,
    NoReads,
    Textbook,
    Wrapped,
    dense,
    error,
    factored,
    mean_row,
    pcg,
    residual,
    saved,
    shared_inverses,
    solve_dense,
)
from torch import Tensor

from nws.errors import UserError
from nws.natural.operators import UnitFisher
from nws.natural.preconditioners import find_basis
from nws.natural.solvers.conjugate_gradient import worst_ratio

each_space = pytest.mark.parametrize("case", [REALISTIC, FEW_ROWS], ids=["basis", "few rows"])
each_start = pytest.mark.parametrize("warm_start", [False, True], ids=["cold", "warm"])


@each_start
@pytest.mark.parametrize("rank", [0, 8, 101])
@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
@pytest.mark.parametrize("tolerance", [0.0, NEVER])
def test_a_fixed_number_takes_the_textbooks_iterations(
    tolerance: float, iterations: int, rank: int, warm_start: bool
) -> None:
    solver = pcg(iterations, tolerance, rank=rank, warm_start=warm_start)
    start = None
    if warm_start:
        start = factored(solver, REALISTIC).solve(REALISTIC.gradient(seed=4)).clone()
    fisher, centre = REALISTIC.fisher(), mean_row(REALISTIC.fisher())
    blocks = dense(fisher) + 0.2 * torch.eye(REALISTIC.d, dtype=torch.float64)
    inverses = shared_inverses(fisher, find_basis(fisher.shared, rank), 0.2, centre)
    textbook = Textbook(blocks, inverses, REALISTIC.gradient(), iterations, start)
    solution = factored(solver, REALISTIC).solve(REALISTIC.gradient())
    assert_close(solution, textbook.iterates[-1], EXACT)
    assert solver.used_iterations == iterations


@each_space
@each_start
def test_an_operator_needs_no_rows(case: SolverCase, warm_start: bool) -> None:
    """Only what the protocol says; without a smaller space few rows are solved as they stand."""
    solver = pcg(200, 1e-12, warm_start=warm_start)
    for seed in (1, 0):
        solver.factor(Wrapped(case.fisher(seed)), case.damping)
        solution = solver.solve(case.gradient(seed))
    expected = solve_dense(dense(case.fisher()), 0.2, case.gradient(0))
    assert error(solution, expected) < EXACT
    assert solver.report()["residual"] < 1e-12


def test_one_iteration_misses_what_more_of_them_meet() -> None:
    """Negative control: an under-converged solve breaks the bound that a converged one keeps."""
    expected = solve_dense(dense(REALISTIC.fisher()), 0.2, REALISTIC.gradient())
    by_iterations = [
        error(factored(pcg(count), REALISTIC).solve(REALISTIC.gradient()), expected)
        for count in (1, 2, 4, 8, 30)
    ]
    assert by_iterations == sorted(by_iterations, reverse=True)
    assert by_iterations[0] > 1e-2 and by_iterations[2] < 1e-2 and by_iterations[-1] < EXACT


def test_more_iterations_than_needed_do_no_harm() -> None:
    for dtype, bound in [(torch.float64, 1e-13), (torch.float32, 1e-5)]:
        case = SolverCase(60, 9, 5, 0.2, dtype=dtype)
        gradient = case.gradient()
        gradient[2] *= 1e-18  # its squares leave the range of float32
        normal = [0, 1, 3, 4]
        expected = solve_dense(dense(case.fisher())[normal], 0.2, gradient[normal])
        for never in (0.0, NEVER):
            solution = factored(pcg(300, never), case).solve(gradient)
            assert error(solution[normal], expected) < bound
            assert solution.isfinite().all() and solution[2].norm() <= gradient[2].norm() / 0.19


# --- until a residual -----------------------------------------------------------------------------


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-8])
@pytest.mark.parametrize(
    "case", [SolverCase(320, 101, 60, 0.01), SolverCase(60, 301, 40, 0.01)], ids=["basis", "few"]
)
def test_tolerance_holds_for_the_worst_unit_and_report_says_so(
    case: SolverCase, tolerance: float
) -> None:
    gradient, fisher = case.gradient(), case.fisher()
    solver = factored(pcg(200, tolerance), case)
    assert solver.report() == {}
    true = residual(fisher, 0.01, solver.solve(gradient), gradient)
    report = solver.report()
    assert true < tolerance
    assert report["residual"] == pytest.approx(true, rel=1e-6)
    assert 1 <= report["iterations"] == solver.used_iterations < 200
    if case.n < case.d:
        return  # the space of the rows counts two iterations for one, and gives the best length
    before = factored(pcg(solver.used_iterations - 1, NEVER), case).solve(gradient)
    assert residual(fisher, 0.01, before, gradient) >= tolerance, "stopped an iteration late"
    if tolerance == 1e-2:  # the mean would have stopped earlier
        left = (gradient - fisher.matmul(before) - 0.01 * before).norm(dim=1)
        assert (left / gradient.norm(dim=1)).median() < tolerance


def test_report_owns_up_to_a_residual_above_the_tolerance(caplog: pytest.LogCaptureFixture) -> None:
    fisher, gradient = REALISTIC.fisher(name="generator.1"), REALISTIC.gradient()
    solver = pcg(2, 1e-10)
    solver.factor(fisher, REALISTIC.damping)
    with caplog.at_level(logging.WARNING):
        true = residual(fisher, 0.2, solver.solve(gradient), gradient)
    assert solver.report() == {"iterations": 2, "residual": pytest.approx(true, rel=1e-6)}
    assert true > 1e-10
    (message,) = (record.getMessage() for record in caplog.records)
    for part in (
        "generator.1: ",
        "after 2 iterations",
        f"of {true:.1e}",
        "solver.tolerance 1.0e-10",
    ):
        assert part in message, message
    assert "raise solver.iterations or damping.value" in message


def test_a_solve_that_keeps_the_tolerance_does_not_warn(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        factored(pcg(100, 1e-3), REALISTIC).solve(REALISTIC.gradient())
        factored(pcg(1), REALISTIC).solve(REALISTIC.gradient())  # nothing was promised
    assert caplog.records == []


def test_a_gradient_that_is_not_a_number_warns(caplog: pytest.LogCaptureFixture) -> None:
    gradient = REALISTIC.gradient()
    gradient[1, 2] = float("nan")
    with caplog.at_level(logging.WARNING):
        factored(pcg(3, 1e-3), REALISTIC).solve(gradient)
    assert len(caplog.records) == 1 and "residual of nan" in caplog.text


def test_report_leaves_out_units_without_gradient() -> None:
    gradient = REALISTIC.gradient()
    gradient[:2] = 0
    solver = factored(pcg(4), REALISTIC)
    solution = solver.solve(gradient)
    fisher = REALISTIC.fisher()
    others = UnitFisher(fisher.inputs, fisher.curvature[:, 2:])
    kept = residual(others, 0.2, solution[2:], gradient[2:])
    assert solver.report()["residual"] == pytest.approx(kept, rel=1e-6)
    ratio = worst_ratio(
        torch.tensor([[3.0, 4.0], [7.0, 0.0]]), torch.tensor([[0.0, 10.0], [0.0, 0.0]])
    )
    assert float(ratio) == pytest.approx(0.5)


# --- what is kept ---------------------------------------------------------------------------------


def iterations_needed(case: SolverCase, basis_from: int | None = None) -> int:
    solver = pcg(1000, 1e-6)
    if basis_from is not None:
        factored(solver, case, basis_from)
    factored(solver, case).solve(case.gradient())
    return solver.used_iterations


def test_a_stale_basis_costs_iterations_and_never_correctness() -> None:
    case = SolverCase(320, 101, 60, 0.01)
    assert iterations_needed(case) < iterations_needed(case, basis_from=3)
    solver = factored(pcg(1000, 1e-12, preconditioner_every=100), case, seed=3)
    factored(solver, case)
    expected = solve_dense(dense(case.fisher()), 0.01, case.gradient())
    assert error(solver.solve(case.gradient()), expected) < EXACT


def test_the_basis_is_refreshed_every_so_many_factorings() -> None:
    solver, bases = pcg(preconditioner_every=3), []
    for batch in range(7):
        factored(solver, REALISTIC, seed=batch)
        bases.append(solver.state_dict()["preconditioner.vectors"].clone())
    fresh = [batch for batch in range(1, 7) if not torch.equal(bases[batch], bases[batch - 1])]
    assert fresh == [3, 6]


def test_a_warm_start_saves_iterations_where_the_system_hardly_changes() -> None:
    lengths = REALISTIC.gradient().norm(dim=1, keepdim=True)
    nearly = REALISTIC.gradient() + 1e-3 * lengths / REALISTIC.d**0.5
    used = []
    for warm_start in (False, True):
        solver = factored(pcg(100, 1e-6, warm_start=warm_start), REALISTIC)
        solver.solve(REALISTIC.gradient())
        solution = solver.solve(nearly)
        assert residual(REALISTIC.fisher(), 0.2, solution, nearly) < 1e-6
        used.append(solver.used_iterations)
    assert used[1] < used[0]


def test_a_warm_start_gives_no_direction_to_units_that_lost_their_gradient() -> None:
    solver = factored(pcg(50, 1e-3, warm_start=True), REALISTIC)
    solver.solve(REALISTIC.gradient())
    gradient = REALISTIC.gradient()
    gradient[1] = 0
    assert (solver.solve(gradient)[1] == 0).all()


@pytest.mark.parametrize("iterations", [3, None], ids=["fixed", "by accuracy"])
@each_start
@each_space
def test_pcg_goes_on_bit_for_bit_from_its_state(
    case: SolverCase, warm_start: bool, iterations: int | None
) -> None:
    """The state is saved between two refreshes of the basis.

    The loaded solver must make the second refresh at the same time.
    """
    settings: dict[str, Any] = dict(
        iterations=iterations, preconditioner_every=3, warm_start=warm_start
    )
    solver, other = pcg(**settings), pcg(**settings)
    for batch in range(2):
        factored(solver, case, seed=batch).solve(case.gradient(batch))
    other.load_state_dict(saved(solver))
    for batch in range(2, 9):
        one, two = (
            factored(each, case, seed=batch).solve(case.gradient(batch)) for each in (solver, other)
        )
        assert torch.equal(one, two)
    fresh = factored(pcg(**settings), case, seed=8).solve(case.gradient(8))
    if case is REALISTIC:
        assert not torch.equal(one, fresh), "the state makes no difference"


@each_start
@each_space
def test_a_state_that_comes_after_the_rows_goes_on_bit_for_bit_too(
    case: SolverCase, warm_start: bool
) -> None:
    """A metric's rows can outlive a step: one factoring then serves several solves.

    The loaded solver takes in the rows first, and then its state.
    """
    solver, other = (pcg(None, preconditioner_every=3, warm_start=warm_start) for _ in range(2))
    for batch in range(5):
        factored(solver, case, seed=batch).solve(case.gradient(batch))
    factored(other, case, seed=4).load_state_dict(saved(solver))
    for seed in (7, 8):
        assert torch.equal(solver.solve(case.gradient(seed)), other.solve(case.gradient(seed)))
    for batch in (5, 6):
        one, two = (
            factored(each, case, seed=batch).solve(case.gradient(batch)) for each in (solver, other)
        )
        assert torch.equal(one, two)


def test_what_a_caller_does_to_a_direction_does_not_reach_the_next_solve() -> None:
    one, other = (factored(pcg(2, warm_start=True), REALISTIC) for _ in range(2))
    one.solve(REALISTIC.gradient(4))
    other.solve(REALISTIC.gradient(4)).zero_()
    assert torch.equal(one.solve(REALISTIC.gradient()), other.solve(REALISTIC.gradient()))


def test_a_cold_solver_takes_no_start_from_a_state() -> None:
    warm, cold = pcg(warm_start=True), pcg()
    factored(warm, REALISTIC).solve(REALISTIC.gradient(4))
    factored(cold, REALISTIC).solve(REALISTIC.gradient(4))
    other = pcg()
    other.load_state_dict(saved(warm))
    one, two = (factored(each, REALISTIC, 1).solve(REALISTIC.gradient()) for each in (cold, other))
    assert torch.equal(one, two)


@each_space
def test_the_state_of_another_layer_is_an_error(case: SolverCase) -> None:
    solver, other = pcg(warm_start=True), pcg(warm_start=True)
    factored(solver, case).solve(case.gradient())
    other.load_state_dict(saved(solver))
    narrower = SolverCase(case.n, case.d - 3, case.m, case.alpha)
    message = rf"state of {case.d} parents.* these rows have {case.d - 3}.*; start a new run"
    with pytest.raises(UserError, match=message):
        factored(other, narrower)
    there_first = factored(pcg(warm_start=True), narrower)  # as between two refreshes
    with pytest.raises(UserError, match=message):
        there_first.load_state_dict(saved(solver))
    with pytest.raises(UserError, match=f"{case.m} units, these rows have {case.d} and 2"):
        factored(other, SolverCase(case.n, case.d, 2, case.alpha))
    factored(other, case)


# --- what is read from the device -----------------------------------------------------------------


@each_start
@each_space
@pytest.mark.parametrize("rank", [0, 8, 101])
def test_a_fixed_count_reads_no_number_from_the_device(
    rank: int, case: SolverCase, warm_start: bool
) -> None:
    solver = factored(pcg(4, rank=rank, warm_start=warm_start), case)
    with NoReads():
        solver.solve(case.gradient())
        solver.solve(case.gradient(2))
    with pytest.raises(AssertionError, match="reads from the device"), NoReads():
        factored(pcg(4, 1e-6), case).solve(case.gradient())  # the check sees what it is there for


@each_space
def test_taking_in_the_next_rows_reads_no_number_from_the_device(
    case: SolverCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver, fisher, damping = factored(pcg(4), case), case.fisher(1), case.damping
    with pytest.raises(AssertionError, match="reads from the device"), NoReads():
        solver.factor(fisher, damping)  # looks at alpha and the rows, where they are on the CPU
    monkeypatch.setattr(
        "nws.natural.solvers.conjugate_gradient.check_system", lambda *_, **__: None
    )
    with NoReads():
        solver.factor(fisher, damping)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@each_start
def test_a_fixed_count_does_not_synchronise_on_cuda(warm_start: bool) -> None:
    """Nor does taking in the next Fisher matrix while the basis is not due."""
    case = SolverCase(320, 101, 60, 0.2, dtype=torch.float32, device="cuda")
    solver = factored(pcg(4, warm_start=warm_start), case)
    fisher, damping, gradient = case.fisher(1), case.damping, case.gradient()
    solver.solve(gradient)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        solver.factor(fisher, damping)
        solution: Tensor = solver.solve(gradient)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert solution.isfinite().all()
