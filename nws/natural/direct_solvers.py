"""Damped solves by a factor for each unit: Cholesky, Woodbury, Sherman-Morrison, and a running estimate of the inverses.

Symbols as in nws.natural.solvers: n rows, d parents with the bias, m units, alpha damping.
Sources: Woodbury 1950; Sherman & Morrison 1950.
"""

import math

import torch
from torch import Tensor

from nws.errors import UserError, positive_int
from nws.natural.operators import UnitFisher

State = dict[str, Tensor]
SINGULAR = "it is singular to working precision; raise damping.value"


class Cholesky:
    """Form the blocks, factor them: x = L^-T L^-1 g with L L^T = F_j + alpha I."""

    @staticmethod
    def numbers(n: int, d: int, block: int) -> int:
        """Numbers that the work on one unit holds at its peak, its factor among them."""
        return n * d + 3 * d * d

    @staticmethod
    def held(n: int, d: int) -> int:
        """Numbers of one unit's factor."""
        return d * d

    @staticmethod
    def factor(fisher: UnitFisher, damping: Tensor, units: slice, block: int) -> Tensor:
        blocks = fisher.blocks(units)
        blocks.diagonal(dim1=1, dim2=2).add_(damping)
        return _cholesky(blocks, fisher, damping)

    @staticmethod
    def solve(
        fisher: UnitFisher, damping: Tensor, units: slice, factor: Tensor, gradient: Tensor
    ) -> Tensor:
        return torch.cholesky_solve(gradient[:, :, None], factor)[:, :, 0]


class Woodbury:
    """x = (g - H^T R (alpha I + R H H^T R)^{-1} R H g) / alpha with R = diag(sqrt(s_j)): n x n instead of d x d."""

    @staticmethod
    def numbers(n: int, d: int, block: int) -> int:
        return 3 * n * n

    @staticmethod
    def held(n: int, d: int) -> int:
        return n * n

    @staticmethod
    def factor(fisher: UnitFisher, damping: Tensor, units: slice, block: int) -> Tensor:
        roots = fisher.weights.T[units].sqrt()  # (units, n)
        capacitance = (fisher.inputs @ fisher.inputs.T) * roots[:, :, None] * roots[:, None, :]
        capacitance.diagonal(dim1=1, dim2=2).add_(damping)
        return _cholesky(capacitance, fisher, damping)

    @staticmethod
    def solve(
        fisher: UnitFisher, damping: Tensor, units: slice, factor: Tensor, gradient: Tensor
    ) -> Tensor:
        roots = fisher.weights.T[units].sqrt()
        right = (gradient @ fisher.inputs.T) * roots
        left = torch.cholesky_solve(right[:, :, None], factor)[:, :, 0] * roots
        return (gradient - left @ fisher.inputs) / damping


class ShermanMorrison:
    """Start from I / alpha and fold the rows into all inverses, `block` of them at a time (1: Sherman-Morrison's rank one)."""

    @staticmethod
    def numbers(n: int, d: int, block: int) -> int:
        return 3 * d * d + 4 * d * block + 3 * block * block

    @staticmethod
    def held(n: int, d: int) -> int:
        return d * d

    @staticmethod
    def factor(fisher: UnitFisher, damping: Tensor, units: slice, block: int) -> Tensor:
        d = fisher.inputs.shape[1]
        identity = torch.eye(d, dtype=fisher.inputs.dtype, device=fisher.inputs.device)
        inverses = (identity / damping).repeat(fisher.weights[:, units].shape[1], 1, 1)
        fold(inverses, fisher.inputs, fisher.weights[:, units], block)
        if (
            damping.device.type == "cpu"
        ):  # the inner factors do not say where I / alpha has swallowed the rows
            probe = torch.ones_like(inverses[:, 0])
            part = UnitFisher(fisher.inputs, fisher.weights[:, units])
            x = (inverses @ probe[:, :, None])[:, :, 0]
            if not (part.matmul(x) + damping * x - probe).norm(dim=1).max() < 0.1 * math.sqrt(d):
                raise unfactorable(fisher, damping, SINGULAR)
        return inverses

    @staticmethod
    def solve(
        fisher: UnitFisher, damping: Tensor, units: slice, factor: Tensor, gradient: Tensor
    ) -> Tensor:
        return (factor @ gradient[:, :, None])[:, :, 0]


