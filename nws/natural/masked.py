"""The inverse of what units of a layer share, where a mask hides some parents from some units."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from nws.natural.operators import Tensors
from nws.natural.shared import Basis, SharedInverse, take_place


class MaskedInverse:
    """M_j^{-1} for the units of one layer, each over the parents that it sees.

        M_j = s_j K[seen, seen] + alpha I,     K = c c^T + Q Lambda Q^T + rho (I - Q Q^T)

    c, Q, Lambda and rho are of the layer, s_j of the unit; the bias, 1 in all rows, is in c alone.
    With U = [c, Q (Lambda - rho)^{1/2}], b_j = s_j rho + alpha (alpha for the bias) and u_i the
    row of U that parent i has, it is (Woodbury 1950)

        (g_j - s_j U (I + s_j T_j)^{-1} U^T (g_j / b_j)) / b_j     at the parents that unit j sees,
        T_j = sum_{i seen by j} u_i u_i^T / b_j

    So it is two products with U, and a system of r + 1 numbers for each unit.

    Args:
        basis: Q (d - 1, r), Lambda and rho.
        mask: (m, d), 0 where a unit does not see a parent, else 1.
    """

    def __init__(self, basis: Basis, mask: Tensor) -> None:
        self._rest, self._mask = basis.rest, mask[:, :-1]
        self._columns = basis.vectors * (basis.values - basis.rest).clamp_min(0).sqrt()
        pairs = self._columns[:, :, None] * self._columns[:, None, :]  # (d - 1, r, r)
        self._pairs = (self._mask @ pairs.flatten(1)).unflatten(1, pairs.shape[1:])  # (m, r, r)

    def update(self, centres: Tensors, scale: Tensor, damping: Tensor) -> None:
        """Take in c (d,) of the one layer, s_j (m,) and alpha."""
        c = centres[0][:-1, None]
        self._span = torch.cat([c, self._columns], dim=1)  # (d - 1, r + 1)
        sums = pad(self._pairs, (1, 0, 1, 0))
        sums[:, 0] = sums[:, :, 0] = self._mask @ (c * self._span)
        self._scale, self._damping = scale[:, None], damping
        self._identity = (self._scale * self._rest + damping).reciprocal_()  # (m, 1) 1 / b_j
        inner = sums.mul_((self._scale * self._identity)[:, :, None])
        inner[:, 0, 0] += scale / damping
        inner.diagonal(dim1=1, dim2=2).add_(1)
        self._factors = torch.linalg.cholesky_ex(inner)[0]

    def apply_(self, weights: Tensors, biases: Tensors, scale: Tensor | float = 1.0) -> None:
        """Multiply V, which is 0 where the mask is, by scale M_j^{-1} in place."""
        (weight,), (bias,) = weights, biases
        along = (weight @ self._span).mul_(self._identity)
        along[:, 0] += bias / self._damping
        inside = torch.cholesky_solve(along[:, :, None], self._factors)[:, :, 0].mul_(self._scale)
        bias.sub_(inside[:, 0]).mul_(scale / self._damping)
        weight.addmm_(inside, self._span.T, alpha=-1).mul_(self._identity * scale).mul_(self._mask)


class LayerInverses:
    """The inverses of some layers: `SharedInverse` of those without a mask, `MaskedInverse` else.

    Their bases change at times, all else in each step.

    Attributes:
        bases: Of each layer; empty before the first ones.
        parts: Inverses and their layers. Those without a mask stay, with new bases in their places.
    """

    def __init__(self) -> None:
        self.bases: list[Basis] = []
        self.parts: list[tuple[MaskedInverse | SharedInverse, list[int]]] = []
        self._last: tuple[Any, ...] | None = None  # what the last step brought

    def change(self, bases: list[Basis], now: bool = False) -> None:
        """Take in the bases, at the next update; or at once, with the last c, s_j and alpha."""
        self.bases, self._stale = bases, True
        if now and bases and self._last is not None:
            self.update(*self._last)

    def update(
        self, centres: Tensors, scales: Tensors, masks: Sequence[Tensor | None], damping: Tensor
    ) -> None:
        """Take in c (d,), s_j (m,) and the mask (m, d), or None, of each layer; and alpha."""
        self._last = centres, scales, masks, damping
        if self._stale:
            pairs = list(enumerate(zip(self.bases, masks, strict=True)))
            last = [inverse for inverse, _ in self.parts if isinstance(inverse, SharedInverse)]
            self.parts = [(MaskedInverse(b, m), [i]) for i, (b, m) in pairs if m is not None]
            if plain := [i for i, (_, mask) in pairs if mask is None]:
                widths = [len(scales[i]) for i in plain]
                new = SharedInverse([self.bases[i] for i in plain], widths)
                stays = last and take_place(new.tensors, last[0].tensors)
                self.parts.append((last[0] if stays else new, plain))
            self._stale = False
        for inverse, at in self.parts:
            inverse.update([centres[i] for i in at], torch.cat([scales[i] for i in at]), damping)

    def apply_(self, weights: Tensors, biases: Tensors, scale: Tensor | float = 1.0) -> None:
        """Multiply V by scale M_j^{-1} in place; the arguments are those of `Metric`."""
        for inverse, at in self.parts:
            inverse.apply_([weights[i] for i in at], [biases[i] for i in at], scale)

    def __call__(self, vectors: Tensors) -> list[Tensor]:
        """M_j^{-1} v_j: (m, d) of each layer from V (m, d)."""
        found = [each.clone() for each in vectors]
        self.apply_([each[:, :-1] for each in found], [each[:, -1] for each in found])
        return found
