"""Preconditioners of the matrix-free solvers: cheap approximate inverses of C_j + alpha I.

Symbols: n rows, d parents with the bias, m units, r eigenpairs, alpha damping.
Sources: Sherman & Morrison 1950; Halko, Martinsson & Tropp 2011 (subspace iteration).
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.linalg import vecdot

from nws.errors import UserError, positive_int
from nws.natural.operators import CurvatureOperator, SharedCurvature

State = dict[str, Tensor]
KEEP = 2 / 3  # share of the last covariance at a refresh: the rows of one batch are a poor guide


class Preconditioner(Protocol):
    """An approximate inverse that follows the operators of one layer from step to step."""

    def update(self, operator: CurvatureOperator, damping: Tensor) -> None:
        """Take in a layer's operator and alpha."""

    def __call__(self, vectors: Tensor) -> Tensor:
        """About (C_j + alpha I)^{-1} v_j for all units: (m, d) from V (m, d)."""

    def state_dict(self) -> State:
        """What later updates depend on."""

    def load_state_dict(self, state: State) -> None:
        """Go on from a state."""


class Basis(NamedTuple):
    """The r largest eigenpairs of a covariance (d, d), and the mean of its other eigenvalues."""

    vectors: Tensor  # (d, r) Q
    values: Tensor  # (r,) Lambda
    rest: Tensor  # (1,) rho, mean of the other d - r eigenvalues

    def matmul(self, vectors: Tensor) -> Tensor:
        """(Q Lambda Q^T + rho (I - Q Q^T)) V: (d, v) from V (d, v)."""
        along = (self.values - self.rest)[:, None] * (self.vectors.T @ vectors)
        return self.rest * vectors + self.vectors @ along


def find_basis(
    shared: SharedCurvature,
    rank: int,
    centre: Tensor | float = 0.0,
    last: Basis | None = None,
    name: str = "layer",
) -> Basis:
    """The basis of the rows' covariance about a centre, by subspace iteration.

    Args:
        shared: What the units have in common.
        rank: r, the number of eigenpairs; 0 for none.
        centre: c, (d,), or 0.
        last: An earlier basis, to start from. The covariance is then its mean with the matrix that
            `last` stands for, in the proportion 1 - KEEP to KEEP.
        name: Of the layer, for messages.

    Raises:
        UserError: Where the covariance has no eigenbasis, because rows are not finite.
    """
    rows = shared.centred(centre)
    d = rows.shape[1]
    trace = rows.square().sum()[None]
    if last is not None:
        kept = last.values.sum() + last.rest * (d - last.values.shape[0])
        trace = torch.lerp(trace, kept, KEEP)

    def covariance(vectors: Tensor) -> Tensor:
        image = rows.T @ (rows @ vectors)
        return image if last is None else torch.lerp(image, last.matmul(vectors), KEEP)

    if rank == 0:
        return Basis(rows.new_zeros(d, 0), rows.new_zeros(0), trace / d)
    if last is None:
        vectors = _main_directions(rows, rank)
    else:
        vectors = torch.linalg.qr(covariance(last.vectors))[0]
    values, rotation = _eigenpairs(vectors.T @ covariance(vectors), rows, name)
    rest = (trace - values.sum()).clamp_min(0) / max(1, d - values.shape[0])
    return Basis(vectors @ rotation, values.clamp_min(0), rest)


def _eigenpairs(matrix: Tensor, rows: Tensor, name: str) -> tuple[Tensor, Tensor]:
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except torch.linalg.LinAlgError as error:
        n, d = rows.shape
        raise UserError(
            f"{name}: the covariance of n={n} rows of d={d} parents has no eigenbasis ({error});"
            " lower optimizer.lr"
        ) from error
    return values, vectors


