"""Files that are written whole or not at all, and what a killed process leaves of them."""

import contextlib
import os
import re
import shutil
import socket
import stat
import time
from pathlib import Path

from nws.errors import UserError

PACKAGE = Path(__file__).resolve().parent  # the folder nws
ABANDONED_AFTER = 86_400  # seconds after which a file of another host's process counts as left
_ASIDE = re.compile(r"\..+\.(?P<pid>\d+)(@(?P<host>.+))?\.tmp")  # before 0.2 without the host


def aside(path: Path) -> Path:
    """Return where this process writes a file or folder before it takes its place.

    Example:
        >>> aside(Path("run/last.pt")).name.startswith(".last.pt.")
        True
    """
    return path.with_name(f".{path.name}.{os.getpid()}@{socket.gethostname()}.tmp")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file by a temporary one and a rename, so that no reader ever sees half of it.

    Raises:
        UserError: Where the disk or the folder does not allow it. A file that was there stays.
    """
    if not path.name or path.is_dir():
        raise UserError(f"expected the name of a file to write, got {_shown(path)}; add a name")
    temporary = aside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        kept = (
            "the file that stood there is untouched"
            if path.exists()
            else "nothing was left in its place"
        )
        raise UserError(
            f"could not write {path} ({len(content):,} bytes): {error.strerror or error}; {kept}. "
            "Make room or choose another folder, then go on from the last checkpoint"
        ) from error
    finally:  # a failure here is no second error
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_text(path: Path, limit: int = 64 * 2**20) -> str:
    """Return the text of a file, as `read_bytes` does; what is no UTF-8 becomes a sign for it."""
    return read_bytes(path, limit).decode(errors="replace")


def read_bytes(path: Path, limit: int = 64 * 2**20) -> bytes:
    """Return what a regular file holds. A pipe or a device in its place would never end.

    Args:
        path: The file.
        limit: The most bytes that it may have.

    Raises:
        UserError: There is no such file, it is no regular one, or it is larger.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UserError(f"{path} is no regular file, expected one; move it away")
        with open(path, "rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(content) > limit:
        raise UserError(f"{path} is larger than {limit:,} bytes, expected a smaller file there")
    return content


def make_folder(path: Path) -> None:
    """Make a folder and those above it, where there is none; `UserError` where it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"could not make the folder {path}: {reason}; choose another") from error


def process_lives(host: object, pid: object) -> bool:
    """Return whether a process may be alive; True where it is of another host."""
    if host != socket.gethostname() or not isinstance(pid, int):
        return True
    try:
        os.kill(pid, 0)  # the signal 0 only asks
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # of another user
        return True
    return True


def remove_abandoned(folder: Path, below: bool = False) -> None:
    """Remove what killed processes wrote aside in a folder; `below`, in those below it too.

    Files of living processes stay, but for those of this one: call it before this one writes. A
    file of another host stays for a day.
    """
    for here, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            found = _ASIDE.fullmatch(name)
            if found and _is_abandoned(Path(here, name), int(found["pid"]), found["host"]):
                with contextlib.suppress(OSError):
                    (shutil.rmtree if name in folders else os.unlink)(Path(here, name))
        if not below:
            return


def _is_abandoned(path: Path, pid: int, host: str | None) -> bool:
    """Return whether nobody will finish what was written aside."""
    here = socket.gethostname()
    if host in (here, None):
        return pid == os.getpid() or not process_lives(here, pid)
    try:
        return time.time() - path.lstat().st_mtime > ABANDONED_AFTER
    except OSError:  # gone meanwhile
        return False


def check_writable(path: Path) -> None:
    """Raise `UserError` where a file cannot be written at a path, before work is spent on it.

    Folders that are missing are none: they are made when the file is written.
    """
    if not path.name or path.is_dir():
        raise UserError(f"expected the name of a file to write, got {_shown(path)}; add a name")
    check_folder(path.parent)


def check_folder(path: Path) -> None:
    """Raise `UserError` where a folder cannot be made, or is there and cannot be written to."""
    there = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not there.is_dir():
        raise UserError(f"{there} is a file, expected a folder there; choose another place")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"the folder {there} cannot be written to; choose another place")


def _shown(path: Path) -> str:
    return "an empty name" if not path.name else f"the folder {path}"
