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
