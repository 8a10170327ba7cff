"""The right to write into a run directory: one process has it, for as long as it trains."""

import contextlib
import errno
import json
import logging
import os
import socket
from pathlib import Path

from filelock import FileLock, Timeout

from nws.errors import UserError
from nws.experiment.storage.provenance import now
from nws.files import process_lives

log = logging.getLogger(__name__)

#: What a file system answers that has no locks.
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


class Taken(UserError):
    """A run directory that another process trains in."""


class RunLock:
    """A lock on a run directory that the kernel frees with its process, however that ends.

    It is an exclusive `flock` on a file, which has the owner in words for others. The owner
    deletes the file. A process that waited holds a deleted file and tries again.

    Args:
        run: The run directory.
    """

    def __init__(self, run: Path) -> None:
        self.path = run / ".lock"
        self._lock: FileLock | None = None
        self._held: os.stat_result | None = None

    def acquire(self, patience: float = 0.0) -> None:
        """Take the lock, unless this object has it.

        Args:
            patience: Seconds to wait for it.

        Raises:
            Taken: Another process trains here. The message says which, and since when.
            UserError: The directory cannot be written to.
        """
        if self._lock is not None:
            return
        lock = FileLock(self.path, fallback_to_soft=False, on_acquired=self._note)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=patience)
            while not self._is_in_place():  # its last owner removed it meanwhile
                lock.release()
                lock.acquire(timeout=patience)
            self._lock = lock
            owner = {"host": socket.gethostname(), "pid": os.getpid(), "since": now()}
            self.path.write_text(json.dumps(owner))
        except Timeout:
            raise Taken(f"{self.path.parent} is being trained {self._owner()}") from None
        except OSError as error:
            self.release()
            if error.errno not in NO_LOCKS:
                reason = f"cannot be written to ({error.strerror or error}); make room"
                raise UserError(f"{self.path.parent} {reason} or choose another folder") from error
            log.warning(f"the file system of {self.path.parent} has no locks: start each run once")

    def release(self) -> None:
        """Give the lock back, if it was taken."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()  # while it is held: no other process can have it
            self._lock.release()
            self._lock = None

    def _note(self, descriptor: int) -> None:
        self._held = os.fstat(descriptor)

    def _is_in_place(self) -> bool:
        """Return whether the file that is locked is the one that others find."""
        try:
            return self._held is not None and os.path.samestat(self._held, os.stat(self.path))
        except FileNotFoundError:
            return False

    def _owner(self) -> str:
        """Return who has the lock, in words, and what to do."""
        who = "by another process"  # it has just started or ended
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            owner = json.loads(self.path.read_text())
            if process_lives(owner["host"], owner["pid"]):
                who = f"by process {owner['pid']} on {owner['host']} since {owner['since']}"
        return f"{who}; nothing was changed. Wait for its end, stop it, or give another directory"
