"""TO BE REPLACED at the merge by nws.experiment.signals.StopSignals, which has this interface."""

import signal
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any


class StopSignals:
    """Remembers a signal in `caught`; with `once`, a second one acts as it would outside."""

    def __init__(
        self,
        action: Callable[[int], object] = lambda number: None,
        once: bool = True,
        numbers: Sequence[int] = (signal.SIGINT, signal.SIGTERM),
    ) -> None:
        self.action, self.once, self.numbers = action, once, numbers
        self.caught: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        self._previous = {number: signal.signal(number, self._catch) for number in self.numbers}
        return self

    def __exit__(self, *exception: object) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self.caught = number
        if self.once:
            self.__exit__()
        self.action(number)
