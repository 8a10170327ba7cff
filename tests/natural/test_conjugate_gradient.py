"""Conjugate gradient and MINRES as pure functions, stopping rules, and what is special to pcg.

The references are a textbook version on dense matrices, and scipy's MINRES.
"""

import logging
import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg
import solving
import torch
from cases import EXACT, FEW_ROWS, REALISTIC, SolverCase, assert_close, seeded
from solving import NEVER, Textbook, apply, damped_blocks, dense, factored, mean_row, pcg, residual
from torch import Tensor

from nws.natural.operators import FEW
from nws.natural.preconditioners import SharedPreconditioner
from nws.natural.shared import find_basis
from nws.natural.solvers.cg import Progress, Rule, UntilAccurate, after, cg
from nws.natural.solvers.minres import minres
from nws.natural.solvers.solver import damped

ACCURATE = 1e-2  # what solver.accuracy asks for


def systems(m: int = 5, d: int = 12, decades: float = 2.0) -> tuple[Tensor, Tensor, Tensor]:
    """Matrices (m, d, d), rough inverses of them, and right sides (m, d).

    The eigenvalues spread over some decades, and each matrix spreads more than the one before.
    """
    rng = seeded(m * d)
    turned = torch.linalg.qr(torch.randn(m, d, d, generator=rng, dtype=torch.float64))[0]
    exponents = torch.linspace(0.2, 1, m)[:, None] * torch.linspace(0, decades, d)
    values = 10 ** exponents.double() * (0.5 + torch.rand(m, d, generator=rng, dtype=torch.float64))
    matrices = turned @ (values[:, :, None] * turned.mT)
    rough = values.sqrt() * (0.5 + torch.rand(m, d, generator=rng, dtype=torch.float64))
    inverses = turned @ ((1 / rough)[:, :, None] * turned.mT)
    right = torch.randn(m, d, generator=rng, dtype=torch.float64)
    return matrices, inverses, right


def solve(stop: Rule, matrices: Tensor, inverses: Tensor, right: Tensor) -> Tensor:
    return cg(lambda v: apply(matrices, v), right, lambda v: apply(inverses, v), stop)[0]


@pytest.mark.parametrize("kind", ["none", "a view", "rough", "exact"])
def test_each_iteration_is_the_textbooks(kind: str) -> None:
    """And a gain is what it takes off the squared error (Hestenes & Stiefel 1952, theorem 6:1).

    A preconditioner may return its argument, or a view of it.
    """
    matrices, rough, right = systems()
    identity = torch.eye(12, dtype=torch.float64).expand(5, 12, 12)
    inverses = {"rough": rough, "exact": torch.linalg.inv(matrices)}.get(kind, identity)
    own = {"none": lambda v: v, "a view": lambda v: v[:]}
    precondition = own.get(kind, lambda v: apply(inverses, v))
    iterations = 1 if kind == "exact" else 7  # after it there is only rounding
    textbook = Textbook(matrices, inverses, right, iterations)
    before, seen = right.clone(), []

    def rule(progress: Progress) -> bool:
        seen.append(Progress(progress[0], *(tensor.clone() for tensor in progress[1:])))
        return progress.iteration >= iterations

    solution, used = cg(lambda v: apply(matrices, v), right, precondition, rule)
    exact = torch.linalg.solve(matrices, right)
    assert torch.equal(right, before) and used == iterations
    assert [progress.iteration for progress in seen] == list(range(1, iterations + 1))
    squares = [((x - exact) * apply(matrices, x - exact)).sum(1) for x in textbook.iterates]
    steps = zip(seen, textbook.iterates[1:], textbook.gains, pairwise(squares), strict=True)
    for progress, expected, gain, squared in steps:
        assert_close(progress.solution, expected, EXACT)
        assert_close(progress.residual, right - apply(matrices, expected), EXACT)
        assert_close(progress.gain, gain, EXACT)
        assert_close(progress.gain[:, 0], squared[0] - squared[1], EXACT)
    assert_close(solution, exact if kind == "exact" else textbook.iterates[-1], EXACT)


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-4)], ids=str
)
def test_systems_do_not_meet_and_more_iterations_do_no_harm(dtype: Any, bound: float) -> None:
    """One that is solved (zero) stays so, and one whose squares leave float32 stays finite."""
    matrices, inverses, right = systems(decades=1.0)
    exact = torch.linalg.solve(matrices, right)
    right[1] *= 1e-18
    right[2] = 0
    given = [each.to(dtype) for each in (matrices, inverses, right)]
    solution, kept = solve(after(300), *given), [0, 3, 4]
    assert (solution[kept] - exact[kept]).norm() < bound * exact[kept].norm()
    assert solution.isfinite().all() and solution[1].norm() <= 3 * right[1].norm()
    assert (solution[2] == 0).all()
    early = solve(after(4), *given)
    alone = [solve(after(4), *(each[j : j + 1] for each in given)) for j in range(5)]
    assert_close(early, torch.cat(alone), 100 * torch.finfo(dtype).eps)


