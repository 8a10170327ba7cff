"""The Kronecker metric against its definition, written out slowly in float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from cases import EXACT, REALISTIC, SolverCase, assert_close, seeded
from solving import NoReads, basis_matrix, covariance_of, error, shared_blocks, solve_dense
from torch import Tensor

from nws.errors import UserError
from nws.natural.metrics import Kronecker
from nws.natural.operators import Rows
from nws.natural.preconditioners import Basis

# Many rows, fewer rows than parents, and a layer without parents.
LAYERS = [SolverCase(60, 20, 5, 0.2), SolverCase(20, 33, 6, 0.2), SolverCase(1, 1, 4, 0.2)]
ALPHA = torch.tensor(0.05, dtype=torch.float64)


def batch_of(case: SolverCase, seed: int) -> Rows:
    """Rows with weights of their own, which curvature has in it."""
    fisher = case.fisher(seed)
    weights = torch.rand(case.n, generator=seeded(50 + seed), dtype=torch.float64)
    weights /= weights.sum()
    curvature = fisher.curvature * case.n * weights[:, None]
    return Rows(fisher.inputs, curvature, weights=weights, name=f"layer of {case.d}")


def batch(seed: int) -> list[Rows]:
    return [batch_of(case, seed) for case in LAYERS]


def gradients(seed: int) -> list[Tensor]:
    return [case.gradient(seed) for case in LAYERS]


def slow_mean(rows: Rows) -> Tensor:
    """c = sum_k w_k h_k, row by row."""
    total = torch.zeros(rows.inputs.shape[1], dtype=torch.float64)
    for weight, row in zip(rows.weights, rows.inputs, strict=True):
        total += weight * row
    return total


def slow_covariance(past: list[Rows], memory: int, every: int) -> Tensor:
    """sum_t beta^(every t) C_t / sum_t beta^(every t) over the rows of all refreshes.

    t counts refreshes back from the newest, and C_t is about the mean of its own rows.
    """
    beta = 1 - 1 / memory
    parts = [
        (beta ** (every * age), covariance_of(rows.inputs, rows.weights, slow_mean(rows)))
        for age, rows in enumerate(reversed(past))
    ]
    return sum(share * each for share, each in parts) / sum(share for share, _ in parts)  # type: ignore


def blocks_of(rows: Rows, covariance: Tensor) -> Tensor:
    """s_j (c c^T + covariance) with c and s_j of the newest rows."""
    return shared_blocks(rows.curvature.sum(0), slow_mean(rows), covariance)


# --- the direction --------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("memory", [1, 2, 50, 10**17])
def test_the_direction_of_full_rank_is_that_of_the_definition(memory: int, every: int) -> None:
    """From the first step on: the bias of a start at zero is corrected."""
    metric, taken_in = Kronecker(memory, "full", every), []
    for step in range(8):
        rows, given = batch(step), gradients(step)
        metric.update(rows, ALPHA)
        if step % every == 0:
            taken_in.append(rows)
        for number, (x, g) in enumerate(zip(metric.direction(given), given, strict=True)):
            covariance = slow_covariance([each[number] for each in taken_in], memory, every)
            expected = solve_dense(blocks_of(rows[number], covariance), float(ALPHA), g)
            assert error(x, expected) < EXACT


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory": 3},
        {"memory": 2, "every": 2},
        {"memory": 2, "newest": 0},
        {"memory": 2, "first": 1},
    ],
    ids=str,
)
def test_another_definition_fails_the_same_comparison(wrong: dict[str, Any]) -> None:
    """Negative controls: another memory, other steps between terms, older means, terms left out."""
    metric, past = Kronecker(2, "full", 1), [batch_of(REALISTIC, step) for step in range(4)]
    for rows in past:
        metric.update([rows], ALPHA)
    (x,), g = metric.direction([REALISTIC.gradient()]), REALISTIC.gradient()

    def expected(memory: int, every: int = 1, newest: int = -1, first: int = 0) -> Tensor:
        covariance = slow_covariance(past[first:], memory, every)
        return solve_dense(blocks_of(past[newest], covariance), float(ALPHA), g)

    assert error(x, expected(2)) < EXACT
    assert error(x, expected(**wrong)) > 1e4 * EXACT


@pytest.mark.parametrize("rank", [0, 1, 8])
def test_the_direction_of_low_rank_is_that_of_its_basis(rank: int) -> None:
    metric = Kronecker(5, rank, refresh_every=2)
    for step in range(5):
        rows, given = batch(step), gradients(step)
        metric.update(rows, ALPHA)
        bases = [Basis(**each) for each in metric.state_dict()["bases"]]
        for each, basis, x, g in zip(rows, bases, metric.direction(given), given, strict=True):
            assert basis.values.shape == (min(rank, each.inputs.shape[1] - 1),)
            expected = solve_dense(blocks_of(each, basis_matrix(basis)), float(ALPHA), g)
            assert error(x, expected) < EXACT


def test_the_basis_is_that_of_the_eigenpairs_where_rows_stand_still() -> None:
    """Each refresh is a step of subspace iteration; the mean of the other eigenvalues is exact.

    The gap from the eighth eigenvalue to the ninth says how fast the vectors come.
    """
    rows, rank = batch_of(REALISTIC, 0), 8
    covariance = covariance_of(rows.inputs, rows.weights, slow_mean(rows))
    values, vectors = torch.linalg.eigh(covariance)
    metric, misses = Kronecker(2, rank, refresh_every=1), []
    for _ in range(200):
        metric.update([rows], ALPHA)
        basis = Basis(**metric.state_dict()["bases"][0])
        found = basis.vectors[:, 2:]  # the six largest, which have come by then
        misses.append(float((found - vectors[:, -6:] @ (vectors[:, -6:].T @ found)).norm()))
    assert misses[-1] < 1e-3 < misses[0], (misses[0], misses[-1])
    assert_close(basis.values[2:], values[-6:], 1e-5)
    total = float(basis.values.sum() + basis.rest * (len(values) - rank))
    assert total == pytest.approx(float(values.sum()))
    assert float(basis.rest) == pytest.approx(float(values[:-rank].mean()), rel=1e-2)
    assert float(basis.rest) != pytest.approx(float(values[: -rank + 1].mean()), rel=1e-2)


def test_memory_of_one_step_forgets_all_other_rows() -> None:
    used, fresh = Kronecker(1, "full", 1), Kronecker(1, "full", 1)
    remembering = Kronecker(2, "full", 1)
    for step in range(4):
        used.update(batch(step), ALPHA)
        remembering.update(batch(step), ALPHA)
    fresh.update(batch(3), ALPHA)
    for one, other in zip(used.direction(gradients(0)), fresh.direction(gradients(0)), strict=True):
        assert error(one, other) < EXACT
    pairs = zip(remembering.direction(gradients(0)), fresh.direction(gradients(0)), strict=True)
    assert max(error(one, other) for one, other in pairs) > 1e-3  # the control


@pytest.mark.parametrize("rank", [0, 5, "full"])
def test_in_place_it_is_the_direction_times_the_scale(rank: Any) -> None:
    metric, given = Kronecker(rank=rank), gradients(3)
    metric.update(batch(0), ALPHA)
    directions = metric.direction(given)
    assert all(torch.equal(g, same) for g, same in zip(given, gradients(3), strict=True))
    weights = [g[:, :-1].clone() for g in given]
    biases = [g[:, -1].clone() for g in given]
    metric.precondition_(weights, biases, 1 + ALPHA)
    for weight, bias, x in zip(weights, biases, directions, strict=True):
        assert_close(torch.cat([weight, bias[:, None]], dim=1), (1 + ALPHA) * x)


def test_rows_without_weight_leave_all_to_the_damping() -> None:
    nothing = [
        Rows(each.inputs, torch.zeros_like(each.curvature), weights=torch.zeros_like(each.weights))
        for each in batch(0)
    ]
    metric = Kronecker()
    metric.update(nothing, ALPHA)
    for x, g in zip(metric.direction(gradients(1)), gradients(1), strict=True):
        assert_close(x, g / ALPHA)


@pytest.mark.parametrize("rank", [0, 3, "full"])
def test_a_direction_in_place_is_no_longer_than_it_may_be(rank: int | str) -> None:
    """The length is by the metric's own matrices, found column by column from its directions."""
    metric, scale = Kronecker(rank=rank), torch.tensor(1.5, dtype=torch.float64)
    metric.update(batch(0), ALPHA)
    free = [scale * each for each in metric.direction(gradients(0))]
    length = sum(
        float(move @ (torch.linalg.inv(inverse) @ move - ALPHA * move))
        for moves, inverses in zip(free, inverse_blocks(metric), strict=True)
        for move, inverse in zip(moves, inverses, strict=True)
    )
    for share in (1e-4, 0.999, 1.001, float("inf")):
        parts = [(each[:, :-1].clone(), each[:, -1].clone()) for each in gradients(0)]
        longest = torch.tensor(share * length, dtype=torch.float64)
        metric.precondition_(*map(list, zip(*parts, strict=True)), scale, longest)  # type: ignore
        for (weight, bias), expected in zip(parts, free, strict=True):
            found = torch.cat([weight, bias[:, None]], dim=1)
            assert_close(found, min(1.0, share) ** 0.5 * expected)


