"""Curvature operators: what a solver sees of a layer's curvature matrix, one block for each unit.

Symbols: n rows (samples), d parents of the layer with the bias as the last, m units; H (n, d) the
parents' states, S (n, m) the curvature that each row adds. The Fisher matrix of a belief network is
block-diagonal with one block per unit (Ay 2002):

    F_j = E[ A''(a_j) h h^T ]  ~  sum_k s_kj h_k h_k^T = H^T diag(s_j) H,
    s_kj = w_k A''(a_kj),  sum_k w_k = 1
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from nws.errors import UserError

Lazy = Tensor | Callable[[], Tensor]  # a tensor, or a function that makes it
Tensors = Sequence[Tensor]  # one of each layer
FEW = 4  # a layer with so many times more parents than rows is solved in the space of its rows


class SharedCurvature(NamedTuple):
    """C_j ~ s_j sum_k w_k h_k h_k^T, sum_k w_k = 1: one second moment, scaled for each unit."""

    scale: Tensor  # (m,) s_j
    mean: Tensor  # (d,) c = sum_k w_k h_k
    inputs: Tensor  # (n, d) H
    weights: Tensor  # (n,) w_k

    def centred(self) -> Tensor:
        """X (n, d - 1) with X^T X = sum_k w_k (h_k - c)(h_k - c)^T; the bias does not vary."""
        return (self.inputs - self.mean)[:, :-1] * self.weights.sqrt()[:, None]


class Rows:
    """Weighted rows of one layer, which a metric takes in.

    A function in place of a tensor is called when a metric first asks for it.

    Args:
        inputs: H (n, d), the bias column included.
        curvature: S (n, m), w_k A''(a_kj).
        squared_errors: Makes w_k (y_kj - A'(a_kj))^2, (n, m); the empirical metric alone needs it.
        name: Of the layer, for messages.
        weights: w_k (n,), which sum to 1; all alike where left out.
        means: Makes c = sum_k w_k h_k (d,) and s_j = sum_k s_kj (m,) without the rows themselves.
            With a cap on the rows c is of all rows, and s_j of the kept ones, so that neither need
            equal a sum over `inputs` and `curvature`.
        mask: (m, d), 0 where a unit does not see a parent, else 1; None where units see all.
        low: A lower precision, for products that need not be exact; it holds 0, 1 and -1 exactly.
    """

    def __init__(
        self, inputs: Lazy, curvature: Lazy, squared_errors: Callable[[], Tensor] | None = None,
        name: str = "layer", weights: Lazy | None = None,
        means: Callable[[], tuple[Tensor, Tensor]] | None = None, mask: Tensor | None = None,
        low: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        self.name, self.mask, self.low = name, mask, low
        self._inputs, self._curvature, self._weights = inputs, curvature, weights
        self._squared_errors, self._means = squared_errors, means

    @cached_property
    def inputs(self) -> Tensor:
        """H (n, d), the bias column included."""
        return _make(self._inputs)

    @cached_property
    def curvature(self) -> Tensor:
        """S (n, m), w_k A''(a_kj)."""
        return _make(self._curvature)

    def squared_errors(self) -> Tensor:
        """w_k (y_kj - A'(a_kj))^2, (n, m); `UserError` where the rows have none."""
        if self._squared_errors is None:
            raise UserError("these rows have no squared_errors, which the empirical metric needs")
        return self._squared_errors()

    @cached_property
    def weights(self) -> Tensor:
        """w_k (n,)."""
        if self._weights is None:
            return self.inputs.new_full((len(self.inputs),), 1 / len(self.inputs))
        return _make(self._weights)

    @cached_property
    def means(self) -> tuple[Tensor, Tensor]:
        """c = sum_k w_k h_k (d,), and s_j = sum_k s_kj (m,)."""
        if self._means is None:
            return self.weights @ self.inputs, self.curvature.sum(0)
        return self._means()

    @property
    def shared(self) -> SharedCurvature:
        """What units have in common, by the rows' own weights."""
        mean, scale = self.means
        return SharedCurvature(scale, mean, self.inputs, self.weights)


def _make(value: Lazy) -> Tensor:
    return value if isinstance(value, Tensor) else value()


class CurvatureOperator(ABC):
    """What a solver needs: m symmetric blocks C_j, each (d, d), without forming them."""

    name: str = "layer"  # for messages
    mask: Tensor | None = None  # (m, d), 0 where C_j has no row and no column

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """(m, d): units and parents."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """n, for messages."""

    @property
    @abstractmethod
    def finite(self) -> bool:
        """Whether what it is made of is finite (synchronises)."""

    @abstractmethod
    def matmul(self, vectors: Tensor) -> Tensor:
        """C_j v_j for all units at once: (m, d), a tensor of its own, from V (m, d)."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """The diagonals of all blocks: (m, d)."""

    @property
    def shared(self) -> SharedCurvature:
        """What the blocks have in common, which preconditions all of them."""
        way = "take ConjugateGradient(preconditioner=Unpreconditioned())"
        name = f"{self.name}: {type(self).__name__}"
        raise UserError(f"{name} has no units that share anything; {way}")

    def reduce(self, damping: Tensor) -> "RowSpace | None":
        """The damped systems in a smaller space; None where there is none."""
        return None

    def rounded(self) -> "CurvatureOperator":
        """The same with quicker products that are less exact; itself where there are none."""
        return self

    def with_rows(self) -> "UnitFisher":
        """The same blocks by their rows, which direct solvers need.

        Raises:
            UserError: Where there are none.
        """
        need = f"{self.name}: a direct solver needs an operator with rows (UnitFisher)"
        raise UserError(f"{need}, got {type(self).__name__}; take solver=pcg or solver=minres")


@dataclass(frozen=True, eq=False)
class UnitFisher(CurvatureOperator):
    """The m blocks F_j = H^T diag(s_j) H of one layer, each (d, d), without forming them.

    With a mask a unit's block has the rows and columns of the parents that it sees, and 0 elsewhere
    (Ay 2002: one block for each unit, over the unit's own parents, in any acyclic graph).

    Args:
        inputs: H (n, d), the bias column included.
        curvature: S (n, m), not negative.
        name: For messages.
        mask: M (m, d), 0 where a unit does not see a parent, else 1; None where units see all.
        low: A lower precision, for `rounded`.

    Examples:
        >>> fisher = UnitFisher(torch.ones(4, 3), torch.full((4, 2), 0.25))
        >>> fisher.matmul(torch.ones(2, 3))
        tensor([[3., 3., 3.],
                [3., 3., 3.]])
    """

    inputs: Tensor
    curvature: Tensor
    name: str = "layer"
    mask: Tensor | None = None
    low: torch.dtype | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.curvature.shape[1], self.inputs.shape[1]

    @property
    def rows(self) -> int:
        return len(self.inputs)

    @property
    def finite(self) -> bool:
        return math.isfinite(float(self.shared.mean.sum()))  # both are in it

    def matmul(self, vectors: Tensor) -> Tensor:
        """F_j v_j for all units at once: (m, d) from V (m, d).

        M * (((H V^T) * S)^T H), two products of 2 n d m flops; V is 0 where M is.
        """
        image = torch.mm(self.inputs, vectors.T.to(self.inputs)).mul_(self.curvature)  # (n, m)
        found = torch.mm(image.T, self.inputs).to(vectors)
        return found if self.mask is None else found.mul_(self.mask)

    def diagonal(self) -> Tensor:
        found = self.curvature.T @ self.inputs.square()
        return found if self.mask is None else found * self.mask

    def blocks(self, units: slice = slice(None)) -> Tensor:
        """Dense blocks of some units: (units, d, d)."""
        inputs = self.inputs if self.mask is None else self.inputs * self.mask[units, None]
        return inputs.mT @ (self.curvature.T[units, :, None] * inputs)  # inner: (units, n, d)

    def quadratic(self, vectors: Tensor) -> Tensor:
        """sum_j v_j^T F_j v_j, the squared Fisher length of V (m, d): a number, one product."""
        vectors = vectors if self.mask is None else vectors * self.mask
        return torch.mm(self.inputs, vectors.T).square_().mul_(self.curvature).sum()

    @cached_property
    def shared(self) -> SharedCurvature:
        """What the blocks have in common: s_j = sum_k s_kj, w_k ~ sum_j s_kj."""
        weights = self.curvature.sum(1)
        weights = weights / weights.sum().clamp_min_(torch.finfo(weights.dtype).tiny)
        return SharedCurvature(self.curvature.sum(0), weights @ self.inputs, self.inputs, weights)

    def reduce(self, damping: Tensor) -> "RowSpace | None":
        """The systems in the space of the rows, where there are few of them."""
        few = FEW * len(self.inputs) <= self.inputs.shape[1]
        return RowSpace(self, damping) if few and self.mask is None else None

    def rounded(self) -> "UnitFisher":
        """The same with H and S in the lower precision, in which products take a third."""
        if self.low is None:
            return self
        inputs, curvature = self.inputs.to(self.low), self.curvature.to(self.low)
        return replace(self, inputs=inputs, curvature=curvature)

    def with_rows(self) -> "UnitFisher":
        return self


class RowSpace:
    """The systems (F_j + alpha I) x_j = g_j in the span of few rows, by Woodbury's identity (1950).

        (alpha I + R_j K R_j) y_j = R_j H g_j,     x_j = (g_j - H^T R_j y_j) / alpha

    with K = H H^T and R_j = diag(sqrt(s_j)). An iteration costs 2 n^2 m flops in place of 4 n d m.
    The preconditioner takes K ~ a 1 1^T + diag(b): what rows have in common is their mean, so
    a = |sum_k w_k h_k|^2 and b_k = K_kk - a. With D_j = (alpha I + R_j diag(b) R_j)^{-1} and the
    roots r_j its inverse is D_j - c_j (D_j r_j)(D_j r_j)^T, c_j = a / (1 + a r_j . D_j r_j).
    """

    def __init__(self, fisher: UnitFisher, damping: Tensor) -> None:
        self.inputs, self.damping = fisher.inputs, damping
        self.roots = fisher.curvature.T.sqrt()  # (m, n)
        self.gram = fisher.inputs @ fisher.inputs.T  # (n, n) K
        common = fisher.shared.mean.square().sum()  # a
        own = (self.gram.diagonal() - common).clamp_min_(0)  # (n,) b
        self._inverse = (fisher.curvature.T * own).add_(damping).reciprocal_()  # (m, n) D
        self._scaled = self.roots * self._inverse
        along = (self.roots * self._scaled).sum(1, keepdim=True)
        self._common = common / (1 + common * along)  # (m, 1) c

    def enter(self, gradient: Tensor) -> Tensor:
        """R_j H g_j: (m, n)."""
        return (gradient @ self.inputs.T).mul_(self.roots)

    def leave(self, gradient: Tensor, right: Tensor, solution: Tensor) -> Tensor:
        """x_j, times the length g . x / (x . (F_j + alpha I) x) that is best along it.

        The length is 1 where y_j has converged. Before that x_j is too long where the curvature is
        high, g_j / alpha at the worst.
        """
        weighted = solution * self.roots
        x = torch.sub(gradient, weighted @ self.inputs).div_(self.damping)
        image = torch.addcmul(right, weighted @ self.gram, self.roots, value=-1)
        image.div_(self.damping)  # R_j H x_j
        curvature = image.square_().sum(1, keepdim=True)
        curvature += self.damping * x.square().sum(1, keepdim=True)
        slope = (gradient * x).sum(1, keepdim=True)
        return x.mul_(slope / curvature.clamp_min_(torch.finfo(x.dtype).tiny))

    def matmul(self, vectors: Tensor) -> Tensor:
        """(alpha I + R_j K R_j) v_j: (m, n)."""
        image = ((vectors * self.roots) @ self.gram).mul_(self.roots)
        return image.addcmul_(vectors, self.damping)

    def precondition(self, vectors: Tensor) -> Tensor:
        """D v - c_j (D r_j)(D r_j . v): (m, n)."""
        along = (vectors * self._scaled).sum(1, keepdim=True).mul_(self._common)
        return (vectors * self._inverse).addcmul_(self._scaled, along, value=-1)

    def length(self, residual: Tensor) -> Tensor:
        """|H^T R_j r_j| / alpha: (m,)."""
        weighted = residual * self.roots
        return ((weighted @ self.gram) * weighted).sum(1).clamp_min(0).sqrt() / self.damping
