"""Metrics that remember: running means and rows of several updates, against slow sums."""

from __future__ import annotations

import pytest
import torch
from cases import EXACT, FEW_ROWS, SolverCase
from solving import dense, error, solve_dense

from nws.errors import UserError
from nws.natural.averages import share_of_newest
from nws.natural.metrics import Diagonal, Empirical, Fisher
from nws.natural.operators import Rows, UnitFisher
from nws.natural.solvers import Cholesky

LAYERS = [SolverCase(60, 20, 5, 0.2), FEW_ROWS, SolverCase(1, 1, 4, 0.2)]
ALPHA = torch.tensor(0.2, dtype=torch.float64)


def batch(seed: int) -> list[Rows]:
    fishers = [case.fisher(seed) for case in LAYERS]
    return [Rows(each.inputs, each.curvature, each.curvature.square) for each in fishers]


# --- running means --------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("memory", [1, 2, 10, 1000])
def test_the_shares_make_the_mean_with_exponential_weights(memory: int, every: int) -> None:
    """sum_t beta^(every t) x_t / sum_t beta^(every t), t = 0 for the newest, at every count."""
    terms = torch.randn(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    beta, mean = 1 - 1 / memory, torch.tensor(5.0, dtype=torch.float64)  # the first has share 1
    for count in range(1, 31):
        mean = torch.lerp(mean, terms[count - 1], share_of_newest(memory, count, every))
        weights = [beta ** (every * age) for age in reversed(range(count))]
        slow = sum(w * float(x) for w, x in zip(weights, terms, strict=False)) / sum(weights)
        assert float(mean) == pytest.approx(slow, abs=1e-12)
    biased = sum(w * float(x) for w, x in zip(weights, terms, strict=True)) * (1 - beta**every)
    if memory == 1000:  # the control: without the correction the start at zero counts
        assert abs(float(mean) - biased) > 0.1 * abs(float(mean))


@pytest.mark.parametrize("memory", [10**9, 10**17, 10**30])
def test_an_endless_memory_is_the_plain_mean(memory: int) -> None:
    for count in (1, 2, 7, 1000):
        assert share_of_newest(memory, count) == pytest.approx(1 / count, rel=1e-5)
        assert share_of_newest(memory, count, every=20) == pytest.approx(1 / count, rel=1e-4)


def test_the_first_term_and_a_memory_of_one_are_the_newest_alone() -> None:
    assert share_of_newest(1, 5) == share_of_newest(1, 1, 20) == 1
    assert share_of_newest(50, 1) == share_of_newest(50, 1, 20) == 1
    assert share_of_newest(50, 10**6) == pytest.approx(1 / 50)


@pytest.mark.parametrize("memory", [1, 3, 50])
def test_the_diagonal_is_a_running_mean(memory: int) -> None:
    metric, past, beta = Diagonal(memory), [], 1 - 1 / memory
    for step in range(5):
        rows = batch(step)
        past.insert(0, [dense(UnitFisher(r.inputs, r.curvature)) for r in rows])
        metric.update(rows, ALPHA)
        weights = [beta**age for age in range(len(past))]
        gradients = [case.gradient(step) for case in LAYERS]
        for layer, (x, g) in enumerate(zip(metric.direction(gradients), gradients, strict=True)):
            total = sum(w * blocks[layer] for w, blocks in zip(weights, past, strict=True))
            diagonals = (total / sum(weights)).diagonal(dim1=1, dim2=2)
            assert error(x, g / (diagonals + 0.2)) < EXACT
            newest = past[0][layer].diagonal(dim1=1, dim2=2)
            far = error(x, g / (newest + 0.2)) > 1e-5
            assert far == (memory > 1 and step > 0)  # the control


# --- rows of several updates ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Fisher, Empirical])
@pytest.mark.parametrize("memory", [1, 2, 3])
def test_the_matrix_is_the_mean_of_the_last_updates(memory: int, kind: type[Fisher]) -> None:
    metric, past = kind(Cholesky, memory), []
    for step in range(5):
        rows = batch(step)
        part = "curvature" if kind is Fisher else "squared_errors"
        weights = [r.curvature if part == "curvature" else r.squared_errors() for r in rows]
        past.append([dense(UnitFisher(r.inputs, w)) for r, w in zip(rows, weights, strict=True)])
        metric.update(rows, ALPHA)
        kept = past[-memory:]
        gradients = [case.gradient(step) for case in LAYERS]
        for layer, (x, g) in enumerate(zip(metric.direction(gradients), gradients, strict=True)):
            mean = sum(blocks[layer] for blocks in kept) / len(kept)
            assert error(x, solve_dense(mean, 0.2, g)) < EXACT
            far = error(x, solve_dense(past[-1][layer], 0.2, g)) > 1e-5
            assert far == (memory > 1 and step > 0)  # the control
        for each, before in zip(rows, batch(step), strict=True):
            assert torch.equal(each.curvature, before.curvature), "rows were changed"


@pytest.mark.parametrize("make", [Diagonal, lambda memory: Fisher(Cholesky, memory)])
@pytest.mark.parametrize("memory", [0, -1, 1.5, None])
def test_a_memory_is_a_number_of_steps(make: type, memory: object) -> None:
    with pytest.raises(UserError, match=r"metric\.memory must be a whole number"):
        make(memory=memory)
