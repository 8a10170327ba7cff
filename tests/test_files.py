"""Files are written whole, and what killed processes left of them goes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nws.errors import UserError
from nws.files import ABANDONED_AFTER, aside, make_folder, process_lives, remove_abandoned


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_ended_processes_left_goes_and_all_else_stays(tmp_path: Path) -> None:
    here, ended, parent = socket.gethostname(), ended_process(), os.getppid()
    goes = {
        f".last.pt.{ended}@{here}.tmp",
        f".last.pt.{ended}.tmp",  # of earlier versions
        f".a name.{os.getpid()}@{here}.tmp",
        ".last.pt.1@old.host.tmp",
    }
    stays = {
        f".last.pt.{parent}@{here}.tmp", f".last.pt.{parent}.tmp", ".last.pt.1@other.host.tmp",
        "last.pt", f"last.pt.{ended}.tmp", f".last.pt.{ended}", ".last.pt.tmp",
    }  # fmt: skip
    below = tmp_path / "below"
    for folder in (tmp_path, below):
        folder.mkdir(exist_ok=True)
        for name in goes | stays:
            (folder / name).touch()
        long_ago = time.time() - ABANDONED_AFTER - 60
        os.utime(folder / ".last.pt.1@old.host.tmp", (long_ago, long_ago))
    (tmp_path / f".copy.{ended}@{here}.tmp").mkdir()
    (tmp_path / f".copy.{ended}@{here}.tmp" / "file").touch()
    remove_abandoned(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == stays | {"below"}
    assert {path.name for path in below.iterdir()} == goes | stays
    remove_abandoned(tmp_path, below=True)
    assert {path.name for path in below.iterdir()} == stays
    remove_abandoned(tmp_path / "missing")


def test_what_this_process_writes_aside_is_recognised(tmp_path: Path) -> None:
    aside(tmp_path / "file").touch()
    remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_which_processes_live() -> None:
    here = socket.gethostname()
    assert process_lives(here, os.getpid()) and process_lives("elsewhere", 99999999)
    assert not process_lives(here, 99999999) and not process_lives(here, 10**30)
    assert process_lives(here, None) and process_lives(None, 1)  # nothing is known


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    make_folder(tmp_path / "a" / "b")
    with pytest.raises(UserError, match="could not make the folder .*Not a directory"):
        make_folder(tmp_path / "file" / "b")
