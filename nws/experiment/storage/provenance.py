"""Where a run comes from and what became of it: `provenance.json` in the run directory.

Its keys, in words, are in docs/runs.md.
"""

import importlib.metadata
import json
import logging
import math
import os
import platform
import shlex
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from nws import distributed
from nws.errors import Diverged, UserError
from nws.experiment.process.hardware import device_name
from nws.experiment.storage import kinds
from nws.experiment.storage.git import Code, code_of_this_process
from nws.files import process_lives, write_atomically

log = logging.getLogger(__name__)

FILE = "provenance.json"
MAX_DIFF = 500_000  # bytes of a diff that are kept

Facts = dict[str, Any]
#: What the values of provenance.json are; a file with others counts as damaged.
KINDS = {
    **dict.fromkeys(("command", "overrides"), kinds.texts),
    **dict.fromkeys(("state", "version", "host", "processor", "device"), kinds.text),
    **dict.fromkeys(("started", "ended", "experiment"), kinds.maybe(kinds.text)),
    **dict.fromkeys(("steps", "total_steps", "peak_memory_bytes", "threads"), kinds.whole),
    **dict.fromkeys(("ms_per_step", "best", "last"), kinds.maybe(kinds.number)),
    **dict.fromkeys(("epochs", "training_seconds", "evaluation_seconds"), kinds.number),
    "git": kinds.maybe(
        lambda value: kinds.mapping(value) and {"commit", "changed", "diff"} <= {*value}
    ),
    "resumed": lambda value: isinstance(value, list) and all(map(kinds.mapping, value)),
}


#: A resumed run ignores a record without these keys.
NEEDED = ("command", "version", "git", "state", "resumed")


def read_provenance(run: str | Path) -> Facts:
    """Return what provenance.json of a run says; {} where there is none or it is damaged.

    A run whose process is gone from this host, as after a kill, reads as failed.

    Example:
        >>> read_provenance("runs/of_version_0.2")
        {}
    """
    try:
        record = kinds.read_json(Path(run) / FILE)
    except (OSError, ValueError):
        return {}
    if not isinstance(record, dict) or kinds.misfit(record, KINDS):
        return {}
    if record.get("state") == "running" and not process_lives(
        record.get("host"), record.get("pid")
    ):
        record["state"] = "failed"
    return record


def note_finished(run: Path, step: int) -> None:
    """Note that a run has come to its end, which its process was killed before it could.

    Args:
        run: The run directory.
        step: Its last one.
    """
    record = read_provenance(run)
    if record.get("state") == "failed" and record.get("ended") is None:
        record |= {"state": "finished", "steps": step, "ended": now()}
        write_atomically(run / FILE, _json(record))


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


class Provenance:
    """Writes provenance.json of one run, as a whole each time.

    A resumed run keeps the facts of its start. Those that are others at a resume stand in its entry
    of `resumed`.

    Args:
        run: The run directory, which exists.
        given: Facts of the start: command, overrides, experiment, device and others.
        step: Where a resumed run goes on; None for a new one.

    Raises:
        UserError: Where the disk or the folder does not allow to write.
    """

    def __init__(self, run: Path, given: Facts, step: int | None = None) -> None:
        self.run = run
        self.record: Facts = {}
        code = code_of_this_process()
        before = read_provenance(run) if step is not None else {}
        before = before if {*NEEDED} <= before.keys() else {}
        self._evaluated: float = before.get("evaluation_seconds") or 0.0
        self._peak: int = before.get("peak_memory_bytes") or 0
        if step is None or not before:  # a run of version 0.2 has no record yet
            started = now() if step is None else None
            self.record = given | {"git": self._keep(code, "provenance.diff")}
            self.record |= {"started": started, "resumed": []}
        else:
            self.record = before
            entries = len(before["resumed"])  # several may start at one step
            given = given | {"git": self._keep(code, f"provenance_resumed_{entries}.diff")}
        if step is not None:
            entry: Facts = {"step": step, "time": now(), "command": given["command"]}
            differs = [key for key in given if given[key] != self.record.get(key)]
            # The overrides of a resumed run are those of its start, written out.
            entry |= {key: given[key] for key in differs if key not in ("overrides", "experiment")}
            self.record["resumed"] = [*self.record["resumed"], entry]
            log.info("resumed at step %d by %s", step, shlex.join(given["command"]))
        self.update(state="running", ended=None, pid=os.getpid())

    def update(self, **facts: Any) -> None:
        """Take in facts and write the file. Numbers that are not finite become null."""
        facts = {key: _finite(value) for key, value in facts.items()}
        if "evaluation_seconds" in facts:
            facts["evaluation_seconds"] = round(self._evaluated + facts["evaluation_seconds"], 3)
        if "peak_memory_bytes" in facts:
            facts["peak_memory_bytes"] = max(self._peak, facts["peak_memory_bytes"])
        self.record |= facts
        if distributed.is_first():
            write_atomically(self.run / FILE, _json(self.record))

    @contextmanager
    def ended_by(self, outcome: Callable[[], Facts]) -> Iterator[None]:
        """Note how the run inside ends; `outcome` gives its state and its numbers."""
        state = {"state": "failed"}
        try:
            yield
            state = {}
        except Diverged:
            state = {"state": "diverged"}
            raise
        except KeyboardInterrupt:  # a second Ctrl-C
            state = {"state": "stopped"}
            raise
        finally:
            facts = outcome() | state
            try:
                self.update(**facts, ended=now())
            except UserError as error:  # of a full disk; the run has its own error then
                log.warning(str(error))
            log.info("%s at step %s of %s", facts["state"], facts["steps"], facts["total_steps"])

    @property
    def code(self) -> str:
        """The version of nws, and the commit where git knows one, in a few words."""
        git = self.record.get("git") or {"commit": "", "changed": False}
        parts = [f"nws {self.record['version']}", git["commit"][:7]]
        return ", ".join(filter(None, parts)) + " with changes" * git["changed"]

    def summary(self) -> Facts:
        """Return the record in plain values, for the summary of a logger."""
        facts = self.record | {"command": shlex.join(self.record["command"])}
        return {f"provenance/{key}": value for key, value in facts.items() if value is not None}

    def _keep(self, code: Code | None, name: str) -> Facts | None:
        """Write the diff of the code, unless it is that of the start; return what JSON says."""
        if code is None:
            return None
        start, diff = self.record.get("git"), code.diff
        if len(diff) > MAX_DIFF:
            log.info("%s is cut: %d of %d bytes", name, MAX_DIFF, len(diff))
            diff = diff[:MAX_DIFF] + f"\n# cut: {MAX_DIFF} of {len(diff)} bytes\n".encode()
        if start and start["commit"] == code.commit and self._saved(start["diff"]) == diff:
            return start
        if diff and distributed.is_first():
            write_atomically(self.run / name, diff)
        return {"commit": code.commit, "changed": bool(diff), "diff": name if diff else None}

    def _saved(self, name: str | None) -> bytes:
        """Return a diff of an earlier start; empty where there was none."""
        path = self.run / (name or "")
        return path.read_bytes() if path.is_file() else b""


def now() -> str:
    """Return the time, as ISO 8601 with the offset of the time zone."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _json(record: Facts) -> bytes:
    return (json.dumps(record, indent=2) + "\n").encode()


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
