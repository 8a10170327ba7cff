"""train.py in forks, with no import paid twice, that a test kills or leaves without a good disk."""

import contextlib
import errno
import os
import signal
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conftest import ROOT
from hydra.core.global_hydra import GlobalHydra

from nws.experiment import launch, resume
from nws.experiment.boundary import errors_for_people
from nws.programs import train

#: The errors of a disk, and whether a file can then be removed or renamed.
DISKS = {"full": (errno.ENOSPC, True), "read_only": (errno.EROFS, False)}
assert launch and resume  # imported once, here
CHANGES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")


@dataclass(frozen=True)
class Ending:
    """What became of it: exit status (-9 for a kill), output, changes to files that it came to."""

    code: int
    out: str
    err: str
    changes: int


class Breaker:
    """Counts every change to files below a folder, and breaks the one of number `at`, and all
    later ones: mkdir, open to write, fsync with half of the bytes, rename, remove.
    """

    def __init__(self, folder: Path, how: str, at: int) -> None:
        self.folder, self.how, self.at, self.count = f"{folder.resolve()}{os.sep}", how, at, 0

    def install(self) -> None:
        fsync = os.fsync

        def counted(descriptor: int) -> None:
            self.change("fsync", descriptor)
            fsync(descriptor)

        os.fsync = counted
        sys.addaudithook(self.hear)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take in what Python is about to do."""
        if event not in CHANGES or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        path = os.path.abspath(os.fsdecode(arguments[0])) + os.sep
        writes = event != "open" or arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes and path.startswith(self.folder):
            self.change(event)

    def change(self, event: str, descriptor: int | None = None) -> None:
        """Count a change, which breaks where its time has come."""
        self.count += 1
        if not self.how or self.count < self.at:
            return
        if descriptor is not None:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
        if self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        number, can_move = DISKS[self.how]
        if not (can_move and event in ("os.rename", "os.remove", "os.rmdir")):
            raise OSError(number, os.strerror(number))


def begin(folder: Path, *arguments: str, how: str = "", at: int = 0) -> tuple[int, Path]:
    """Start train.py in a folder; return its process, and where it leaves what it says."""
    said = Path(tempfile.mkdtemp(dir=folder.parent))
    process = os.fork()
    if not process:
        _be(folder, arguments, Breaker(folder, how, at), said)
    return process, said


def end(process: int, said: Path) -> Ending:
    """Wait for a process that was started, and return what became of it."""
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    files = {path.name: path.read_text(errors="replace") for path in said.iterdir()}
    return Ending(code, files.get("out", ""), files.get("err", ""), int(files.get("count", -1)))


def start(folder: Path, *arguments: str, how: str = "", at: int = 0) -> Ending:
    """Return what becomes of train.py."""
    return end(*begin(folder, *arguments, how=how, at=at))


def _be(folder: Path, arguments: tuple[str, ...], breaker: Breaker, said: Path) -> None:
    """Be the process; never return."""
    code: Any = 1
    try:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(said / name, os.O_WRONLY | os.O_CREAT), number)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")  # pytest has its own there
        os.setsid()
        os.chdir(folder)
        os.environ["PYTHONPATH"] = str(ROOT)  # of workers that it starts
        sys.argv = [str(ROOT / "train.py"), *arguments]
        GlobalHydra.instance().clear()
        breaker.install()
        with errors_for_people():
            train.run()
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        traceback.print_exc()
    breaker.how = ""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    (said / "count").write_text(str(breaker.count))
    os._exit(code)
