"""Signals that ask a run to stop, SIGINT (Ctrl-C) and SIGTERM; and workers without parent."""

import ctypes
import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

from nws import distributed

EVERY = 4  # steps between two questions to the other processes
PR_SET_PDEATHSIG = 1  # of linux/prctl.h


class StopSignals:
    """Notes the first stopping signal; the second one acts as before, which ends the program."""

    def __init__(self) -> None:
        self.caught: int | None = None  # the number of the signal that came, to any process
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows none
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._catch)
        return self

    def __exit__(self, *exception: object) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self.caught = number
        for each in self._previous:  # even where a shell had them ignored
            signal.signal(each, signal.default_int_handler)
        message = f"\nstopping after this step or evaluation (signal {number}); once more to"
        print(message, "stop at once", file=sys.stderr, flush=True)

    def asked(self, step: int | None = None) -> bool:
        """Return whether a signal came to any process: they are asked at some steps alone."""
        if step is not None and step % EVERY and distributed.size() > 1:
            return False
        if distributed.any_(self.caught is not None) and self.caught is None:
            self.caught = signal.SIGTERM
        return self.caught is not None


def end_with(parent: int) -> None:
    """Have the kernel end this process with its parent, as if it was killed (Linux alone)."""
    if parent != os.getpid():
        with suppress(OSError, AttributeError):  # other systems have no such call
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended before
            os._exit(1)
