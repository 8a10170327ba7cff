"""The diagonal of the exact Fisher blocks, inverted in closed form."""

from collections.abc import Sequence

import torch
from torch import Tensor

from nws.natural.operators import Rows, UnitFisher
from nws.natural.solvers.solver import Stateless, check_system


class Diagonal(Stateless):
    """F_j ~ diag(F_j)."""

    def update(self, rows: Sequence[Rows], alpha: Tensor) -> None:
        """Take in the rows of each layer, and alpha."""
        alpha = torch.as_tensor(alpha).to(rows[0].inputs)
        operators = [UnitFisher(layer.inputs, layer.curvature, layer.name) for layer in rows]
        for operator in operators:
            check_system(operator, alpha)
        self._damped = [operator.diagonal() + alpha for operator in operators]

    def direction(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """g_j / (diag(F_j) + alpha), (m, d) for each layer."""
        return [g / damped for g, damped in zip(gradients, self._damped, strict=True)]
