"""The Fisher matrix of a sigmoid layer: one block for each unit, held as one lazy operator; small layers can share one.

Symbols: n rows (samples), d parents of the layer with the bias as the last, m units; H (n, d) the parents' states,
S (n, m) the row weights. The Fisher matrix of a sigmoid belief network is block-diagonal with one block per unit (Ay 2002):

    F_j = E[ sigma'(a_j) h h^T ]  ~  sum_k s_kj h_k h_k^T = H^T diag(s_j) H,      s_kj = w_k sigma'(a_kj),  sum_k w_k = 1
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nws.errors import UserError


@dataclass(frozen=True)
class UnitFisher:
    """The m blocks F_j = H^T diag(s_j) H of one layer, each (d, d), without forming them.

    A stack of layers (`FisherStack`) has one more dimension in front, here written "..", and everywhere that follows.
    """

    inputs: Tensor  # (.., n, d) H, the bias column included
    weights: Tensor  # (.., n, m) S, not negative
    name: str = "layer"  # for messages
    size: tuple[int, int, int] | None = (
        None  # (n, d, m) that are no padding, for messages; None: all
    )

    def __post_init__(self) -> None:
        if self.inputs.ndim not in (2, 3) or self.inputs.shape[:-1] != self.weights.shape[:-1]:
            raise UserError(
                "a UnitFisher needs inputs (n, d) and weights (n, m) of the same n rows, "
                f"got {tuple(self.inputs.shape)} and {tuple(self.weights.shape)}"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(n, d, m): rows, parents with the bias, units; of a stack the largest, and what pads them."""
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
        scaled = (
            self.weights.mT[..., units, :, None] * self.inputs[..., None, :, :]
        )  # (.., units, n, d)
        return self.inputs.mT[..., None, :, :] @ scaled

    def quadratic(self, vectors: Tensor) -> Tensor:
        """sum_j v_j^T F_j v_j = |sqrt(S) * (H V^T)|^2, the squared Fisher length of V (.., m, d): a number, one product."""
        return torch.matmul(self.inputs, vectors.mT).square_().mul_(self.weights).sum()


class FisherStack:
    """The Fisher matrices of some layers in memory that every estimate fills anew: one by one, and all of them as one.

    shapes: (n, d, m) of each layer. In the `whole` the rows, parents and units that a layer lacks are zeros, as they are in
    its solutions. The bias, the last parent, is 1 in every row.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, int, int]],
        names: Sequence[str],
        like: Tensor,
        multiple: int = 1,
    ) -> None:
        self.shapes = shapes
        inputs, each_inputs = zeros([(n, d) for n, d, _ in shapes], like, multiple)
        weights, each_weights = zeros([(n, m) for n, _, m in shapes], like, multiple)
        for rows in each_inputs:
            rows[:, -1] = 1
        self.layers = [
            UnitFisher(*parts) for parts in zip(each_inputs, each_weights, names, strict=True)
        ]
        n, d, m = (max(sizes) for sizes in zip(*shapes, strict=True))
        name = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        self.whole = UnitFisher(inputs, weights, name, (n, d, m))

    def fill(self, rows: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Take in the parents' states (n, d - 1) and the row weights (n, m) of each layer."""
        for fisher, (states, weights) in zip(self.layers, rows, strict=True):
            fisher.inputs[:, :-1].copy_(states)
            fisher.weights.copy_(weights)


def zeros(
    shapes: Sequence[tuple[int, int]], like: Tensor, multiple: int = 1
) -> tuple[Tensor, list[Tensor]]:
    """Zeros for matrices of different shapes as one batch (layers, rows, columns), and each matrix's part of it.

    Of one layer they are just a matrix. Rows and columns are the most of any layer, rounded up to a multiple.
    """
    most = (math.ceil(max(sizes) / multiple) * multiple for sizes in zip(*shapes, strict=True))
    batch = like.new_zeros(len(shapes), *most)
    parts = [matrix[:rows, :columns] for matrix, (rows, columns) in zip(batch, shapes, strict=True)]
    return (batch[0] if len(shapes) == 1 else batch), parts
