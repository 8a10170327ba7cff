"""Preconditioners of the matrix-free solvers: cheap approximate inverses of C_j + alpha I."""

from abc import ABC, abstractmethod

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

    def state_dict(self) -> State:
        """What later updates depend on; by default nothing."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Go on from a state; by default nothing to do."""


class Unpreconditioned(Preconditioner):
    """The identity: plain conjugate gradient."""

    def __call__(self, vectors: Tensor) -> Tensor:
        return vectors


class SharedPreconditioner(Preconditioner):
    """The inverse of what units share: the rows' mean, and eigenvectors of their covariance.

    The mean is that of the last operator. The rest is as old as the last refresh, and the
    eigenvectors remember earlier batches. Stale ones cost iterations, but never correctness.

    Args:
        rank: r, eigenpairs kept next to the mean. 15 and the mean make 16 columns.
        every: Updates between refreshes of the eigenpairs.

    Raises:
        UserError: For numbers that are out of range.
    """

    def __init__(self, rank: int = 15, every: int = 20) -> None:
        self.rank = positive_int("solver.rank", rank, minimum=0)
        self.every = positive_int("solver.preconditioner_every", every)
        self._age = 0
        self._system: tuple[CurvatureOperator, Tensor] | None = None  # the last one
        self._basis: Basis | None = None
        self._inverse: LayerInverses | None = None

    def update(self, operator: CurvatureOperator, damping: Tensor) -> None:
        self._system = operator, damping
        if self._age % self.every == 0:
            centred = operator.shared.centred()
            self._basis = find_basis(centred, self.rank, self._basis, operator.name)
            self._inverse = None
        self._age += 1
        self._invert()

    def _invert(self) -> None:
        """Bring the inverse up to date with basis, operator and alpha."""
        if self._basis is not None and self._system is not None:
            operator, damping = self._system
            if self._inverse is None:
                self._inverse = LayerInverses([self._basis], [operator.shape[0]], [operator.mask])
            self._inverse.update([operator.shared.mean], [operator.shared.scale], damping)

    def __call__(self, vectors: Tensor) -> Tensor:
        assert self._inverse is not None, "update comes first"
        return self._inverse([vectors])[0]

    def state_dict(self) -> State:
        state = {"age": torch.tensor(self._age)}
        return state if self._basis is None else state | self._basis._asdict()

    def load_state_dict(self, state: State) -> None:
        self._age, self._inverse = int(state["age"]), None
        found = {key: state[key] for key in Basis._fields if key in state}
        self._basis = Basis(**found) if found else None
        self._invert()
