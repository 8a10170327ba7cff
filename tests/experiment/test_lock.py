"""One process at a time writes into a run directory."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, SMALL, Command, assert_same_run, complete, snapshot

from nws.errors import UserError
from nws.experiment.storage import lock as lock_module
from nws.experiment.storage.lock import RunLock, Taken


def test_one_has_the_lock_and_others_hear_who(tmp_path: Path) -> None:
    one, other = RunLock(tmp_path / "run"), RunLock(tmp_path / "run")
    one.acquire()
    one.acquire()  # it has it already
    with pytest.raises(Taken) as refused:
        other.acquire()
    me = f"process {os.getpid()} on {socket.gethostname()} since 20"
    assert me in str(refused.value) and "nothing was changed" in str(refused.value)
    other.release()  # which has none
    with pytest.raises(Taken):
        other.acquire(patience=0.05)
    one.release()
    assert list((tmp_path / "run").iterdir()) == []
    other.acquire()
    other.release()


def test_a_lock_on_a_file_that_went_meanwhile_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network file system, where a file that is removed while it is open has a name yet."""
    lock = RunLock(tmp_path)
    looks = iter([False, False])
    original = RunLock._is_in_place
    monkeypatch.setattr(RunLock, "_is_in_place", lambda self: next(looks, True) and original(self))
    lock.acquire()
    assert next(looks, None) is None
    with pytest.raises(Taken):
        RunLock(tmp_path).acquire()
    lock.release()


@pytest.mark.parametrize("text", ["", "{", "3", '{"pid": 1}', '{"host": "%s", "pid": 99999999}'])
def test_an_owner_that_cannot_be_named(tmp_path: Path, text: str) -> None:
    one = RunLock(tmp_path)
    one.acquire()
    one.path.write_text(text.replace("%s", socket.gethostname()))
    with pytest.raises(Taken, match="by another process;"):
        RunLock(tmp_path).acquire()
    one.release()


def broken(number: int) -> type:
    class Broken(lock_module.FileLock):  # type: ignore[misc, valid-type]
        def acquire(self, *_: Any, **__: Any) -> Any:
            raise OSError(number, os.strerror(number))

    return Broken


def test_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lock_module, "FileLock", broken(errno.ENOLCK))
    RunLock(tmp_path).acquire()
    assert "has no locks: start each run once" in caplog.text
    monkeypatch.setattr(lock_module, "FileLock", broken(errno.EROFS))
    with pytest.raises(UserError, match="cannot be written to"):
        RunLock(tmp_path).acquire()


# --- processes ------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from nws.experiment.storage.lock import RunLock
RunLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(60)
"""


def test_the_kernel_frees_the_lock_of_a_killed_process_alone(
    train: Command, tmp_path: Path
) -> None:
    """A stopped process that goes on later has it still: no other could have finished the run."""
    whole = train("hydra.run.dir=whole").run
    run = tmp_path / "run"
    run.mkdir()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, run], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        for number in (signal.SIGSTOP, signal.SIGCONT):
            holder.send_signal(number)
            refused = train("hydra.run.dir=run").message()
            assert f"{run} is being trained by process {holder.pid} on" in refused
        assert json.loads((run / ".lock").read_text())["pid"] == holder.pid
        assert {path.suffix for path in run.iterdir()} <= {"", ".log"}
    finally:
        holder.kill()
        holder.wait()
    assert_same_run(whole, train("hydra.run.dir=run").run)
    assert not (run / ".lock").exists()


def test_a_run_that_is_trained_elsewhere_is_not_resumed(
    train: Command, sweep: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nws.experiment.launch.resume.PATIENCE", 0.05)
    run = train("hydra.run.dir=run", "trainer.epochs=1").run
    before = snapshot(run)
    owner = RunLock(run)
    owner.acquire()
    assert "is being trained by process" in train("resume=run", "trainer.epochs=2").message()
    auto = train(*SMALL, "hydra.run.dir=run", "resume=auto", "trainer.epochs=1")
    assert auto.code == 0 and "finished already" in auto.out  # there is nothing to write
    owner.release()
    assert snapshot(run) == before

    jobs = ("seed=0,1", "hydra.sweep.dir=jobs", "resume=auto")
    owner = RunLock(Path("jobs/0").absolute())
    owner.acquire()
    shared = sweep(*jobs)
    assert shared.code == 0, shared.err
    assert f"job 0 is left out: {owner.path.parent} is being trained by process" in shared.out
    assert complete(Path("jobs/1"))
    owner.release()
    assert not list(Path("jobs/0").glob("[!t]*"))  # train.log alone, if anything
    assert sweep(*jobs).code == 0 and complete(Path("jobs/0"))


SWEEP = (
    "trainer.epochs=100000", "data=three_by_three", "seed=0,1", "hydra.sweep.dir=jobs",
    "hydra/launcher=joblib", "hydra.launcher.n_jobs=2",
)  # fmt: skip


def test_workers_end_with_their_sweep(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, ROOT / "train.py", "-m", *SMALL, *SWEEP], cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    lasts = [tmp_path / "jobs" / name / "checkpoints" / "last.pt" for name in "01"]
    deadline = time.monotonic() + 120
    while not all(path.exists() for path in lasts) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    try:
        for path in lasts:  # a worker that trains on would have the lock yet
            lock = RunLock(path.parents[1])
            lock.acquire(patience=20)
            lock.release()
    finally:  # where that failed
        for path in lasts:
            with contextlib.suppress(OSError):
                os.kill(json.loads((path.parents[1] / ".lock").read_text())["pid"], signal.SIGKILL)