def test_each_iterate_of_minres_is_that_of_scipy() -> None:
    """Of an indefinite matrix too: symmetric is all that MINRES asks for."""
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(8, 8))
    matrix, right = matrix + matrix.T, rng.normal(size=8)
    tensor = torch.from_numpy(matrix)
    for iterations in range(1, 8):
        expected, _ = scipy.sparse.linalg.minres(matrix, right, rtol=1e-300, maxiter=iterations)
        found, _ = minres(lambda v: v @ tensor, torch.from_numpy(right)[None], iterations, 0.0)
        np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-8, atol=1e-10)
    found, _ = minres(lambda v: v * torch.arange(1, 6), torch.full((1, 5), 1e-24), 9, 0.0)
    assert found.isfinite().all()  # of numbers that are too small to square


def test_products_after_the_first_may_be_rounded() -> None:
    """What many iterations leave is rounding, most of it by the first product: the control."""
    fisher, damping = replace(REALISTIC.fisher(), low=torch.bfloat16), REALISTIC.damping
    exact, rounded = (partial(damped, each, damping) for each in (fisher, fisher.rounded()))
    expected = solving.solve_dense(dense(fisher), float(damping), gradient := REALISTIC.gradient())
    (inverse := SharedPreconditioner()).update(fisher, damping)
    found = [
        cg(*each[:1], gradient, inverse, after(20), *each[1:])[0] - expected
        for each in ((exact,), (exact, rounded), (rounded,))
    ]
    full, mixed, low = (float(each.norm() / expected.norm()) for each in found)
    assert full < EXACT < mixed < low / 4 < ACCURATE


# --- pcg: when to stop ----------------------------------------------------------------------------


def test_until_accurate_sums_what_is_left_and_not_the_gains() -> None:
    """A unit that is done at once must not hide a slow one.

    The slow unit gains almost nothing per iteration, and nearly all of its error is left.
    """
    gains = torch.tensor([[[1e2], [1.0]], [[1e-8], [0.9]]], dtype=torch.float64)
    none, one = torch.zeros_like(gains[0]), torch.ones_like(gains[0])
    rule = UntilAccurate(0.1, lambda x: torch.tensor(400.0), 9)
    first, second = (Progress(i, none, none, gain, one) for i, gain in enumerate(gains, 1))
    assert not rule(first) and not rule(second)  # 8.1 is left of the second unit, above 4
    merged = gains.sum(1)
    assert float(merged[1] ** 2 / merged[0]) < 0.1**2 * 400, "the sums would have stopped here"
    assert rule(second._replace(step=second.step * math.nan)), "nan is not iterated on"


@pytest.mark.parametrize("rank", [0, 8, 101])
@pytest.mark.parametrize("iterations", [1, 2, 5])
@pytest.mark.parametrize("tolerance", [0.0, NEVER])
def test_a_fixed_number_is_the_textbooks(tolerance: float, iterations: int, rank: int) -> None:
    solver, fisher = pcg(iterations, tolerance, rank=rank), REALISTIC.fisher()
    basis = find_basis(fisher.shared.centred(), rank)
    inverses = solving.shared_inverses(fisher, basis, 0.2, mean_row(fisher))
    textbook = Textbook(damped_blocks(REALISTIC), inverses, REALISTIC.gradient(), iterations)
    solution = factored(solver, REALISTIC).solve(REALISTIC.gradient())
    assert_close(solution, textbook.iterates[-1], EXACT)
    assert solver.used_iterations == iterations


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-8])
@pytest.mark.parametrize("shape", [(320, 101, 60), (60, 301, 40)], ids=["basis", "few rows"])
def test_tolerance_holds_for_the_worst_unit_and_not_an_iteration_earlier(
    shape: tuple[int, int, int], tolerance: float
) -> None:
    case = SolverCase(*shape, 0.01)
    solver, gradient = factored(pcg(200, tolerance), case), case.gradient()
    assert residual(case, solver.solve(gradient), gradient) < tolerance
    assert 1 <= solver.used_iterations < 200
    if case.n > case.d:  # the space of the rows counts two for one, and gives the best length
        before = factored(pcg(solver.used_iterations - 1, NEVER), case).solve(gradient)
        assert residual(case, before, gradient) >= tolerance, "stopped an iteration late"


