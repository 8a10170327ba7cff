"""MINRES against dense solves and scipy's own, iteration by iteration."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from cases import REALISTIC, SOLVER_CASES, SolverCase
from conftest import Command, metrics
from solving import dense, solve_dense

from nws.errors import UserError
from nws.natural.solvers import MinRes
from nws.natural.solvers.minres import minres

DOUBLE = [case for case in SOLVER_CASES if case.values[0].dtype == torch.float64]


def solve(case: SolverCase, iterations: int, tolerance: float) -> tuple[MinRes, torch.Tensor]:
    solver = MinRes(iterations, tolerance)
    solver.factor(case.fisher(), case.damping)
    return solver, solver.solve(case.gradient())


@pytest.mark.parametrize("case", DOUBLE)
def test_it_solves_every_case(case: SolverCase) -> None:
    """A residual r leaves an error of at most |r| / alpha, the smallest eigenvalue."""
    solver, found = solve(case, 1000, 1e-12)
    expected = solve_dense(dense(case.fisher()), case.alpha, case.gradient())
    gradient = case.gradient().double().cpu()
    bound = 1e-10 * gradient.norm(dim=1) / case.alpha
    assert ((found.cpu() - expected).norm(dim=1) <= bound).all()
    assert solver.report()["residual"] <= 1e-8


def test_each_iterate_is_that_of_scipy() -> None:
    """Of an indefinite matrix too: symmetric is all that MINRES asks for."""
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(8, 8))
    matrix, right = matrix + matrix.T, rng.normal(size=8)
    tensor = torch.from_numpy(matrix)
    for iterations in range(1, 8):
        expected, _ = scipy.sparse.linalg.minres(matrix, right, rtol=1e-300, maxiter=iterations)
        found, _ = minres(lambda v: v @ tensor, torch.from_numpy(right)[None], iterations, 0.0)
        np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-8, atol=1e-10)


def test_few_iterations_are_not_enough() -> None:
    """A negative control."""
    solver, _ = solve(REALISTIC, 2, 0.0)
    assert solver.report()["residual"] > 1e-2 and solver.report()["iterations"] == 2


def test_it_stops_at_the_tolerance_and_solved_units_stay_solved() -> None:
    solver, _ = solve(REALISTIC, 1000, 1e-3)
    assert solver.report()["iterations"] < 60 and solver.report()["residual"] < 1e-2
    zero = torch.zeros(REALISTIC.m, REALISTIC.d, dtype=REALISTIC.dtype)
    assert (solver.solve(zero) == 0).all()


def test_it_has_nothing_to_report_before_a_solve_with_this_operator() -> None:
    solver = MinRes(5)
    assert solver.report() == {}
    solver.factor(REALISTIC.fisher(), REALISTIC.damping)
    assert solver.report() == {}
    solver.solve(REALISTIC.gradient())
    assert solver.report()["iterations"] == 5
    solver.factor(REALISTIC.fisher(seed=2), REALISTIC.damping)
    assert solver.report() == {}


def test_wrong_options_are_refused() -> None:
    with pytest.raises(UserError, match="solver.iterations must be a whole number"):
        MinRes(0)
    with pytest.raises(
        UserError, match="solver.tolerance must be a number of at least 0 and below 1"
    ):
        MinRes(5, 1)
    with pytest.raises(UserError, match="solver.tolerance must be a number .*, got False"):
        MinRes(5, False)


def test_a_run_on_the_command_line(train: Command) -> None:
    outcome = train("algorithm=nrws", "metric=fisher", "solver=minres", "trainer.epochs=1")
    assert outcome.code == 0 and outcome.err == "", outcome.err
    row = metrics(outcome.run)[-1]
    assert 1 < float(row["generator/iterations"]) <= 50
    assert float(row["recognition/residual"]) < 0.1
