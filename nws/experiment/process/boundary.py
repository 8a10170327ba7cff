"""The boundary of all programs: what a user sees of an error is one line, never a page of Python.

An error of the user's, a `UserError`, ends a program with status 1. So does one in a file of the
user's own, whose traceback goes to a file. Any other error is a defect of nws: its traceback goes
to a file too, and the status is `DEFECT`. With `NWS_DEBUG=1` tracebacks go to the terminal. This
module imports neither torch nor Hydra, so that it is there while they load.
"""

import contextlib
import importlib
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from nws.errors import UserError
from nws.experiment.process.own_code import describe_error, own_place

#: Exit status of a defect of nws: EX_SOFTWARE of sysexits.h.
DEFECT = 70
PIPE_CLOSED = 128 + signal.SIGPIPE
LOWER = (
    "lower trainer.batch_size, algorithm.samples, trainer.evaluation_samples or model.layers; in"
    " programs that look at runs --samples, --count or --batch"
)


def launch(module: str) -> None:
    """Import a program and run it: `launch("nws.programs.sample")`. Ctrl-C is quiet even then."""
    with errors_for_people():
        importlib.import_module(module).run()


@contextlib.contextmanager
def errors_for_people(log: Path | None = None) -> Iterator[None]:
    """End the program with one message for an error, and quietly for Ctrl-C or a closed pipe.

    Args:
        log: The file that takes the traceback of a defect; None for one in the temporary folder.
    """
    try:
        yield
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        end_program(error, log)


def end_program(error: Exception | KeyboardInterrupt, log: Path | None = None) -> NoReturn:
    """End the program over an error, as `errors_for_people` says."""
    if isinstance(error, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    if isinstance(error, BrokenPipeError):  # the reader is gone; nothing is said, even at exit
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(PIPE_CLOSED)
    message, status = explain(error, log)
    say_error(message)
    sys.exit(status)


def say_error(message: str) -> None:
    """Print the message of an error. Of several processes that end one says why."""
    together = sys.modules.get("nws.distributed")  # it imports torch
    if together is None or together.speaks_first():
        print(f"error: {message}", file=sys.stderr)


def explain(error: Exception, log: Path | None = None) -> tuple[str, int]:
    """Return the message of an error for a person, and the exit status.

    Writes the traceback of a defect, or of an error in the user's own code, to `log`. Raises the
    error itself where `NWS_DEBUG` asks for it; a `UserError` only where another error caused it.
    """
    from omegaconf.errors import OmegaConfBaseException

    told = isinstance(error, UserError | OmegaConfBaseException)
    more = not told or (isinstance(error, UserError) and error.__cause__ is not None)
    if more and os.environ.get("NWS_DEBUG", "0") not in ("", "0"):
        raise error
    if told:
        lines = str(error).splitlines()
        return str(error) if isinstance(error, UserError) else ", ".join(map(str.strip, lines)), 1
    memory = out_of_memory(error)
    if memory:
        return f"{memory}; {LOWER}", 1
    if isinstance(error, OSError):
        return _refusal(error), 1
    if own_place(error):
        return f"{describe_error(error)}; {_keep(error, log)}", 1
    reason = (str(error).strip() or "no message").splitlines()[0]
    return (
        f"{type(error).__name__}: {reason}. This is a defect of nws, please report it;"
        f" {_keep(error, log)}"
    ), DEFECT


def _refusal(error: OSError) -> str:
    """Return what the system refused: a file, a disk or a network."""
    if error.filename is None:
        return f"{error.strerror or error}; the system refused, look at disk and network"
    what = f"{error.filename}: {error.strerror or error}"
    return f"{what}; look at whether it is there, and may be read and written"


def out_of_memory(error: BaseException) -> str:
    """Return what there was too little memory for, empty where an error is of another kind."""
    torch, text = sys.modules.get("torch"), str(error).strip()
    on_device = torch is not None and isinstance(error, torch.OutOfMemoryError)
    if not (isinstance(error, MemoryError) or on_device or "DefaultCPUAllocator" in text):
        return ""
    asked = re.search(r"allocate ([\d.]+ ?(?:[KMGTP]i?B|bytes))", text)
    if asked is None:
        return "there is not enough memory"
    number, unit = re.fullmatch(r"([\d.]+) ?(.*)", asked[1]).groups()  # type: ignore[union-attr]
    size = f"{float(number) / 2**30:,.1f} GiB" if unit == "bytes" else f"{number.strip('.')} {unit}"
    free = re.search(r"([\d.]+ [KMG]iB) is free", text)
    return f"there is not enough memory for {size}" + (f", {free[1]} is free" if free else "")


def _keep(error: Exception, log: Path | None) -> str:
    """Write the traceback of an error to a file, and return a sentence that names it."""
    text = "".join(traceback.format_exception(error))
    try:
        if log is None or not log.parent.is_dir():
            kind = f"nws_{datetime.now():%Y-%m-%d_%H-%M-%S}_"
            with tempfile.NamedTemporaryFile("w", prefix=kind, suffix=".log", delete=False) as file:
                file.write(text)
                log = Path(file.name)
        else:
            with open(log, "a") as file:
                file.write(text)
    except OSError as reason:
        return f"its traceback could not be written ({reason.strerror}); NWS_DEBUG=1 shows it"
    return f"its traceback is in {log}"