def _main_directions(rows: Tensor, rank: int) -> Tensor:
    """Orthonormal columns (d, r) near the r largest eigenvectors of rows^T rows."""
    n, d = rows.shape
    if rank >= min(n, d):  # exact: the space of the rows, or everything
        return torch.linalg.qr(rows.T)[0] if n < d else torch.eye(d).to(rows)
    vectors = torch.linalg.qr(rows.T[:, :: n // rank][:, :rank])[0]
    for _ in range(4):
        vectors = torch.linalg.qr(rows.T @ (rows @ vectors))[0]
    return vectors


class SharedInverse(NamedTuple):
    """M_j^{-1} for all units, M_j = s_j (c c^T + Q Lambda Q^T + rho (I - Q Q^T)) + alpha I.

    Without c the inverse is P_j = p_j I + Q diag(e_j) Q^T with p_j = 1 / (s_j rho + alpha) and
    e_j = 1 / (s_j Lambda + alpha) - p_j. With c it is P_j - k_j (P_j c)(P_j c)^T with
    k_j = 1 / (1 / s_j + c . P_j c) (Sherman & Morrison 1950). P_j c lies in the span of [Q, c]. So
    all of it is one product with [Q, c], a few numbers for each unit, and one product back.
    """

    span: Tensor  # (r + 1, d) [Q, c]^T
    spread: Tensor  # (m,) 1 / s_j
    identity: Tensor  # (m, 1) p_j
    inside: Tensor  # (m, r + 1) e_j, and 0 for c
    mean: Tensor  # (m, r + 1) P_j c in this span, times sqrt(k_j)

    @staticmethod
    def make(basis: Basis, scale: Tensor, damping: Tensor) -> "SharedInverse":
        """Without c, from s_j (m,) and alpha."""
        values = torch.cat([basis.values, basis.rest])
        inverse = (scale[:, None] * values).add_(damping).reciprocal_()  # (m, r + 1)
        identity, zero = inverse[:, -1:], torch.zeros_like(basis.vectors[:, :1])
        span = torch.cat([basis.vectors, zero], dim=1).T.contiguous()
        inside = inverse - identity
        return SharedInverse(span, scale.reciprocal(), identity, inside, torch.zeros_like(inside))

    def with_mean(self, centre: Tensor) -> "SharedInverse":
        """The same with c (d,)."""
        span = torch.cat([self.span[:-1], centre[None]])
        products = span @ centre  # (r + 1,) q_i . c, and c . c
        mean = self.inside * products
        mean[:, -1:] = self.identity
        factor = (mean @ products).add_(self.spread).rsqrt_()
        return self._replace(span=span, mean=mean.mul_(factor[:, None]))

    def __call__(self, vectors: Tensor) -> Tensor:
        """M_j^{-1} v_j: (m, d) from V (m, d), two products of 2 (r + 1) d m flops."""
        inside = torch.mm(vectors, self.span.T)
        along = vecdot(inside, self.mean)[:, None]
        inside.mul_(self.inside).addcmul_(self.mean, along, value=-1)
        return (vectors * self.identity).addmm_(inside, self.span)


class SharedPreconditioner:
    """The inverse of what units share: the rows' mean, and eigenvectors of their covariance.

    The mean is that of the last operator. The rest is as old as the last refresh, and the
    eigenvectors remember earlier batches. Stale ones cost iterations, but never correctness.

    Args:
        rank: r, eigenpairs kept next to the mean. 15 and the mean make 16 columns.
        every: Updates between refreshes of the eigenpairs.
    """

    def __init__(self, rank: int = 15, every: int = 20) -> None:
        self.rank = positive_int("solver.rank", rank, minimum=0)
        self.every = positive_int("solver.preconditioner_every", every)
        self._age = 0
        self._layer: tuple[str, int] | None = None  # name and parents of the last operator
        self._basis: Basis | None = None
        self._inverse: SharedInverse | None = None

    def update(self, operator: CurvatureOperator, damping: Tensor) -> None:
        """Take in a layer's operator and alpha.

        Raises:
            UserError: For another number of parents than before.
        """
        shared, self._layer = operator.shared, (operator.name, operator.shape[1])
        self._check_layer()
        if self._basis is None or self._age % self.every == 0:
            self._basis = find_basis(shared, self.rank, shared.mean, self._basis, operator.name)
            self._inverse = SharedInverse.make(self._basis, shared.scale, damping)
        self._age += 1
        assert self._inverse is not None
        self._inverse = self._inverse.with_mean(shared.mean)

    def __call__(self, vectors: Tensor) -> Tensor:
        assert self._inverse is not None
        return self._inverse(vectors)

    def state_dict(self) -> State:
        """Age, basis and inverse."""
        state = {"age": torch.tensor(self._age)}
        if self._basis is not None and self._inverse is not None:
            state |= self._basis._asdict() | self._inverse._asdict()
        return state

    def load_state_dict(self, state: State) -> None:
        """Go on from a state.

        Raises:
            UserError: For another number of parents than the last operator has.
        """
        self._age, self._basis = int(state["age"]), None
        if "rest" in state:
            self._basis = Basis(*(state[key] for key in Basis._fields))
            self._inverse = SharedInverse(*(state[key] for key in SharedInverse._fields))
            self._check_layer()

    def _check_layer(self) -> None:
        if self._basis is None or self._layer is None:
            return
        width, (name, d) = self._basis.vectors.shape[0], self._layer
        if width != d:
            raise UserError(
                f"{name}: the preconditioner goes on from a state of {width} parents, these rows"
                f" have {d}; a checkpoint of another version of nws may say so: start a new run, or"
                " take another solver"
            )
