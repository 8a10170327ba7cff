"""What the tests of the solvers share: dense float64 references, errors against them, and solvers by name."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import SolverCase
from torch import Tensor

from nws.natural.conjugate_gradient import PreconditionedConjugateGradient
from nws.natural.direct_solvers import DirectSolver, RunningInverse
from nws.natural.operators import UnitFisher
from nws.natural.solvers import AutoSolver, Solver

# A backward stable solve loses about eps times the condition number |F_j + alpha I| / alpha of its block; the products
# before and after it, of at most a hundred terms, lose a few eps more each. Woodbury's and Sherman-Morrison's differences of
# numbers of size |g| / alpha lose the same.
ROUNDING = 10


def pcg(
    iterations: int | None = 3, tolerance: float = 0.0, **settings: Any
) -> PreconditionedConjugateGradient:
    return PreconditionedConjugateGradient(iterations, tolerance=tolerance, **settings)


def tight(case: SolverCase) -> float:
    """A residual that conjugate gradient reaches in this dtype: 450 rounding units in float64, 8 in float32."""
    return 1e-13 if case.dtype == torch.float64 else 1e-6


def converged(case: SolverCase, **settings: Any) -> PreconditionedConjugateGradient:
    return pcg(1000, tight(case), **settings)


def warm(case: SolverCase) -> PreconditionedConjugateGradient:
    """Has solved another system with another gradient before."""
    solver = converged(case, warm_start=True)
    solver.factor(case.fisher(seed=5), case.damping)
    solver.solve(case.gradient(seed=6))
    return solver


SOLVERS: dict[str, Callable[[SolverCase], Solver]] = {
    "cholesky": lambda case: DirectSolver("cholesky"),
    "woodbury": lambda case: DirectSolver("woodbury"),
    "sherman_morrison": lambda case: DirectSolver("sherman_morrison"),
    "sherman_morrison, block 16": lambda case: DirectSolver("sherman_morrison", block=16),
    "running, first batch": lambda case: RunningInverse(0.9, block=16),
    "auto": lambda case: AutoSolver(iterations=200),
    "pcg": converged,
    "pcg, rank 3": lambda case: converged(case, rank=3),
    "pcg, full rank": lambda case: converged(case, rank=1000),
    "pcg, rank 0": lambda case: converged(case, rank=0),
    "pcg, warm start": warm,
}
each_solver = pytest.mark.parametrize("name", SOLVERS)


def dense(fisher: UnitFisher) -> Tensor:
    """The blocks in float64: (m, d, d)."""
    inputs, weights = fisher.inputs.double().cpu(), fisher.weights.double().cpu()
    return torch.einsum("km,ki,kj->mij", weights, inputs, inputs)


def mean_block(fisher: UnitFisher) -> Tensor:
    """A = sum_k w_k h_k h_k^T, w_k ~ sum_j s_kj, from the dense blocks: the sum of them over the sum of all weights."""
    return dense(fisher).sum(0) / fisher.weights.sum().double().cpu()


def solve_dense(blocks: Tensor, alpha: float, gradient: Tensor) -> Tensor:
    """(F_j + alpha I)^{-1} g_j in float64, unit by unit."""
    identity = torch.eye(blocks.shape[1], dtype=torch.float64)
    return torch.stack([
        torch.cholesky_solve(g[:, None], torch.linalg.cholesky(block + alpha * identity))[:, 0]
        for block, g in zip(blocks, gradient.double().cpu(), strict=True)
    ])  # fmt: skip


def errors(solution: Tensor, expected: Tensor) -> Tensor:
    """Relative error of each unit: (m,)."""
    return (solution.double().cpu() - expected).norm(dim=1) / expected.norm(dim=1)


def error(solution: Tensor, expected: Tensor) -> float:
    """Of the worst unit."""
    return float(errors(solution, expected).max())


def residual(fisher: UnitFisher, alpha: float, solution: Tensor, gradient: Tensor) -> float:
    """The worst unit's, from the dense blocks."""
    solution, gradient = solution.double().cpu(), gradient.double().cpu()
    image = torch.einsum("mij,mj->mi", dense(fisher), solution) + alpha * solution
    return float(((image - gradient).norm(dim=1) / gradient.norm(dim=1)).max())


def factored(solver: Any, case: SolverCase, seed: int = 0) -> Any:
    solver.factor(case.fisher(seed), case.damping)
    return solver


def saved(solver: Solver) -> dict[str, Tensor]:
    """The state, by way of a file."""
    file = io.BytesIO()
    torch.save(solver.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)
