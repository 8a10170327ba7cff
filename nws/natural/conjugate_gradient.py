"""Matrix-free conjugate gradient on all units of a layer, or of a stack of layers, at once; and what preconditions it.

Symbols: n rows, d parents with the bias, m units, r eigenpairs, alpha damping; ".." the layers of a stack.
Sources: Hestenes & Stiefel 1952; Martens 2010 (matrix-free natural gradient); Halko, Martinsson & Tropp 2011 (subspace
iteration); Woodbury 1950 (the rows' space).
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from nws.errors import UserError, positive_int
from nws.natural.direct_solvers import State, check_damping, check_finite
from nws.natural.operators import UnitFisher

log = logging.getLogger(__name__)


KEEP = (
    2 / 3
)  # of the last covariance at a refresh: one batch's rows alone are a poor guide to the next batch's
LIMIT = 100  # iterations, where their number is not given
FEW = 4  # a layer with so many times more parents than rows is solved in the rows' space


class Basis(NamedTuple):
    """The r largest eigenpairs of the rows' covariance C = sum_k w_k (h_k - c)(h_k - c)^T, and the mean of the rest."""

    vectors: Tensor  # (.., d, r) Q
    values: Tensor  # (.., r) Lambda
    rest: Tensor  # (.., 1) mean of the other d - r eigenvalues

    def matmul(self, vectors: Tensor) -> Tensor:
        """(Q Lambda Q^T + rest (I - Q Q^T)) V: (.., d, v) from V (.., d, v)."""
        rest = self.rest[..., None]
        return rest * vectors + self.vectors @ (
            (self.values[..., None] - rest) * (self.vectors.mT @ vectors)
        )


def row_weights(fisher: UnitFisher) -> Tensor:
    """The units' shared row weights w_k ~ sum_j s_kj, sum_k w_k = 1: (.., 1, n)."""
    weights = fisher.weights.sum(-1)[..., None, :]
    return weights / weights.sum(-1, keepdim=True).clamp_min_(torch.finfo(weights.dtype).tiny)


