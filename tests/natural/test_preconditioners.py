"""The basis that a layer's units share, and its preconditioner, against dense matrices."""

from typing import Any

import pytest
import torch
from cases import EXACT, REALISTIC, SolverCase, assert_close
from solving import apply, basis_matrix, covariance_of, error, mean_row, pcg, shared_inverses

from nws.errors import UserError
from nws.natural.operators import SharedCurvature, UnitFisher
from nws.natural.preconditioners import SharedPreconditioner
from nws.natural.shared import KEEP, find_basis


@pytest.mark.parametrize("kind", ["plain", "degenerate", "saturated"])
@pytest.mark.parametrize(("n", "d", "rank"), [(60, 9, 32), (20, 33, 20), (20, 33, 33)])
def test_a_basis_of_full_rank_is_the_eigenbasis(n: int, d: int, rank: int, kind: Any) -> None:
    fisher = SolverCase(n, d, 4, 0.2, kind=kind).fisher()
    vectors, values, rest = find_basis(fisher.shared.centred(), rank)
    covariance = covariance_of(fisher.inputs, fisher.shared.weights, mean_row(fisher))
    count = min(n, d - 1, rank)
    assert vectors.shape == (d - 1, count) and values.shape == (count,) and rest.shape == (1,)
    assert_close(vectors.T @ vectors, torch.eye(count, dtype=torch.float64))
    assert_close(values, torch.linalg.eigvalsh(covariance)[d - 1 - count :])
    assert_close(vectors @ values.diag() @ vectors.T, covariance)
    assert float(rest) == pytest.approx(0, abs=EXACT)


@pytest.mark.parametrize("refreshed", [False, True], ids=["from the rows", "from an old basis"])
@pytest.mark.parametrize("rank", [0, 1, 8, 100])
def test_a_basis_of_low_rank_is_orthonormal_and_keeps_the_trace(rank: int, refreshed: bool) -> None:
    fisher = REALISTIC.fisher()
    last = find_basis(REALISTIC.fisher(seed=1).shared.centred(), rank) if refreshed else None
    vectors, values, rest = find_basis(fisher.shared.centred(), rank, last=last)
    a, parents = covariance_of(fisher.inputs, fisher.shared.weights, mean_row(fisher)), 100
    if last is not None:
        old = basis_matrix(last)
        assert_close(last.matmul(torch.eye(parents, dtype=torch.float64)), old)
        a = torch.lerp(a, old, KEEP)
    largest = torch.linalg.eigvalsh(a)[parents - rank :]
    assert vectors.shape == (parents, rank) and (values >= 0).all() and rest >= 0
    assert_close(vectors.T @ vectors, torch.eye(rank, dtype=torch.float64))
    ritz = vectors.T @ a @ vectors
    assert_close(ritz, values.diag())  # Ritz values, each at most the eigenvalue in its place
    assert (values <= largest + EXACT).all()
    total = float(values.sum() + rest * (parents - rank))
    assert total == pytest.approx(float(a.trace()), abs=EXACT)
    if rank and not refreshed:  # four subspace iterations find nearly all that there is to find
        assert values.sum() > 0.9 * largest.sum()


def test_rows_without_weight_have_an_orthonormal_basis_and_leave_all_to_the_damping() -> None:
    fisher = UnitFisher(REALISTIC.fisher().inputs, torch.zeros(320, 3, dtype=torch.float64))
    for rank in (8, 100):
        vectors, values, rest = find_basis(fisher.shared.centred(), rank)
        assert_close(vectors.T @ vectors, torch.eye(rank, dtype=torch.float64))
        assert (values == 0).all() and rest == 0
    solver = pcg()
    solver.factor(fisher, torch.tensor(0.5, dtype=torch.float64))
    gradient = torch.ones(3, 101, dtype=torch.float64)
    assert_close(solver.solve(gradient), 2 * gradient)


@pytest.mark.parametrize("keep", [0.0, 0.5])
def test_a_basis_of_few_rows_grows_until_it_is_full(keep: float) -> None:
    """20 rows a batch of 32 parents; the running covariance is exact at each refresh."""
    case, basis, running = SolverCase(20, 33, 4, 0.2), None, None
    for batch, columns in enumerate((20, 32, 32)):
        shared = case.fisher(batch).shared
        new = covariance_of(shared.inputs, shared.weights, shared.mean)
        running = new if running is None else torch.lerp(new, running, keep)
        basis = find_basis(shared.centred(), 100, basis, keep=keep)
        assert basis.vectors.shape == (32, columns)
        assert_close(basis_matrix(basis), running)


def test_a_covariance_without_an_eigenbasis_is_an_error_that_says_what_to_do() -> None:
    """On a device nothing has looked at the rows before."""
    rows = torch.full((5, 4), float("nan"))
    shared = SharedCurvature(torch.ones(2), torch.zeros(4), rows, torch.full((5,), 0.2))
    with pytest.raises(UserError, match=r"generator\.2: .* no eigenbasis .*; lower optimizer\.lr"):
        find_basis(shared.centred(), 3, name="generator.2")


@pytest.mark.parametrize("alpha", [0.2, 1e-3])
@pytest.mark.parametrize("rank", [0, 8, 101])
def test_the_basis_is_refreshed_at_times_and_the_mean_always(rank: int, alpha: float) -> None:
    precondition, vectors, basis = SharedPreconditioner(rank, 3), REALISTIC.gradient(), None
    for batch in range(5):
        fisher = REALISTIC.fisher(batch)
        if batch % 3 == 0:
            basis = find_basis(fisher.shared.centred(), rank, basis)
        precondition.update(fisher, torch.tensor(alpha, dtype=torch.float64))
        inverses = shared_inverses(fisher, basis, alpha, mean_row(fisher))
        assert_close(precondition(vectors), apply(inverses, vectors), EXACT)
    assert torch.equal(vectors, REALISTIC.gradient())
    stale = shared_inverses(fisher, basis, alpha, mean_row(REALISTIC.fisher(3)))  # the control
    assert error(precondition(vectors), apply(stale, vectors)) > 1e-3
