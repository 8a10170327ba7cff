"""The basis that a layer's units share, and its preconditioner, against dense matrices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import EXACT, REALISTIC, SolverCase, assert_close, seeded, with_bias
from solving import apply, dense, factored, mean_block, mean_row, pcg, saved, shared_inverses
from torch import Tensor

from nws.errors import UserError
from nws.natural.operators import SharedCurvature, UnitFisher
from nws.natural.preconditioners import KEEP, SharedInverse, SharedPreconditioner, find_basis

# --- what units share -----------------------------------------------------------------------------


def test_what_units_share_is_scale_mean_and_weights() -> None:
    fisher = REALISTIC.fisher()
    shared = fisher.shared
    assert shared.inputs is fisher.inputs
    assert_close(shared.scale, fisher.weights.sum(0))
    assert_close(shared.mean, mean_row(fisher))
    assert float(shared.weights.sum()) == pytest.approx(1)
    everything, about_mean = (shared.centred(centre) for centre in (0.0, shared.mean))
    assert_close(everything.T @ everything, mean_block(fisher))
    covariance = mean_block(fisher) - mean_row(fisher).outer(mean_row(fisher))
    assert_close(about_mean.T @ about_mean, covariance)


def test_rows_without_weight_share_nothing() -> None:
    shared = UnitFisher(torch.ones(4, 3), torch.zeros(4, 2)).shared
    assert all((part == 0).all() for part in (shared.scale, shared.mean, shared.weights))


# --- the basis ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "degenerate", "saturated"])
@pytest.mark.parametrize(
    ("n", "d", "rank"),
    [(60, 9, 9), (60, 9, 32), (20, 33, 20), (20, 33, 33), (12, 12, 12), (7, 1, 5)],
)
def test_a_basis_of_full_rank_is_the_eigenbasis(n: int, d: int, rank: int, kind: Any) -> None:
    if kind == "degenerate" and d < 5:
        pytest.skip("too few parents to repeat")
    fisher = SolverCase(n, d, 4, 0.2, kind=kind).fisher()
    vectors, values, rest = find_basis(fisher.shared, rank)
    expected = torch.linalg.eigvalsh(mean_block(fisher))
    assert vectors.shape == (d, min(n, d)) and values.shape == (min(n, d),) and rest.shape == (1,)
    assert_close(vectors.T @ vectors, torch.eye(min(n, d), dtype=torch.float64))
    assert_close(values, expected[-min(n, d) :])
    assert_close(vectors @ values.diag() @ vectors.T, mean_block(fisher))
    assert float(rest) == pytest.approx(0, abs=EXACT)


@pytest.mark.parametrize("refreshed", [False, True], ids=["from the rows", "from an old basis"])
@pytest.mark.parametrize("rank", [0, 1, 8, 32, 100])
def test_a_basis_of_low_rank_is_orthonormal_and_keeps_the_trace(rank: int, refreshed: bool) -> None:
    fisher = REALISTIC.fisher()
    last = find_basis(REALISTIC.fisher(seed=1).shared, rank) if refreshed else None
    vectors, values, rest = find_basis(fisher.shared, rank, last=last)
    a = mean_block(fisher)
    if last is not None:
        outside = torch.eye(REALISTIC.d, dtype=torch.float64) - last.vectors @ last.vectors.T
        old = last.vectors @ last.values.diag() @ last.vectors.T + last.rest * outside
        assert_close(last.matmul(torch.eye(REALISTIC.d, dtype=torch.float64)), old)
        a = torch.lerp(a, old, KEEP)
    largest = torch.linalg.eigvalsh(a)[REALISTIC.d - rank :]
    assert vectors.shape == (REALISTIC.d, rank) and (values >= 0).all() and rest >= 0
    assert_close(vectors.T @ vectors, torch.eye(rank, dtype=torch.float64))
    ritz = vectors.T @ a @ vectors
    assert_close(ritz, values.diag())  # Ritz values, each at most the eigenvalue in its place
    assert (values <= largest + EXACT).all()
    total = float(values.sum() + rest * (REALISTIC.d - rank))
    assert total == pytest.approx(float(a.trace()), abs=EXACT)
    if rank and not refreshed:  # four subspace iterations find nearly all that there is to find
        assert values.sum() > 0.97 * largest.sum()


def test_a_basis_kept_over_many_batches_serves_the_next_better_than_the_last_batch_alone() -> None:
    rng = seeded(0)
    inputs = (torch.rand(12, 320, 100, generator=rng) < torch.rand(100, generator=rng)).double()
    curvatures = torch.rand(12, 320, 40, generator=rng, dtype=torch.float64) / 4 / 320
    *earlier, now = [UnitFisher(with_bias(h), s) for h, s in zip(inputs, curvatures, strict=True)]
    alpha = torch.tensor(0.02, dtype=torch.float64)
    gradient = torch.randn(40, 101, generator=rng).double()
    expected = torch.linalg.solve(dense(now) + alpha * torch.eye(101), gradient)

    def error(batches: list[UnitFisher]) -> float:
        precondition = SharedPreconditioner(rank=90, every=1)
        solver = pcg(2, preconditioner=precondition)
        for fisher in batches:
            solver.factor(fisher, alpha)
        precondition.every = 100
        solver.factor(now, alpha)
        return float((solver.solve(gradient) - expected).norm() / expected.norm())

    assert error(earlier) < 0.8 * error(earlier[-1:])


def test_the_basis_of_rows_without_weight_is_still_orthonormal() -> None:
    fisher = UnitFisher(REALISTIC.fisher().inputs, torch.zeros(320, 3, dtype=torch.float64))
    for rank in (8, 101):
        vectors, values, rest = find_basis(fisher.shared, rank)
        assert_close(vectors.T @ vectors, torch.eye(rank, dtype=torch.float64))
        assert (values == 0).all() and rest == 0
    solver = pcg()
    solver.factor(fisher, torch.tensor(0.5, dtype=torch.float64))
    gradient = torch.ones(3, 101, dtype=torch.float64)
    assert_close(solver.solve(gradient), 2 * gradient)


@pytest.mark.parametrize("rank", [0, 8, 101])
def test_the_basis_about_a_centre_is_that_of_the_covariance(rank: int) -> None:
    fisher = REALISTIC.fisher()
    centre = mean_row(fisher)
    vectors, values, rest = find_basis(fisher.shared, rank, centre)
    covariance = mean_block(fisher) - centre.outer(centre)
    assert_close(vectors.T @ covariance @ vectors, values.diag())
    total = float(values.sum() + rest * (REALISTIC.d - rank))
    assert total == pytest.approx(float(covariance.trace()), abs=EXACT)


def test_a_covariance_without_an_eigenbasis_is_an_error_that_says_what_to_do() -> None:
    """On a device nothing has looked at the rows before."""
    rows = torch.full((5, 3), float("nan"))
    shared = SharedCurvature(torch.ones(2), torch.zeros(3), rows, torch.full((5,), 0.2))
    with pytest.raises(UserError, match=r"generator\.2: .* n=5 rows of d=3 .* optimizer\.lr"):
        find_basis(shared, 3, name="generator.2")


# --- the preconditioner ---------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.2, 1e-3])
@pytest.mark.parametrize("rank", [0, 8, 101])
def test_the_inverse_is_the_one_that_it_says(rank: int, alpha: float) -> None:
    fisher, vectors = REALISTIC.fisher(), REALISTIC.gradient()
    centre, damping = mean_row(fisher), torch.tensor(alpha, dtype=torch.float64)
    basis = find_basis(fisher.shared, rank, centre)
    expected = apply(shared_inverses(fisher, basis, alpha, centre), vectors)
    before = vectors.clone()
    made = SharedInverse.make(basis, fisher.weights.sum(0), damping)
    assert_close(made.with_mean(centre)(vectors), expected, EXACT)
    precondition = SharedPreconditioner(rank)
    precondition.update(fisher, damping)
    assert_close(precondition(vectors), expected, EXACT)
    assert torch.equal(vectors, before)

    none = torch.zeros_like(centre)
    without = made(vectors)
    assert_close(without, apply(shared_inverses(fisher, basis, alpha, none), vectors), EXACT)
    assert (without - expected).norm() > 1e-3 * expected.norm(), "the mean makes no difference"


def test_units_without_weight_are_left_to_the_damping() -> None:
    fisher, vectors = REALISTIC.fisher(), REALISTIC.gradient()
    fisher.weights[:, 1] = 0
    precondition = SharedPreconditioner(8)
    precondition.update(fisher, torch.tensor(0.5, dtype=torch.float64))
    assert_close(precondition(vectors)[1], 2 * vectors[1])
    assert precondition(vectors).isfinite().all()


def test_the_basis_is_refreshed_every_so_many_updates_and_the_mean_at_each() -> None:
    precondition, bases, spans = SharedPreconditioner(every=3), [], []
    for batch in range(7):
        precondition.update(REALISTIC.fisher(batch), REALISTIC.damping)
        state = precondition.state_dict()
        bases.append(state["vectors"].clone())
        spans.append(state["span"].clone())
    fresh = [batch for batch in range(1, 7) if not torch.equal(bases[batch], bases[batch - 1])]
    assert fresh == [3, 6]
    for batch, span in enumerate(spans):
        assert_close(span, torch.cat([bases[batch].T, mean_row(REALISTIC.fisher(batch))[None]]))


@pytest.mark.parametrize("updates", [0, 1, 2, 3, 4])
def test_a_preconditioner_goes_on_bit_for_bit_from_its_state(updates: int) -> None:
    one, other = SharedPreconditioner(every=3), SharedPreconditioner(every=3)
    other.update(REALISTIC.fisher(9), REALISTIC.damping)  # what it was before is forgotten
    for batch in range(updates):
        one.update(REALISTIC.fisher(batch), REALISTIC.damping)
    other.load_state_dict(saved(one))
    vectors = REALISTIC.gradient()
    if updates:  # also before the next update
        assert torch.equal(one(vectors), other(vectors))
    for batch in range(updates, updates + 4):
        for each in (one, other):
            each.update(REALISTIC.fisher(batch), REALISTIC.damping)
        assert torch.equal(one(vectors), other(vectors))
    fresh = SharedPreconditioner(every=3)
    fresh.update(REALISTIC.fisher(updates + 3), REALISTIC.damping)
    assert not torch.equal(one(vectors), fresh(vectors)), "the state makes no difference"


def test_the_state_of_another_layer_is_an_error() -> None:
    one, other = SharedPreconditioner(), SharedPreconditioner()
    one.update(REALISTIC.fisher(), REALISTIC.damping)
    narrower = SolverCase(320, 98, 60, 0.2)
    other.load_state_dict(saved(one))
    message = r"recognition\.1: .* state of 101 parents, these rows have 98; .* start a new run"
    with pytest.raises(UserError, match=message):
        other.update(narrower.fisher(name="recognition.1"), narrower.damping)
    other = SharedPreconditioner()  # with the rows there first, as between two refreshes
    other.update(narrower.fisher(name="recognition.1"), narrower.damping)
    with pytest.raises(UserError, match=message):
        other.load_state_dict(saved(one))


class Identity:
    """None at all: what a solver of the tests takes in place of the shared one."""

    def update(self, operator: Any, damping: Tensor) -> None:
        pass

    def __call__(self, vectors: Tensor) -> Tensor:
        return vectors

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        assert state == {}


@pytest.mark.parametrize("alpha", [0.2, 0.01])
def test_the_mean_saves_iterations_and_the_basis_more(alpha: float) -> None:
    case = SolverCase(320, 101, 60, alpha)

    def needed(**settings: Any) -> int:
        solver = factored(pcg(1000, 1e-6, **settings), case)
        solver.solve(case.gradient())
        return solver.used_iterations

    mean, small, large = (needed(rank=rank) for rank in (0, 4, 31))
    none = needed(preconditioner=Identity())
    assert large <= small <= mean < none
    assert large <= 0.75 * mean
