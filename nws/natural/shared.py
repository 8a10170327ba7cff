"""What the units of a layer share: their parents' second moment, of low rank, and its inverse.

Symbols: n rows, d parents with the bias, m units, r eigenpairs, alpha damping.
Sources: Sherman & Morrison 1950; Halko, Martinsson & Tropp 2011 (subspace iteration).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import vecdot

from nws.errors import Diverged
from nws.natural.operators import Tensors

NARROW = 64  # columns, at most: the host factors these sooner than a GPU, which waits anyway
KEEP = 2 / 3  # share of the last covariance at a refresh: the rows of one batch are a poor guide


class Basis(NamedTuple):
    """The r largest eigenpairs of a matrix (d, d), and the mean of its others."""

    vectors: Tensor  # (d, r) Q
    values: Tensor  # (r,) Lambda
    rest: Tensor  # (1,) rho, mean of the other d - r eigenvalues

    def matmul(self, vectors: Tensor) -> Tensor:
        """(Q Lambda Q^T + rho (I - Q Q^T)) V: (d, v) from V (d, v)."""
        along = (self.values - self.rest)[:, None] * (self.vectors.T @ vectors)
        return self.rest * vectors + self.vectors @ along


def find_basis(
    rows: Tensor, rank: int, last: Basis | None = None, name: str = "layer", keep: float = KEEP
) -> Basis:
    """At most `rank` eigenpairs of X^T X, of rows X (n, d), by subspace iteration.

    It starts from `last`, an earlier basis; `keep` is the share of the matrix that `last` stands
    for in X^T X. `UserError`, with the layer's `name`, where rows are not finite.
    """
    d = rows.shape[1]
    rank = min(rank, d)
    trace = rows.square().sum()[None]
    if last is not None:
        kept = last.values.sum() + last.rest * (d - last.values.shape[0])
        trace = torch.lerp(trace, kept, keep)

    def covariance(vectors: Tensor) -> Tensor:
        image = rows.T @ (rows @ vectors)
        return image if last is None else torch.lerp(image, last.matmul(vectors), keep)

    if rank == 0:
        return Basis(rows.new_zeros(d, 0), rows.new_zeros(0), trace / max(1, d))
    if last is None:
        vectors = _main_directions(rows, rank)
    else:
        image = covariance(last.vectors[:, -rank:])
        more = rows.T[:, : rank - image.shape[1]]  # where fewer rows than the rank made `last`
        vectors = _factors(torch.linalg.qr, torch.cat([image, more], dim=1))[0]
    values, rotation = _eigenpairs(vectors.T @ covariance(vectors), name)
    rest = (trace - values.sum()).clamp_min(0) / max(1, d - values.shape[0])
    return Basis(vectors @ rotation, values.clamp_min(0), rest)


def _factors(factor: Callable[[Tensor], Sequence[Tensor]], matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The factors of a matrix, on its device."""
    one, other = factor(matrix.cpu() if matrix.shape[1] <= NARROW else matrix)
    return one.to(matrix.device), other.to(matrix.device)


def _eigenpairs(matrix: Tensor, name: str) -> tuple[Tensor, Tensor]:
    try:
        found = _factors(torch.linalg.eigh, matrix.double())  # denormals make float32's fail
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # LinAlgError, or on CUDA what cuSOLVER says
        what = f"the covariance of its rows has no eigenbasis ({str(error).splitlines()[0]})"
        raise Diverged(f"{name}: {what}; lower optimizer.lr") from error
    return found[0].to(matrix), found[1].to(matrix)


def take_place(new: Tensors, old: Tensors) -> bool:
    """Copy tensors to where others of the same shapes are; whether all shapes are the same."""
    same = [each.shape for each in new] == [each.shape for each in old]
    if same:
        torch._foreach_copy_(list(old), list(new))
    return same


