"""Files that are written whole or not at all."""

import contextlib
import os
from pathlib import Path

from nws.errors import UserError


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file by a temporary one and a rename, so that no reader ever sees half of it.

    Raises:
        UserError: Where the disk or the folder does not allow it. A file that was there stays.
    """
    if not path.name or path.is_dir():
        raise UserError(f"expected the name of a file to write, got {_shown(path)}; add a name")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
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
