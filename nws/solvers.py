"""Damped solves (F_j + alpha I) x_j = g_j for all units j of a layer at once: dense, low-rank and matrix-free.

Every solver has one interface: `factor` once, `solve` many times. n rows, d parents with the bias, m units:

    solver            how                                                             time                        memory
    cholesky          form the m blocks, batched Cholesky                             m (n d^2 + d^3/3)           m d^2
    woodbury          n x n capacitance matrices from one Gram matrix of all units    n^2 d + m n^3/3             m n^2
    sherman_morrison  fold the rows into all m inverses, `block` at a time            m n d^2                     m d^2
    pcg               conjugate gradient, all units at once, one shared eigenbasis    iterations 4 (n + r) d m    n (d + m)

alpha comes as a tensor of one element on the device, so that a schedule can change it without a synchronisation.
Sources: Woodbury 1950; Sherman & Morrison 1950; Hestenes & Stiefel 1952; Martens 2010 (damped, matrix-free).
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from nws.errors import UserError, positive_int
from nws.fisher import UnitFisher

State = dict[str, Tensor]


class Solver(Protocol):
    """What all solvers share. There is one object for each layer, since some keep state from step to step."""

    def factor(self, fisher: UnitFisher, damping: Tensor) -> None:
        """Take in a layer's Fisher matrix and alpha. Raises `UserError` where a block cannot be factored."""

    def solve(self, gradient: Tensor) -> Tensor:
        """x_j = (F_j + alpha I)^{-1} g_j for all units: (m, d) from G (m, d)."""

    def state_dict(self) -> State:
        """What later solves depend on beside the next Fisher matrix."""

    def load_state_dict(self, state: State) -> None:
        """Go on from a state."""

    def report(self) -> dict[str, float]:
        """What the last solve has to say of itself, for the log (may synchronise)."""


# --- direct solvers: a factor for each unit ------------------------------------------------------------------------


class Cholesky:
    """Form the blocks, factor them: x = L^-T L^-1 g with L L^T = F_j + alpha I."""

    @staticmethod
    def numbers(n: int, d: int) -> int:
        """Numbers that the work on one unit holds at its peak."""
        return n * d + 3 * d * d

    @staticmethod
    def factor(fisher: UnitFisher, damping: Tensor, units: slice, block: int) -> Tensor:
        blocks = fisher.blocks(units)
        blocks.diagonal(dim1=1, dim2=2).add_(damping)
        return _cholesky(blocks, fisher, damping)

    @staticmethod
    def solve(fisher: UnitFisher, damping: Tensor, units: slice, factor: Tensor, gradient: Tensor) -> Tensor:
        return torch.cholesky_solve(gradient[:, :, None], factor)[:, :, 0]


class Woodbury:
    """x = (g - H^T R (alpha I + R H H^T R)^{-1} R H g) / alpha with R = diag(sqrt(s_j)): n x n instead of d x d."""

    @staticmethod
    def numbers(n: int, d: int) -> int:
        return 3 * n * n

    @staticmethod
    def factor(fisher: UnitFisher, damping: Tensor, units: slice, block: int) -> Tensor:
        roots = fisher.weights.T[units].sqrt()  # (units, n)
        capacitance = (fisher.inputs @ fisher.inputs.T) * roots[:, :, None] * roots[:, None, :]
        capacitance.diagonal(dim1=1, dim2=2).add_(damping)
        return _cholesky(capacitance, fisher, damping)

    @staticmethod
    def solve(fisher: UnitFisher, damping: Tensor, units: slice, factor: Tensor, gradient: Tensor) -> Tensor:
        roots = fisher.weights.T[units].sqrt()
        right = (gradient @ fisher.inputs.T) * roots
        left = torch.cholesky_solve(right[:, :, None], factor)[:, :, 0] * roots
        return (gradient - left @ fisher.inputs) / damping


class ShermanMorrison:
    """Start from I / alpha and fold the rows into all inverses, `block` of them at a time (1: Sherman-Morrison's rank one)."""

    @staticmethod
    def numbers(n: int, d: int) -> int:
        return 3 * d * d

    @staticmethod
    def factor(fisher: UnitFisher, damping: Tensor, units: slice, block: int) -> Tensor:
        d = fisher.inputs.shape[1]
        identity = torch.eye(d, dtype=fisher.inputs.dtype, device=fisher.inputs.device)
        inverses = (identity / damping).repeat(fisher.weights[:, units].shape[1], 1, 1)
        return fold(inverses, fisher.inputs, fisher.weights[:, units], block)

    @staticmethod
    def solve(fisher: UnitFisher, damping: Tensor, units: slice, factor: Tensor, gradient: Tensor) -> Tensor:
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
            inverses.baddbmm_(w, torch.cholesky_solve(w.mT, torch.linalg.cholesky_ex(inner)[0]), alpha=-1)
    return inverses