def inverse_blocks(metric: Kronecker) -> list[Tensor]:
    """(F_j + alpha I)^{-1} of all units of each layer, (m, d, d), from directions alone."""
    blocks = [torch.empty(each.shape[0], *each.shape[1:] * 2).double() for each in gradients(0)]
    for column in range(max(case.d for case in LAYERS)):
        units = [torch.zeros_like(each) for each in gradients(0)]
        for unit in units:
            unit[:, column : column + 1] = 1
        for block, found in zip(blocks, metric.direction(units), strict=True):
            block[:, :, column : column + 1] = found[:, :, None]
    return blocks


def test_no_gradient_is_not_scaled() -> None:
    metric = Kronecker()
    metric.update(batch(0), ALPHA)
    weights, biases = zip(*((0 * g[:, :-1], 0 * g[:, -1]) for g in gradients(0)), strict=True)
    metric.precondition_(weights, biases, ALPHA, torch.tensor(1e-3, dtype=torch.float64))
    assert all((each == 0).all() for each in (*weights, *biases))


# --- what a step costs ----------------------------------------------------------------------------


def only_means(rows: Rows) -> Rows:
    """Rows that must not be made."""

    def never() -> Tensor:
        raise AssertionError("rows were made in an ordinary step")

    return Rows(never, never, name=rows.name, weights=never, means=lambda: rows.means)


