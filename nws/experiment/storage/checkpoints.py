"""Checkpoints: what is in one, how it is written, and how it is read and checked.

A checkpoint is a dictionary of tensors and plain values, by the keys of `SCHEMA`. It is written
atomically and read without running code. Its zip archive has a checksum of every part, so a byte
that changed is found. docs/runs.md has the keys in words.
"""

import io
import itertools
import pickle
import shlex
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nws.errors import UserError
from nws.experiment.process.own_code import own_place
from nws.experiment.storage import kinds
from nws.files import write_atomically
from nws.learning.step import STATISTICS

#: Of the format. Checkpoints of nws 0.1 and 0.2 that have none count as 0, and load.
VERSION = 1
NAMES = ("best.pt", "last.pt")
UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


class Key(NamedTuple):
    """A key of a checkpoint: what its value has to be, and who needs it."""

    kind: str  # in words, for messages
    fits: kinds.Test
    needed: str = ""  # "always", "resume" (to go on with training), or "" where it may be missing


def _tensor(value: object) -> bool:
    plain = isinstance(value, Tensor) and value.layout == torch.strided
    return plain and value.is_floating_point()  # type: ignore[attr-defined]


def _bytes(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.uint8


def _parameters(value: object) -> bool:
    if not (isinstance(value, dict) and value):
        return False
    return all(type(name) is str and _tensor(each) for name, each in value.items())


def _optimizer(value: Any) -> bool:
    state, groups = (_entry(value, name) for name in ("state", "param_groups"))
    if not (isinstance(state, dict) and isinstance(groups, list)):
        return False
    lists = [_entry(each, "params") for each in groups]
    if not all(isinstance(each, list) for each in lists):
        return False
    known: list[Any] = list(itertools.chain(*lists))
    return all(map(kinds.whole, known)) and set(state) <= set(known)


def _metrics(value: Any) -> bool:
    return isinstance(value, list) and all(
        kinds.whole(_entry(each, "step")) and _damping(_entry(each, "damping")) and "metric" in each
        for each in value
    )


def _damping(value: Any) -> bool:
    alpha = _entry(value, "alpha")
    return kinds.number(alpha) and 0 < alpha < float("inf")


def _entry(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _texts_by_name(value: object) -> bool:
    return isinstance(value, dict) and all(type(each) is str for each in value.values())


def _average(value: Any) -> bool:
    return _parameters(_entry(value, "machine")) and kinds.whole(_entry(value, "count"))


WHOLE, NUMBER, TEXT = "a whole number of at least 0", "a number", "a text"
SCHEMA = {
    "machine": Key("the parameters, tensors of floats by their names", _parameters, "always"),
    "step": Key(WHOLE, kinds.whole, "always"),
    "version": Key(WHOLE, kinds.whole),
    "total_steps": Key(WHOLE, kinds.whole, "resume"),
    "seconds": Key(NUMBER, kinds.number, "resume"),
    "best": Key(NUMBER, kinds.number, "resume"),
    "sums": Key(
        f"a tensor of {len(STATISTICS)} floats",
        lambda value: _tensor(value) and value.shape == (len(STATISTICS),), "resume",
    ),
    "count": Key(WHOLE, kinds.whole, "resume"),
    "optimizer": Key("the state and param_groups of an optimizer", _optimizer, "resume"),
    "optimizer_class": Key(TEXT, kinds.text, "resume"),
    "scheduler": Key("the state of a scheduler", lambda value: isinstance(value, dict), "resume"),
    "metrics": Key("a list of steps, dampings above 0 and metrics", _metrics, "resume"),
    "rng": Key("a tensor of bytes", _bytes, "resume"),
    "rng_device": Key(TEXT, kinds.text, "resume"),
    "waited": Key(WHOLE, kinds.whole),
    "back_offs": Key(WHOLE, kinds.whole),
    "good": Key("the last good checkpoint, or none", kinds.maybe(lambda value: _good(value))),
    "finished": Key("true or false", lambda value: isinstance(value, bool)),
    "average": Key("averaged parameters and their count, or none", kinds.maybe(_average)),
    "rows": Key("the text of metrics.csv", kinds.text),
    "configuration": Key("texts by their names, or none", kinds.maybe(_texts_by_name)),
    "wandb_id": Key("a text or none", kinds.maybe(kinds.text)),
    "shape": Key(
        "height and width",
        lambda value: isinstance(value, list | tuple) and [*map(kinds.whole, value)] == 2 * [True],
    ),
}  # fmt: skip


def _good(value: Any) -> bool:
    return isinstance(value, dict) and not any(_key_problem(name, value, True) for name in SCHEMA)


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint completely or not at all; `UserError` where the disk is full."""
    buffer = io.BytesIO()
    torch.save({"version": VERSION} | state, buffer)
    write_atomically(path, buffer.getvalue())


def load_checkpoint(path: Path, resume: bool = False) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, and check it by `SCHEMA`.

    Args:
        path: The file.
        resume: Whether training is to go on from it. An exported machine has not what that needs.

    Raises:
        UserError: There is none, it is damaged, of a newer version, or something is missing. The
            message names the other checkpoint of the run, where that one is good.
    """
    if not path.is_file():
        there = any(path.with_name(name).is_file() for name in NAMES)
        reason = way_out(path, resume) if there else "the run has saved none yet"
        raise UserError(f"expected a checkpoint at {path}, found none; {reason}")
    state, problem = _read(path, resume)
    if problem:
        text = f"{path} is not a checkpoint of nws or is damaged: {problem}"
        raise UserError(f"{text}; {way_out(path, resume)}")
    return state


@contextmanager
def from_checkpoint(path: Path, what: str, enabled: bool = True) -> Iterator[None]:
    """Turn errors inside into a UserError that names the checkpoint, if `enabled`."""
    try:
        yield
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if not enabled or own_place(error):  # the checkpoint is not to blame for a user's own code
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{path} does not fit this run: {what} failed ({type(error).__name__}: {reason}); it is"
            f" damaged, or another version of nws or torch wrote it; {way_out(path, True)}"
        ) from error


def way_out(path: Path, resume: bool = False) -> str:
    """Return what to do where a checkpoint cannot be used: the other one, its step and its age."""
    other = path.with_name(NAMES[path.name == NAMES[0]])
    if path.name in NAMES and other.is_file():
        state, problem = _read(other, resume)
        if not problem:
            copy = shlex.join(["cp", str(other), str(path)])
            age = _age(time.time() - other.stat().st_mtime)
            option = "" if resume else f"give --checkpoint {other.stem}, or "
            where = f"{other.name} beside it is good (step {state['step']}, {age} old)"
            return f"{where}: {option}put it in its place, {copy}"
    return "no other checkpoint beside it can be used; take a copy of the run, or train it again"


def _age(seconds: float) -> str:
    length, name = next(((n, name) for n, name in UNITS if seconds >= n), UNITS[-1])
    count = max(0, round(seconds / length))
    return f"{count} {name}{'s' * (count != 1)}"


def _read(path: Path, resume: bool) -> tuple[dict[str, Any], str]:
    """Return what a file holds, and what is wrong with it, empty where nothing is."""
    problem = _archive_problem(path)
    if problem:
        return {}, problem
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # torch says how to run the code that is in it
        return {}, "it holds other objects than tensors and plain values, which nws never loads"
    except Exception as error:
        return {}, f"its tensors cannot be read ({type(error).__name__})"
    return state, _schema_problem(state, path.stat().st_size, resume)


def _archive_problem(path: Path) -> str:
    """Return what is wrong with the zip archive: its end, a size or a checksum."""
    try:
        with zipfile.ZipFile(path) as archive:
            promised = sum(each.file_size for each in archive.infolist())
            packed = any(each.compress_type != zipfile.ZIP_STORED for each in archive.infolist())
            if packed or promised > path.stat().st_size:
                return f"its parts promise {promised:,} bytes, more than the file has"
            torn = archive.testzip()
    except OSError as error:
        return f"it cannot be read ({error.strerror or error})"
    except Exception as error:  # zipfile raises whatever it stumbles over
        size = f"{path.stat().st_size:,} bytes"
        return f"it is no complete archive of torch ({size}; {type(error).__name__})"
    return f"the bytes of its part {torn} have changed" if torn else ""


def _schema_problem(state: Any, size: int, resume: bool) -> str:
    """Return the first key of a checkpoint that is missing or has another type."""
    if not isinstance(state, dict):
        return f"expected a dictionary, got {type(state).__name__}"
    version = state.get("version", 0)
    if kinds.whole(version) and version > VERSION:
        return f"its format is {version}, this nws reads up to {VERSION}; install a newer nws"
    wrong = (_key_problem(name, state, resume) for name in SCHEMA)
    large = (
        f"a tensor of shape {tuple(each.shape)} is larger than the file"
        for each in _tensors(state)
        if each.numel() * each.element_size() > size
    )
    return next(filter(None, wrong), "") or next(large, "")


def _key_problem(name: str, state: dict[str, Any], resume: bool) -> str:
    key = SCHEMA[name]
    if name in state:
        got = f"got {_describe(state[name])}"
        return "" if key.fits(state[name]) else f"expected {key.kind} under the key {name}, {got}"
    needed = key.needed == "always" or (resume and key.needed)
    return f"the key {name} is missing, expected {key.kind}" if needed else ""


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype} and shape {tuple(value.shape)}"
    if isinstance(value, dict | list | tuple | set):
        names = ", ".join(map(str, list(value)[:4])) if isinstance(value, dict) else ""
        return f"a {type(value).__name__} of {len(value)} entries {names}".strip()
    return repr(value)[:60]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each)


def load_parameters(module: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Copy parameters from `path` into a module; `UserError` if of another architecture."""
    here = {name: tuple(parameter.shape) for name, parameter in module.state_dict().items()}
    there = {name: tuple(parameter.shape) for name, parameter in state.items()}
    if here != there:
        name = next(name for name in [*here, *there] if here.get(name) != there.get(name))
        raise UserError(
            f"{path} is of another architecture: {name} is {there.get(name, 'missing')} there and"
            f" {here.get(name, 'missing')} in the configuration;"
            " give the layers (model, data) that it was trained with"
        )
    module.load_state_dict(state)


def check_finite(state: dict[str, Tensor], path: Path) -> None:
    """Raise `UserError` where a parameter that came from `path` is not finite."""
    for name, each in state.items():
        bad = int((~each.isfinite()).sum())
        if bad:
            raise UserError(
                f"{path}: {bad:,} of {each.numel():,} numbers of {name} are not finite, so nothing"
                f" can be drawn or evaluated; {way_out(path)}"
            )
