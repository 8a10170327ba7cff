"""Damped systems in the space of few rows.

The tests cover Woodbury's identity on dense matrices, the preconditioner and unfinished solves.
"""

from __future__ import annotations

import pytest
import torch
from cases import EXACT, FEW_ROWS, SolverCase, assert_close
from solving import Textbook, apply, damped_blocks, dense, factored, mean_row, pcg, solve_dense
from torch import Tensor

from nws.natural.operators import RowSpace

CASES = [FEW_ROWS, SolverCase(25, 101, 5, 0.05, "bipolar"), SolverCase(1, 40, 3, 0.2)]
each_case = pytest.mark.parametrize("case", CASES, ids=str)


def reduced(case: SolverCase) -> RowSpace:
    """As a solver gets it: from the operator, nothing else."""
    system = case.fisher().reduce(case.damping)
    assert isinstance(system, RowSpace)
    return system


def roots(case: SolverCase) -> Tensor:
    """Square roots of the row weights: (m, n)."""
    return case.fisher().curvature.T.sqrt()


def matrices(case: SolverCase) -> Tensor:
    """alpha I + R_j H H^T R_j, dense: (m, n, n)."""
    inputs, root = case.fisher().inputs, roots(case)
    identity = case.alpha * torch.eye(case.n, dtype=torch.float64)
    return root[:, :, None] * root[:, None, :] * (inputs @ inputs.T) + identity


def guesses(case: SolverCase) -> Tensor:
    """The dense form of what preconditions the systems: H H^T ~ a 1 1^T + diag(b).

    Here a = |mean row|^2, and b is the rest of the diagonal.
    """
    inputs, root = case.fisher().inputs, roots(case)
    common = mean_row(case.fisher()).square().sum()
    own = (inputs.square().sum(1) - common).clamp_min(0)
    gram = common * torch.ones(case.n, case.n, dtype=torch.float64) + own.diag()
    identity = case.alpha * torch.eye(case.n, dtype=torch.float64)
    return root[:, :, None] * root[:, None, :] * gram + identity


@each_case
def test_its_operations_are_those_of_the_dense_matrices(case: SolverCase) -> None:
    system, gradient = reduced(case), case.gradient()
    vectors = torch.randn(case.m, case.n, generator=torch.Generator().manual_seed(3)).double()
    before = vectors.clone()
    assert_close(system.matmul(vectors), apply(matrices(case), vectors), EXACT)
    assert_close(system.precondition(vectors), torch.linalg.solve(guesses(case), vectors), EXACT)
    assert_close(system.enter(gradient), (gradient @ case.fisher().inputs.T) * roots(case), EXACT)
    assert torch.equal(vectors, before) and torch.equal(gradient, case.gradient())


@each_case
def test_a_solution_there_is_one_of_the_damped_blocks(case: SolverCase) -> None:
    """And zeros stay zeros. The length of a residual is that among the parents, before x takes its
    best length.
    """
    system, gradient = reduced(case), case.gradient()
    entered = system.enter(gradient)
    solution = torch.linalg.solve(matrices(case), entered)
    expected = solve_dense(dense(case.fisher()), case.alpha, gradient)
    assert_close(system.leave(gradient, entered, solution), expected, EXACT)
    zeros = torch.zeros_like(gradient)
    assert (system.leave(zeros, system.enter(zeros), torch.zeros_like(entered)) == 0).all()

    y = 0.9 * solution  # not there yet
    x = (gradient - (y * roots(case)) @ case.fisher().inputs) / case.alpha
    lengths = (gradient - apply(damped_blocks(case), x)).norm(dim=1)
    assert lengths.min() > 0
    assert_close(system.length(entered - apply(matrices(case), y)), lengths, EXACT)


@each_case
def test_an_unfinished_solution_has_the_best_length_along_it(case: SolverCase) -> None:
    """g . x = x . (F_j + alpha I) x holds.

    Otherwise an unfinished y may leave x as long as g / alpha.
    """
    system, gradient = reduced(case), case.gradient()
    entered, blocks = system.enter(gradient), damped_blocks(case)
    for share in (0.0, 0.5, 0.9):
        y = share * torch.linalg.solve(matrices(case), entered)
        x = system.leave(gradient, entered, y)
        slope, curvature = (gradient * x).sum(1), (x * apply(blocks, x)).sum(1)
        assert_close(slope / curvature, torch.ones_like(slope), EXACT)
        bare = (gradient - (y * roots(case)) @ case.fisher().inputs) / case.alpha
        assert ((gradient * bare).sum(1) < 0.999 * (bare * apply(blocks, bare)).sum(1)).any(), (
            "nothing to shorten"
        )


@pytest.mark.parametrize("case", CASES[:2], ids=str)
@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_few_rows_take_twice_the_textbooks_iterations_in_their_own_space(
    iterations: int, case: SolverCase
) -> None:
    fisher, gradient = case.fisher(), case.gradient()
    right = (gradient @ fisher.inputs.T) * roots(case)
    textbook = Textbook(matrices(case), torch.linalg.inv(guesses(case)), right, 2 * iterations)
    bare = (gradient - (textbook.iterates[-1] * roots(case)) @ fisher.inputs) / case.alpha
    blocks = damped_blocks(case)
    length = (bare * gradient).sum(1) / (bare * apply(blocks, bare)).sum(1)
    solver = factored(pcg(iterations), case)
    assert_close(solver.solve(gradient), length[:, None] * bare, EXACT)
    assert solver.used_iterations == 2 * iterations
    assert case is FEW_ROWS or iterations > 1 or (length - 1).abs().max() > 1e-2, (
        "nothing to shorten"
    )
    exact = solve_dense(dense(fisher), case.alpha, gradient)
    energy = (exact * apply(blocks, exact)).sum(1)
    for x in (solver.solve(gradient), factored(pcg(1), case).solve(gradient)):
        assert ((x * apply(blocks, x)).sum(1) <= energy * (1 + EXACT)).all(), "longer than exact"


@pytest.mark.parametrize(
    "case", [SolverCase(32, 785, 30, 0.2), SolverCase(60, 301, 40, 0.01)], ids=str
)
def test_the_rows_preconditioner_saves_iterations(
    case: SolverCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def needed() -> int:
        solver = factored(pcg(1000, 1e-6), case)
        solver.solve(case.gradient())
        return solver.used_iterations

    used = needed()
    monkeypatch.setattr(RowSpace, "precondition", lambda self, vectors: vectors)
    assert used < needed()


def test_a_row_shorter_than_the_mean_leaves_the_preconditioner_positive() -> None:
    """For such a row H_k . H_k - |c|^2 is negative.

    With that value the guess of the matrix would not be positive definite.
    """
    fisher = FEW_ROWS.fisher()
    fisher.inputs[3, :-1] = 0
    shared = fisher.shared.mean.square().sum()
    assert fisher.inputs[3].square().sum() < 0.5 * shared
    fisher.curvature[3] = 10.0  # where it would show
    system = fisher.reduce(torch.tensor(1e-3, dtype=torch.float64))
    assert system is not None
    vectors = torch.eye(20, dtype=torch.float64)
    for each in vectors:
        image = system.precondition(each.expand(FEW_ROWS.m, -1).clone())
        assert ((image * each).sum(1) > 0).all()