def fold(inverses: Tensor, inputs: Tensor, weights: Tensor, block: int) -> Tensor:
    """Turn M_j^{-1} (m, d, d) into (M_j + H^T diag(s_j) H)^{-1} in place, `block` rows of H (n, d), S (n, m) at a time.

    (M + U^T U)^{-1} = M^{-1} - W (I + U W)^{-1} W^T with W = M^{-1} U^T; for one row the inner inverse is a number.
    """
    for rows, row_weights in zip(inputs.split(block), weights.split(block), strict=True):
        u = row_weights.T.sqrt()[:, :, None] * rows  # (m, block, d)
        w = inverses @ u.mT  # (m, d, block)
        inner = u @ w
        if block == 1:
            inverses.baddbmm_(w / (1 + inner), w.mT, alpha=-1)
        else:
            inner.diagonal(dim1=1, dim2=2).add_(1)
            inverses.baddbmm_(
                w, torch.cholesky_solve(w.mT, torch.linalg.cholesky_ex(inner)[0]), alpha=-1
            )
    return inverses


Method = type[Cholesky] | type[Woodbury] | type[ShermanMorrison]
DIRECT: dict[str, Method] = {
    "cholesky": Cholesky,
    "woodbury": Woodbury,
    "sherman_morrison": ShermanMorrison,
}


