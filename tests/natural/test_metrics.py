"""Metrics through `update` and `direction`, against dense formulas layer by layer.

The tests also save and load the metrics' states, and compare bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from cases import EXACT, FEW_ROWS, REALISTIC, SOLVER_CASES, SolverCase, assert_close, seeded
from solving import (
    ROUNDING,
    apply,
    covariance_of,
    dense,
    error,
    pcg,
    saved,
    shared_blocks,
    solve_dense,
)
from torch import Tensor

from nws.errors import UserError
from nws.natural import UnitFisher, natural_direction
from nws.natural.metrics import Diagonal, Empirical, Fisher, Kronecker, Metric
from nws.natural.operators import Rows
from nws.natural.solvers import AutoSolver, Cholesky, ConjugateGradient, RunningInverse

# Layers of one network as a metric sees them: many rows, few rows, and one row.
# A layer without parents has one row.
LAYERS = [SolverCase(60, 20, 5, 0.2), FEW_ROWS, SolverCase(1, 1, 4, 0.2), SolverCase(60, 9, 3, 0.2)]
ALPHA = torch.tensor(0.2, dtype=torch.float64)


def squares(case: SolverCase, seed: int) -> Tensor:
    """w_k (y_kj - p_kj)^2 of made-up targets: (n, m)."""
    draws = torch.rand(case.n, case.m, generator=seeded(100 + seed), dtype=torch.float64)
    return (draws**2 / case.n).to(case.dtype)


def rows(case: SolverCase, seed: int = 0, name: str = "layer") -> Rows:
    fisher = case.fisher(seed)
    return Rows(fisher.inputs, fisher.curvature, lambda: squares(case, seed), name)


def all_rows(seed: int = 0) -> list[Rows]:
    return [rows(case, seed, f"generator layer {i}") for i, case in enumerate(LAYERS)]


def gradients(seed: int = 1) -> list[Tensor]:
    return [case.gradient(seed) for case in LAYERS]


def diagonal_blocks(each: Rows) -> Tensor:
    return torch.diag_embed(dense(fisher_of(each)).diagonal(dim1=1, dim2=2))


def fisher_of(each: Rows) -> UnitFisher:
    return UnitFisher(each.inputs, each.curvature)


def kronecker_blocks(each: Rows) -> Tensor:
    """s_j sum_k h_k h_k^T / n: (m, d, d)."""
    centre = each.inputs.double().mean(0)
    weights = torch.full((len(each.inputs),), 1 / len(each.inputs), dtype=torch.float64)
    covariance = covariance_of(each.inputs, weights, centre)
    return shared_blocks(each.curvature.double().sum(0), centre, covariance)


METRICS: dict[str, tuple[Callable[[], Metric], Callable[[Rows], Tensor]]] = {
    "fisher": (partial(Fisher, Cholesky), lambda each: dense(fisher_of(each))),
    "fisher by pcg": (
        partial(Fisher, partial(pcg, 300, 1e-13)),
        lambda each: dense(fisher_of(each)),
    ),
    "empirical": (
        partial(Empirical, Cholesky),
        lambda each: dense(UnitFisher(each.inputs, each.squared_errors())),
    ),
    "diagonal": (partial(Diagonal, memory=1), diagonal_blocks),
    "kronecker": (partial(Kronecker, 1, "full", refresh_every=1), kronecker_blocks),
}
each_metric = pytest.mark.parametrize("name", METRICS)


def updated(metric: Any, each: Sequence[Rows], alpha: Tensor = ALPHA) -> Any:
    metric.update(each, alpha)
    return metric


# --- directions -----------------------------------------------------------------------------------


@each_metric
def test_the_direction_is_the_damped_solution_of_each_layers_blocks(name: str) -> None:
    make, blocks = METRICS[name]
    metric = make()
    for seed in (3, 0):  # the second time over the first
        layers = all_rows(seed)
        updated(metric, layers)
        given = gradients(seed + 1)
        directions = metric.direction(given)
        assert len(directions) == len(layers)
        for each, g, before, x in zip(layers, given, gradients(seed + 1), directions, strict=True):
            assert error(x, solve_dense(blocks(each), 0.2, g)) < EXACT
            assert torch.equal(g, before)


@each_metric
@pytest.mark.parametrize("other", METRICS)
def test_no_metric_is_another_one(name: str, other: str) -> None:
    """Negative control: what tells them apart is far above the tolerance."""
    if name.split()[0] == other.split()[0]:
        pytest.skip("the same")
    metric, blocks = METRICS[name][0](), METRICS[other][1]
    each = rows(REALISTIC)
    (x,) = updated(metric, [each]).direction([REALISTIC.gradient()])
    assert error(x, solve_dense(blocks(each), 0.2, REALISTIC.gradient())) > 1e-2


@pytest.mark.parametrize("case", [c for c in SOLVER_CASES if c.values[0].device == "cpu"])
def test_the_diagonal_and_kronecker_metrics_solve_what_they_say(case: SolverCase) -> None:
    each, gradient, alpha = rows(case), case.gradient(), case.alpha
    shared, eps = kronecker_blocks(each), torch.finfo(case.dtype).eps
    condition = float((torch.linalg.eigvalsh(shared)[:, -1].max() + alpha) / alpha)
    (diagonal,), (kronecker,) = (
        updated(metric, [each], case.damping).direction([gradient])
        for metric in (Diagonal(), Kronecker(rank="full"))
    )
    diagonals = dense(fisher_of(each)).diagonal(dim1=1, dim2=2)
    assert diagonal.dtype == kronecker.dtype == case.dtype
    assert error(diagonal, gradient.double() / (diagonals + alpha)) < ROUNDING * eps
    assert error(kronecker, solve_dense(shared, alpha, gradient)) < ROUNDING * eps * condition


def test_times_one_plus_alpha_the_fisher_metric_is_the_packages_reference() -> None:
    metric, given = updated(Fisher(Cholesky), all_rows()), gradients()
    for each, g, x in zip(all_rows(), given, metric.direction(given), strict=True):
        assert_close(1.2 * x, natural_direction(each.inputs, each.curvature, g, 0.2), EXACT)


@each_metric
def test_damping_that_changes_in_place_counts_from_the_next_update_on(name: str) -> None:
    alpha, (make, blocks) = ALPHA.clone(), METRICS[name]
    metric = updated(make(), [rows(REALISTIC)], alpha)
    alpha.fill_(1.0)
    (x,) = metric.direction([REALISTIC.gradient()])
    assert error(x, solve_dense(blocks(rows(REALISTIC)), 0.2, REALISTIC.gradient())) < EXACT


@pytest.mark.parametrize("metric", [Fisher(Cholesky), Diagonal(), Kronecker()], ids=str)
def test_targets_are_looked_at_by_the_empirical_metric_alone(metric: Any) -> None:
    def never() -> Tensor:
        raise AssertionError("squared errors were made for nothing")

    each = Rows(rows(REALISTIC).inputs, rows(REALISTIC).curvature, never)
    updated(metric, [each])
    with pytest.raises(AssertionError, match="for nothing"):
        updated(Empirical(Cholesky), [each])


# --- one solver a layer ---------------------------------------------------------------------------


def test_each_layer_has_a_solver_of_its_own() -> None:
    made: list[Cholesky] = []

    def make() -> Cholesky:
        made.append(Cholesky())
        return made[-1]

    metric = Fisher(make)
    assert made == []
    for seed in range(2):
        updated(metric, all_rows(seed))
    assert metric.solvers == made and len(made) == len(LAYERS)


def test_without_a_solver_it_is_pcg() -> None:
    metric = updated(Fisher(), all_rows())
    assert {type(solver) for solver in metric.solvers} == {ConjugateGradient}


def test_the_report_is_that_of_the_worst_layer() -> None:
    metric = Fisher(partial(pcg, 2))
    assert metric.report() == {}
    updated(metric, all_rows())
    assert metric.report() == {}
    metric.direction(gradients())
    own = [solver.report() for solver in metric.solvers]
    assert metric.report() == {key: max(each[key] for each in own) for key in own[0]}
    assert metric.report()["iterations"] == 4  # twice as many where there are few rows
    residuals = []
    for each, g, x in zip(all_rows(), gradients(), metric.direction(gradients()), strict=True):
        left = g - apply(dense(fisher_of(each)), x) - 0.2 * x
        residuals.append(float((left.norm(dim=1) / g.norm(dim=1)).max()))
    assert metric.report()["residual"] == pytest.approx(max(residuals), rel=1e-6)
    assert min(residuals) < 0.5 * max(residuals)


@pytest.mark.parametrize("metric", [Fisher(Cholesky), Diagonal(), Kronecker()], ids=str)
def test_metrics_with_nothing_to_report_report_nothing(metric: Any) -> None:
    updated(metric, all_rows()).direction(gradients())
    assert metric.report() == {}


@each_metric
def test_errors_name_the_layer(name: str) -> None:
    layers = all_rows()
    layers[3].inputs[2, 1] = float("nan")
    with pytest.raises(UserError, match=r"generator layer 3: .*n=60 .*d=9 .*not finite"):
        updated(METRICS[name][0](), layers)
    with pytest.raises(UserError, match=r"generator layer 0: .*damping -1: .*damping\.value"):
        updated(METRICS[name][0](), all_rows(), -torch.ones(()))


# --- states ---------------------------------------------------------------------------------------


STATEFUL: dict[str, Callable[[], Any]] = {
    "pcg": lambda: Fisher(partial(pcg, None, preconditioner_every=3)),
    "pcg, fixed": lambda: Fisher(partial(pcg, 2, preconditioner_every=3)),
    "pcg, warm start": lambda: Fisher(partial(pcg, 2, preconditioner_every=3, warm_start=True)),
    "pcg, empirical": lambda: Empirical(partial(pcg, 2, preconditioner_every=3)),
    "auto": lambda: Fisher(partial(AutoSolver, 2)),
    "running": lambda: Fisher(partial(RunningInverse, 0.8)),
    "cholesky": lambda: Fisher(Cholesky),
    "memory": lambda: Fisher(Cholesky, memory=3),
    "memory, pcg": lambda: Fisher(partial(pcg, 2, preconditioner_every=3), memory=2),
    "diagonal": lambda: Diagonal(memory=4),
    "kronecker": lambda: Kronecker(5, 3, refresh_every=3),
    "kronecker, full": lambda: Kronecker(50, "full", refresh_every=2),
}
FORGETFUL = ["auto", "cholesky"]


def step(metric: Any, batch: int) -> list[Tensor]:
    return updated(metric, all_rows(batch)).direction(gradients(batch))


@pytest.mark.parametrize("stop", range(5))
@pytest.mark.parametrize("name", STATEFUL)
def test_a_metric_that_is_saved_and_loaded_goes_on_bit_for_bit(name: str, stop: int) -> None:
    """The state is saved at any step between two refreshes of the preconditioner.

    The test follows the loaded metric over the next two refreshes.
    """
    never_stopped, before, after = (STATEFUL[name]() for _ in range(3))
    for batch in range(stop):
        step(never_stopped, batch)
        step(before, batch)
    after.load_state_dict(saved(before))
    for batch in range(stop, stop + 6):
        for one, other in zip(step(never_stopped, batch), step(after, batch), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("name", [name for name in STATEFUL if name not in FORGETFUL])
def test_the_state_makes_a_difference(name: str) -> None:
    """The control of the test before: a fresh metric gives other directions, beyond rounding."""
    metric, fresh = STATEFUL[name](), STATEFUL[name]()
    for batch in range(4):
        step(metric, batch)
    differences = [
        float((one - other).norm() / one.norm())
        for one, other in zip(step(metric, 4), step(fresh, 4), strict=True)
    ]
    assert max(differences) > 1e-6


@pytest.mark.parametrize("name", STATEFUL)
def test_rows_that_outlive_a_step_are_taken_in_before_the_state(name: str) -> None:
    """`metric.refresh_every` makes rows outlive a step.

    The loaded metric gets the rows of the last update first, then the state, then gradients.
    """
    metric, other = STATEFUL[name](), STATEFUL[name]()
    for batch in range(5):
        step(metric, batch)
    updated(other, all_rows(4)).load_state_dict(saved(metric))
    for seed in (7, 8):
        pairs = zip(
            metric.direction(gradients(seed)), other.direction(gradients(seed)), strict=True
        )
        assert all(torch.equal(*pair) for pair in pairs)
    for one, two in zip(step(metric, 5), step(other, 5), strict=True):
        assert torch.equal(one, two)


def test_a_state_of_another_number_of_layers_is_an_error() -> None:
    metric, other = Fisher(), Fisher()
    updated(metric, all_rows())
    updated(other, all_rows()[:2])
    with pytest.raises(UserError, match="has 4 solvers, 2 were expected: another version of nws"):
        other.load_state_dict(saved(metric))


def test_a_metric_without_memory_has_no_tensors_in_its_state() -> None:
    metric = STATEFUL["cholesky"]()
    step(metric, 0)
    assert metric.state_dict() == {"solvers": [{}, {}, {}, {}]}


@pytest.mark.parametrize("name", ["diagonal", "kronecker"])
def test_a_state_of_version_0_1_is_that_of_a_fresh_metric(name: str) -> None:
    metric, fresh = STATEFUL[name](), STATEFUL[name]()
    metric.load_state_dict({})
    for one, other in zip(step(metric, 0), step(fresh, 0), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", STATEFUL)
def test_later_steps_leave_a_state_as_it_is(name: str) -> None:
    metric = STATEFUL[name]()
    for batch in range(3):
        step(metric, batch)
    state, then = metric.state_dict(), saved(metric)
    for batch in range(3, 7):
        step(metric, batch)
    torch.testing.assert_close(state, then, rtol=0, atol=0)
