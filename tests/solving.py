"""What tests of solvers and metrics share: dense float64 references, errors, solvers by name."""

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from cases import SolverCase
from torch import Tensor

from nws.natural.operators import UnitFisher
from nws.natural.shared import Basis
from nws.natural.solvers import ConjugateGradient, MinRes, Solver
from nws.natural.solvers.direct import Cholesky, DirectSolver, ShermanMorrison, Woodbury

# A backward stable solve loses about eps times the condition number |F_j + alpha I| / alpha of its
# block. The products before and after it have at most a hundred terms.
# Each of them loses a few eps more.
# Woodbury's and Sherman-Morrison's differences of numbers of size |g| / alpha lose the same.
ROUNDING = 10
NEVER = 1e-300  # a tolerance that no residual meets


def pcg(iterations: int | None = 3, tolerance: float = 0.0, **settings: Any) -> ConjugateGradient:
    return ConjugateGradient(iterations, tolerance=tolerance, **settings)


def tight(case: SolverCase) -> float:
    """A residual that an iterative solver reaches: 450 rounding units in float64, 8 in float32."""
    return 1e-13 if case.dtype == torch.float64 else 1e-6


def converged(case: SolverCase, **settings: Any) -> ConjugateGradient:
    return pcg(1000, tight(case), **settings)


DIRECT: dict[str, type[DirectSolver]] = {
    "cholesky": Cholesky, "woodbury": Woodbury, "sherman_morrison": ShermanMorrison,
}  # fmt: skip
SOLVERS: dict[str, Callable[[SolverCase], Solver]] = {
    **{name: lambda case, kind=kind: kind() for name, kind in DIRECT.items()},
    "running, first batch": lambda case: ShermanMorrison(forgetting=0.9), "pcg": converged,
    "pcg, rank 3": partial(converged, rank=3), "pcg, rank 0": partial(converged, rank=0),
    "minres": lambda case: MinRes(1000, tight(case)),
}  # fmt: skip
each_solver = pytest.mark.parametrize("name", SOLVERS)


def dense(fisher: UnitFisher) -> Tensor:
    """The blocks in float64: (m, d, d)."""
    inputs, weights = fisher.inputs.double().cpu(), fisher.curvature.double().cpu()
    return torch.einsum("km,ki,kj->mij", weights, inputs, inputs)


def mean_row(fisher: UnitFisher) -> Tensor:
    """c = sum_k w_k h_k, w_k ~ sum_j s_kj, sum_k w_k = 1: (d,)."""
    weights = fisher.curvature.double().cpu().sum(1)
    return (weights / weights.sum()) @ fisher.inputs.double().cpu()


def damped_blocks(case: SolverCase) -> Tensor:
    """F_j + alpha I in float64: (m, d, d)."""
    return dense(case.fisher()) + case.alpha * torch.eye(case.d, dtype=torch.float64)


def solve_dense(blocks: Tensor, alpha: float, gradient: Tensor) -> Tensor:
    """(F_j + alpha I)^{-1} g_j in float64."""
    identity = torch.eye(blocks.shape[1], dtype=torch.float64)
    return torch.linalg.solve(blocks + alpha * identity, gradient.double().cpu())


def condition(blocks: Tensor, alpha: float) -> Tensor:
    """(largest eigenvalue + alpha) / alpha of each block: (m,)."""
    return (torch.linalg.eigvalsh(blocks)[:, -1] + alpha) / alpha


def errors(solution: Tensor, expected: Tensor) -> Tensor:
    """Relative error of each unit: (m,)."""
    return (solution.double().cpu() - expected).norm(dim=1) / expected.norm(dim=1)


def error(solution: Tensor, expected: Tensor) -> float:
    """Of the worst unit."""
    return float(errors(solution, expected).max())


def apply(matrices: Tensor, vectors: Tensor) -> Tensor:
    """A_j v_j: (m, d)."""
    return torch.einsum("mij,mj->mi", matrices, vectors)


def residual(case: SolverCase, solution: Tensor, gradient: Tensor) -> float:
    """The worst unit's, from the dense blocks; units without gradient are left out."""
    left = (apply(damped_blocks(case), solution.double()) - gradient.double()).norm(dim=1)
    return float((left / gradient.double().norm(dim=1)).nan_to_num(0).max())


def factored(solver: Any, case: SolverCase, seed: int = 0) -> Any:
    solver.factor(case.fisher(seed), case.damping)
    return solver


def saved(solver: Any) -> dict[str, Any]:
    """The state of a solver, metric or optimizer, by way of a file."""
    torch.save(solver.state_dict(), file := io.BytesIO())
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


def covariance_of(inputs: Tensor, weights: Tensor, centre: Tensor) -> Tensor:
    """sum_k w_k (h_k - c)(h_k - c)^T without the bias, row by row: (d - 1, d - 1)."""
    rows = (inputs.double().cpu() - centre.double().cpu())[:, :-1]
    return torch.einsum("k,ki,kj->ij", weights.double().cpu(), rows, rows)


def basis_matrix(basis: Basis) -> Tensor:
    """Q Lambda Q^T + rho (I - Q Q^T): (d - 1, d - 1)."""
    vectors, values, rest = (part.double().cpu() for part in basis)
    identity = torch.eye(len(vectors), dtype=torch.float64)
    return vectors @ values.diag() @ vectors.T + rest * (identity - vectors @ vectors.T)


def shared_blocks(scale: Tensor, centre: Tensor, covariance: Tensor) -> Tensor:
    """s_j (c c^T + covariance): (m, d, d). The bias does not vary."""
    centre, scale = centre.double().cpu(), scale.double().cpu()
    moment = centre.outer(centre)
    moment[:-1, :-1] += covariance
    return scale[:, None, None] * moment


def shared_inverses(fisher: UnitFisher, basis: Basis, alpha: float, centre: Tensor) -> Tensor:
    """Dense inverses of s_j (c c^T + Q Lambda Q^T + rho (I - Q Q^T)) + alpha I, (m, d, d)."""
    blocks = shared_blocks(fisher.curvature.sum(0), centre, basis_matrix(basis))
    return torch.linalg.inv(blocks + alpha * torch.eye(fisher.shape[1], dtype=torch.float64))


class Textbook:
    """Preconditioned conjugate gradient on dense matrices.

    It records the iterates, from zero, and by how much each iteration shortens |x_j - iterate_j|^2
    in the norm of A_j.
    """

    def __init__(self, matrices: Tensor, inverses: Tensor, right: Tensor, iterations: int) -> None:
        x, r = torch.zeros_like(right), right
        p = z = apply(inverses, r)
        self.iterates, self.gains = [x], []
        for _ in range(iterations):
            image = apply(matrices, p)
            step = (r * z).sum(1, keepdim=True) / (p * image).sum(1, keepdim=True)
            x = x + step * p
            self.iterates.append(x)
            self.gains.append(step * (r * z).sum(1, keepdim=True))
            new = r - step * image
            new_z = apply(inverses, new)
            p = new_z + (new * new_z).sum(1, keepdim=True) / (r * z).sum(1, keepdim=True) * p
            r, z = new, new_z
