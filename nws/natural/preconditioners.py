"""Preconditioners of the matrix-free solvers: cheap approximate inverses of C_j + alpha I."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from nws.errors import positive_int
from nws.natural.masked import LayerInverses
from nws.natural.operators import CurvatureOperator
from nws.natural.shared import Basis, find_basis

State = dict[str, Tensor]


class Preconditioner(ABC):
    """An approximate inverse that follows the operators of one layer from step to step."""

    def update(self, operator: CurvatureOperator, damping: Tensor) -> None:
        """Take in a layer's operator and alpha; by default nothing to do."""

    @abstractmethod
    def __call__(self, vectors: Tensor) -> Tensor:
        """About (C_j + alpha I)^{-1} v_j for all units: (m, d) from V (m, d)."""

    @property
    def graph_key(self) -> Any:
        """As `Metric.graph_key`, of the next `update` and the calls after it."""
        return None

    def skip(self) -> None:
        """Count an update that a graph did; by default nothing to do."""

    def state_dict(self) -> State:
        """What later updates depend on; by default nothing."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Go on from a state; by default nothing to do."""


class Unpreconditioned(Preconditioner):
    """The identity: plain conjugate gradient."""

    graph_key = True

    def __call__(self, vectors: Tensor) -> Tensor:
        return vectors


class SharedPreconditioner(Preconditioner):
    """The inverse of what units share: the rows' mean, and eigenvectors of their covariance.

    The mean is that of the last operator. The rest is as old as the last refresh, and the
    eigenvectors remember earlier batches. Stale ones cost iterations, but never correctness.

    Args:
        rank: r, eigenpairs kept next to the mean. 15 and the mean make 16 columns.
        every: Updates between refreshes of the eigenpairs.
    """

    def __init__(self, rank: int = 15, every: int = 20) -> None:
        self.rank = positive_int("solver.rank", rank, minimum=0)
        self.every = positive_int("solver.preconditioner_every", every)
        self._age = 0
        self._inverses = LayerInverses()

    def update(self, operator: CurvatureOperator, damping: Tensor) -> None:
        shared = operator.shared
        if self._age % self.every == 0:
            last = self._inverses.bases[0] if self._inverses.bases else None
            basis = find_basis(shared.centred(), self.rank, last, operator.name)
            self._inverses.change([basis])
        self._age += 1
        self._inverses.update([shared.mean], [shared.scale], [operator.mask], damping)

    def __call__(self, vectors: Tensor) -> Tensor:
        return self._inverses([vectors])[0]

    @property
    def graph_key(self) -> Any:
        return None if self._age % self.every == 0 else self._inverses.parts

    def skip(self) -> None:
        self._age += 1

    def state_dict(self) -> State:
        state = {"age": torch.tensor(self._age)}
        return state | self._inverses.bases[0]._asdict() if self._inverses.bases else state

    def load_state_dict(self, state: State) -> None:
        self._age = int(state["age"])
        found = {key: state[key] for key in Basis._fields if key in state}
        self._inverses.change([Basis(**found)] if found else [], now=True)