def units_at_once(
    method: Method, n: int, d: int, m: int, block: int, room: int
) -> tuple[int, bool]:
    """How many of m units to work on at once where `room` numbers fit in memory, and whether all their factors fit beside."""
    work, held = method.numbers(n, d, block), method.held(n, d)
    beside = (room - m * held) // (work - held)
    return min(m, max(1, beside if beside > 0 else room // work)), beside > 0


class DirectSolver:
    """Cholesky, Woodbury or Sherman-Morrison: factors unit by unit, in chunks of units that keep within `max_bytes`.

    The factors are held for further solves where all of them and the work on a chunk fit, and made anew at each solve otherwise.
    """

    stacks = False

    def __init__(self, method: str, max_bytes: int = 2**30, block: int = 1) -> None:
        self._method = DIRECT[method]
        self.max_bytes = positive_int("solver.max_bytes", max_bytes)
        self.block = positive_int("solver.block", block)

    def factor(self, fisher: UnitFisher, damping: Tensor) -> None:
        check_damping(fisher, damping, needed=self._method is not Cholesky)
        check_finite(fisher, damping)
        self._fisher, self._damping = fisher, damping.clone()
        self._held: list[Tensor] = []  # the last ones' memory is free before new ones are made
        n, d, m = fisher.shape
        size, fits = units_at_once(
            self._method, n, d, m, self.block, self.max_bytes // fisher.inputs.element_size()
        )
        self._chunks = [slice(start, min(start + size, m)) for start in range(0, m, size)]
        if fits:
            self._held = [self._factor(units) for units in self._chunks]

    def solve(self, gradient: Tensor) -> Tensor:
        factors = self._held or map(self._factor, self._chunks)
        return torch.cat([
            self._method.solve(self._fisher, self._damping, units, factor, gradient[units])
            for units, factor in zip(self._chunks, factors, strict=True)
        ])  # fmt: skip

    def _factor(self, units: slice) -> Tensor:
        return self._method.factor(self._fisher, self._damping, units, self.block)

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        pass

    def report(self) -> dict[str, float]:
        return {}


class RunningInverse:
    """Sherman-Morrison across batches: the inverses of (1 - f) sum_t f^{T - t} F_t + alpha I, with f = `forgetting`.

    Each factor call scales the old inverses and folds in the new rows, and d more rows that hold the damping up:
    M' = f M + (1 - f) (F + alpha I). So where alpha changes, its running mean damps. All m inverses (d, d) are state. Raises
    `UserError` where they exceed `max_bytes`.
    """

    stacks = False

    def __init__(self, forgetting: float, max_bytes: int = 2**30, block: int = 1) -> None:
        if not 0 < forgetting < 1:
            raise UserError(
                f"solver.forgetting must be a number between 0 and 1, or 0 for none, got {forgetting!r}"
            )
        self.forgetting = forgetting
        self.max_bytes = positive_int("solver.max_bytes", max_bytes)
        self.block = positive_int("solver.block", block)
        self._inverses: Tensor | None = None

    def factor(self, fisher: UnitFisher, damping: Tensor) -> None:
        check_damping(fisher, damping, needed=True)
        check_finite(fisher, damping)
        _, d, m = fisher.shape
        needed = ShermanMorrison.numbers(0, d, self.block) * m * fisher.inputs.element_size()
        if needed > self.max_bytes:
            raise UserError(
                f"{fisher.name}: a running estimate holds {m} inverses of {d} x {d}, {needed:,} bytes at its peak, and "
                f"solver.max_bytes is {self.max_bytes:,}; raise it, or set solver.forgetting=0"
            )
        if self._inverses is None:
            self._inverses = ShermanMorrison.factor(fisher, damping, slice(None), self.block)
            return
        new = 1 - self.forgetting
        self._inverses /= self.forgetting
        fold(self._inverses, fisher.inputs, new * fisher.weights, self.block)
        identity = torch.eye(d, dtype=fisher.inputs.dtype, device=fisher.inputs.device)
        fold(self._inverses, identity, (new * damping).expand(d, m), self.block)
        # What rounding makes unsymmetric no fold takes back, and every division by the forgetting would let it grow.
        self._inverses = (self._inverses + self._inverses.mT).mul_(0.5)

    def solve(self, gradient: Tensor) -> Tensor:
        assert self._inverses is not None
        return (self._inverses @ gradient[:, :, None])[:, :, 0]

    def state_dict(self) -> State:
        return {} if self._inverses is None else {"inverses": self._inverses.clone()}

    def load_state_dict(self, state: State) -> None:
        self._inverses = state["inverses"].clone() if "inverses" in state else None

    def report(self) -> dict[str, float]:
        return {}


def check_damping(fisher: UnitFisher, damping: Tensor, needed: bool) -> None:
    """Raise `UserError` for alpha <= 0 where the solver needs more (`needed`) or n < d, and for one that is not finite.

    Only looks at a number on the CPU: on a device this would be a synchronisation.
    """
    if damping.device.type == "cpu":
        n, d, _ = fisher.shape
        alpha = float(damping)
        if not (0 < alpha < math.inf or (alpha == 0 and not needed and n >= d)):
            raise unfactorable(
                fisher, damping, "set damping.value > 0; only cholesky with n >= d does without"
            )


def check_finite(fisher: UnitFisher, damping: Tensor, mean: Tensor | None = None) -> None:
    """Raise `UserError` for rows that are not finite; on the CPU only, as `check_damping`. Their `mean` tells as well."""
    if fisher.inputs.device.type == "cpu":
        total = fisher.inputs.sum() + fisher.weights.sum() if mean is None else mean.sum()
        if math.isfinite(float(total)):
            return
        raise unfactorable(fisher, damping, "its rows are not finite; lower optimizer.lr")


def unfactorable(fisher: UnitFisher, damping: Tensor, reason: str) -> UserError:
    n, d, _ = fisher.size or fisher.shape
    what = f"cannot factor a Fisher block from n={n} rows of d={d} parents with damping {float(damping):g}"
    return UserError(f"{fisher.name}: {what}: {reason}")


def _cholesky(matrices: Tensor, fisher: UnitFisher, damping: Tensor) -> Tensor:
    factors, failed = torch.linalg.cholesky_ex(matrices)
    pivots = factors.diagonal(dim1=1, dim2=2).square()
    floor = (
        torch.finfo(pivots.dtype).eps
        * matrices.shape[1]
        * matrices.diagonal(dim1=1, dim2=2).amax(1)
    )
    lost = (
        (pivots.amin(1) < floor) if damping == 0 else failed > 0
    )  # without damping a pivot may be rounding alone
    if failed.any() or lost.any() or not torch.isfinite(pivots).all():
        finite = bool(fisher.inputs.isfinite().all() and fisher.weights.isfinite().all())
        raise unfactorable(
            fisher, damping, SINGULAR if finite else "its rows are not finite; lower optimizer.lr"
        )
    return factors
