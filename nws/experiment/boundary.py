"""The boundary of all programs: what a user sees of an error is one line, never a page of Python.

A `UserError` is its message. Of whatever else is raised, the traceback goes to a file that the line
names; with `NWS_DEBUG=1` it goes to the terminal. This module imports neither torch nor Hydra, so
that it is there while they load.
"""

import contextlib
import difflib
import importlib
import io
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn

from nws.errors import UserError
from nws.files import CONF

MEMORY = (
    "there is not enough memory; lower trainer.batch_size, algorithm.samples, model.layers or"
    " trainer.evaluation_samples; in programs that look at runs --samples or --count"
)


def launch(module: str) -> None:
    """Import a program and run it: `launch("nws.programs.sample")`. Ctrl-C is quiet even then."""
    with errors_for_people():
        importlib.import_module(module).run()


@contextlib.contextmanager
def errors_for_people() -> Iterator[None]:
    """End the program with one line for an error, and quietly for Ctrl-C or a closed pipe."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell, >&-
            setattr(sys, name, io.StringIO())
        elif hasattr(getattr(sys, name), "reconfigure"):  # a sign that a terminal lacks
            getattr(sys, name).reconfigure(errors="replace")
    try:
        yield
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        end_program(error)


def end_program(error: Exception | KeyboardInterrupt) -> NoReturn:
    """End the program over an error, as `errors_for_people` says."""
    if isinstance(error, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    if isinstance(error, BrokenPipeError):  # the reader is gone; nothing is said, even at exit
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    together = sys.modules.get("nws.distributed")  # it imports torch
    if together is None or together.speaks_first():  # of several processes that end one says why
        print(f"error: {explain(error)}", file=sys.stderr)
    sys.exit(1)


def explain(error: Exception) -> str:
    """Return the message of an error for a person; raise it where `NWS_DEBUG` asks for that."""
    if os.environ.get("NWS_DEBUG", "0") not in ("", "0"):
        raise error
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, UserError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    of_flags = kinds & {"ValueError"} and frames and "hydra/_internal" in frames[-1].filename
    if of_flags or kinds & {"HydraException", "OmegaConfBaseException"}:  # in their own words
        text = f"{error} {error.__cause__ or ''}"
        own = text.partition("UserError raised while resolving interpolation: ")[2].splitlines()
        return own[0] if own else in_hydras_words(" ".join(text.split()))
    if kinds & {"MemoryError", "OutOfMemoryError"} or "Allocator" in str(error):  # of CPU or GPU
        return MEMORY
    if isinstance(error, OSError):
        what = f"{error.filename}: " if error.filename is not None else ""
        return f"{what}{error.strerror or error}; look at whether it is there and may be written"
    with contextlib.suppress(OSError):
        with tempfile.NamedTemporaryFile("w", prefix="nws_", suffix=".log", delete=False) as file:
            file.write("".join(traceback.format_exception(error)))
        return f"{describe(error)}; its traceback is in {file.name}"
    return f"{describe(error)}; NWS_DEBUG=1 shows its traceback"


def in_hydras_words(text: str) -> str:
    """Return a message of Hydra; of a mistyped key or choice with what it is close to."""
    text = text.partition(" Config search path:")[0]
    for key, of in re.findall(r"^Could not override '([^']+)'(?:.* full_key: \1(\.\S+))?", text):
        other = f"write '~{key}' '+{key}={{...}}' for a class with others"
        return f"{key}{of} is no option; {other if of else did_you_mean(key)}"
    found = re.findall(r"Could not find '(.+)/(\S+)' Available options in '\S+': (.+)", text)
    for group, choice, there in found:
        close = difflib.get_close_matches(choice, there.split(), 1)
        way = f"did you mean {group}={close[0]}?" if close else f"the choices are {there}"
        return f"{group}={choice} is no choice; {way}"
    return text


def did_you_mean(key: str) -> str:
    """Return which option a key may stand for that is none, or how to find out."""
    keys = all_keys()
    if there := sorted(filter(None, keys.pop(key, ()))):
        return f"it is an option of {', '.join(there)}"
    near = [each for each in keys if each.endswith(f".{key}") and each[:6] != "hydra."]
    near += difflib.get_close_matches(key, keys, 1)
    return f"did you mean {near[0]}?" if near else "--help lists the options"


def all_keys() -> dict[str, list[str]]:
    """Return the keys in conf/, those of sections too, and the choices of groups that have them."""
    import yaml

    places: list[tuple[list[str], Any, str]] = []
    for path in CONF.rglob("*.yaml"):
        text, group = path.read_text(), path.relative_to(CONF).parts[:-1]
        own = [*group] * ("@package _global_" not in text)
        places.append((own, yaml.safe_load(text), f"{'/'.join(own)}={path.stem}" if own else ""))
    found: dict[str, list[str]] = {}
    for words, section, choice in places:  # it grows
        found.setdefault(".".join(words), []).append(choice)
        if isinstance(section, dict):
            places += [([*words, str(key)], each, choice) for key, each in section.items()]
    return found


def describe(error: BaseException) -> str:
    """Return an error's kind and first line, and the line that raised it, outside of libraries."""
    frames = traceback.extract_tb(error.__traceback__)
    last = ([each for each in frames if "site-packages" not in each.filename] or frames)[-1:]
    where = "".join(f"{os.path.basename(each.filename)} line {each.lineno}: " for each in last)
    text = (str(error).strip().splitlines() or ["no message"])[0]
    if isinstance(error, SyntaxError):
        where, text = f"{error.filename} line {error.lineno}: ", error.msg
    return f"{where}{type(error).__name__}: {text}"
