"""Damped solves by a factor for each unit: Cholesky, Woodbury, Sherman-Morrison.

Symbols: n rows, d parents with the bias, m units, alpha damping. Only these solvers look at a
layer's rows. Sources: Woodbury 1950; Sherman & Morrison 1950.
"""

import math
from abc import abstractmethod

import torch
from torch import Tensor

from nws.errors import UserError, positive_int
from nws.natural.operators import CurvatureOperator, UnitFisher
from nws.natural.solvers.solver import SINGULAR, Solver, State, check_system, fraction, unfactorable


class DirectSolver(Solver):
    """Factors unit by unit, in chunks of units that keep within `max_bytes`.

    Factors are held for further solves where all of them fit in memory next to the work on a chunk.
    Otherwise they are made again at each solve.

    Args:
        max_bytes: Memory to work in, in bytes, at least 1.

    Raises:
        UserError: For numbers that are out of range.
    """

    def __init__(self, max_bytes: int = 2**30) -> None:
        self.max_bytes = positive_int("solver.max_bytes", max_bytes)
        self._held: list[Tensor] = []  # the factors of each chunk
        self._singular: Tensor | bool = False  # whether a block was, on a device

    def factor(self, operator: CurvatureOperator, damping: Tensor) -> None:
        """Factor each unit's block, in chunks; `UserError` where one is singular."""
        self._fisher, self._damping = operator.with_rows(), damping.clone()
        check_system(self._fisher, damping)
        self._held = []  # the memory of the last ones is free before new ones are made
        (n, d), m = self._fisher.inputs.shape, self._fisher.shape[0]
        size, fits = self.units_at_once(n, d, m, self._fisher.inputs.element_size())
        self._chunks = [slice(start, min(start + size, m)) for start in range(0, m, size)]
        if fits:
            self._held = [self._factor(units) for units in self._chunks]

    def solve(self, gradient: Tensor) -> Tensor:
        """(F_j + alpha I)^{-1} g_j: (m, d)."""
        factors = self._held or map(self._factor, self._chunks)
        pairs = zip(self._chunks, factors, strict=True)
        return torch.cat([self._solve(units, factor, gradient[units]) for units, factor in pairs])

    def check(self) -> None:
        """Raise `UserError` where a block was singular on a device since the start (synchronises).

        On the CPU `factor` has raised it.
        """
        if self._singular:
            raise unfactorable(self._fisher, self._damping, SINGULAR)

    def units_at_once(self, n: int, d: int, m: int, bytes_each: int) -> tuple[int, bool]:
        """Units to work on at once within `max_bytes`, and whether all factors fit as well."""
        room, work, held = self.max_bytes // bytes_each, self.work(n, d), self.held(n, d)
        left = (room - m * held) // (work - held)
        return min(m, max(1, left if left > 0 else room // work)), left > 0

    @abstractmethod
    def work(self, n: int, d: int) -> int:
        """Numbers that the work on one unit holds at its peak, its factor among them."""

    @abstractmethod
    def held(self, n: int, d: int) -> int:
        """Numbers of one unit's factor."""

    @abstractmethod
    def _factor(self, units: slice) -> Tensor:
        """Factors of some units."""

    @abstractmethod
    def _solve(self, units: slice, factor: Tensor, gradient: Tensor) -> Tensor:
        """x_j of some units from their factors and gradients."""

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
        rows = self._fisher.inputs, self._fisher.curvature
        finite = torch.stack([part.isfinite().all() for part in rows]).all()
        self._singular = self._singular | (lost.any() & finite)
        return factors.masked_fill_(lost[:, None, None], math.nan)


class Cholesky(DirectSolver):
    """Form the blocks and factor them: x = L^-T L^-1 g with L L^T = F_j + alpha I."""

    def work(self, n: int, d: int) -> int:
        """Scaled rows, blocks and factors."""
        return n * d + 3 * d * d

    def held(self, n: int, d: int) -> int:
        """One factor, (d, d)."""
        return d * d

    def _factor(self, units: slice) -> Tensor:
        return self._cholesky(self._fisher.blocks(units))

    def _solve(self, units: slice, factor: Tensor, gradient: Tensor) -> Tensor:
        return torch.cholesky_solve(gradient[:, :, None], factor)[:, :, 0]


class Woodbury(DirectSolver):
    """Factor n x n matrices in place of d x d ones, with R = diag(sqrt(s_j)):

    x = (g - H^T R (alpha I + R H H^T R)^{-1} R H g) / alpha.
    """

    def work(self, n: int, d: int) -> int:
        """Three matrices (n, n)."""
        return 3 * n * n

    def held(self, n: int, d: int) -> int:
        """One factor, (n, n)."""
        return n * n

    def _factor(self, units: slice) -> Tensor:
        inputs, roots = self._fisher.inputs, self._fisher.curvature.T[units].sqrt()  # (units, n)
        return self._cholesky((inputs @ inputs.T) * roots[:, :, None] * roots[:, None, :])

    def _solve(self, units: slice, factor: Tensor, gradient: Tensor) -> Tensor:
        inputs, roots = self._fisher.inputs, self._fisher.curvature.T[units].sqrt()
        right = (gradient @ inputs.T) * roots
        left = torch.cholesky_solve(right[:, :, None], factor)[:, :, 0] * roots
        return (gradient - left @ inputs) / self._damping


class ShermanMorrison(DirectSolver):
    """Start from I / alpha and fold the rows into all inverses; across batches on demand.

    With forgetting f > 0 the inverses are kept, and are those of C_T + alpha I:

        C_T = f^T F_0 + (1 - f) sum_{t=1}^T f^{T - t} F_t,    whose weights sum to 1

    Each factor call then scales the old inverses and folds in the new rows, and d more rows that
    hold the damping up: M' = f M + (1 - f)(F + alpha I). So where alpha changes, its running mean
    damps. All m inverses (d, d) are state.

    Args:
        max_bytes: Memory to work in, in bytes, at least 1.
        block: Rows that are folded in at once, at least 1.
        forgetting: f, at least 0 and below 1; 0 for the newest rows alone.

    Raises:
        UserError: For numbers that are out of range.
    """

    def __init__(self, max_bytes: int = 2**30, block: int = 1, forgetting: float = 0.0) -> None:
        super().__init__(max_bytes)
        self.block = positive_int("solver.block", block)
        self.forgetting = fraction("solver.forgetting", forgetting)

    def work(self, n: int, d: int) -> int:
        """The inverse, an update of it, and what a block of rows needs."""
        return 3 * d * d + 4 * d * self.block + 3 * self.block**2

    def held(self, n: int, d: int) -> int:
        """One inverse, (d, d)."""
        return d * d

    def factor(self, operator: CurvatureOperator, damping: Tensor) -> None:
        """Invert each unit's block, or bring the running inverses up to date.

        Raises:
            UserError: Where a block is singular, or all running inverses do not fit.
        """
        fisher = operator.with_rows()
        m, d = fisher.shape
        needed = self.work(0, d) * m * fisher.inputs.element_size()
        if self.forgetting and needed > self.max_bytes:
            raise UserError(
                f"{operator.name}: a running estimate holds {m} inverses of {d} x {d}, {needed:,}"
                f" bytes at its peak, and solver.max_bytes is {self.max_bytes:,}; raise it, or set"
                " solver.forgetting=0"
            )
        if self.forgetting and self._held:
            self._go_on(fisher, damping)
        else:
            super().factor(fisher, damping)

    def _go_on(self, fisher: UnitFisher, damping: Tensor) -> None:
        check_system(fisher, damping)
        d, new = fisher.shape[1], 1 - self.forgetting
        identity = torch.eye(d, dtype=fisher.inputs.dtype, device=fisher.inputs.device)
        (inverses,) = self._held
        inverses /= self.forgetting
        fold(inverses, fisher.inputs, new * fisher.curvature, self.block)
        fold(inverses, identity, (new * damping).expand(d, len(inverses)), self.block)
        # No fold mends what rounding makes unsymmetric, and each division would let it grow.
        self._held = [(inverses + inverses.mT).mul_(0.5)]

    def _factor(self, units: slice) -> Tensor:
        """(F_j + alpha I)^{-1}; `UserError` on the CPU where I / alpha has swallowed the rows."""
        inputs, curvature = self._fisher.inputs, self._fisher.curvature[:, units]
        damping, d = self._damping, inputs.shape[1]
        identity = torch.eye(d, dtype=curvature.dtype, device=curvature.device)
        inverses = (identity / damping).repeat(curvature.shape[1], 1, 1)
        fold(inverses, inputs, curvature, self.block)
        if damping.device.type == "cpu":  # the inner factors do not tell of rows that are lost
            probe = torch.ones_like(inverses[:, 0])
            x = (inverses @ probe[:, :, None])[:, :, 0]
            lost = UnitFisher(inputs, curvature).matmul(x) + damping * x - probe
            if not lost.norm(dim=1).max() < 0.1 * math.sqrt(d):
                raise unfactorable(self._fisher, damping, SINGULAR)
        return inverses

    def _solve(self, units: slice, factor: Tensor, gradient: Tensor) -> Tensor:
        return (factor @ gradient[:, :, None])[:, :, 0]

    def state_dict(self) -> State:
        """The running inverses, (m, d, d)."""
        running = self.forgetting and self._held
        return {"inverses": torch.cat(self._held)} if running else {}

    def load_state_dict(self, state: State) -> None:
        """Go on from a state."""
        self._held = [state["inverses"].clone()] if "inverses" in state else []
        self._chunks = [slice(None)]


def fold(inverses: Tensor, inputs: Tensor, curvature: Tensor, block: int) -> Tensor:
    """Turn M_j^{-1} into (M_j + H^T diag(s_j) H)^{-1} in place, `block` rows at a time.

    (M + U^T U)^{-1} = M^{-1} - W (I + U W)^{-1} W^T with W = M^{-1} U^T; for one row the inner
    inverse is a number.

    Args:
        inverses: M_j^{-1}, (m, d, d), changed in place.
        inputs: H, (n, d).
        curvature: S, (n, m).
        block: Rows at a time.
    """
    for rows, row_curvature in zip(inputs.split(block), curvature.split(block), strict=True):
        u = row_curvature.T.sqrt()[:, :, None] * rows  # (m, block, d)
        w = inverses @ u.mT  # (m, d, block)
        inner = u @ w
        if block == 1:
            inverses.baddbmm_(w / (1 + inner), w.mT, alpha=-1)
        else:
            inner.diagonal(dim1=1, dim2=2).add_(1)
            solved = torch.cholesky_solve(w.mT, torch.linalg.cholesky_ex(inner)[0])
            inverses.baddbmm_(w, solved, alpha=-1)
    return inverses
