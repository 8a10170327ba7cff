"""Matrix-free conjugate gradient on all units of a layer at once, and the shared eigenbasis that preconditions it.

Symbols as in nws.solvers: n rows, d parents with the bias, m units, r eigenpairs, alpha damping.
Sources: Hestenes & Stiefel 1952; Martens 2010 (matrix-free natural gradient); Halko, Martinsson & Tropp 2011 (subspace
iteration).
"""

import logging
from typing import NamedTuple

import torch
from torch import Tensor

from nws.direct_solvers import DirectSolver, State, check_damping, check_finite
from nws.errors import UserError, positive_int
from nws.fisher import UnitFisher

log = logging.getLogger(__name__)


KEEP = 2 / 3  # of the last mean block at a refresh: one batch's rows alone are a poor guide to the next batch's


class Basis(NamedTuple):
    """The r largest eigenpairs of A = sum_k w_k h_k h_k^T, w_k ~ sum_j s_kj with sum_k w_k = 1, and the mean of the rest."""

    vectors: Tensor  # (d, r) Q
    values: Tensor  # (r,) Lambda
    rest: Tensor  # () mean of the other d - r eigenvalues

    def matmul(self, vectors: Tensor) -> Tensor:
        """(Q Lambda Q^T + rest (I - Q Q^T)) V: (d, v) from V (d, v)."""
        return self.rest * vectors + self.vectors @ ((self.values - self.rest)[:, None] * (self.vectors.T @ vectors))


def shared_basis(fisher: UnitFisher, rank: int, last: Basis | None = None) -> Basis:
    """The basis that preconditions all units of a layer, by subspace iteration from the rows, or from the `last` basis.

    With `last`, A is its mean with the matrix that `last` stands for, in the proportion 1 - KEEP to KEEP.
    """
    n, d, _ = fisher.shape
    weights = fisher.weights.sum(1)
    rows = fisher.inputs * (weights / weights.sum().clamp_min(torch.finfo(weights.dtype).tiny)).sqrt()[:, None]
    trace = rows.square().sum()
    if last is not None:
        trace = torch.lerp(trace, last.values.sum() + last.rest * (d - len(last.values)), KEEP)

    def mean_block(vectors: Tensor) -> Tensor:
        image = rows.T @ (rows @ vectors)
        return image if last is None else torch.lerp(image, last.matmul(vectors), KEEP)

    if rank == 0:
        return Basis(rows.new_zeros(d, 0), rows.new_zeros(0), trace / d)
    if last is not None:
        vectors = torch.linalg.qr(mean_block(last.vectors))[0]
    elif rank >= min(n, d):  # exact, no iteration needed: the row space, or everything
        vectors = torch.linalg.qr(rows.T if n < d else torch.eye(d, dtype=rows.dtype, device=rows.device))[0]
    else:
        vectors = torch.linalg.qr(rows.T[:, :: n // rank][:, :rank])[0]
        for _ in range(4):
            vectors = torch.linalg.qr(mean_block(vectors))[0]
    try:
        values, rotation = torch.linalg.eigh(vectors.T @ mean_block(vectors))
    except torch.linalg.LinAlgError as error:
        raise UserError(
            f"{fisher.name}: its mean Fisher block has no eigenbasis ({error}); lower optimizer.lr"
        ) from error
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
        self._fisher, self._damping = fisher, damping.clone()
        n, d, _ = fisher.shape
        self._direct = DirectSolver("woodbury") if n <= self.rank and n < d else None
        if self._direct is not None:
            self._direct.factor(fisher, damping)
        elif self._basis is None or self._age >= self.preconditioner_every:
            check_finite(fisher, damping)  # between refreshes the training loop's own checks have to do
            self._basis = shared_basis(fisher, self.rank, self._basis)
            self._age = 0
        self._age += 1

    def solve(self, gradient: Tensor) -> Tensor:
        solution = self._iterate(gradient) if self._direct is None else self._direct.solve(gradient)
        self._solved = (gradient, solution)
        self._last = solution.clone() if self.warm_start else None
        return solution

    def _iterate(self, gradient: Tensor) -> Tensor:
        assert self._basis is not None
        fisher, damping = self._fisher, self._damping
        precondition = Preconditioner.of(self._basis, fisher, damping)
        tiny = torch.finfo(gradient.dtype).tiny  # a unit that is solved already has 0 / tiny = 0 as its step
        solution, residual = None, gradient
        if self.warm_start and self._last is not None:
            solution = self._last * (gradient != 0).any(1, keepdim=True)
            residual = gradient - _damped(fisher, damping, solution)
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
                return solution
        assert solution is not None
        if self.tolerance:
            log.warning(
                "%s: conjugate gradient stopped after %d iterations with a relative residual of %.1e in its worst unit, above "
                "solver.tolerance %.1e; raise solver.iterations or damping.value",
                fisher.name, self.iterations, worst_ratio(residual, gradient), self.tolerance,
            )  # fmt: skip
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


def worst_ratio(residual: Tensor, gradient: Tensor) -> Tensor:
    """max_j |r_j| / |g_j| over the units whose gradient is not zero."""
    lengths = gradient.norm(dim=1)
    return torch.where(lengths == 0, 0.0, residual.norm(dim=1) / lengths).max()


def _damped(fisher: UnitFisher, damping: Tensor, vectors: Tensor) -> Tensor:
    return fisher.matmul(vectors).addcmul_(vectors, damping)
