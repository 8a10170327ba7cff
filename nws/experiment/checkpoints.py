"""Checkpoints: one file with all that a run needs to go on, and what went before.

A dictionary of tensors and plain values, written atomically and read without running code.
"""

import io
import math
import pickle
import shlex
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from nws.errors import UserError
from nws.files import check_file, write_atomically

VERSION = 2  # of the format
NAMES = ("best.pt", "last.pt")
#: What every checkpoint has, and every row of it.
PARTS = {"step": int, "machine": dict, "configuration": str, "choices": dict}
PARTS |= {"rows": list, "shape": list}
COLUMNS = {"epoch", "step", "seconds", "valid/log_likelihood", "valid/standard_error"}

State = dict[str, Any]


def save_checkpoint(paths: Sequence[Path], state: State) -> None:
    """Write a checkpoint completely or not at all; `UserError` where no program could read it."""
    buffer = io.BytesIO()
    try:
        torch.save({"version": VERSION} | state, buffer)
        buffer.seek(0)
        torch.load(buffer, map_location="meta", weights_only=True)  # no copy of the numbers
    except (pickle.PickleError, AttributeError, TypeError) as error:
        found = str(error).partition("Unsupported global: GLOBAL ")[2].split(" ")[0] or "an object"
        way = "states, columns and rates must be tensors or plain values, as float(x) is"
        raise UserError(f"a checkpoint cannot keep {found}: {way}") from error
    for path in paths:
        write_atomically(path, buffer.getvalue())


def load_checkpoint(path: Path) -> State:
    """Read a checkpoint onto the CPU; the `UserError` for a damaged one names another, if good."""
    with from_checkpoint(path):
        return _read(path)


def _read(path: Path) -> State:
    if not path.exists():
        raise UserError(f"expected a checkpoint at {path}, found none")
    check_file(path)
    with zipfile.ZipFile(path) as archive:  # its parts have checksums
        promised = sum(each.file_size for each in archive.infolist())
        if promised > path.stat().st_size or archive.testzip() is not None:
            raise ValueError("its bytes have changed")
    state = torch.load(path, map_location="cpu", weights_only=True)
    version = state.get("version") if isinstance(state, dict) else "none"
    if version != VERSION:
        raise ValueError(f"its format is {version}, this nws reads {VERSION}")
    for name, kind in PARTS.items():
        if not isinstance(state.get(name), kind):
            raise ValueError(f"its {name} is no {kind.__name__}")
    numbers = [state["step"], state.get("seconds", 0.0), state.get("count", 0)]
    if not all(isinstance(each, int | float) and 0 <= each < math.inf for each in numbers):
        raise ValueError(f"its step, seconds and count are {numbers}")
    for row in state["rows"]:
        if not all(isinstance(row.get(name), int | float) for name in COLUMNS):
            raise ValueError("its rows lack columns that every run has, or have no numbers there")
    return state


@contextmanager
def from_checkpoint(path: Path) -> Iterator[None]:
    """Turn errors inside into one that names the checkpoint, and what to do."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{error}; {way_out(path)}") from error
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or "no message"
        if "weights_only" in reason or "Unsupported" in reason:  # torch says how to run it
            reason = "it holds other objects than tensors and plain values, which nws never loads"
        what = f"{path} is damaged, does not fit this run, or another version of nws or torch wrote"
        why = f"it ({type(error).__name__}: {reason[:200]})"
        raise UserError(f"{what} {why}; {way_out(path)}") from error


def way_out(path: Path) -> str:
    """Return what to do where a checkpoint cannot be used: the other one, and its step."""
    other = path.with_name(NAMES[path.name == NAMES[0]])
    try:
        step = _read(other)["step"]
    except Exception:
        return "no other checkpoint beside it can be used; take a copy of the run, or train again"
    if not path.exists():
        return f"{other.name} is there (step {step}): take checkpoint {other.stem}"
    copy = shlex.join(["cp", str(other), str(path)])
    return f"{other.name} beside it is good (step {step}): {copy}"
