"""Signals that ask a run to stop, SIGINT (Ctrl-C) and SIGTERM; and workers without parent."""

import os
import signal
import sys
import threading
import time
from functools import cache
from types import FrameType
from typing import Any

from nws import distributed

LOOK_EVERY = 0.25  # seconds between two looks at the parent
AGREE_EVERY = 4  # steps between two questions to the other processes of a run


class StopSignals:
    """Notes the first stopping signal; the second one acts as before, which ends the program.

    Attributes:
        caught: The number of the signal, None where none came to any process of the run.
    """

    def __init__(self) -> None:
        self.caught: int | None = None
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
        self.__exit__()
        if distributed.is_first():
            message = f"\nstopping after this step or evaluation (signal {number}); once more to"
            print(message, "stop at once", file=sys.stderr, flush=True)

    def asked(self, step: int | None = None) -> bool:
        """Return whether a signal came to any process of the run: the same in all of them.

        Args:
            step: That of the run, where the others are asked at some steps alone.
        """
        if distributed.size() == 1:
            return self.caught is not None
        if step is not None and step % AGREE_EVERY:
            return False
        if distributed.any_(self.caught is not None) and self.caught is None:
            self.caught = signal.SIGTERM
        return self.caught is not None


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