DIRECT: dict[str, type[Cholesky] | type[Woodbury] | type[ShermanMorrison]] = {
    "cholesky": Cholesky,
    "woodbury": Woodbury,
    "sherman_morrison": ShermanMorrison,
}


class DirectSolver:
    """Cholesky, Woodbury or Sherman-Morrison: factors unit by unit, in chunks of units that keep within `max_bytes`.

    The factors are held for further solves where one chunk holds all units, and made anew at each solve otherwise.
    """

    def __init__(self, method: str, max_bytes: int = 2**30, block: int = 1) -> None:
        self._method = DIRECT[method]
        self.max_bytes = positive_int("solver.max_bytes", max_bytes)
        self.block = positive_int("solver.block", block)

    def factor(self, fisher: UnitFisher, damping: Tensor) -> None:
        check_damping(fisher, damping, needed=self._method is not Cholesky)
        self._fisher, self._damping = fisher, damping.clone()
        n, d, m = fisher.shape
        size = max(1, self.max_bytes // (self._method.numbers(n, d) * fisher.inputs.element_size()))
        self._chunks = [slice(start, min(start + size, m)) for start in range(0, m, size)]
        self._held = self._factor(self._chunks[0]) if len(self._chunks) == 1 else None

    def solve(self, gradient: Tensor) -> Tensor:
        return torch.cat([
            self._method.solve(
                self._fisher, self._damping, units, self._factor(units) if self._held is None else self._held, gradient[units]
            )
            for units in self._chunks
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
    M' = f M + (1 - f) (F + alpha I). All m inverses (d, d) are state. Raises `UserError` where they exceed `max_bytes`.
    """

    def __init__(self, forgetting: float, max_bytes: int = 2**30, block: int = 1) -> None:
        if not 0 < forgetting < 1:
            raise UserError(f"solver.forgetting must be a number between 0 and 1, or 0 for none, got {forgetting!r}")
        self.forgetting = forgetting
        self.max_bytes = positive_int("solver.max_bytes", max_bytes)
        self.block = positive_int("solver.block", block)
        self._inverses: Tensor | None = None

    def factor(self, fisher: UnitFisher, damping: Tensor) -> None:
        check_damping(fisher, damping, needed=True)
        _, d, m = fisher.shape
        needed = ShermanMorrison.numbers(0, d) * m * fisher.inputs.element_size()
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
        fold(self._inverses, identity, (new * damping).expand(d, m), max(self.block, 32))

    def solve(self, gradient: Tensor) -> Tensor:
        assert self._inverses is not None
        return (self._inverses @ gradient[:, :, None])[:, :, 0]

    def state_dict(self) -> State:
        return {} if self._inverses is None else {"inverses": self._inverses}

    def load_state_dict(self, state: State) -> None:
        self._inverses = state.get("inverses")

    def report(self) -> dict[str, float]:
        return {}


# --- the matrix-free solver ----------------------------------------------------------------------------------------


class Basis(NamedTuple):
    """The r largest eigenpairs of A = sum_k w_k h_k h_k^T, w_k ~ sum_j s_kj with sum_k w_k = 1, and the mean of the rest."""

    vectors: Tensor  # (d, r) Q
    values: Tensor  # (r,) Lambda
    rest: Tensor  # () mean of the other d - r eigenvalues


def shared_basis(fisher: UnitFisher, rank: int, start: Tensor | None = None) -> Basis:
    """The basis that preconditions all units of a layer, by subspace iteration from `start` (d, r), or from the rows."""
    n, d, _ = fisher.shape
    weights = fisher.weights.sum(1)
    rows = fisher.inputs * (weights / weights.sum().clamp_min(torch.finfo(weights.dtype).tiny)).sqrt()[:, None]
    trace = rows.square().sum()
    if rank == 0:
        return Basis(rows.new_zeros(d, 0), rows.new_zeros(0), trace / d)
    if rank >= min(n, d):  # exact, no iteration needed: the row space, or everything
        vectors = torch.linalg.qr(rows.T if n < d else torch.eye(d, dtype=rows.dtype, device=rows.device))[0]
    else:
        first = rows.T[:, :: n // rank][:, :rank] if start is None else start
        vectors = torch.linalg.qr(first)[0]
        for _ in range(4 if start is None else 1):
            vectors = torch.linalg.qr(rows.T @ (rows @ vectors))[0]
    small = rows @ vectors
    values, rotation = torch.linalg.eigh(small.T @ small)
    rest = (trace - values.sum()).clamp_min(0) / max(1, d - len(values))
    return Basis(vectors @ rotation, values.clamp_min(0), rest)


class Preconditioner(NamedTuple):
    """M_j^{-1} for all units: the inverse of sbar_j (Q Lambda Q^T + lambda_rest (I - Q Q^T)) + alpha I, sbar_j = sum_k s_kj."""

    vectors: Tensor  # (d, r) Q
    scale: Tensor  # (m, 1) on the complement of Q
    extra: Tensor  # (m, r) beyond `scale`, on Q

    @staticmethod
    def of(basis: Basis, fisher: UnitFisher, damping: Tensor) -> "Preconditioner":
        curvature = fisher.weights.sum(0)[:, None]  # sbar (m, 1)
        scale = (curvature * basis.rest + damping).reciprocal()
        return Preconditioner(basis.vectors, scale, (curvature * basis.values + damping).reciprocal() - scale)

    def __call__(self, vectors: Tensor) -> Tensor:
        """M_j^{-1} v_j: (m, d) from V (m, d), two products with Q of 2 r d m flops."""
        return torch.addmm(vectors * self.scale, (vectors @ self.vectors).mul_(self.extra), self.vectors.T)


class PreconditionedConjugateGradient:
    """Matrix-free conjugate gradient on all units at once, preconditioned by one shared eigenbasis.

    The m systems of a layer differ only in their row weights, so the eigenvectors of the mean block serve all of them. A stale
    basis costs iterations, never correctness: it is refreshed every `preconditioner_every` factorings, while the Fisher
    matrix is the one of the last `factor`. Stops after `iterations`, or earlier where `tolerance` > 0 and the worst unit's
    relative residual is below it (this reads one number from the device an iteration; a fixed count reads none).

    The last of a fixed number of iterations takes the step length of the one before, which saves its product with F:
    `iterations` cost iterations - 1 products, at nearly the error that the full number of products has.
    Where the layer has no more rows than `rank` (and fewer than d), their span is small enough for the direct solve.

    rank: eigenpairs kept (0: none, a scaled identity). warm_start: from the last solve's direction.
    """

    def __init__(
        self,
        iterations: int = 3,
        tolerance: float = 0.0,
        rank: int = 32,
        preconditioner_every: int = 20,
        warm_start: bool = False,
    ) -> None:
        self.iterations = positive_int("solver.iterations", iterations)
        self.rank = positive_int("solver.rank", rank, minimum=0)
        self.preconditioner_every = positive_int("solver.preconditioner_every", preconditioner_every)
        if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < 1:
            raise UserError(f"solver.tolerance must be a number from 0 (none) to 1, got {tolerance!r}")
        self.tolerance = tolerance
        self.warm_start = warm_start
        self.used_iterations = 0
        self._age = 0  # factorings since the basis was made
        self._basis: Basis | None = None
        self._last: Tensor | None = None
        self._direct: DirectSolver | None = None
        self._solved: tuple[Tensor, Tensor] | None = None

    def factor(self, fisher: UnitFisher, damping: Tensor) -> None:
        check_damping(fisher, damping, needed=True)
        self._fisher, self._damping = fisher, damping
        n, d, _ = fisher.shape
        self._direct = DirectSolver("woodbury") if n <= self.rank and n < d else None
        if self._direct is not None:
            self._direct.factor(fisher, damping)
        elif self._basis is None or self._age >= self.preconditioner_every:
            start = self._basis.vectors if self._basis is not None else None
            self._basis = shared_basis(fisher, self.rank, start)
            self._age = 0
        self._age += 1

    def solve(self, gradient: Tensor) -> Tensor:
        solution = self._iterate(gradient) if self._direct is None else self._direct.solve(gradient)
        self._solved = (gradient, solution)
        self._last = solution if self.warm_start else None
        return solution

    def _iterate(self, gradient: Tensor) -> Tensor:
        assert self._basis is not None
        fisher, damping = self._fisher, self._damping
        precondition = Preconditioner.of(self._basis, fisher, damping)
        tiny = torch.finfo(gradient.dtype).tiny  # a unit that is solved already has 0 / tiny = 0 as its step
        solution, residual = None, gradient
        if self.warm_start and self._last is not None:
            solution, residual = self._last.clone(), gradient - _damped(fisher, damping, self._last)
        direction, energy, step = None, None, None
        for iteration in range(1, self.iterations + 1):
            self.used_iterations = iteration
            steepest = precondition(residual)
            new_energy = (residual * steepest).sum(1, keepdim=True)
            if direction is None or energy is None:
                direction = steepest
            else:
                direction = steepest.addcmul_(new_energy / energy.clamp_min(tiny), direction)
            energy = new_energy
            if iteration == self.iterations and step is not None and not self.tolerance:
                assert solution is not None
                return solution.addcmul_(step, direction)
            image = _damped(fisher, damping, direction)
            step = energy / (direction * image).sum(1, keepdim=True).clamp_min(tiny)
            solution = step * direction if solution is None else solution.addcmul_(step, direction)
            residual = torch.addcmul(residual, step, image, value=-1)
            if self.tolerance and worst_ratio(residual, gradient) < self.tolerance:
                break
        assert solution is not None
        return solution

    def report(self) -> dict[str, float]:
        """Iterations and the worst unit's relative residual of the last solve (one more product, and a synchronisation)."""
        if self._solved is None:
            return {}
        gradient, solution = self._solved
        residual = gradient - _damped(self._fisher, self._damping, solution)
        return {
            "iterations": 0 if self._direct else self.used_iterations,
            "residual": float(worst_ratio(residual, gradient)),
        }

    def state_dict(self) -> State:
        state = {"age": torch.tensor(self._age)}
        if self._basis is not None:
            state |= self._basis._asdict()
        if self._last is not None:
            state["last"] = self._last
        return state

    def load_state_dict(self, state: State) -> None:
        self._age = int(state["age"])
        self._basis = Basis(*(state[name] for name in Basis._fields)) if "vectors" in state else None
        self._last = state.get("last")


class Approximate:
    """The cheaper stand-ins for the blocks, solved in closed form.

    diagonal:  F_j ~ diag(F_j).
    kronecker: F_j ~ sbar_j A, one shared block A = sum_k w_k h_k h_k^T scaled by each unit's mean curvature sbar_j.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def factor(self, fisher: UnitFisher, damping: Tensor) -> None:
        check_damping(fisher, damping, needed=True)
        if self.kind == "diagonal":
            self._diagonal = fisher.diagonal() + damping
        else:
            self._shared = Preconditioner.of(shared_basis(fisher, fisher.shape[1]), fisher, damping)

    def solve(self, gradient: Tensor) -> Tensor:
        return gradient / self._diagonal if self.kind == "diagonal" else self._shared(gradient)

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        pass

    def report(self) -> dict[str, float]:
        return {}


def worst_ratio(residual: Tensor, gradient: Tensor) -> Tensor:
    """max_j |r_j| / |g_j| over the units whose gradient is not zero."""
    lengths = gradient.norm(dim=1)
    return torch.where(lengths > 0, residual.norm(dim=1) / lengths, 0.0).max()


def _damped(fisher: UnitFisher, damping: Tensor, vectors: Tensor) -> Tensor:
    return fisher.matmul(vectors).addcmul_(vectors, damping)


def check_damping(fisher: UnitFisher, damping: Tensor, needed: bool) -> None:
    """Raises `UserError` for alpha <= 0 where the solver needs more. Only looks at numbers on the CPU: no synchronisation."""
    if damping.device.type == "cpu" and not (damping > 0 or (damping == 0 and not needed)):
        raise _unfactorable(fisher, damping, "every solver but cholesky with n >= d needs damping > 0")


def _cholesky(matrices: Tensor, fisher: UnitFisher, damping: Tensor) -> Tensor:
    factors, failed = torch.linalg.cholesky_ex(matrices)
    if failed.any() or not torch.isfinite(factors.diagonal(dim1=1, dim2=2)).all():
        finite = bool(fisher.inputs.isfinite().all() and fisher.weights.isfinite().all())
        reason = (
            "it is singular to working precision; raise damping"
            if finite
            else "its rows are not finite; lower optimizer.lr"
        )
        raise _unfactorable(fisher, damping, reason)
    return factors


def _unfactorable(fisher: UnitFisher, damping: Tensor, reason: str) -> UserError:
    n, d, _ = fisher.shape
    return UserError(
        f"{fisher.name}: no factor of a Fisher block from n={n} rows of d={d} parents with damping {float(damping):g}: {reason}"
    )
