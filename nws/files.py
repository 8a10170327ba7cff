"""Files that are written whole or not at all, and read only where they are files of a sane size."""

import contextlib
import os
import stat
from pathlib import Path

from nws.errors import UserError, explained

PACKAGE = Path(__file__).resolve().parent  # the folder nws
#: The folder of config.yaml: in an installed nws within the package, in the repository beside it.
CONF = (PACKAGE if (PACKAGE / "conf").is_dir() else PACKAGE.parent) / "conf"
TEXT_LIMIT = 64 * 2**20  # bytes of a text that is read


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file by a temporary one and a rename, so that no reader ever sees half of it.

    Where the disk or the folder does not allow it, a file that was there stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        kept = "the file that stood there is untouched" if path.exists() else "nothing was left"
        what = f"could not write {path} ({len(content):,} bytes): {error.strerror or error}"
        raise UserError(f"{what}; {kept}. Make room or choose another folder") from error
    finally:  # a failure here is no second error
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_text(path: Path, limit: int = TEXT_LIMIT) -> str:
    """Return the text of a file, as `read_bytes` does; what is no UTF-8 becomes a sign for it."""
    return read_bytes(path, limit).decode(errors="replace")


def read_bytes(path: Path, limit: int = TEXT_LIMIT) -> bytes:
    """Return what a regular file of at most `limit` bytes holds; `UserError` for anything else."""
    check_file(path, limit)
    with explained(f"{path} cannot be read"):
        return path.read_bytes()


def check_file(path: Path, limit: float = float("inf")) -> None:
    """Raise `UserError` unless there is a regular file of at most so many bytes at a path."""
    with explained(f"{path} cannot be read"):
        found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{path} is no regular file, so it is not opened")
    if found.st_size > limit:
        raise UserError(f"{path} has {found.st_size:,} bytes, expected at most {limit:,}")


def remove_temporary(folder: Path) -> None:
    """Remove what killed processes left of `write_atomically` below a folder."""
    for path in folder.rglob(".*.[0-9]*.tmp"):
        with contextlib.suppress(OSError, ValueError):
            if not is_running(int(path.suffixes[-2][1:])):  # else it may be writing
                path.unlink()


def is_running(process: int) -> bool:
    """Return whether there is a process of this number on this host."""
    try:
        os.kill(process, 0)  # the signal 0 only asks
    except (OSError, OverflowError) as error:
        return isinstance(error, PermissionError)  # it is of another user
    return True


def check_writable(path: Path) -> None:
    """Raise `UserError` where a file cannot be written at a path, or its folders not be made."""
    if not path.name or path.is_dir():
        found = f"the folder {path}" if path.name else "an empty name"
        raise UserError(f"expected the name of a file to write, got {found}; add a name")
    check_folder(path.parent)


def check_folder(path: Path) -> None:
    """Raise `UserError` where a folder cannot be made, or is there and cannot be written to."""
    there = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not there.is_dir():
        raise UserError(f"{there} is a file, expected a folder there; choose another place")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"the folder {there} cannot be written to; choose another place")
