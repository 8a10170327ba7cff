"""Signals that ask a program to stop, SIGINT (Ctrl-C) and SIGTERM; and workers without parent."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any

LOOK_EVERY = 0.25  # seconds between two looks at the parent


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


class Shield:
    """Keeps Ctrl-C from the processes that this one starts, until each calls `lower_shield`.

    A Python that is interrupted while it still imports prints a traceback. A signal that the main
    thread blocks is blocked in new processes too. Another thread takes it in this process then.
    """

    def __init__(self) -> None:
        self._over: threading.Event | None = None

    def install(self) -> None:
        """Start to shield; outside the main thread do nothing."""
        if threading.current_thread() is threading.main_thread() and self._over is None:
            resource_tracker.ensure_running()  # now, as its start lets the signal through
            self._over = threading.Event()
            threading.Thread(target=self._over.wait, daemon=True).start()
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def restore(self) -> None:
        """Take the signal in the main thread again."""
        if self._over is not None:
            lower_shield()
            self._over.set()
            self._over = None


def lower_shield() -> None:
    """Let Ctrl-C through. One that came meanwhile comes now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@cache  # one watch is enough
def end_with(parent: int) -> None:
    """End this process as soon as its parent has ended, however that was: nobody waits for it.

    A run ends as if it was killed. A stopped parent has not ended.

    Args:
        parent: The process id; that of this process itself has no effect.
    """
    if parent == os.getpid():
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_EVERY)
        os._exit(1)

    threading.Thread(target=watch, name="end_with_parent", daemon=True).start()


def announce(what: str, number: int) -> None:
    """Say on the terminal that a signal stops something."""
    message = f"\nstopping {what} (signal {number}); once more to stop at once"
    print(message, file=sys.stderr, flush=True)
