"""Where a run comes from and what became of it: `provenance.json` in the run directory.

Its keys, in words, are in docs/runs.md.
"""

import contextlib
import importlib.metadata
import json
import logging
import math
import os
import platform
import shlex
import socket
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from nws import distributed
from nws.errors import UserError
from nws.experiment.callbacks import Callback
from nws.experiment.evaluation import best_and_last
from nws.experiment.hardware import device_name, peak_memory
from nws.experiment.run import RunDirectory, now
from nws.files import PACKAGE, read_text

if TYPE_CHECKING:
    from nws.experiment.trainer import Trainer

log = logging.getLogger(__name__)

FILE = "provenance.json"
LIMIT = 2**22  # bytes of it that are read
MAX_DIFF = 500_000  # bytes of a diff that are kept
SOURCES = ("*.py", "conf/*.yaml")  # new files that count as a change
TIMEOUT = 10.0  # seconds that git may take

Facts = dict[str, Any]


def read_provenance(run: str | Path) -> Facts:
    """Return what provenance.json of a run says; {} where there is none or it is damaged.

    A run whose process is gone from this host, as after a kill, reads as failed.

    Examples:
        >>> read_provenance("no/such/run")
        {}
    """
    try:
        record = json.loads(read_text(Path(run) / FILE, LIMIT))
    except (UserError, ValueError, RecursionError):
        return {}
    if not isinstance(record, dict):
        return {}
    if record.get("state") == "running" and not _lives(record.get("host"), record.get("pid")):
        record["state"] = "failed"
    return record


def _lives(host: object, pid: object) -> bool:
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


def surroundings(device: torch.device) -> Facts:
    """Return what a run runs on: versions, host and processor."""
    return {
        "version": installed_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "device": device.type,
        "processor": device_name(device.type),
        "threads": torch.get_num_threads(),
        "processes": distributed.size(),
    }


def installed_version() -> str:
    """Return the version of nws, "unknown" where it runs without having been installed."""
    try:
        return importlib.metadata.version("nws")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


class Provenance(Callback):
    """Writes provenance.json of one run, as a whole each time, once the run has a checkpoint.

    A resumed run keeps the facts of its start. Those that are others now stand in its entry of
    `resumed`.

    Args:
        run: The run directory.
        given: Facts of the start: command, overrides, experiment, device and others.
        step: Where a resumed run goes on; None for a new one.
    """

    def __init__(self, run: RunDirectory, given: Facts, step: int | None = None) -> None:
        self.run, self.record = run, given | {"started": now() if step is None else None}
        before = read_provenance(run.path) if step is not None else {}
        self._evaluated = _number(before.get("evaluation_seconds"))
        self._peak = _number(before.get("peak_memory_bytes"))
        resumed = before.get("resumed")
        entries = resumed if isinstance(resumed, list) else []
        name = f"provenance_resumed_{len(entries)}.diff" if before else "provenance.diff"
        self._diff = (name, b"")  # a file that is still to be written
        given = given | {"git": self._git_facts(read_code(), name, before.get("git"))}
        if step is not None:
            entry: Facts = {"step": step, "time": now(), "command": given["command"]}
            differs = [key for key in given if given[key] != before.get(key)]
            entry |= {key: given[key] for key in differs if key not in ("overrides", "experiment")}
            entries = [*entries, entry]
            log.info("resumed at step %d by %s", step, shlex.join(given["command"]))
        self.record |= (before or given) | {"resumed": entries}

    def start(self, trainer: "Trainer") -> None:
        """Note that a resumed run goes on; a new one has no file yet."""
        if trainer.rows:
            self.saved(trainer)

    def saved(self, trainer: "Trainer") -> None:
        """Note how far the run is."""
        self.update(**facts(trainer), state="running", ended=None, pid=os.getpid())

    def finish(self, trainer: "Trainer", summary: dict[str, Any], state: str) -> None:
        """Note how the run has ended. On a full disk it has an error of its own."""
        if trainer.rows:
            with contextlib.suppress(UserError):
                self.update(**facts(trainer), state=state, ended=now())
        log.info("%s at %s", state, trainer.place)

    def update(self, **facts: Any) -> None:
        """Take in facts and write the file. Numbers that are not finite become null."""
        facts["evaluation_seconds"] = round(self._evaluated + facts["evaluation_seconds"], 3)
        facts["peak_memory_bytes"] = max(int(self._peak), facts["peak_memory_bytes"])
        for key, value in facts.items():
            bad = isinstance(value, float) and not math.isfinite(value)
            self.record[key] = None if bad else value
        name, diff = self._diff
        if diff:
            self.run.write(name, diff)
            self._diff = (name, b"")
        self.run.write(FILE, (json.dumps(self.record, indent=2) + "\n").encode())

    @property
    def code(self) -> str:
        """The version of nws, and the commit where git knows one, in a few words."""
        git = self.record.get("git") or {"commit": "", "changed": False}
        parts = [f"nws {self.record['version']}", git["commit"][:7]]
        return ", ".join(filter(None, parts)) + " with changes" * git["changed"]

    def _git_facts(self, code: "Code | None", name: str, before: Facts | None) -> Facts | None:
        """Return what JSON says of the code; its diff is kept unless it is that of the start."""
        if code is None:
            return None
        diff = code.diff
        if len(diff) > MAX_DIFF:
            diff = diff[:MAX_DIFF] + f"\n# cut: {MAX_DIFF} of {len(diff)} bytes\n".encode()
        place = self.run.path / str((before or {}).get("diff"))
        kept = place.read_bytes() if place.is_file() else b""
        if before and before.get("commit") == code.commit and kept == diff:
            return before
        self._diff = (name, diff)
        return {"commit": code.commit, "changed": bool(diff), "diff": name if diff else None}


