"""The mean direction alone: what all rows of a layer have in common, scaled for each unit."""

from collections.abc import Sequence

from torch import Tensor

from nws.natural.metrics.metric import Metric
from nws.natural.operators import Rows, Tensors
from nws.natural.solvers.solver import check_rows


class Mean(Metric):
    """F_j ~ s_j c c^T, with the mean row c and the unit's mean curvature s_j.

    Its damped inverse is a rank-one term (Sherman & Morrison 1950), with the c of a unit's own
    parents where a mask hides the others:

        (s_j c c^T + alpha I)^{-1} g = (g - c (c . g) s_j / (alpha + s_j c . c)) / alpha
    """

    def update(self, rows: Sequence[Rows], alpha: Tensor) -> None:
        self._alpha = check_rows(rows, alpha).clone()
        self._means = [(*layer.means, layer.mask) for layer in rows]

    def direction(self, gradients: Tensors) -> list[Tensor]:
        """(s_j c c^T + alpha I)^{-1} g_j, (m, d) for each layer."""
        directions = []
        for g, (c, s, mask) in zip(gradients, self._means, strict=True):
            square = c @ c if mask is None else mask @ c.square()
            along = (g @ c) * s / (self._alpha + s * square)  # (m,)
            seen = c if mask is None else mask * c
            directions.append((g - along[:, None] * seen) / self._alpha)
        return directions

    def graph_key(self, updates: bool) -> str:
        return "any step"