def test_it_warns_of_a_residual_above_the_tolerance_alone(caplog: pytest.LogCaptureFixture) -> None:
    gradient = REALISTIC.gradient()
    with caplog.at_level(logging.WARNING):
        factored(pcg(100, 1e-3), REALISTIC).solve(gradient)  # keeps the tolerance
        factored(pcg(1), REALISTIC).solve(gradient)  # nothing was promised
        assert caplog.records == []
        found = factored(pcg(2, 1e-10), REALISTIC).solve(gradient)
        factored(pcg(3, 1e-3), REALISTIC).solve(math.nan * gradient)  # no success either
    message, lost = (record.getMessage() for record in caplog.records)
    true = f"residual of {residual(REALISTIC, found, gradient):.1e} in its worst unit"
    assert message.startswith("layer: ") and "after 2 iterations" in message and true in message
    assert "residual of nan" in lost


# --- pcg: an accuracy -----------------------------------------------------------------------------


def relative_error(case: SolverCase, solution: Tensor, gradient: Tensor) -> float:
    """The error of the whole layer, in the norm that the solver bounds.

    With few rows the norm is |x|. Otherwise |x|^2 = sum_j x_j . A_j x_j.
    """
    blocks = damped_blocks(case)
    expected = torch.linalg.solve(blocks, gradient)
    wrong = solution - expected
    if FEW * case.n <= case.d:
        return float(wrong.norm() / expected.norm())
    squares = [(x * apply(blocks, x)).sum() for x in (wrong, expected)]
    return float((squares[0] / squares[1]).sqrt())


@pytest.mark.parametrize("accuracy", [0.1, 1e-2, 1e-4])
@pytest.mark.parametrize("alpha", [0.2, 0.01])
@pytest.mark.parametrize("shape", [(320, 101, 60), (60, 301, 40), (32, 385, 30)], ids=str)
def test_iterations_follow_the_accuracy(shape: Any, alpha: float, accuracy: float) -> None:
    """The error ends within a factor of 3 above the accuracy: the solver predicts what is left.

    The negative control: two iterations fewer miss the accuracy.
    """
    case = SolverCase(*shape, alpha)
    solver = factored(pcg(None, accuracy=accuracy), case)
    for seed in (1, 1, 2):  # the look, and after it, for another gradient too
        gradient = case.gradient(seed)
        assert relative_error(case, solver.solve(gradient), gradient) < 3 * accuracy
    if solver.used_iterations > 3:
        shorter = factored(pcg(None, accuracy=accuracy), case)
        shorter._count = solver.used_iterations - 2
        assert relative_error(case, shorter.solve(case.gradient()), case.gradient()) > accuracy


# --- in the space of few rows, by Woodbury's identity ---------------------------------------------


@pytest.mark.parametrize("case", [FEW_ROWS, SolverCase(25, 101, 5, 0.05, "bipolar")], ids=str)
@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_few_rows_take_twice_the_textbooks_iterations(iterations: int, case: SolverCase) -> None:
    """And x takes the length that is best along it: unfinished it may be as long as g / alpha.

    What preconditions is H H^T ~ a 1 1^T + diag(b), a = |mean row|^2, b the diagonal's rest.
    """
    gradient, blocks, inputs = case.gradient(), damped_blocks(case), case.fisher().inputs
    roots = case.fisher().curvature.T.sqrt()  # (m, n), of the row weights
    common = mean_row(case.fisher()).square().sum()
    own = (inputs.square().sum(1) - common).clamp_min(0)
    around = [  # alpha I + R_j K R_j of K and of what stands for it, dense: (m, n, n)
        roots[:, :, None] * roots[:, None, :] * gram + case.alpha * torch.eye(case.n).double()
        for gram in (inputs @ inputs.T, common + own.diag())
    ]
    right = (gradient @ inputs.T) * roots
    textbook = Textbook(around[0], torch.linalg.inv(around[1]), right, 2 * iterations)
    bare = (gradient - (textbook.iterates[-1] * roots) @ inputs) / case.alpha
    length = (bare * gradient).sum(1) / (bare * apply(blocks, bare)).sum(1)
    solver = factored(pcg(iterations), case)
    assert_close(solver.solve(gradient), length[:, None] * bare, EXACT)
    assert solver.used_iterations == 2 * iterations
    if iterations == 1 and case.n > 20:
        assert (length - 1).abs().max() > 1e-2, "nothing to shorten"


def test_a_row_shorter_than_the_mean_leaves_the_preconditioner_positive() -> None:
    """For such a row H_k . H_k - |c|^2 is negative, and so would be the guess of the matrix."""
    fisher = FEW_ROWS.fisher()
    fisher.inputs[3, :-1] = 0
    assert fisher.inputs[3].square().sum() < 0.5 * fisher.shared.mean.square().sum()
    fisher.curvature[3] = 10.0  # where it would show
    system = fisher.reduce(torch.tensor(1e-3, dtype=torch.float64))
    assert system is not None
    for each in torch.eye(20, dtype=torch.float64):
        image = system.precondition(each.expand(FEW_ROWS.m, -1).clone())
        assert ((image * each).sum(1) > 0).all()