def _main_directions(rows: Tensor, rank: int) -> Tensor:
    """Orthonormal columns (d, r) near the r largest eigenvectors of rows^T rows."""
    n, d = rows.shape
    if rank >= min(n, d):  # exact: the space of the rows, or everything
        return _factors(torch.linalg.qr, rows.T)[0] if n < d else rows.new_ones(d).diag()
    vectors = _factors(torch.linalg.qr, rows.T[:, :: n // rank][:, :rank])[0]
    for _ in range(4):
        vectors = _factors(torch.linalg.qr, rows.T @ (rows @ vectors))[0]
    return vectors


class SharedInverse:
    """M_j^{-1} for all units of some layers.

        M_j = s_j (c c^T + Q Lambda Q^T + rho (I - Q Q^T)) + alpha I

    c, Q, Lambda and rho are of the layer, s_j of the unit. The bias, 1 in all rows, is in c alone.
    Without c the inverse is P_j = p_j I + Q diag(e_j) Q^T with p_j = 1 / (s_j rho + alpha) and
    e_j = 1 / (s_j Lambda + alpha) - p_j, and 1 / alpha for the bias. With c it is
    P_j - k_j (P_j c)(P_j c)^T with k_j = s_j / (1 + s_j c . P_j c) (Sherman & Morrison 1950).
    Apart from the bias P_j c lies in the span of [c, Q]. So all of it is one product with [c, Q], a
    few numbers for each unit, and one product back. These numbers lie next to each other for the
    units of all layers, the M rows of one matrix.
    """

    def __init__(self, bases: Sequence[Basis], widths: Sequence[int]) -> None:
        like = bases[0].rest
        first = (like.new_zeros(1, len(basis.vectors)) for basis in bases)  # the place of c
        self._spans = [torch.cat([c, b.vectors.T]) for c, b in zip(first, bases, strict=True)]
        self._places = [span[0] for span in self._spans]
        columns = max(len(span) for span in self._spans)
        # rho, then Lambda; rho again where a layer has fewer eigenpairs
        values = torch.stack([basis.rest.expand(columns) for basis in bases])
        for row, basis in zip(values, bases, strict=True):
            row[1 : 1 + len(basis.values)] = basis.values
        self._widths = list(widths)
        parts = [like.new_full((m,), i, dtype=torch.long) for i, m in enumerate(self._widths)]
        self._layer = torch.cat(parts)  # of each unit
        self._values = values[self._layer]
        self.tensors = [self._values, *self._spans]  # what bases bring
        self._products = like.new_zeros(len(bases), columns)
        self._along = like.new_zeros(len(self._layer), columns)

    def update(self, centres: Tensors, scale: Tensor, damping: Tensor) -> None:
        """Take in c (d,) of each layer, s_j (M,) and alpha."""
        hidden = [centre[:-1] for centre in centres]
        torch._foreach_copy_(self._places, hidden)
        for span, row, centre in zip(self._spans, self._products, hidden, strict=True):
            torch.mv(span, centre, out=row[: len(span)])
        products = self._products[self._layer]
        inverse = (scale[:, None] * self._values).add_(damping).reciprocal_()  # (M, r + 1)
        self._identity = inverse[:, :1]  # p
        self._inside = inverse - self._identity  # e, and 0 for c
        self._mean = self._inside * products  # P_j c in the span
        self._mean[:, :1] = self._identity
        self._bias = damping.reciprocal()
        along = (self._mean * products).sum(1).add_(self._bias)  # c . P c
        self._factor = scale / along.mul_(scale).add_(1)  # k

    def apply_(self, weights: Tensors, biases: Tensors, scale: Tensor | float = 1.0) -> None:
        """Multiply V by scale M_j^{-1} in place: two products of 2 (r + 1) d m flops a layer.

        The arguments are those of `Metric.precondition_`.
        """
        bias, blocks = torch.cat(list(biases)), self._along.split(self._widths)
        for along, span, each in zip(blocks, self._spans, weights, strict=True):
            torch.mm(each, span.T, out=along[:, : len(span)])
        common = vecdot(self._along, self._mean).addcmul_(bias, self._bias).mul_(self._factor)
        inside = (self._along * self._inside).addcmul_(self._mean, common[:, None], value=-1)
        inside.mul_(scale)
        changed, identity = (bias - common).mul_(self._bias).mul_(scale), self._identity * scale
        torch._foreach_copy_(list(biases), list(changed.split(self._widths)))
        parts = zip(weights, identity.split(self._widths), inside.split(self._widths), strict=True)
        for (each, own, along), span in zip(parts, self._spans, strict=True):
            each.mul_(own).addmm_(along[:, : len(span)], span)
