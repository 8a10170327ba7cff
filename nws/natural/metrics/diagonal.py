"""The diagonal of the exact Fisher blocks, averaged over steps and inverted in closed form."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from nws.errors import positive_int
from nws.natural.averages import Shares
from nws.natural.metrics.metric import Metric
from nws.natural.operators import Rows, Tensors, UnitFisher
from nws.natural.solvers.solver import check_rows


class Diagonal(Metric):
    """F_j ~ diag(F_j), a running mean over updates.

    Args:
        memory: In updates, `metric.refresh_every` steps apart; 1 for the newest rows alone.
    """

    def __init__(self, memory: int = 50) -> None:
        self.memory = positive_int("metric.memory", memory)
        self._diagonals: list[Tensor] = []
        self._alpha: Tensor
        self._shares: Shares  # of the newest rows

    def update(self, rows: Sequence[Rows], alpha: Tensor) -> None:
        self._alpha = check_rows(rows, alpha).clone()
        newest = [UnitFisher(layer.inputs, layer.curvature).diagonal() for layer in rows]
        if not self._diagonals:
            self._diagonals, self._shares = newest, Shares([self.memory], newest[0])
        share = self._shares.next()
        for mean, new in zip(self._diagonals, newest, strict=True):
            mean.lerp_(new, share)

    def direction(self, gradients: Tensors) -> list[Tensor]:
        """g_j / (diag(F_j) + alpha), (m, d) for each layer."""
        pairs = zip(gradients, self._diagonals, strict=True)
        return [g / (diagonal + self._alpha) for g, diagonal in pairs]

    def graph_key(self, updates: bool) -> str:
        return "any step"

    def state_dict(self) -> dict[str, Any]:
        count = self._shares.count if self._diagonals else 0
        return {"count": count, "diagonals": self._diagonals}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._diagonals = [each.clone() for each in state["diagonals"]]
        if self._diagonals:
            self._shares = Shares([self.memory], self._diagonals[0], state["count"])
