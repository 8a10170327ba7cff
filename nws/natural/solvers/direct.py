"""Damped solves by a factor for each unit: Cholesky, Woodbury, Sherman-Morrison, running inverses.

Symbols: n rows, d parents with the bias, m units, alpha damping. Only these solvers look at a
layer's rows. Sources: Woodbury 1950; Sherman & Morrison 1950.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from nws.errors import UserError, number, positive_int
from nws.natural.operators import CurvatureOperator, UnitFisher
from nws.natural.solvers.solver import (
    NOT_FINITE,
    Solver,
    State,
    Stateless,
    check_system,
    fraction,
    unfactorable,
)

SINGULAR = "it is singular to working precision; raise damping.value"


class DirectSolver(Stateless, ABC):
    """Factors unit by unit, in chunks of units that keep within `max_bytes`.

    Factors are held for further solves where all of them fit in memory next to the work on a chunk.
    Otherwise they are made again at each solve.

    Args:
        max_bytes: Memory to work in.
    """

    zero = False  # whether alpha = 0 is allowed where n >= d

    def __init__(self, max_bytes: int = 2**30) -> None:
        self.max_bytes = positive_int("solver.max_bytes", max_bytes)
        self._singular: Tensor | bool = False  # whether a block was, on a device

    def factor(self, operator: CurvatureOperator, damping: Tensor) -> None:
        """Factor each unit's block, in chunks; `UserError` where one is singular."""
        fisher = with_rows(operator)
        n, d = fisher.inputs.shape
        check_system(fisher, damping, zero=self.zero and n >= d)
        self._fisher, self._damping = fisher, damping.clone()
        self._held: list[
            Tensor
        ] = []  # the memory of the last ones is free before new ones are made
        room, m = self.max_bytes // fisher.inputs.element_size(), fisher.shape[0]
        size, fits = self.units_at_once(n, d, m, room)
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

    def _cholesky(self, matrices: Tensor) -> Tensor:
        """Lower factors of damped matrices, (units, k, k).

        A matrix without one is an error on the CPU. On a device, which is not waited for, its
        factor is nan, and `check` tells of it later.
        """
        factors, failed = torch.linalg.cholesky_ex(matrices)
        pivots = factors.diagonal(dim1=1, dim2=2).square()
        largest = matrices.diagonal(dim1=1, dim2=2).amax(1)
        least = torch.finfo(pivots.dtype).eps * matrices.shape[1] * largest
        rounding = (pivots.amin(1) < least) & (self._damping == 0)  # and nothing else
        lost = (failed > 0) | rounding | ~pivots.isfinite().all(1)
        rows = self._fisher.inputs, self._fisher.curvature
        if matrices.device.type == "cpu":
            if lost.any():
                finite = all(bool(part.isfinite().all()) for part in rows)
                raise unfactorable(self._fisher, self._damping, SINGULAR if finite else NOT_FINITE)
            return factors
        finite_rows = torch.stack([part.isfinite().all() for part in rows]).all()
        self._singular = self._singular | (lost.any() & finite_rows)
        return factors.masked_fill_(lost[:, None, None], math.nan)

    def units_at_once(self, n: int, d: int, m: int, room: int) -> tuple[int, bool]:
        """Units to work on at once within `room` numbers, and whether all factors fit as well."""
        work, held = self.work(n, d), self.held(n, d)
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


class Cholesky(DirectSolver):
    """Form the blocks and factor them: x = L^-T L^-1 g with L L^T = F_j + alpha I."""

    zero = True

    def work(self, n: int, d: int) -> int:
        """Scaled rows, blocks and factors."""
        return n * d + 3 * d * d

    def held(self, n: int, d: int) -> int:
        """One factor, (d, d)."""
        return d * d

    def _factor(self, units: slice) -> Tensor:
        blocks = self._fisher.blocks(units)
        blocks.diagonal(dim1=1, dim2=2).add_(self._damping)
        return self._cholesky(blocks)

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
        capacitance = (inputs @ inputs.T) * roots[:, :, None] * roots[:, None, :]
        capacitance.diagonal(dim1=1, dim2=2).add_(self._damping)
        return self._cholesky(capacitance)

    def _solve(self, units: slice, factor: Tensor, gradient: Tensor) -> Tensor:
        inputs, roots = self._fisher.inputs, self._fisher.curvature.T[units].sqrt()
        right = (gradient @ inputs.T) * roots
        left = torch.cholesky_solve(right[:, :, None], factor)[:, :, 0] * roots
        return (gradient - left @ inputs) / self._damping


