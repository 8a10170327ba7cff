"""What all units of a layer share, averaged over steps and inverted in closed form."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from nws.errors import positive_int
from nws.natural.averages import share_of_newest
from nws.natural.masked import LayerInverses
from nws.natural.metrics.metric import Metric
from nws.natural.operators import Rows, Tensors
from nws.natural.shared import Basis, find_basis
from nws.natural.solvers.solver import check_rows


class Kronecker(Metric):
    """F_j ~ s_j (c c^T + Q Lambda Q^T + rho (I - Q Q^T)): one matrix a layer, scaled for each unit.

    In the brackets is the second moment of the layer's parents: c is their mean row, and
    Q Lambda Q^T + rho (I - Q Q^T) their covariance, by its r largest eigenpairs and the mean of the
    others. s_j = E[A''(a_j)] is the unit's mean curvature. In terms of K-FAC (Martens & Grosse
    2015) the factor of the outputs is diagonal by the model itself. What is left out of the exact
    block E[A''(a_j) h h^T] is how A'' and h h^T depend on each other.

    Where a mask hides parents from a unit, its block is that of the parents it sees.

    c and s_j are those of the newest rows: a step moves c, and one that is some steps old costs
    nats. The covariance is a running mean over steps.

    Args:
        memory: Of the covariance, in steps; 1 for the newest rows alone.
        rank: r, at most, at least 0; "full" for all eigenpairs.
        refresh_every: Steps between rows that the covariance takes in, at least 1.

    Examples:
        >>> import torch
        >>> metric = Kronecker(memory=50, rank=15)
        >>> metric.update([Rows(torch.ones(4, 3), torch.full((4, 2), 0.25))], torch.tensor(1.0))
        >>> metric.direction([torch.ones(2, 3)])[0]
        tensor([[0.2500, 0.2500, 0.2500],
                [0.2500, 0.2500, 0.2500]])
    """

    own_length = True

    def __init__(self, memory: int = 50, rank: int | str = 15, refresh_every: int = 20) -> None:
        self.memory = positive_int("metric.memory", memory)
        self.refresh_every = positive_int("metric.refresh_every", refresh_every)
        self.rank = rank if rank == "full" else positive_int("metric.rank (or full)", rank, 0)
        self._inverses = LayerInverses()

    def update(self, rows: Sequence[Rows], alpha: Tensor) -> None:
        due = self._step % self.refresh_every == 0
        alpha = check_rows(rows, alpha, waits=due).clone()
        if due:
            self._refresh(rows)
        self._step += 1
        centres, scales = zip(*(layer.means for layer in rows), strict=True)
        self._inverses.update(centres, scales, [layer.mask for layer in rows], alpha)

    def _refresh(self, rows: Sequence[Rows]) -> None:
        """Take the rows into the covariances, and find their eigenpairs."""
        terms = self._step // self.refresh_every + 1
        keep = 1 - share_of_newest(self.memory, terms, self.refresh_every)
        bases: list[Basis] = []
        lasts: Sequence[Basis | None] = self._inverses.bases or [None] * len(rows)
        for layer, last in zip(rows, lasts, strict=True):
            rank = layer.inputs.shape[1] if self.rank == "full" else int(self.rank)
            bases.append(find_basis(layer.shared.centred(), rank, last, layer.name, keep))
        self._inverses.change(bases)

    def direction(self, gradients: Tensors) -> list[Tensor]:
        return self._inverses(gradients)

    def precondition_(self, weights: Tensors, biases: Tensors, scale: Tensor) -> bool:
        self._inverses.apply_(weights, biases, scale)
        return True

    def graph_key(self, updates: bool) -> Any:
        return None if updates and self._step % self.refresh_every == 0 else self._inverses.parts

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step, "bases": [basis._asdict() for basis in self._inverses.bases]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._step = state["step"]
        self._inverses.change([Basis(**basis) for basis in state["bases"]], now=True)
