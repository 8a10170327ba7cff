"""What a metric is: the protocol that every class of this folder, and a user's own, follows."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from nws.natural.operators import Rows


@runtime_checkable
class Metric(Protocol):
    """A metric of one network: it takes in rows, and turns a gradient into a direction.

    It is made from its options in conf/metric/. A constructor that takes `solver` gets a function
    that makes a solver of the `solver` group. `report`, `state_dict` and `load_state_dict` may be
    left out by a class of your own that has nothing to say or to keep (`Stateless`).

    A metric may have one more method, which `Kronecker` has: `precondition_(weights, biases,
    scale, longest)` multiplies gradients by scale (C_j + alpha I)^{-1} in place, and keeps the
    squared length of the result, by its own matrix, below `longest`. A step takes it in place of
    `direction` where nothing asks for the direction itself: no adaptive damping.
    """

    def update(self, rows: Sequence[Rows], alpha: Tensor) -> None:
        """Take in the rows of each layer, and the damping alpha.

        The number of rows differs from layer to layer. A layer without parents has one row and
        d = 1. The tensor alpha may change in place later: clone it to keep it.

        Raises:
            UserError: Where the metric cannot be inverted.
        """

    def direction(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """(C_j + alpha I)^{-1} g_j, (m, d) for each layer; the caller multiplies by 1 + alpha."""

    def report(self) -> dict[str, float]:
        """Numbers for the log, of the last direction (may synchronise)."""

    def state_dict(self) -> dict[str, Any]:
        """What later directions depend on apart from later rows, as tensors and plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
