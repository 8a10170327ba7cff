"""What a campaign of faults tries, and what it finds."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from breaking import Ending, Server
from conftest import SMALL, assert_same_run
from faults.trial import fresh_seed

RUN = (*SMALL, "hydra.run.dir=run", "progress=false")
AUTO = (*RUN, "resume=auto")
WRONG = ("runs lost", "bit differences", "leftovers", "tracebacks")


class Campaign:
    """Cases in folders of their own, each compared with a run that nothing disturbed.

    Args:
        folder: Where all of it is.
        long: Whether it is the long one, with a fresh seed.

    Attributes:
        found: What was wrong, in words.
        counts: What was tried, and what went wrong, by kind.
    """

    def __init__(self, folder: Path, long: bool) -> None:
        self.folder, self.long = folder, long
        self.seed = fresh_seed(long)
        self.random = random.Random(self.seed)
        self.share = float(os.environ.get("NWS_FAULTS_SHARE", "1"))  # of the long campaign
        self.counts = Counter(dict.fromkeys(WRONG, 0))
        self.found: list[str] = []
        self.server = Server(folder / "server")
        self.whole = self.new_folder("whole")
        ending = self.server.start(self.whole, *RUN)
        assert (ending.code, ending.err) == (0, ""), ending
        self.changes = ending.changes

    def new_folder(self, name: str) -> Path:
        """Return an empty folder for a case."""
        folder = self.folder / name
        folder.mkdir()
        return folder

    def times(self, quick: int, long: int) -> int:
        """Return how often to try something."""
        return max(1, round(self.share * long)) if self.long else quick

    def sample(self, quick: int) -> list[int]:
        """Return changes at which to break a run: all, or some, spread over its life."""
        number = self.times(quick, self.changes)
        width = self.changes / number
        return [1 + int(width * (part + self.random.random())) for part in range(number)]

    def check(self, name: str, folder: Path, whole: Path | None = None) -> None:
        """Compare a run that was completed with the one that nothing disturbed."""
        run, other = folder / "run", (whole or self.whole) / "run"
        problem = differences(run, other)
        self.note("bit differences", problem, name)
        left = sorted(names(folder) ^ names(other.parent))
        self.note("leftovers", left and f"left over or missing: {left}", name)
        if not problem and not left:
            shutil.rmtree(folder)

    def look(self, name: str, ending: Ending, codes: tuple[int, ...] = (0,)) -> None:
        """Look at what a process printed, and at its status."""
        self.note("tracebacks", ending.has_traceback and ending.err, name)
        if ending.code not in codes:
            self.note("runs lost", f"status {ending.code}: {ending.out}{ending.err}", name)

    def complete(self, name: str, folder: Path, *arguments: str) -> None:
        """Let a disturbed run go on, and check it."""
        self.look(name, self.server.start(folder, *(arguments or AUTO)))
        self.check(name, folder)

    def note(self, kind: str, problem: Any, name: str) -> None:
        """Count a problem, if it is one."""
        self.counts[kind] += bool(problem)
        if problem:
            self.found.append(f"{name}: {kind}: {problem}")

    def report(self) -> str:
        """Return the counts, a line for each, and what was found."""
        lines = [f"{number:6d} {what}" for what, number in self.counts.items()]
        return "\n".join([f"faults, seed {self.seed}", *lines, *self.found])


def names(folder: Path) -> set[str]:
    """Return the names of all files and folders below a folder, without those of logs and code."""
    below = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return {name for name in below if not name.endswith((".log", ".diff"))}


def differences(run: Path, other: Path) -> str:
    """Return in what two finished runs differ; empty where they are the same bit for bit."""
    try:
        assert_same_run(run, other)
    except (AssertionError, OSError, RuntimeError, KeyError, EOFError) as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    return ""