def shared_basis(
    fisher: UnitFisher, rank: int, centre: Tensor | None = None, last: Basis | None = None
) -> Basis:
    """The basis that preconditions all units of a layer, by subspace iteration from the rows, or from the `last` basis.

    centre: c (.., 1, d), the rows' mean say; None: zero. With `last`, C is its mean with the matrix that `last` stands for,
    in the proportion 1 - KEEP to KEEP.
    """
    n, d, _ = fisher.shape
    rows = fisher.inputs if centre is None else fisher.inputs - centre
    rows = rows * row_weights(fisher).sqrt_().mT
    trace = rows.square().sum((-2, -1))[..., None]
    if last is not None:
        trace = torch.lerp(
            trace, last.values.sum(-1, keepdim=True) + last.rest * (d - last.values.shape[-1]), KEEP
        )

    def covariance(vectors: Tensor) -> Tensor:
        image = rows.mT @ (rows @ vectors)
        return image if last is None else torch.lerp(image, last.matmul(vectors), KEEP)

    if rank == 0:
        return Basis(rows.mT[..., :0].clone(), rows[..., 0, :0].clone(), trace / d)
    if last is not None:
        vectors = torch.linalg.qr(covariance(last.vectors))[0]
    elif rank >= min(n, d):  # exact, no iteration needed: the row space, or everything
        everything = torch.eye(d, dtype=rows.dtype, device=rows.device).expand(
            *rows.shape[:-2], d, d
        )
        vectors = torch.linalg.qr(rows.mT)[0] if n < d else everything
    else:
        vectors = torch.linalg.qr(rows.mT[..., :: n // rank][..., :rank])[0]
        for _ in range(4):
            vectors = torch.linalg.qr(covariance(vectors))[0]
    try:
        values, rotation = torch.linalg.eigh(vectors.mT @ covariance(vectors))
    except torch.linalg.LinAlgError as error:
        raise UserError(
            f"{fisher.name}: the covariance of n={n} rows of d={d} parents has no eigenbasis ({error}); lower optimizer.lr"
        ) from error
    rest = (trace - values.sum(-1, keepdim=True)).clamp_min(0) / max(1, d - values.shape[-1])
    return Basis(vectors @ rotation, values.clamp_min(0), rest)


class Preconditioner(NamedTuple):
    """M_j^{-1} for all units, M_j = sbar_j (c c^T + Q Lambda Q^T + rest (I - Q Q^T)) + alpha I, sbar_j = sum_k s_kj.

    Without c the inverse is P_j = a_j I + Q diag(e_j) Q^T, a_j = 1 / (sbar_j rest + alpha) and e_j = 1 / (sbar_j Lambda + alpha)
    - a_j; with it P_j - k_j (P_j c) (P_j c)^T, k_j = 1 / (1 / sbar_j + c . P_j c) (Sherman & Morrison 1950). As P_j c lies in the
    span of [Q, c], all of it is one product with [Q, c], a few numbers for each unit, and one product back.
    """

    span: Tensor  # (.., r + 1, d) [Q, c]^T
    spread: Tensor  # (.., m, 1) 1 / sbar_j
    scale: Tensor  # (.., m, 1) a_j
    extra: Tensor  # (.., m, r + 1) e_j, and 0 for c
    mean: Tensor  # (.., m, r + 1) P_j c in this span, times sqrt(k_j)

    @staticmethod
    def of(basis: Basis, curvature: Tensor, damping: Tensor) -> "Preconditioner":
        """With c = 0, from sbar (.., m)."""
        values = torch.cat([basis.values, basis.rest], dim=-1)[..., None, :]
        inverse = (curvature[..., None] * values).add_(damping).reciprocal_()  # (.., m, r + 1)
        scale, span = (
            inverse[..., -1:],
            torch.nn.functional.pad(basis.vectors, (0, 1)).mT.contiguous(),
        )
        return Preconditioner(
            span,
            curvature[..., None].reciprocal(),
            scale,
            inverse - scale,
            torch.zeros_like(inverse),
        )

    def about(self, centre: Tensor) -> "Preconditioner":
        """The same with another c (.., 1, d)."""
        span = torch.cat([self.span[..., :-1, :], centre], dim=-2)
        products = centre @ span.mT  # (.., 1, r + 1) c . q_i, and c . c
        mean = self.extra * products
        mean[..., -1:] = self.scale
        factor = (mean @ products.mT).add_(self.spread).rsqrt_()
        return self._replace(span=span, mean=mean.mul_(factor))

    def __call__(self, vectors: Tensor) -> Tensor:
        """M_j^{-1} v_j: (.., m, d) from V (.., m, d), two products of 2 (r + 1) d m flops."""
        inside = vectors @ self.span.mT
        along = (inside * self.mean).sum(-1, keepdim=True)
        inside.mul_(self.extra).addcmul_(self.mean, along, value=-1)
        image = vectors * self.scale
        return (
            image.addmm_(inside, self.span)
            if image.ndim == 2
            else image.baddbmm_(inside, self.span)
        )


class Parents(NamedTuple):
    """The systems as they stand, (F_j + alpha I) x_j = g_j: m vectors of d parents."""

    fisher: UnitFisher
    damping: Tensor
    precondition: Preconditioner
    cheaper: int = 1  # iterations for each of a fixed number

    def enter(self, gradient: Tensor) -> Tensor:
        return gradient

    def leave(self, gradient: Tensor, entered: Tensor, solution: Tensor) -> Tensor:
        return solution

    def matmul(self, vectors: Tensor) -> Tensor:
        return self.fisher.matmul(vectors).addcmul_(vectors, self.damping)

    def length(self, residual: Tensor) -> Tensor:
        """|r_j| of each unit: (.., m)."""
        return residual.norm(dim=-1)

    def size(self, solution: Tensor, gradient: Tensor) -> Tensor:
        """sum_j x_j . (F_j + alpha I) x_j near the solution, which is what the iterations' gains add up to."""
        return (solution * gradient).sum()


class Rows:
    """The same systems in the span of few rows: (alpha I + R_j K R_j) y_j = R_j H g_j, x_j = (g_j - H^T R_j y_j) / alpha.

    K = H H^T, R_j = diag(sqrt(s_j)): m vectors of n rows, by Woodbury's identity; an iteration costs 2 n^2 m flops.
    Preconditioned by K ~ a 1 1^T + diag(b): what rows have in common is their mean, so a = |sum_k w_k h_k|^2 and b_k = K_kk - a.
    With D_j = (alpha I + R_j diag(b) R_j)^{-1} and the roots r_j the inverse is D_j - c_j (D_j r_j) (D_j r_j)^T,
    c_j = a / (1 + a r_j . D_j r_j): each unit's own row weights enter, and nothing has to be factored.
    """

    cheaper = 2  # iterations for each of a fixed number

    def __init__(self, fisher: UnitFisher, damping: Tensor) -> None:
        self.inputs, self.damping = fisher.inputs, damping
        self.roots = fisher.weights.mT.sqrt()  # (.., m, n)
        self.gram = fisher.inputs @ fisher.inputs.mT  # (.., n, n) K
        mean = row_weights(fisher)  # (.., 1, n), of which the mean row is mean @ H
        common = mean @ self.gram @ mean.mT  # (.., 1, 1) a
        own = (self.gram.diagonal(dim1=-2, dim2=-1)[..., None, :] - common).clamp_min_(
            0
        )  # (.., 1, n) b
        self._inverse = (fisher.weights.mT * own).add_(damping).reciprocal_()  # (.., m, n) D
        self._scaled = self.roots * self._inverse
        self._common = common / (
            1 + common * (self.roots * self._scaled).sum(-1, keepdim=True)
        )  # (.., m, 1) c

    def enter(self, gradient: Tensor) -> Tensor:
        return (gradient @ self.inputs.mT).mul_(self.roots)

    def leave(self, gradient: Tensor, entered: Tensor, solution: Tensor) -> Tensor:
        """x_j, times the length g . x / (x . (F_j + alpha I) x) that is best along it: 1 where y_j has converged.

        Before that x_j is too long where the curvature is high, g_j / alpha at the worst: an unfinished solve must not be a leap.
        """
        weighted = solution * self.roots
        x = torch.sub(gradient, weighted @ self.inputs).div_(self.damping)
        change = torch.addcmul(entered, weighted @ self.gram, self.roots, value=-1).div_(
            self.damping
        )  # R_j H x_j
        curvature = change.square_().sum(-1, keepdim=True) + self.damping * x.square().sum(
            -1, keepdim=True
        )
        slope = (gradient * x).sum(-1, keepdim=True)
        return x.mul_(slope / curvature.clamp_min_(torch.finfo(x.dtype).tiny))

    def matmul(self, vectors: Tensor) -> Tensor:
        return ((vectors * self.roots) @ self.gram).mul_(self.roots).addcmul_(vectors, self.damping)

    def precondition(self, vectors: Tensor) -> Tensor:
        along = (vectors * self._scaled).sum(-1, keepdim=True).mul_(self._common)
        return (vectors * self._inverse).addcmul_(self._scaled, along, value=-1)

    def length(self, residual: Tensor) -> Tensor:
        """Length of each unit's residual among the parents, |H^T R_j r_j| / alpha: (.., m)."""
        weighted = residual * self.roots
        return ((weighted @ self.gram) * weighted).sum(-1).clamp_min(0).sqrt() / self.damping

    def size(self, solution: Tensor, gradient: Tensor) -> Tensor:
        """alpha^2 |x|^2, as an error e of y is one of H^T R_j e_j / alpha in x, its square below e_j . A_j e_j / alpha^2."""
        return (self.damping * solution).square().sum()


class PreconditionedConjugateGradient:
    """Matrix-free conjugate gradient on all units at once, preconditioned by what the units have in common.

    The m systems of a layer differ only in their row weights, so the rows' mean and the eigenvectors of their covariance serve
    all of them. A stale basis costs iterations, never correctness: it is refreshed every `preconditioner_every` factorings,
    while the Fisher matrix, and the mean, are those of the last `factor`.
    Where a layer has few rows (`FEW`) the iterations run in their space (`Rows`), where they are cheap.

    iterations: a fixed number, twice as many in the rows' space (reads nothing from the device, but for the eigenvectors at
        a refresh); None: as many as a relative error of `accuracy` in the solution needs (of a stack of layers: of all).
    accuracy: iteration i shortens a unit's squared error by step_i energy_i (Hestenes & Stiefel 1952, theorem 6:1), from which
        what is left of it is foretold, and summed over the units. This is looked at, and the number settled, at each
        refresh and in steps 1, 2, 4, 8 .. after the first (reading a few numbers from the device then, and none in the others).
    tolerance: > 0: stop where the worst unit's relative residual is below it (reads one number an iteration, always).
    rank: eigenpairs kept beside the mean (0: none); 15 and the mean make 16 columns, which matrix products like.
    warm_start: from the last solve's direction.

    The last iteration of a number that was found reuses a step length, the least of those before, which saves its product with
    F: k iterations cost k - 1 products, at nearly the error that k products have. A step of twice the right length would gain
    nothing, and a longer one do harm, as may happen where alpha is small: so when the number is looked at the product is made,
    and a length reused until the next look only if it keeps the foretold error below `accuracy`.
    """

    stacks = True

    def __init__(
        self,
        iterations: int | None = None,
        accuracy: float = 1e-2,
        tolerance: float = 0.0,
        rank: int = 15,
        preconditioner_every: int = 20,
        warm_start: bool = False,
    ) -> None:
        self.iterations = (
            None if iterations is None else positive_int("solver.iterations", iterations)
        )
        self.accuracy = _fraction("solver.accuracy", accuracy)
        self.tolerance = _fraction("solver.tolerance", tolerance)
        self.rank = positive_int("solver.rank", rank, minimum=0)
        self.preconditioner_every = positive_int(
            "solver.preconditioner_every", preconditioner_every
        )
        self.warm_start = warm_start
        self.used_iterations = 0
        self._age = 0  # factorings so far
        self._count = 0  # iterations that the last measured solve needed; 0: the next one measures
        self._reuse = False  # whether the last iteration takes a step length of those before
        self._basis: Basis | None = None
        self._last: Tensor | None = None
        self._system: Parents | Rows | None = None
        self._solved: tuple[Tensor, Tensor] | None = None

    def factor(self, fisher: UnitFisher, damping: Tensor) -> None:
        check_damping(fisher, damping, needed=True)
        self._check_state(fisher)
        self._fisher, self._damping = fisher, damping.clone()
        self._centre = row_weights(fisher) @ fisher.inputs  # (.., 1, d) the rows' mean
        check_finite(fisher, damping, self._centre)
        due = self._age % self.preconditioner_every == 0
        if due or self._age & (self._age - 1) == 0:
            self._count = 0
        self._age += 1
        if not _has_few_rows(fisher) and (due or self._basis is None):
            self._basis = shared_basis(fisher, self.rank, self._centre, self._basis)
            self._made_from = (fisher.weights.sum(-2), self._damping)
            self._shared = Preconditioner.of(self._basis, *self._made_from)
        self._system = self._make_system(fisher)

    def _check_state(self, fisher: UnitFisher) -> None:
        widths = [] if self._basis is None else [self._basis.vectors.shape[-2]]
        widths += [] if self._last is None else [self._last.shape[-1]]
        d = fisher.inputs.shape[-1]
        if any(width != d for width in widths):
            raise UserError(
                f"{fisher.name}: pcg goes on from a state of {widths[0]} parents, these rows have {d}; a checkpoint of another "
                "version of nws may say so: start anew, or go on with another solver"
            )

    def _make_system(self, fisher: UnitFisher) -> "Parents | Rows":
        if _has_few_rows(fisher):
            return Rows(fisher, self._damping)
        return Parents(fisher, self._damping, self._shared.about(self._centre))

    def solve(self, gradient: Tensor) -> Tensor:
        system, start, right = self._system, None, gradient
        assert system is not None
        if self.warm_start and self._last is not None:
            start = self._last * (gradient != 0).any(-1, keepdim=True)
            right = gradient - _damped(self._fisher, self._damping, start)
        target = self.tolerance * gradient.norm(dim=-1) if self.tolerance else None

        entered = system.enter(right)

        def whole(part: Tensor) -> Tensor:
            x = system.leave(right, entered, part)
            return x if start is None else x + start

        def size(part: Tensor) -> Tensor:
            return system.size(whole(part), gradient)

        solution = whole(self._iterate(system, entered, target, size))
        self._solved = (gradient, solution)
        self._last = solution.clone() if self.warm_start else None
        return solution

    def _iterate(
        self,
        system: "Parents | Rows",
        right: Tensor,
        target: Tensor | None,
        size: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Conjugate gradient from zero. target: the length of residual at which each unit is done (.., m)."""
        tiny = torch.finfo(
            right.dtype
        ).tiny  # a unit that is solved already has 0 / tiny = 0 as its step
        limit = (
            self._count or LIMIT if self.iterations is None else self.iterations * system.cheaper
        )
        measured = self.iterations is None and not self._count and target is None
        reuse = self.iterations is None and self._reuse and target is None
        residual, solution, direction, energy, least, gain = right, None, None, None, None, None
        step = left = allowed = right.new_zeros(())
        for iteration in range(1, limit + 1):
            self.used_iterations = iteration
            steepest = system.precondition(residual)
            new_energy = (residual * steepest).sum(-1, keepdim=True)
            if direction is None or energy is None:
                direction = steepest
            else:
                direction = steepest.addcmul_(new_energy / energy.clamp_min_(tiny), direction)
            energy = new_energy
            if solution is not None and least is not None and gain is not None:
                # Of a unit's squared error this iteration takes step x energy, all that follow about its square / gain.
                left = ((step * energy).square_() / gain.clamp_min_(tiny)).sum()
                allowed = self.accuracy**2 * size(solution)
                if iteration == limit or not left > allowed:
                    self._count = iteration
            elif solution is not None and least is not None and reuse and iteration == limit:
                return solution.addcmul_(least, direction)
            image = system.matmul(direction)
            step = energy / (direction * image).sum(-1, keepdim=True).clamp_min_(tiny)
            solution = step * direction if solution is None else solution.addcmul_(step, direction)
            if measured:
                gain = step * energy
                if self._count and least is not None:
                    lost = ((step - least).square_() * energy / step.clamp_min(tiny)).sum()
                    self._reuse = bool(left + lost <= allowed)
                    return solution
            if measured or reuse:
                least = step if least is None else torch.minimum(least, step)
            if residual is right:
                residual = torch.addcmul(right, step, image, value=-1)
            else:
                residual.addcmul_(step, image, value=-1)
            if target is not None and (system.length(residual) <= target).all():
                return solution
        assert solution is not None
        if target is not None:
            worst = self.tolerance * float(
                torch.where(target == 0, 0.0, system.length(residual) / target).max()
            )
            log.warning(
                "%s: conjugate gradient stopped after %d iterations with a relative residual of %.1e in its worst unit, above "
                "solver.tolerance %.1e; raise solver.iterations or damping.value",
                self._fisher.name, limit, worst, self.tolerance,
            )  # fmt: skip
        return solution

    def report(self) -> dict[str, float]:
        """Iterations and the worst unit's relative residual of the last solve (one more product, and a synchronisation)."""
        if self._solved is None:
            return {}
        gradient, solution = self._solved
        residual = gradient - _damped(self._fisher, self._damping, solution)
        return {
            "iterations": self.used_iterations,
            "residual": float(worst_ratio(residual, gradient)),
        }

    def state_dict(self) -> State:
        state = {
            name: torch.tensor(getattr(self, f"_{name}")) for name in ("age", "count", "reuse")
        }
        if self._basis is not None:
            curvature, damping = self._made_from
            state |= self._basis._asdict() | {"curvature": curvature, "damping": damping}
        if self._last is not None:
            state["last"] = self._last
        return state

    def load_state_dict(self, state: State) -> None:
        self._age, self._count = int(state["age"]), int(state.get("count", 0))
        self._reuse = bool(state.get("reuse", False))
        self._last = state.get("last")
        self._basis = None
        if "curvature" in state:
            self._basis = Basis(*(state[name] for name in Basis._fields))
            self._made_from = (state["curvature"], state["damping"])
            self._shared = Preconditioner.of(self._basis, *self._made_from)
        if self._system is not None:  # rows that were taken in before the state
            self._check_state(self._fisher)
            self._system = self._make_system(self._fisher)


def worst_ratio(residual: Tensor, gradient: Tensor) -> Tensor:
    """max_j |r_j| / |g_j| over the units whose gradient is not zero."""
    lengths = gradient.norm(dim=-1)
    return torch.where(lengths == 0, 0.0, residual.norm(dim=-1) / lengths).max()


def _has_few_rows(fisher: UnitFisher) -> bool:
    n, d, _ = fisher.shape
    return FEW * n <= d


def _fraction(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise UserError(f"{name} must be a number from 0 (none) to 1, got {value!r}")
    return value


def _damped(fisher: UnitFisher, damping: Tensor, vectors: Tensor) -> Tensor:
    return fisher.matmul(vectors).addcmul_(vectors, damping)