def facts(trainer: "Trainer") -> Facts:
    """Return how far a run is, in a few numbers; docs/runs.md has the keys in words."""
    best, last = best_and_last(trainer.rows)
    step, seconds = trainer.step, trainer.seconds
    return {
        "steps": step,
        "total_steps": trainer.total_steps,
        "epochs": trainer.settings.epochs,
        "ms_per_step": round(1000 * seconds / step, 3) if step else None,
        "training_seconds": round(seconds, 3),
        "evaluation_seconds": trainer.evaluation_seconds,
        "peak_memory_bytes": peak_memory(trainer.device),
        "best": best.mean if best else None,
        "last": last.mean if last else None,
    }


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


class Code(NamedTuple):
    """The state of a working tree."""

    commit: str
    diff: bytes  # as git writes it, with new source files; empty where nothing was changed


@lru_cache
def read_code(folder: Path | None = None) -> Code | None:
    """Return the state of the working tree around a folder; None where git knows of none.

    By default it is the tree that nws was imported from; for an installed nws, which lies in no
    tree of its own, that of the working directory.
    """
    if folder is None:
        tracked = _git(PACKAGE, "ls-files", "--error-unmatch", "__init__.py") is not None
        return read_code(PACKAGE if tracked else Path.cwd())
    commit, top = _git(folder, "rev-parse", "HEAD"), _git(folder, "rev-parse", "--show-toplevel")
    if commit is None or top is None:
        return None
    root = Path(os.fsdecode(top.rstrip(b"\n")))
    with tempfile.TemporaryDirectory() as aside:  # an index of our own, so that theirs stays
        index = {"GIT_INDEX_FILE": f"{aside}/index"}
        _git(root, "read-tree", "HEAD", **index)
        new = _git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *SOURCES)
        names = [os.fsdecode(each) for each in (new or b"").split(b"\0") if each]
        if names:
            _git(root, "add", "--intent-to-add", "--", *names, **index)
        diff = _git(root, "diff", "--no-ext-diff", "--no-textconv", "HEAD", **index)
    return Code(commit.decode().strip(), diff or b"")


def _git(folder: Path, *arguments: str, **variables: str) -> bytes | None:
    """Return what a git command prints, None where it fails. It writes no lock."""
    # A hook of git sets GIT_DIR and others, which would point to another tree.
    own = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        return subprocess.run(
            ["git", "--no-optional-locks", "-C", folder, *arguments], check=True,
            env=own | variables, timeout=TIMEOUT, stdin=subprocess.DEVNULL, capture_output=True,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
