"""The contract of every metric: `update` and `direction` against dense blocks, layer by layer.

What is special to one metric follows: running means, rows of several updates, low rank, and
gradients that change in place.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import solving
import torch
from cases import EXACT, FEW_ROWS, REALISTIC, SOLVER_CASES, SolverCase, assert_close, seeded
from solving import ROUNDING, apply, basis_matrix, covariance_of, dense, error, pcg, solve_dense
from torch import Tensor

from nws.errors import UserError
from nws.natural import Metric, Rows, UnitFisher
from nws.natural.metrics import Adaptive, Diagonal, Empirical, Fisher, Kronecker, Mean
from nws.natural.shared import Basis
from nws.natural.solvers import Cholesky

# Layers of one network as a metric sees them. One without parents has one row.
LAYERS = [SolverCase(60, 20, 5, 0.2), FEW_ROWS, SolverCase(1, 1, 4, 0.2), SolverCase(60, 9, 3, 0.2)]
ALPHA = torch.tensor(0.2, dtype=torch.float64)


def rows_of(case: SolverCase, seed: int = 0, name: str = "layer") -> Rows:
    """Rows with weights of their own, which curvature and squared errors have in them."""
    fisher = case.fisher(seed)
    draws = torch.rand(case.n, 1 + case.m, generator=seeded(50 + seed), dtype=torch.float64)
    weights = (draws[:, 0] / draws[:, 0].sum()).to(fisher.inputs)
    errors = draws[:, 1:].square().to(weights) * weights[:, None]
    curvature = fisher.curvature * case.n * weights[:, None]
    return Rows(fisher.inputs, curvature, lambda: errors, name, weights)


def batch(seed: int = 0) -> list[Rows]:
    return [rows_of(case, seed, f"generator layer {i}") for i, case in enumerate(LAYERS)]


def gradients(seed: int = 1) -> list[Tensor]:
    return [case.gradient(seed) for case in LAYERS]


def updated(metric: Any, rows: Sequence[Rows], alpha: Tensor = ALPHA) -> Any:
    metric.update(rows, alpha)
    return metric


# --- the definitions, slowly ----------------------------------------------------------------------

Past = list[Rows]  # of one layer, those of all updates, the newest last


def fisher_blocks(past: Past, memory: int = 1) -> Tensor:
    """The mean of the last updates' blocks sum_k s_kj h_k h_k^T: (m, d, d)."""
    kept = [dense(UnitFisher(rows.inputs, rows.curvature)) for rows in past[-memory:]]
    return sum(kept) / len(kept)


def empirical_blocks(past: Past, memory: int = 1) -> Tensor:
    """The same of squared errors."""
    return fisher_blocks([Rows(rows.inputs, rows.squared_errors()) for rows in past], memory)


def faded(terms: Sequence[Tensor], memory: int, every: int = 1) -> Tensor:
    """sum_t beta^(every t) x_t / sum_t beta^(every t), t = 0 for the newest, beta = 1 - 1/memory.

    From the first term on: the bias of a start at zero is corrected.
    """
    shares = [(1 - 1 / memory) ** (every * age) for age in reversed(range(len(terms)))]
    return sum(share * term for share, term in zip(shares, terms, strict=True)) / sum(shares)


def diagonal_blocks(past: Past, memory: int = 1) -> Tensor:
    """The running mean of the diagonals."""
    diagonals = [fisher_blocks([rows]).diagonal(dim1=1, dim2=2) for rows in past]
    return torch.diag_embed(faded(diagonals, memory))


def slow_mean(rows: Rows) -> Tensor:
    """c = sum_k w_k h_k, row by row."""
    pairs = zip(rows.weights.double(), rows.inputs.double(), strict=True)
    return sum(weight * row for weight, row in pairs)


def mean_blocks(past: Past) -> Tensor:
    """s_j c c^T of the newest rows."""
    return blocks_with(past[-1], torch.zeros(()))


