"""Where a run comes from and what became of it: `provenance.json` in the run directory.

Its keys, in words, are in docs/runs.md.
"""

import contextlib
import json
import logging
import math
import os
import shlex
import socket
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from nws.errors import UserError
from nws.experiment.callbacks.callback import Callback, Trainer
from nws.experiment.run import RunDirectory, now
from nws.files import PACKAGE, is_running, read_text

log = logging.getLogger(__name__)

FILE, DIFF = "provenance.json", "provenance.diff"
KINDS: dict[str, Any] = {  # others are damaged
    "overrides": list, "command": list, "git": dict, "resumed": list, "epochs": int | float,
    **dict.fromkeys(("steps", "total_steps", "training_seconds"), int | float),
}  # fmt: skip
SOURCES = ("*.py", "conf/*.yaml")  # new files that count as a change

Facts = dict[str, Any]


def read_provenance(run: str | Path) -> Facts:
    """Return what provenance.json of a run says; {} where there is none or it is damaged.

    A run whose process is gone from this host reads as killed.
    """
    try:
        record = dict(json.loads(read_text(Path(run) / FILE, limit=2**22)))
    except (UserError, ValueError, TypeError, RecursionError):
        return {}
    record = {key: each for key, each in record.items() if isinstance(each, KINDS.get(key, object))}
    newest = record["resumed"][-1] if record.get("resumed") else record
    host = newest.get("host") if isinstance(newest, dict) else None
    alive = isinstance(record.get("pid"), int) and is_running(record["pid"])
    if record.get("state") == "running" and host == socket.gethostname() and not alive:
        record["state"] = "killed"
    return record


class Provenance(Callback):
    """Writes provenance.json of one run, as a whole each time, once the run has a checkpoint.

    A resumed run keeps the facts of its start, and gets an entry in `resumed` with those of here.
    """

    def __init__(self, run: RunDirectory, origin: Facts, here: Facts, step: int | None) -> None:
        self.run, (commit, diff) = run, read_code() or (None, b"")
        git: Facts | None = {"commit": commit, "changed": bool(diff)} if commit else None
        if git and diff:
            git["diff"] = DIFF if step is None else f"provenance_step_{step}.diff"
            run.write(git["diff"], diff)
        self.record = origin | here | {"started": now(), "git": git, "resumed": []}
        changed = f", {commit[:7]}{' with changes' * bool(diff)}" if commit else ""
        self.code = f"nws {here['version']}{changed}"  # in a few words
        if step is not None:
            before = self.record | {"started": None} | read_provenance(run.path)
            entry = {"step": step, "time": now(), "command": origin["command"], "git": git} | here
            self.record = before | {"resumed": [*before["resumed"], entry]}
            log.info("resumed at step %d by %s", step, shlex.join(origin["command"]))

    def start(self, trainer: Trainer) -> None:
        if trainer.rows:  # a new run has no file yet
            self.saved(trainer)

    def saved(self, trainer: Trainer) -> None:
        self._write(trainer, state="running", ended=None, reason=None, pid=os.getpid())

    def finish(self, trainer: Trainer, summary: dict[str, Any], state: str) -> None:
        if trainer.rows:
            with contextlib.suppress(UserError):  # on a full disk the run has an error of its own
                self._write(trainer, state=state, ended=now(), reason=summary["reason"])
        log.info("%s at %s", state, trainer.place)

    def _write(self, trainer: Trainer, **facts: Any) -> None:
        """Take in how far a run is, and write the file. What is not finite becomes null."""
        step, seconds = trainer.step, trainer.seconds
        best, last = trainer.best, trainer.rows[-1]["valid/log_likelihood"] if step else math.nan
        self.record |= facts | {
            "steps": step,
            "total_steps": trainer.total_steps,
            "epochs": trainer.settings.epochs,
            "ms_per_step": round(1000 * seconds / step, 3) if step else None,
            "training_seconds": round(seconds, 3),
            "best": best if math.isfinite(best) else None,
            "last": last if math.isfinite(last) else None,
        }
        self.run.write(FILE, (json.dumps(self.record, indent=2) + "\n").encode())


@lru_cache
def read_code(folder: Path | None = None) -> tuple[str, bytes] | None:
    """Return the commit of the working tree around a folder, and what was changed since, new source
    files too, as git writes it; None where git knows of no tree.
    """
    if folder is None:  # the tree of nws, or where it is installed that of the working directory
        tracked = _git(PACKAGE, "ls-files", "--error-unmatch", "__init__.py") is not None
        return read_code(PACKAGE if tracked else Path.cwd())
    commit, top = _git(folder, "rev-parse", "HEAD"), _git(folder, "rev-parse", "--show-toplevel")
    if commit is None or top is None:
        return None
    root = Path(os.fsdecode(top.rstrip(b"\n")))
    with tempfile.TemporaryDirectory() as aside:  # an index of our own, so that theirs stays
        index = {"GIT_INDEX_FILE": f"{aside}/index"}
        _git(root, "read-tree", "HEAD", **index)
        new = _git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *SOURCES) or b""
        if names := os.fsdecode(new).split("\0")[:-1]:
            _git(root, "add", "--intent-to-add", "--", *names, **index)
        diff = _git(root, "diff", "--no-ext-diff", "--no-textconv", "HEAD", **index)
    return commit.decode().strip(), diff or b""


def _git(folder: Path, *arguments: str, **variables: str) -> bytes | None:
    """Return what a git command prints, None where it fails. It writes no lock."""
    # A hook of git sets GIT_DIR and others, which would point to another tree.
    own = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        return subprocess.run(
            ["git", "--no-optional-locks", "-C", folder, *arguments], check=True,
            env=own | variables, timeout=10, stdin=subprocess.DEVNULL, capture_output=True,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
