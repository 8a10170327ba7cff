"""Damped solves by a factor for each unit: Cholesky, Woodbury, Sherman-Morrison.

Symbols: n rows, d parents with the bias, m units, alpha damping. They take a
layer's rows, where others take products. Sources: Woodbury 1950; Sherman & Morrison 1950.
"""

import math
from abc import abstractmethod

import torch
from torch import Tensor

from nws.errors import UserError, number, positive_int
from nws.natural.operators import CurvatureOperator, UnitFisher
from nws.natural.solvers.solver import SINGULAR, Solver, State, check_system, unfactorable

BLOCK = 32  # rows that Sherman-Morrison folds in at once


class DirectSolver(Solver):
    """Factors unit by unit, in chunks of units whose work takes about `max_bytes`.

    Factors are held for further solves where all of them fit into `max_bytes` as well. Otherwise
    they are made again at each solve. The second solve with them turns them into inverses: a
    product with an inverse takes a tenth of the time.

    Args:
        max_bytes: Memory to work in, in bytes, at least 1.
    """

    _keeps = False  # whether factors are held in any case
    _inverted = False  # whether factors are inverses
    masks = False

    def __init__(self, max_bytes: int = 2**30) -> None:
        self.max_bytes = positive_int("solver.max_bytes", max_bytes)
        self._held: list[Tensor] = []  # the factors of each chunk
        self._served = False  # whether they have served a solve
        self._singular: Tensor | bool = False  # whether a block was, on a device

    def factor(self, operator: CurvatureOperator, damping: Tensor) -> None:
        self._fisher, self._damping = operator.with_rows(), damping.clone()
        if self._fisher.mask is not None and not self.masks:
            what = f"{type(self).__name__} has no form for units that see some parents alone"
            raise UserError(f"{operator.name}: {what}; take solver=pcg, minres or cholesky")
        check_system(self._fisher, damping)
        # The memory of the last ones is free before new ones are made.
        self._held, self._served, self._inverted = [], False, type(self)._inverted
        (n, d), m = self._fisher.inputs.shape, self._fisher.shape[0]
        room, factor = self.max_bytes // self._fisher.inputs.element_size(), self.side(n, d) ** 2
        size = max(1, room // (n * d + 3 * factor))  # scaled rows, the matrix and its factor
        self._chunks = [slice(start, start + size) for start in range(0, m, size)]
        if self._keeps or m * factor <= room:
            self._held = [self._factor(units) for units in self._chunks]

    def solve(self, gradient: Tensor) -> Tensor:
        if self._served and self._held and not self._inverted:
            for i, factor in enumerate(self._held):
                self._held[i] = torch.cholesky_inverse(factor)
            self._inverted = True
        self._served = True
        factors = self._held or map(self._factor, self._chunks)
        pairs = zip(self._chunks, factors, strict=True)
        return torch.cat([self._solve(units, factor, gradient[units]) for units, factor in pairs])

    def check(self) -> None:
        """Of a block that was singular on a device; on the CPU `factor` or `solve` has said it."""
        if self._singular:
            raise unfactorable(self._fisher, self._damping, SINGULAR)

    def side(self, n: int, d: int) -> int:
        """The side of one unit's factor."""
        return d

    @abstractmethod
    def _factor(self, units: slice) -> Tensor:
        """Factors of some units."""

    def _solve(self, units: slice, factor: Tensor, gradient: Tensor) -> Tensor:
        """x_j of some units from their gradients, and Cholesky factors or inverses."""
        if self._inverted:
            return (gradient[:, None] @ factor)[:, 0]  # on a CPU the faster side: 3 to 4 times
        return torch.cholesky_solve(gradient[:, :, None], factor)[:, :, 0]

    def state_dict(self) -> State:
        return {"served": torch.tensor(self._served)}

    def load_state_dict(self, state: State) -> None:
        self._served = bool(state.get("served", False))

    def _cholesky(self, matrices: Tensor) -> Tensor:
        """Lower factors of matrices (units, k, k), which get alpha on their diagonals.

        A matrix without one is an error on the CPU. On a device, which is not waited for, its
        factor is nan, and `check` tells of it later.
        """
        matrices.diagonal(dim1=1, dim2=2).add_(self._damping)
        factors, failed = torch.linalg.cholesky_ex(matrices)
        lost = (failed > 0) | ~factors.diagonal(dim1=1, dim2=2).isfinite().all(1)
        if matrices.device.type == "cpu":
            if lost.any():
                raise unfactorable(self._fisher, self._damping, SINGULAR)
            return factors
        finite = self._fisher.shared.mean.isfinite().all()  # other rows are not alpha's fault
        self._singular = self._singular | (lost.any() & finite)
        return factors.masked_fill_(lost[:, None, None], math.nan)


class Cholesky(DirectSolver):
    """Form the blocks and factor them: x = L^-T L^-1 g with L L^T = F_j + alpha I."""

    masks = True

    def _factor(self, units: slice) -> Tensor:
        return self._cholesky(self._fisher.blocks(units))


class Woodbury(DirectSolver):
    """Factor n x n matrices in place of d x d ones where n < d, with R = diag(sqrt(s_j)):

    x = (g - H^T R (alpha I + R H H^T R)^{-1} R H g) / alpha.
    """

    def side(self, n: int, d: int) -> int:
        return min(n, d)

    def _factor(self, units: slice) -> Tensor:
        if self._fisher.rows >= self._fisher.shape[1]:
            return self._cholesky(self._fisher.blocks(units))
        inputs, roots = self._fisher.inputs, self._fisher.curvature.T[units].sqrt()  # (units, n)
        return self._cholesky((inputs @ inputs.T) * roots[:, :, None] * roots[:, None, :])

    def _solve(self, units: slice, factor: Tensor, gradient: Tensor) -> Tensor:
        if self._fisher.rows >= self._fisher.shape[1]:
            return super()._solve(units, factor, gradient)
        inputs, roots = self._fisher.inputs, self._fisher.curvature.T[units].sqrt()
        left = super()._solve(units, factor, (gradient @ inputs.T) * roots) * roots
        return (gradient - left @ inputs) / self._damping


class ShermanMorrison(DirectSolver):
    """Start from I / alpha and fold the rows into all inverses; across batches on demand.

    With forgetting f > 0 the inverses are kept, and are those of C_T + alpha I:

        C_T = f^T F_0 + (1 - f) sum_{t=1}^T f^{T - t} F_t,    whose weights sum to 1

    Each factor call then scales the old inverses and folds in the new rows, and d more rows that
    hold the damping up: M' = f M + (1 - f)(F + alpha I). So where alpha changes, its running mean
    damps. All m inverses (d, d) are state, and are held whatever `max_bytes` is.

    Args:
        max_bytes: Memory to work in, in bytes, at least 1.
        forgetting: f, at least 0 and below 1; 0 for the newest rows alone.
    """

    _inverted = True

    def __init__(self, max_bytes: int = 2**30, forgetting: float = 0.0) -> None:
        super().__init__(max_bytes)
        self.forgetting = number("solver.forgetting", forgetting, least=0, below=1)
        self._keeps = self.forgetting > 0

    def factor(self, operator: CurvatureOperator, damping: Tensor) -> None:
        """Invert each unit's block, or bring the running inverses up to date."""
        if self.forgetting and self._held:
            self._go_on(operator.with_rows(), damping)
        else:
            super().factor(operator, damping)

    def _go_on(self, fisher: UnitFisher, damping: Tensor) -> None:
        check_system(fisher, damping)
        old, new, d = self.forgetting, 1 - self.forgetting, fisher.shape[1]
        identity = torch.eye(d, dtype=fisher.inputs.dtype, device=fisher.inputs.device)
        for i, (units, inverses) in enumerate(zip(self._chunks, self._held, strict=True)):
            inverses /= old
            fold(inverses, fisher.inputs, new * fisher.curvature[:, units])
            fold(inverses, identity, (new * damping).expand(d, len(inverses)))
            # No fold mends what rounding makes unsymmetric, and each division would let it grow.
            self._held[i] = (inverses + inverses.mT).mul_(0.5)

    def _factor(self, units: slice) -> Tensor:
        """(F_j + alpha I)^{-1}; `UserError` on the CPU where I / alpha has swallowed the rows."""
        inputs, curvature = self._fisher.inputs, self._fisher.curvature[:, units]
        damping, d = self._damping, inputs.shape[1]
        identity = torch.eye(d, dtype=curvature.dtype, device=curvature.device)
        inverses = fold((identity / damping).repeat(curvature.shape[1], 1, 1), inputs, curvature)
        if damping.device.type == "cpu":  # the inner factors do not tell of rows that are lost
            probe = torch.ones_like(inverses[:, 0])
            x = self._solve(units, inverses, probe)
            lost = UnitFisher(inputs, curvature).matmul(x) + damping * x - probe
            if not lost.norm(dim=1).max() < 0.1 * math.sqrt(d):
                raise unfactorable(self._fisher, damping, SINGULAR)
        return inverses

    def state_dict(self) -> State:
        running = self.forgetting and self._held
        size = torch.tensor(len(self._held[0]) if running else 0)
        return {"inverses": torch.cat(self._held), "size": size} if running else {}

    def load_state_dict(self, state: State) -> None:
        if "inverses" in state:
            inverses = state["inverses"].clone()
            size = int(state.get("size", len(inverses)))
            self._held = [*inverses.split(size)]
            self._chunks = [slice(at, at + size) for at in range(0, len(inverses), size)]


def fold(inverses: Tensor, inputs: Tensor, curvature: Tensor) -> Tensor:
    """Turn M_j^{-1} (m, d, d) into (M_j + H^T diag(s_j) H)^{-1} in place, some rows at a time.

    (M + U^T U)^{-1} = M^{-1} - W (I + U W)^{-1} W^T with W = M^{-1} U^T.
    """
    for rows, row_curvature in zip(inputs.split(BLOCK), curvature.split(BLOCK), strict=True):
        u = row_curvature.T.sqrt()[:, :, None] * rows  # (m, block, d)
        w = inverses @ u.mT  # (m, d, block)
        inner = u @ w
        inner.diagonal(dim1=1, dim2=2).add_(1)
        solved = torch.cholesky_solve(w.mT, torch.linalg.cholesky_ex(inner)[0])
        inverses.baddbmm_(w, solved, alpha=-1)
    return inverses