def blocks_with(newest: Rows, covariance: Tensor) -> Tensor:
    """s_j (c c^T + covariance) with c and s_j of the newest rows."""
    return solving.shared_blocks(newest.curvature.double().sum(0), slow_mean(newest), covariance)


def kronecker_blocks(past: Past, memory: int = 1, every: int = 1, newest: int = -1) -> Tensor:
    """With the running mean of covariances, each about the mean of its own rows."""
    terms = [covariance_of(rows.inputs, rows.weights, slow_mean(rows)) for rows in past[::every]]
    return blocks_with(past[newest], faded(terms, memory, every))


METRICS: dict[str, tuple[Callable[[], Metric], Callable[[Past], Tensor]]] = {
    "fisher": (partial(Fisher, Cholesky), fisher_blocks),
    "fisher by pcg": (partial(Fisher, partial(pcg, 300, 1e-13)), fisher_blocks),
    "fisher of 3": (partial(Fisher, Cholesky, 3), partial(fisher_blocks, memory=3)),
    "empirical": (partial(Empirical, Cholesky), empirical_blocks),
    "empirical of 2": (partial(Empirical, Cholesky, 2), partial(empirical_blocks, memory=2)),
    "diagonal": (partial(Diagonal, 1), diagonal_blocks),
    "diagonal of 3": (partial(Diagonal, 3), partial(diagonal_blocks, memory=3)),
    "mean": (Mean, mean_blocks),
    **{f"kronecker of {memory}, every {every}": (
           partial(Kronecker, memory, "full", every),
           partial(kronecker_blocks, memory=memory, every=every))
       for memory, every in ((1, 1), (2, 1), (2, 3), (50, 3))},
}  # fmt: skip


# --- the contract ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METRICS)
def test_the_direction_is_the_damped_solution_of_each_layers_blocks(name: str) -> None:
    """At every step; what is given stays as it is."""
    (make, blocks), past = METRICS[name], []
    metric = make()
    for step in range(6):
        past.append(batch(step))
        given = gradients(step)
        alpha = ALPHA.clone()
        updated(metric, past[-1], alpha)
        alpha.fill_(1.0)  # which counts from the next update on
        directions = metric.direction(given)
        assert len(directions) == len(LAYERS)
        for number, (g, x) in enumerate(zip(given, directions, strict=True)):
            expected = blocks([rows[number] for rows in past])
            assert error(x, solve_dense(expected, 0.2, g)) < EXACT
            assert torch.equal(g, gradients(step)[number])
            assert torch.equal(past[-1][number].curvature, batch(step)[number].curvature)


def test_no_metric_is_another_one() -> None:
    """Negative control: what tells them apart is far above the tolerance."""
    past, g = [rows_of(REALISTIC, seed) for seed in range(5)], REALISTIC.gradient()
    definitions = {name: blocks for name, (_, blocks) in METRICS.items()} | {
        "kronecker with an older mean": partial(kronecker_blocks, memory=2, newest=0),
        "kronecker without old terms": lambda past: kronecker_blocks(past[1:], memory=2),
    }
    expected = {name: solve_dense(blocks(past), 0.2, g) for name, blocks in definitions.items()}
    for make, blocks in METRICS.values():
        metric = make()
        for rows in past:
            updated(metric, [rows])
        (x,) = metric.direction([g])
        for other, solution in expected.items():
            same = definitions[other] is blocks
            assert error(x, solution) < EXACT if same else error(x, solution) > 1e4 * EXACT


@pytest.mark.parametrize("case", SOLVER_CASES)
def test_closed_forms_solve_what_they_say_in_every_case(case: SolverCase) -> None:
    rows, gradient, alpha = rows_of(case), case.gradient(), case.alpha
    eps = torch.finfo(case.dtype).eps
    for make, blocks in (
        (Diagonal, diagonal_blocks), (Mean, mean_blocks),
        (partial(Kronecker, rank="full"), kronecker_blocks),
    ):  # fmt: skip
        (found,) = updated(make(), [rows], case.damping).direction([gradient])
        bound = ROUNDING * eps * float(solving.condition(blocks([rows]), alpha).max())
        assert found.dtype == case.dtype
        assert error(found, solve_dense(blocks([rows]), alpha, gradient)) < bound


