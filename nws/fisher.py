"""The Fisher matrix of a sigmoid layer: one block for each unit, held as one lazy operator; small layers can share one.

Symbols: n rows (samples), d parents of the layer with the bias as the last, m units; H (n, d) the parents' states,
S (n, m) the row weights. The Fisher matrix of a sigmoid belief network is block-diagonal with one block per unit (Ay 2002):

    F_j = E[ sigma'(a_j) h h^T ]  ~  sum_k s_kj h_k h_k^T = H^T diag(s_j) H,      s_kj = w_k sigma'(a_kj),  sum_k w_k = 1
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nws.errors import UserError


def with_bias(states: Tensor) -> Tensor:
    """Parents' states (n, d - 1) with the bias as one more parent, which is always 1: (n, d)."""
    return F.pad(states, (0, 1), value=1.0)


def padded(matrices: Sequence[Tensor]) -> Tensor:
    """Matrices of different shapes as one batch (layers, most rows, most columns), with zeros around them."""
    shape = [max(sizes) for sizes in zip(*(matrix.shape for matrix in matrices), strict=True)]
    batch = matrices[0].new_zeros(len(matrices), *shape)
    for place, matrix in zip(batch, matrices, strict=True):
        place[: len(matrix), : matrix.shape[1]] = matrix
    return batch


@dataclass(frozen=True)
class UnitFisher:
    """The m blocks F_j = H^T diag(s_j) H of one layer, each (d, d), without forming them.

    A stack of layers (`UnitFisher.stack`) has one more dimension in front, here written "..", and everywhere that follows.
    """

    inputs: Tensor  # (.., n, d) H, the bias column included
    weights: Tensor  # (.., n, m) S, not negative
    name: str = "layer"  # for messages

    def __post_init__(self) -> None:
        if self.inputs.ndim not in (2, 3) or self.inputs.shape[:-1] != self.weights.shape[:-1]:
            raise UserError(
                "a UnitFisher needs inputs (n, d) and weights (n, m) of the same n rows, "
                f"got {tuple(self.inputs.shape)} and {tuple(self.weights.shape)}"
            )

    @staticmethod
    def stack(fishers: "Sequence[UnitFisher]") -> "UnitFisher":
        """Several layers as one: the rows, parents and units that a layer lacks are zeros, as they are in the solution."""
        if len(fishers) == 1:
            return fishers[0]
        name = f"{fishers[0].name} to {fishers[-1].name}"
        return UnitFisher(
            padded([fisher.inputs for fisher in fishers]), padded([fisher.weights for fisher in fishers]), name
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(n, d, m): rows, parents with the bias, units; of a stack the largest."""
        n, d = self.inputs.shape[-2:]
        return n, d, self.weights.shape[-1]

    def matmul(self, vectors: Tensor) -> Tensor:
        """F_j v_j for all units at once: (.., m, d) from V (.., m, d), as ((H V^T) * S)^T H: two products of 2 n d m flops."""
        return torch.matmul(self.inputs, vectors.mT).mul_(self.weights).mT @ self.inputs

    def diagonal(self) -> Tensor:
        """The diagonals of all blocks: (.., m, d)."""
        return self.weights.mT @ self.inputs.square()

    def trace(self) -> Tensor:
        """The traces of all blocks: (.., m)."""
        return (self.weights.mT @ self.inputs.square().sum(-1, keepdim=True))[..., 0]

    def blocks(self, units: slice = slice(None)) -> Tensor:
        """Dense blocks of some units: (.., units, d, d)."""
        scaled = self.weights.mT[..., units, :, None] * self.inputs[..., None, :, :]  # (.., units, n, d)
        return self.inputs.mT[..., None, :, :] @ scaled

    def quadratic(self, vectors: Tensor) -> Tensor:
        """sum_j v_j^T F_j v_j = |sqrt(S) * (H V^T)|^2, the squared Fisher length of V (.., m, d): a number, one product."""
        return torch.matmul(self.inputs, vectors.mT).square_().mul_(self.weights).sum()
