"""train.py in processes that break at a chosen point: killed, on a full disk, on a read-only one.

A server that has imported everything forks one process for each command, so a case takes well below
a second. It answers a line of JSON on its standard input, a list of commands that run at the same
time, by a line with what became of each. `python breaking.py` starts it; `Server` talks to it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]

#: The errors of a disk, and whether a file can then be removed or renamed.
DISKS = {"full": (errno.ENOSPC, True), "read_only": (errno.EROFS, False)}


@dataclass(frozen=True)
class Attempt:
    """A start of train.py, and how it breaks.

    Attributes:
        folder: Where it starts. What it does to files below is counted.
        arguments: Of the command line.
        how: killed, full or read_only; empty for a process that nothing disturbs.
        at: The number of the first change to files that does not happen.
        after: Seconds after which it is killed, in place of `how`.
    """

    folder: str
    arguments: Sequence[str]
    how: str = ""
    at: int = 0
    after: float | None = None


@dataclass(frozen=True)
class Ending:
    """What became of it: exit status (-9 for a kill), output, changes to files that it came to."""

    code: int
    out: str
    err: str
    changes: int

    @property
    def has_traceback(self) -> bool:
        return "Traceback" in self.out + self.err


class Breaker:
    """Counts every change to files below a folder, and breaks one: mkdir, open to write, half of
    a write, fsync, rename, remove.
    """

    def __init__(self, folder: str, how: str, at: int) -> None:
        self.folder, self.how, self.at, self.count = os.path.realpath(folder) + os.sep, how, at, 0
        self.busy = False

    def install(self) -> None:
        from nws import files

        fsync, real_open, breaker = os.fsync, open, self

        class Torn:
            """A file of which half a write may come through."""

            def __init__(self, file: IO[bytes]) -> None:
                self.file = file

            def write(self, content: bytes) -> int:
                half = len(content) // 2
                self.file.write(content[:half])
                self.file.flush()
                breaker.change("write")
                return half + self.file.write(content[half:])

            def __getattr__(self, name: str) -> Any:
                return getattr(self.file, name)

            def __enter__(self) -> Torn:
                return self

            def __exit__(self, *_: object) -> None:
                self.file.close()

        def counted_fsync(descriptor: int) -> None:
            breaker.change("fsync")
            fsync(descriptor)

        os.fsync = counted_fsync
        files.open = lambda path, mode: Torn(real_open(path, mode))  # type: ignore[attr-defined]
        sys.addaudithook(self.hear)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take in what Python is about to do."""
        if self.busy or event not in (
            "open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.symlink",
        ):  # fmt: skip
            return
        if isinstance(arguments[0], int) or arguments[0] is None:
            return
        path = os.path.abspath(os.fsdecode(arguments[0])) + os.sep
        writes = event != "open" or arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes and path.startswith(self.folder):
            self.change(event)

    def change(self, event: str) -> None:
        """Count a change, which breaks where its time has come."""
        self.count += 1
        if not self.how or self.count < self.at:
            return
        if self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        number, can_move = DISKS[self.how]
        if not (can_move and event in ("os.rename", "os.remove", "os.rmdir")):
            raise OSError(number, os.strerror(number))


# --- the server -----------------------------------------------------------------------------------


def warm_up() -> None:
    """Import what a run imports, however late, and find what it finds."""
    sys.path.insert(0, str(ROOT))
    import sklearn.datasets
    import torch
    import torchvision.utils
    from hydra.core.plugins import Plugins

    import nws.programs.train
    from nws.experiment.storage.git import code_of_this_process

    torch.set_num_threads(1)  # of which a fork would leave but one
    Plugins.instance()
    code_of_this_process()
    assert sklearn.datasets and torchvision.utils and nws.programs.train


def run_here(attempt: Attempt, place: Path) -> None:
    """Be the process of an attempt; never return."""
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{place}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(attempt.folder)
    from nws.programs.train import run

    sys.argv = [str(ROOT / "train.py"), *attempt.arguments]
    breaker, code = Breaker(attempt.folder, attempt.how, attempt.at), 0
    breaker.install()
    try:
        run()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    breaker.how = ""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    Path(f"{place}.count").write_text(str(breaker.count))
    os._exit(code)


def serve() -> None:
    """Answer lines until there are none."""
    scratch = Path(sys.argv[1])
    warm_up()
    for line in sys.stdin:
        children = []
        for index, each in enumerate(json.loads(line)):
            attempt, place = Attempt(**each), scratch / str(index)
            Path(f"{place}.count").unlink(missing_ok=True)
            child = os.fork()
            if not child:
                run_here(attempt, place)
            if attempt.after is not None:
                threading.Timer(attempt.after, kill, [child]).start()
            children.append((child, place))
        endings = [ending(os.waitpid(child, 0)[1], place) for child, place in children]
        print(json.dumps([asdict(each) for each in endings]), flush=True)


def kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def ending(status: int, place: Path) -> Ending:
    out, err = (Path(f"{place}.{name}") for name in ("out", "err"))
    texts = [path.read_text(errors="replace") if path.exists() else "" for path in (out, err)]
    count = Path(f"{place}.count")
    changes = int(count.read_text()) if count.exists() else -1
    return Ending(os.waitstatus_to_exitcode(status), *texts, changes)


class Server:
    """The server, as the tests talk to it."""

    def __init__(self, scratch: Path) -> None:
        scratch.mkdir()
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(scratch)], stdin=subprocess.PIPE, text=True,
            stdout=subprocess.PIPE, env=environment,
        )  # fmt: skip

    def together(self, *attempts: Attempt) -> list[Ending]:
        """Return what becomes of processes that start at once."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([asdict(each) for each in attempts]) + "\n")
        self.process.stdin.flush()
        return [Ending(**each) for each in json.loads(self.process.stdout.readline())]

    def start(self, folder: Path, *arguments: str, **how: Any) -> Ending:
        """Return what becomes of one process."""
        return self.together(Attempt(str(folder), arguments, **how))[0]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def wait_until(true: Any, seconds: float) -> bool:
    """Return whether something becomes true in time."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


if __name__ == "__main__":
    serve()