def test_rows_are_made_at_a_refresh_alone() -> None:
    metric = Kronecker(rank=3, refresh_every=3)
    for step in range(7):
        given = batch(step) if step % 3 == 0 else [only_means(rows) for rows in batch(step)]
        metric.update(given, ALPHA)
    metric.direction(gradients(0))
    for step in range(7, 9):
        metric.update([only_means(rows) for rows in batch(step)], ALPHA)
    with pytest.raises(AssertionError, match="were made"):  # the control: a refresh
        metric.update([only_means(rows) for rows in batch(9)], ALPHA)


def test_an_ordinary_step_reads_no_number_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    metric, given = Kronecker(rank=3, refresh_every=10), gradients(1)
    metric.update(batch(0), ALPHA)
    later, scale = batch(1), 1 + ALPHA
    with pytest.raises(AssertionError, match="reads from the device"), NoReads():
        metric.update(later, ALPHA)  # looks at alpha and the means, where they are on the CPU
    alpha_of = "nws.natural.metrics.kronecker.check_rows"
    monkeypatch.setattr(alpha_of, lambda rows, alpha, **_: alpha)
    with NoReads():
        metric.update(later, ALPHA)
        metric.precondition_([g[:, :-1] for g in given], [g[:, -1] for g in given], scale)
        metric.direction(given)


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_rows_that_are_not_finite_name_the_layer_at_any_step(steps: int) -> None:
    metric = Kronecker(refresh_every=2)
    for step in range(steps):
        metric.update(batch(step), ALPHA)
    rows = batch(steps)
    rows[1].inputs[3, 2] = float("nan")
    with pytest.raises(UserError, match=r"layer of 33: .*n=20 rows of d=33 .*not finite"):
        metric.update(rows, ALPHA)


BAD = [
    (partial(Kronecker, memory=0), r"metric\.memory must be a whole number of at least 1, got 0"),
    (partial(Kronecker, memory=2.5), r"metric\.memory must be a whole number"),
    (partial(Kronecker, rank=-1), r"metric\.rank must be a whole number of at least 0, got -1"),
    (partial(Kronecker, rank="all"), r"metric\.rank must be a whole number or full, got 'all'"),
    (partial(Kronecker, rank=True), r"metric\.rank must be a whole number"),
    (partial(Kronecker, refresh_every=0), r"metric\.refresh_every must be a whole number of at"),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_bad_numbers_are_errors_that_name_the_option(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()
