"""Tikhonov damping alpha: constant, on a schedule, or adapted by Levenberg-Marquardt.

Each network has a damping of its own; its value is a tensor on the device, changed in place.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from nws.errors import UserError, number, positive_int

SINGULAR = " (a Fisher block from few rows is singular without)"


class Damping:
    """alpha = `value` times `schedule(step)`; constant without a schedule.

    Args:
        value: alpha before the schedule, above 0.
        schedule: A function of the step, counted from 0 (see nws/schedules.py).
    """

    def __init__(self, value: float = 0.2, schedule: Callable[[int], float] | None = None) -> None:
        self.initial = number("damping.value", value, above=0, more=SINGULAR)
        self.schedule = schedule
        self._at(0)  # what is wrong with a schedule is found here, not at the first step
        self.alpha = torch.tensor(self.initial, dtype=torch.float64)

    def to(self, like: Tensor) -> "Damping":
        """Keep alpha on the device and in the dtype of a tensor."""
        self.alpha = self.alpha.to(like)
        return self

    def start_step(self, step: int) -> None:
        """Set alpha for a step.

        Raises:
            UserError: Where the schedule has no value, or has come to 0 or below.
        """
        if self.schedule is not None:
            self.alpha.fill_(self._at(step))

    def _at(self, step: int) -> float:
        try:
            factor = 1.0 if self.schedule is None else float(self.schedule(step))
        except (TypeError, ValueError, ArithmeticError) as error:
            what = f"damping.schedule cannot be followed at step {step}: {error}"
            raise UserError(what) from error
        return number(f"the damping at step {step}", self.initial * factor, above=0, more=SINGULAR)

    def measures(self, step: int) -> bool:
        """Whether the reduction ratio of this step is wanted."""
        return False

    def adapt(self, ratio: float) -> None:
        """Take in the ratio of actual to predicted gain of a step."""

    def compare(self, actual: float, predicted: float) -> None:
        """Adapt to the actual and the predicted gain of a step.

        A step that promises a loss and is one was too long for the model to say anything: its ratio
        is minus infinity. One that promises a loss and gains says nothing.
        """
        if predicted > 0:
            self.adapt(actual / predicted)
        elif actual < 0:
            self.adapt(-math.inf)

    def report(self) -> dict[str, float]:
        """alpha, for the log (synchronises)."""
        return {"damping": float(self.alpha)}

    def state_dict(self) -> dict[str, float]:
        """What later steps depend on."""
        return {"alpha": float(self.alpha.double())}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on from a state."""
        self.alpha.fill_(state["alpha"])


class LevenbergMarquardt(Damping):
    """alpha follows the ratio of actual to predicted gain of a step (Martens 2010, section 4.1).

    The ratio is measured every `every` steps, on the step's own rows. Where the quadratic model
    predicts well (ratio above 3/4), alpha is multiplied by `factor`. Where it predicts badly (below
    1/4), alpha is divided by it.

    Args:
        value: First alpha.
        every: Steps between measurements.
        factor: Between 0 and 1.
        minimum: Least alpha.
        maximum: Largest alpha.
    """

    def __init__(
        self, value: float = 0.2, every: int = 5, factor: float = 0.9, minimum: float = 1e-3,
        maximum: float = 10.0,
    ) -> None:  # fmt: skip
        super().__init__(value)
        self.every = positive_int("damping.every", every)
        self.minimum = number("damping.minimum", minimum, above=0, more=SINGULAR)
        self.maximum = number("damping.maximum", maximum, above=0)
        if not self.minimum <= self.initial <= self.maximum:
            got = f"{value} in {minimum} .. {maximum}"
            raise UserError(f"damping.value must lie in damping.minimum .. maximum, got {got}")
        self.factor = number("damping.factor", factor, above=0, below=1)
        self.ratio = math.nan

    def measures(self, step: int) -> bool:
        return step % self.every == 0

    def adapt(self, ratio: float) -> None:
        """Shrink alpha above a ratio of 3/4, grow it below 1/4."""
        self.ratio = ratio
        if ratio > 3 / 4:
            self.alpha.mul_(self.factor)
        elif ratio < 1 / 4:
            self.alpha.div_(self.factor)
        self.alpha.clamp_(self.minimum, self.maximum)

    def report(self) -> dict[str, float]:
        return super().report() | {"reduction_ratio": self.ratio}

    def state_dict(self) -> dict[str, float]:
        return super().state_dict() | {"ratio": self.ratio}

    def load_state_dict(self, state: dict[str, float]) -> None:
        super().load_state_dict(state)
        self.ratio = state.get("ratio", math.nan)
