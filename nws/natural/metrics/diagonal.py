"""The diagonal of the exact Fisher blocks, averaged over steps and inverted in closed form."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nws.errors import positive_int
from nws.natural.averages import share_of_newest
from nws.natural.metrics.metric import Metric
from nws.natural.operators import Rows, Tensors, UnitFisher
from nws.natural.solvers.solver import check_rows


class Diagonal(Metric):
    """F_j ~ diag(F_j), a running mean over updates.

    Args:
        memory: In updates of the metric, which are `metric.refresh_every` steps apart; 1 for the
            newest rows alone.
    """

    def __init__(self, memory: int = 50) -> None:
        self.memory = positive_int("metric.memory", memory)
        self._steps = 0
        self._diagonals: list[Tensor] = []
        self._alpha: Tensor

    def update(self, rows: Sequence[Rows], alpha: Tensor) -> None:
        self._alpha = check_rows(rows, alpha).clone()
        newest = [UnitFisher(layer.inputs, layer.curvature).diagonal() for layer in rows]
        self._steps += 1
        share = share_of_newest(self.memory, self._steps)
        pairs = zip(self._diagonals or newest, newest, strict=True)
        self._diagonals = [torch.lerp(old, new, share) for old, new in pairs]

    def direction(self, gradients: Tensors) -> list[Tensor]:
        """g_j / (diag(F_j) + alpha), (m, d) for each layer."""
        pairs = zip(gradients, self._diagonals, strict=True)
        return [g / (diagonal + self._alpha) for g, diagonal in pairs]

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "diagonals": self._diagonals}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps, self._diagonals = state["steps"], list(state["diagonals"])
