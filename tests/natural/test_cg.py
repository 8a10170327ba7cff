"""Conjugate gradient as a pure function, and each rule that says when it stops.

The reference is a textbook version on dense matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from cases import EXACT, assert_close, seeded
from solving import NoReads, Textbook, apply
from torch import Tensor

from nws.natural.solvers.cg import Iterations, Progress, UntilAccurate, UntilResidual, cg


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


class Recorded:
    """Another rule, and a copy of all that it was shown."""

    def __init__(self, rule: Callable[[Progress], bool]) -> None:
        self.rule = rule
        self.seen: list[Progress] = []

    def __call__(self, progress: Progress) -> bool:
        number, *tensors = progress
        self.seen.append(Progress(number, *(tensor.clone() for tensor in tensors)))
        return self.rule(progress)


def squared_errors(matrices: Tensor, solution: Tensor, exact: Tensor) -> Tensor:
    """|x_j - solution_j|^2 in the norm of A_j: (m,)."""
    wrong = solution - exact
    return (wrong * apply(matrices, wrong)).sum(1)


@pytest.mark.parametrize("iterations", [1, 2, 3, 7])
@pytest.mark.parametrize("kind", ["none", "rough", "exact"])
def test_each_iteration_is_the_textbooks(kind: str, iterations: int) -> None:
    matrices, rough, right = systems()
    inverses = {
        "none": torch.eye(12, dtype=torch.float64).expand(5, 12, 12),
        "rough": rough,
        "exact": torch.linalg.inv(matrices),
    }[kind]
    iterations = 1 if kind == "exact" else iterations  # after it there is only rounding
    textbook = Textbook(matrices, inverses, right, iterations)
    rule, before = Recorded(Iterations(iterations)), right.clone()
    solution = cg(lambda v: apply(matrices, v), right, lambda v: apply(inverses, v), rule)
    assert_close(solution, textbook.iterates[-1], EXACT)
    assert torch.equal(right, before)
    assert [progress.iteration for progress in rule.seen] == list(range(1, iterations + 1))
    for progress, expected, gain in zip(
        rule.seen, textbook.iterates[1:], textbook.gains, strict=True
    ):
        assert_close(progress.solution, expected, EXACT)
        assert_close(progress.residual, right - apply(matrices, expected), EXACT)
        assert_close(progress.gain, gain, EXACT)
    if kind == "exact":
        assert_close(solution, torch.linalg.solve(matrices, right), EXACT)


def test_a_gain_is_what_an_iteration_takes_off_the_squared_error() -> None:
    """Hestenes & Stiefel 1952, theorem 6:1."""
    matrices, inverses, right = systems()
    exact, rule = torch.linalg.solve(matrices, right), Recorded(Iterations(6))
    cg(lambda v: apply(matrices, v), right, lambda v: apply(inverses, v), rule)
    before = squared_errors(matrices, torch.zeros_like(right), exact)
    for progress in rule.seen:
        after = squared_errors(matrices, progress.solution, exact)
        assert (after < before).all()
        assert_close(progress.gain[:, 0], before - after, EXACT)
        before = after


def test_as_many_iterations_as_columns_are_enough_and_one_is_not() -> None:
    matrices, inverses, right = systems(d=6, decades=1.0)
    exact = torch.linalg.solve(matrices, right)
    one, all_of_them = (
        cg(lambda v: apply(matrices, v), right, lambda v: apply(inverses, v), Iterations(number))
        for number in (1, 6)
    )
    assert_close(all_of_them, exact, 100 * EXACT)  # the residuals' orthogonality is lost a little
    assert (one - exact).norm() > 1e-2 * exact.norm()


def test_a_preconditioner_may_return_its_argument() -> None:
    """`lambda v: v` is none at all; what is changed in place must not be what it returned."""
    matrices, _, right = systems()
    as_it_is, copied, view = (
        cg(lambda v: apply(matrices, v), right, precondition, Iterations(5))
        for precondition in (lambda v: v, lambda v: v.clone(), lambda v: v[:])
    )
    assert torch.equal(as_it_is, copied) and torch.equal(view, copied)


def test_systems_do_not_meet() -> None:
    """m systems at once are each of them by itself, and one that is solved (zero) stays so."""
    matrices, inverses, right = systems()
    right[2] = 0
    together = cg(lambda v: apply(matrices, v), right, lambda v: apply(inverses, v), Iterations(4))
    for j in range(5):
        part = slice(j, j + 1)
        own = cg(
            lambda v, part=part: apply(matrices[part], v),
            right[part],
            lambda v, part=part: apply(inverses[part], v),
            Iterations(4),
        )
        assert_close(together[part], own, EXACT)
    assert (together[2] == 0).all()


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-4)], ids=str
)
def test_more_iterations_than_needed_do_no_harm(dtype: torch.dtype, bound: float) -> None:
    matrices, inverses, right = systems(decades=1.0)
    exact = torch.linalg.solve(matrices, right)
    right[1] *= 1e-18  # its squares leave the range of float32
    matrices, inverses, right = (each.to(dtype) for each in (matrices, inverses, right))
    solution = cg(
        lambda v: apply(matrices, v), right, lambda v: apply(inverses, v), Iterations(300)
    )
    kept = [0, 2, 3, 4]
    assert (solution[kept] - exact[kept]).norm() < bound * exact[kept].norm()
    assert solution.isfinite().all() and solution[1].norm() <= 3 * right[1].norm()


# --- when to stop ---------------------------------------------------------------------------------


def seen(iterations: int = 30) -> list[Progress]:
    matrices, inverses, right = systems()
    rule = Recorded(Iterations(iterations))
    cg(lambda v: apply(matrices, v), right, lambda v: apply(inverses, v), rule)
    return rule.seen


def stops(rule: Callable[[Progress], bool], progress: list[Progress]) -> int:
    return next(each.iteration for each in progress if rule(each))


@pytest.mark.parametrize("number", [1, 2, 9])
def test_a_fixed_number_costs_as_many_products_and_reads_nothing(number: int) -> None:
    matrices, inverses, right = systems()
    products = []

    def matmul(vectors: Tensor) -> Tensor:
        products.append(vectors)
        return apply(matrices, vectors)

    with NoReads():
        cg(matmul, right, lambda v: apply(inverses, v), Iterations(number))
    assert len(products) == number


def test_the_other_rules_read_numbers() -> None:
    """The control of the test before: what it counts is there to be seen."""
    matrices, inverses, right = systems()
    rules: list[Callable[[Progress], bool]] = [
        UntilAccurate(0.1, lambda x: (x * right).sum(), 9),
        UntilResidual(0.1 * right.norm(dim=1), lambda r: r.norm(dim=1), 9),
    ]
    for rule in rules:
        with pytest.raises(AssertionError, match="reads from the device"), NoReads():
            cg(lambda v: apply(matrices, v), right, lambda v: apply(inverses, v), rule)


@pytest.mark.parametrize("accuracy", [0.3, 0.1, 1e-2, 1e-4])
def test_until_accurate_stops_where_the_gains_foretell_it(accuracy: float) -> None:
    """The rule stops at the first iteration i that predicts an error within the accuracy.

    The prediction is sum_j gain_i^2 / gain_{i-1}, and the bound is accuracy^2 times the size.
    """
    matrices, _, right = systems()
    exact, progress = torch.linalg.solve(matrices, right), seen()
    size = (exact * right).sum()
    left = [float((now.gain.square() / last.gain).sum()) for last, now in pairwise(progress)]
    expected = next(i for i, each in enumerate(left, 2) if each <= accuracy**2 * float(size))
    rule = UntilAccurate(accuracy, lambda x: size, 30)
    assert stops(rule, progress) == expected == rule.iteration
    error = squared_errors(matrices, progress[expected - 1].solution, exact).sum() / size
    assert error.sqrt() < 3 * accuracy


def test_until_accurate_gives_the_solution_of_now_to_its_size() -> None:
    solutions: list[Tensor] = []
    rule = UntilAccurate(1e-3, lambda x: solutions.append(x) or x.sum() * 0, 4)
    progress = seen(4)
    assert stops(rule, progress) == 4  # a size of 0 leaves the limit
    for given, each in zip(solutions, progress[1:], strict=True):
        assert torch.equal(given, each.solution)


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_until_accurate_keeps_its_limit(limit: int) -> None:
    rule = UntilAccurate(1e-300, lambda x: x.square().sum(), limit)
    assert stops(rule, seen()) == limit == rule.iteration


def test_until_accurate_sums_what_is_left_and_not_the_gains() -> None:
    """A unit that is done at once must not hide a slow one.

    The slow unit gains almost nothing per iteration, and nearly all of its error is left.
    """
    gains = torch.tensor([[[1e2], [1.0]], [[1e-8], [0.9]]], dtype=torch.float64)
    none = torch.zeros(2, 1, dtype=torch.float64)
    rule = UntilAccurate(0.1, lambda x: torch.tensor(80.0), 9)
    first, second = (
        Progress(i, none, none, gain, torch.ones_like(gain)) for i, gain in enumerate(gains, 1)
    )
    assert not rule(first) and not rule(second)  # 0.81 is left of the second unit, above 0.8
    merged = gains.sum(1)
    assert float(merged[1] ** 2 / merged[0]) < 0.1**2 * 80, "the sums would have stopped here"


def test_a_solution_that_is_not_a_number_is_not_iterated_on() -> None:
    lost = Progress(2, *(torch.full((1, 1), math.nan) for _ in range(4)))
    rule = UntilAccurate(0.1, lambda x: x.sum(), 50)
    rule(lost._replace(iteration=1))
    assert rule(lost)


@pytest.mark.parametrize("tolerance", [1e-1, 1e-3, 1e-6])
def test_until_residual_waits_for_the_worst_unit(tolerance: float) -> None:
    _, _, right = systems()
    progress, lengths = seen(), right.norm(dim=1)
    ratios = [each.residual.norm(dim=1) / lengths for each in progress]
    expected = next(i for i, ratio in enumerate(ratios, 1) if ratio.max() <= tolerance)
    rule = UntilResidual(tolerance * lengths, lambda r: r.norm(dim=1), 30)
    assert math.isnan(rule.worst)
    assert stops(rule, progress) == expected == rule.iteration
    assert rule.worst == 0
    assert ratios[expected - 2].min() <= tolerance, "all units were done in the same iteration"


def test_until_residual_says_how_far_it_is_at_its_limit() -> None:
    _, _, right = systems()
    progress, lengths = seen(), right.norm(dim=1)
    rule = UntilResidual(1e-9 * lengths, lambda r: r.norm(dim=1), 3)
    assert stops(rule, progress) == 3 == rule.iteration
    worst = (progress[2].residual.norm(dim=1) / lengths).max()
    assert rule.worst == pytest.approx(float(worst) / 1e-9)


def test_until_residual_has_nothing_to_reach_for_a_unit_without_right_side() -> None:
    residual = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    progress = Progress(1, residual, residual, *residual.split(1, dim=1))
    length = torch.tensor([0.0, 5.0])
    assert UntilResidual(length, lambda r: r.norm(dim=1), 9)(progress)
    rule = UntilResidual(length / 2, lambda r: r.norm(dim=1), 9)
    assert not rule(progress) and rule.worst == 2