class ShermanMorrison(DirectSolver):
    """Start from I / alpha and fold the rows into all inverses.

    Args:
        max_bytes: Memory to work in.
        block: Rows that are folded in at once.
    """

    def __init__(self, max_bytes: int = 2**30, block: int = 1) -> None:
        super().__init__(max_bytes)
        self.block = positive_int("solver.block", block)

    def work(self, n: int, d: int) -> int:
        """The inverse, an update of it, and what a block of rows needs."""
        return 3 * d * d + 4 * d * self.block + 3 * self.block**2

    def held(self, n: int, d: int) -> int:
        """One inverse, (d, d)."""
        return d * d

    def _factor(self, units: slice) -> Tensor:
        return self.invert(self._fisher, self._damping, units)

    def _solve(self, units: slice, factor: Tensor, gradient: Tensor) -> Tensor:
        return (factor @ gradient[:, :, None])[:, :, 0]

    def invert(self, fisher: UnitFisher, damping: Tensor, units: slice) -> Tensor:
        """(F_j + alpha I)^{-1} of some units: (units, d, d).

        Raises:
            UserError: On the CPU, where I / alpha has swallowed the rows.
        """
        d, curvature = fisher.inputs.shape[1], fisher.curvature[:, units]
        identity = torch.eye(d, dtype=curvature.dtype, device=curvature.device)
        inverses = (identity / damping).repeat(curvature.shape[1], 1, 1)
        fold(inverses, fisher.inputs, curvature, self.block)
        if damping.device.type == "cpu":  # the inner factors do not tell of rows that are lost
            probe = torch.ones_like(inverses[:, 0])
            x = (inverses @ probe[:, :, None])[:, :, 0]
            lost = UnitFisher(fisher.inputs, curvature).matmul(x) + damping * x - probe
            if not lost.norm(dim=1).max() < 0.1 * math.sqrt(d):
                raise unfactorable(fisher, damping, SINGULAR)
        return inverses


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


class RunningInverse:
    """Sherman-Morrison across batches: inverses of C_T + alpha I.

        C_T = f^T F_0 + (1 - f) sum_{t=1}^T f^{T - t} F_t,    whose weights sum to 1

    f is `forgetting`. Each factor call scales the old inverses and folds in the new rows, and d
    more rows that hold the damping up: M' = f M + (1 - f)(F + alpha I). So where alpha changes, its
    running mean damps. All m inverses (d, d) are state.

    Raises:
        UserError: Where the inverses exceed `max_bytes`, or f is not above 0 and below 1.
    """

    unit_state = ("inverses",)  # entries of the state with one row a unit

    def __init__(self, forgetting: float, max_bytes: int = 2**30, block: int = 1) -> None:
        self.forgetting = number(
            "solver.forgetting", forgetting, "above 0 and below 1", lambda value: 0 < value < 1
        )
        self._start = ShermanMorrison(max_bytes, block)
        self._inverses: Tensor | None = None

    def factor(self, operator: CurvatureOperator, damping: Tensor) -> None:
        """Scale the inverses, and fold in the new rows and the damping."""
        fisher, start = with_rows(operator), self._start
        check_system(fisher, damping)
        m, d = fisher.shape
        needed = start.work(0, d) * m * fisher.inputs.element_size()
        if needed > start.max_bytes:
            raise UserError(
                f"{operator.name}: a running estimate holds {m} inverses of {d} x {d}, {needed:,}"
                f" bytes at its peak, and solver.max_bytes is {start.max_bytes:,}; raise it, or set"
                " solver.forgetting=0"
            )
        if self._inverses is None:
            self._inverses = start.invert(fisher, damping, slice(None))
            return
        new = 1 - self.forgetting
        self._inverses /= self.forgetting
        fold(self._inverses, fisher.inputs, new * fisher.curvature, start.block)
        identity = torch.eye(d, dtype=fisher.inputs.dtype, device=fisher.inputs.device)
        fold(self._inverses, identity, (new * damping).expand(d, m), start.block)
        # No fold mends what rounding makes unsymmetric, and each division would let it grow.
        self._inverses = (self._inverses + self._inverses.mT).mul_(0.5)

    def solve(self, gradient: Tensor) -> Tensor:
        """The inverses times g_j: (m, d)."""
        assert self._inverses is not None
        return (self._inverses @ gradient[:, :, None])[:, :, 0]

    def state_dict(self) -> State:
        """The inverses, (m, d, d)."""
        return {} if self._inverses is None else {"inverses": self._inverses.clone()}

    def load_state_dict(self, state: State) -> None:
        """Go on from a state."""
        self._inverses = state["inverses"].clone() if "inverses" in state else None

    def report(self) -> dict[str, float]:
        """Nothing."""
        return {}


def with_rows(operator: CurvatureOperator) -> UnitFisher:
    """The operator, where it has rows or can make them. Raises `UserError` for another."""
    if hasattr(operator, "with_rows"):
        operator = operator.with_rows()
    if not isinstance(operator, UnitFisher):
        raise UserError(
            f"{operator.name}: a direct solver needs an operator with rows (UnitFisher), got"
            f" {type(operator).__name__}; take solver=pcg or solver=minres"
        )
    return operator


def sherman_morrison(forgetting: float = 0.0, **options: Any) -> Solver:
    """Sherman-Morrison of each operator alone, or with forgetting > 0 across batches.

    Raises:
        UserError: For forgetting that is not a number of at least 0 and below 1.
    """
    forgetting = fraction("solver.forgetting", forgetting)
    return RunningInverse(forgetting, **options) if forgetting else ShermanMorrison(**options)