@pytest.mark.parametrize("make", [*(make for make, _ in METRICS.values()), partial(Adaptive, 2, 1)])
@pytest.mark.parametrize("steps", [0, 2])
def test_errors_name_the_layer_at_any_step(make: Callable[[], Metric], steps: int) -> None:
    metric, layers = make(), batch(9)
    for step in range(steps):
        updated(metric, batch(step))
    layers[3].inputs[2, 1] = math.nan
    with pytest.raises(UserError, match=r"generator layer 3: .*n=\d+ .*d=9 .*not finite"):
        updated(metric, layers)
    with pytest.raises(UserError, match=r"generator layer 0: .*damping -1: .*damping\.value"):
        updated(make(), batch(), -torch.ones(()))


def test_each_layer_has_a_solver_of_its_own_and_the_report_is_that_of_the_worst() -> None:
    metric, given, worst = updated(Fisher(partial(pcg, 2)), batch()), gradients(), []
    first = list(metric.solvers)
    assert metric.report() == {} and len({*map(id, first)}) == len(LAYERS)
    for rows, g, x in zip(batch(), given, metric.direction(given), strict=True):
        left = g - apply(fisher_blocks([rows]), x) - 0.2 * x
        worst.append(float((left.norm(dim=1) / g.norm(dim=1)).max()))
    assert metric.report()["iterations"] == 4  # twice as many where there are few rows
    assert metric.report()["residual"] == pytest.approx(max(worst), rel=1e-6)
    assert min(worst) < 0.5 * max(worst) and updated(metric, batch(1)).solvers == first


@pytest.mark.parametrize("rank", [0, 1, 8])
def test_the_direction_of_low_rank_is_that_of_its_basis(rank: int) -> None:
    metric = Kronecker(5, rank, refresh_every=2)
    for number in range(5):
        rows, given = batch(number), gradients(number)
        directions = updated(metric, rows).direction(given)
        bases = [Basis(**each) for each in metric.state_dict()["bases"]]
        for each, basis, x, g in zip(rows, bases, directions, given, strict=True):
            assert len(basis.values) == min(rank, each.inputs.shape[1] - 1)
            expected = solve_dense(blocks_with(each, basis_matrix(basis)), 0.2, g)
            assert error(x, expected) < EXACT


@pytest.mark.parametrize("make", [*(partial(Kronecker, rank=r) for r in (0, 3, "full")), Adaptive])
def test_in_place_it_is_the_scaled_direction(make: Callable[[], Metric]) -> None:
    metrics, scale = [make(), make()], torch.tensor(1.5, dtype=torch.float64)
    for step in range(3):
        given = gradients(step)
        directions = updated(metrics[0], batch(step)).direction(given)
        weights, biases = [g[:, :-1].clone() for g in given], [g[:, -1].clone() for g in given]
        assert updated(metrics[1], batch(step)).precondition_(weights, biases, scale)
        for w, b, x in zip(weights, biases, directions, strict=True):
            assert_close(torch.cat([w, b[:, None]], 1), scale * x)


@pytest.mark.parametrize("make", [partial(Kronecker, rank=3), partial(Adaptive, 2)])
def test_rows_are_made_at_a_refresh_alone(make: Callable[..., Metric]) -> None:
    def only_means(rows: Rows) -> Rows:
        def never() -> Tensor:
            raise AssertionError("rows were made in an ordinary step")

        means = rows.means
        return Rows(never, never, name=rows.name, weights=never, means=lambda: means)

    metric, later = make(refresh_every=4), batch(1)
    for _ in range(3):  # the steps 0, 1 and 2, at which the adaptive metric takes rows
        updated(metric, batch())
    updated(metric, [only_means(rows) for rows in later]).direction(gradients())
    with pytest.raises(AssertionError, match="were made"):  # the control: a refresh
        updated(metric, [only_means(rows) for rows in later])
