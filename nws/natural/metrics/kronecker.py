"""One block for a whole layer, scaled for each unit, inverted in closed form."""

from collections.abc import Sequence

import torch
from torch import Tensor

from nws.natural.operators import Rows, UnitFisher
from nws.natural.preconditioners import SharedInverse, find_basis
from nws.natural.solvers.solver import Stateless, check_system


class Kronecker(Stateless):
    """F_j ~ s_j sum_k w_k h_k h_k^T, s_j the unit's mean curvature (Martens & Grosse 2015).

    In K-FAC's terms the factor of the outputs is diagonal by the model itself.
    """

    def update(self, rows: Sequence[Rows], alpha: Tensor) -> None:
        """Take in the rows of each layer, and alpha: one eigenbasis a layer."""
        alpha = torch.as_tensor(alpha).to(rows[0].inputs)
        self._inverses = []
        for layer in rows:
            operator = UnitFisher(layer.inputs, layer.curvature, layer.name)
            check_system(operator, alpha)
            shared, d = operator.shared, operator.shape[1]
            basis = find_basis(shared, rank=d, name=layer.name)
            self._inverses.append(SharedInverse.make(basis, shared.scale, alpha))

    def direction(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """(s_j A + alpha I)^{-1} g_j, (m, d) for each layer."""
        return [inverse(g) for inverse, g in zip(self._inverses, gradients, strict=True)]
