"""The metric of the mean direction against dense blocks, and what it is not."""

from __future__ import annotations

import pytest
import torch
from cases import EXACT, REALISTIC, SOLVER_CASES, SolverCase, assert_close
from conftest import Command
from solving import solve_dense

from nws.errors import UserError
from nws.natural import Rows
from nws.natural.metrics import Mean


def direction(case: SolverCase, alpha: float) -> torch.Tensor:
    fisher = case.fisher()
    rows = Rows(fisher.inputs, fisher.curvature, lambda: fisher.curvature)
    metric = Mean()
    metric.update([rows], torch.tensor(alpha, dtype=case.dtype, device=case.device))
    return metric.direction([case.gradient()])[0]


def mean_blocks(case: SolverCase) -> torch.Tensor:
    """s_j c c^T, dense in float64: (m, d, d)."""
    fisher = case.fisher()
    inputs, weights = fisher.inputs.double().cpu(), fisher.curvature.double().cpu()
    mean = inputs.mean(0)
    return weights.sum(0)[:, None, None] * mean.outer(mean)


DOUBLE = [case for case in SOLVER_CASES if case.values[0].dtype == torch.float64]


@pytest.mark.parametrize("case", DOUBLE)
def test_the_direction_is_that_of_dense_blocks(case: SolverCase) -> None:
    """A rank-one solve loses about eps |s c c^T| / alpha; relative to the size of the solution."""
    expected = solve_dense(mean_blocks(case), case.alpha, case.gradient())
    bound = EXACT * max(1.0, float(expected.abs().max()))
    assert_close(direction(case, case.alpha), expected, bound)


def test_the_exact_metric_differs() -> None:
    """A negative control: on rows that vary, the mean is not all of the Fisher matrix."""
    fisher = REALISTIC.fisher()
    blocks = fisher.blocks().double()
    exact = solve_dense(blocks, REALISTIC.alpha, REALISTIC.gradient())
    found = direction(REALISTIC, REALISTIC.alpha)
    assert float((found - exact).norm() / exact.norm()) > 0.05


def test_damping_must_be_positive() -> None:
    with pytest.raises(UserError, match="set damping.value > 0"):
        direction(REALISTIC, 0.0)


def test_a_run_on_the_command_line(train: Command) -> None:
    outcome = train("algorithm=nrws", "metric=mean", "trainer.epochs=1")
    assert outcome.code == 0 and outcome.err == "", outcome.err
    unused = train("algorithm=nrws", "metric=mean", "solver=cholesky", "trainer.epochs=0.2")
    assert "without effect with metric=mean: solver=cholesky" in unused.err
