"""pcg with an accuracy: it takes as many iterations as the accuracy needs.

The tests cover hard layers, when the solver reads the number of iterations, and its state.
"""

from __future__ import annotations

import pytest
import torch
from cases import FEW_ROWS, REALISTIC, SolverCase, seeded
from solving import NEVER, NoReads, apply, dense, factored, pcg, saved, solve_dense
from torch import Tensor

from nws.natural.operators import FEW, UnitFisher
from nws.natural.solvers.conjugate_gradient import LIMIT

each_space = pytest.mark.parametrize("case", [REALISTIC, FEW_ROWS], ids=["basis", "few rows"])


def relative_error(case: SolverCase, solution: Tensor, gradient: Tensor | None = None) -> float:
    """The error of the whole layer, in the norm that the solver bounds.

    With few rows the norm is |x|. Otherwise |x|^2 = sum_j x_j . A_j x_j.
    """
    blocks = dense(case.fisher()) + case.alpha * torch.eye(case.d, dtype=torch.float64)
    expected = torch.linalg.solve(blocks, case.gradient() if gradient is None else gradient)
    wrong = solution - expected
    if FEW * case.n <= case.d:
        return float(wrong.norm() / expected.norm())
    squares = [(x * apply(blocks, x)).sum() for x in (wrong, expected)]
    return float((squares[0] / squares[1]).sqrt())


@pytest.mark.parametrize("accuracy", [0.1, 1e-2, 1e-4])
@pytest.mark.parametrize("alpha", [0.2, 0.01])
@pytest.mark.parametrize(
    "shape", [(320, 101, 60), (320, 301, 40), (200, 301, 40), (60, 301, 40), (32, 785, 30)], ids=str
)
def test_iterations_follow_the_accuracy(
    shape: tuple[int, int, int], alpha: float, accuracy: float
) -> None:
    """The error ends within a factor of 3 above the accuracy: the solver predicts what is left.

    The negative control: two iterations fewer miss the accuracy.
    """
    case = SolverCase(*shape, alpha)
    solver = factored(pcg(None, accuracy=accuracy), case)
    for _ in range(2):  # the look, and after it
        assert relative_error(case, solver.solve(case.gradient())) < 3 * accuracy
    if solver.used_iterations > 3:
        shorter = factored(pcg(solver.used_iterations - 2, NEVER), case)
        if FEW * case.n <= case.d:  # a fixed number counts twice there
            shorter = factored(pcg(None, accuracy=accuracy), case)
            shorter._count = solver.used_iterations - 2
        assert relative_error(case, shorter.solve(case.gradient())) > accuracy


@pytest.mark.parametrize(("accuracy", "rank"), [(0.1, 0), (1e-2, 8), (1e-2, 15)], ids=str)
def test_other_gradients_keep_the_accuracy_too(accuracy: float, rank: int) -> None:
    solver = factored(pcg(None, accuracy=accuracy, rank=rank), REALISTIC)
    for seed in (2, 3, 4):  # the look, and after it
        gradient = REALISTIC.gradient(seed)
        assert relative_error(REALISTIC, solver.solve(gradient), gradient) < accuracy
    assert solver.used_iterations > 1


@pytest.mark.parametrize("length", [0.3, 0.1, 0.03])
def test_units_that_take_longer_are_not_lost_among_those_that_are_done_at_once(
    length: float,
) -> None:
    """Four units in five have almost no curvature and long gradients.

    A prediction from the sums over units would miss the error of the other units.
    With `length` 0.1 and 0.03 the error would end 4.6 and 1.5 times above the accuracy.
    """
    rng = seeded(0)
    weights = torch.rand(320, 60, generator=rng, dtype=torch.float64) ** 6 / 160
    weights[:, :48] *= 1e-3
    gradient = torch.randn(60, 101, generator=rng, dtype=torch.float64)
    gradient[48:] *= length
    fisher, alpha = UnitFisher(REALISTIC.fisher().inputs, weights), 0.05
    solver = pcg(None, accuracy=1e-3)
    solver.factor(fisher, torch.tensor(alpha, dtype=torch.float64))
    expected = solve_dense(dense(fisher), alpha, gradient)
    assert (solver.solve(gradient) - expected).norm() < 1e-3 * expected.norm()


@pytest.mark.parametrize("case", [SolverCase(320, 301, 40, 1e-6), SolverCase(60, 301, 40, 1e-9)])
def test_an_accuracy_out_of_reach_ends_at_the_limit(case: SolverCase) -> None:
    solver = factored(pcg(None, accuracy=0.0), case)
    assert solver.solve(case.gradient()).isfinite().all()
    assert solver.used_iterations == LIMIT


@each_space
def test_the_number_is_looked_at_again_early_and_at_refreshes_and_costs_no_read_between(
    case: SolverCase,
) -> None:
    solver, looked = pcg(None, preconditioner_every=20), []
    for step in range(45):
        factored(solver, case, seed=step)
        try:
            with NoReads():
                solver.solve(case.gradient())
        except AssertionError:
            looked.append(step)
            solver.solve(case.gradient())
    assert looked == [0, 1, 2, 4, 8, 16, 20, 32, 40]


@each_space
def test_the_number_goes_on_from_the_state(case: SolverCase) -> None:
    solver, other = pcg(None), pcg(None)
    for step in range(6):
        factored(solver, case, seed=step).solve(case.gradient())
    other.load_state_dict(saved(solver))
    factored(other, case, seed=6)
    with NoReads():  # step 6 does not look
        solution = other.solve(case.gradient())
    assert torch.equal(solution, factored(solver, case, seed=6).solve(case.gradient()))


@each_space
def test_a_warm_start_counts_towards_the_accuracy(case: SolverCase) -> None:
    nearly = case.gradient() + 1e-3 * case.gradient(5)
    used = []
    for warm_start in (False, True):
        solver = factored(pcg(None, accuracy=1e-3, warm_start=warm_start), case)
        solver.solve(case.gradient())
        factored(solver, case).solve(nearly)  # looks again
        assert relative_error(case, solver.solve(nearly), nearly) < 3e-3
        used.append(solver.used_iterations)
    assert used[1] < used[0]
