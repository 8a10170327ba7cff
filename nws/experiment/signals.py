"""Signals that ask a program to stop: SIGINT (Ctrl-C) and SIGTERM."""

import signal
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any


class StopSignals:
    """Answers stopping signals by an action, from `install` to `restore` or in a `with` block.

    Args:
        action: Called with the number of each signal. It may raise.
        once: Whether the second signal acts as before `install`, which usually ends the program.
        numbers: The signals.

    Attributes:
        caught: The number of the last signal, None where none came.
    """

    def __init__(
        self,
        action: Callable[[int], object] = lambda number: None,
        once: bool = True,
        numbers: Sequence[int] = (signal.SIGINT, signal.SIGTERM),
    ) -> None:
        self.action, self.once, self.numbers = action, once, numbers
        self.caught: int | None = None
        self._previous: dict[int, Any] = {}

    def install(self) -> "StopSignals":
        """Take over the signals; outside the main thread, where Python allows none, do nothing."""
        if threading.current_thread() is threading.main_thread():
            for number in self.numbers:
                self._previous[number] = signal.signal(number, self._catch)
        return self

    def restore(self, *exception: object) -> None:
        """Give the signals back to whoever had them before."""
        while self._previous:
            signal.signal(*self._previous.popitem())

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self.caught = number
        if self.once:
            self.restore()
        self.action(number)

    __enter__, __exit__ = install, restore


def announce(what: str, number: int) -> None:
    """Say on the terminal that a signal stops something."""
    message = f"\nstopping {what} (signal {number}); once more to stop at once"
    print(message, file=sys.stderr, flush=True)
