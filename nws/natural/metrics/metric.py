"""What a metric is: the base class of every class of this folder, and of a user's own."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from nws.natural.operators import Rows, Tensors


class Metric(ABC):
    """A metric of one network: it takes in rows, and turns a gradient into a direction.

    It is made from its options in conf/metric/. A constructor that takes `solver` gets a function
    that makes a solver of the `solver` group. Methods other than `update` and `direction` may be
    left out: by default there is nothing to do.
    """

    due: bool = True  # whether the next update looks at its rows; else they may not be made
    own_length = False  # whether a trust region takes its matrices C_j; else the exact F_j
    _step = 0  # updates so far, where they are counted

    @abstractmethod
    def update(self, rows: Sequence[Rows], alpha: Tensor) -> None:
        """Take in the rows of each layer, and the damping alpha.

        The number of rows differs from layer to layer. A layer without parents has one row and
        d = 1. The tensor alpha may change in place later: clone it to keep it.

        Raises:
            UserError: Where the metric cannot be inverted.
        """

    @abstractmethod
    def direction(self, gradients: Tensors) -> list[Tensor]:
        """(C_j + alpha I)^{-1} g_j, (m, d) for each layer; the caller multiplies by 1 + alpha."""

    def precondition_(self, weights: Tensors, biases: Tensors, scale: Tensor) -> bool:
        """Multiply gradients by scale (C_j + alpha I)^{-1} in place, where the metric can do so.

        A step takes it in place of `direction` where nothing, as a trust region, asks for that.

        Args:
            weights: Gradients of the weights of each layer, (m, d - 1).
            biases: Gradients of the biases, (m,).
            scale: A factor.

        Returns:
            Whether the gradients are multiplied. False leaves them as they are, and a step takes
            `direction`; this is the default.
        """
        return False

    def graph_key(self, updates: bool) -> Any:
        """What the next step does to tensors: a CUDA graph of a step with an equal key can do it.

        Such a step reads no number of them, and changes its own in place. Steps between them leave
        the tensors in their places, or change the key. None, the default: no graph can do it.
        `updates` says whether the step calls `update`.
        """
        return None

    def skip(self, updates: bool) -> None:
        """Count a step that a graph did."""
        self._step += updates

    def check(self) -> None:
        """Raise `UserError` for what was found on a device since (synchronises)."""

    def report(self) -> dict[str, float]:
        """Numbers for the log, of the last direction (may synchronise)."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What later directions depend on apart from later rows, as tensors and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""

    def redamp(self, alpha: Tensor) -> None:
        """Go on with another alpha than that of the loaded state."""
