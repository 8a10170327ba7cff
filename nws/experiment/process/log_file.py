"""train.log: what a run says, beside its results."""

import contextlib
import logging


class LogFile(logging.FileHandler):
    """A log without which a run goes on: a full disk costs lines of it, and nothing else."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; the first one opens the file."""
        with contextlib.suppress(OSError):
            super().emit(record)
