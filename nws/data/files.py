"""Paths of a user, how much memory is free, and what a library says of a broken file."""

import contextlib
import math
import os
from pathlib import Path

import torch

from nws.errors import UserError


def find_path(option: str, value: object) -> Path:
    """Return the absolute path that an option names; `UserError` where it is no path."""
    if not isinstance(value, str | os.PathLike) or not str(value):
        got = "null" if value is None else repr(value)
        raise UserError(f"{option} must name a file or folder, got {got}: add {option}=PATH")
    return Path(os.path.abspath(os.path.expanduser(value)))


def check_regular(file: Path, expected: str) -> None:
    """Raise `UserError` where there is no regular file: a named pipe would be waited for."""
    if not os.path.isfile(file):
        found = "something that is no regular file" if os.path.lexists(file) else "none"
        raise UserError(f"expected {expected}, found {found} at {file}")


def free_memory(device: torch.device) -> float:
    """Return the bytes of memory that are free on a device; infinity where nothing says."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("MemAvail")).split()[1])
    return math.inf


def one_line(error: Exception) -> str:
    """Return what an error of a library says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
