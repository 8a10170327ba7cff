"""Processes that do not meet, or lose each other: no test of mathematics."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from processes import environment, free_port, together

from nws import distributed
from nws.errors import UserError

KILLED = """
import os, signal, sys, torch
from nws import distributed
distributed.start(timeout=60)
try:
    for step in range(100):
        if step == 20 and distributed.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        distributed.sum_([torch.ones(1000)])
except distributed.Lost as error:
    sys.exit(f"error: {error}")
"""


@pytest.mark.slow
def test_processes_that_have_lost_another_end_with_status_1() -> None:
    """One time in three it was SIGABRT, by gloo's threads that nobody had joined at the end."""
    port, started = free_port(), []
    for rank in range(3):
        own = os.environ | environment(rank, 3, port) | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", KILLED]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, env=own, text=True))
    errors = [each.communicate(timeout=100)[1] for each in started]
    assert [each.returncode for each in started] == [1, -signal.SIGKILL, 1], errors
    assert all("another process of this run has ended" in each for each in errors[::2])


def threads_after_the_end() -> list[str]:
    import torch._dynamo  # as optimizers do, after the processes have met

    distributed.sum_([torch.ones(10)])
    distributed.stop()
    return [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]


def test_no_thread_outlives_the_group() -> None:
    """A thread of gloo that the interpreter's end meets aborts the process, now and then."""
    assert not any("gloo" in name for each in together(2, threads_after_the_end) for name in each)


@pytest.mark.parametrize("rank", [0, 1])
def test_processes_that_do_not_meet_say_so(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first waits for the other, and the other for the first."""
    for name, value in environment(rank, 2, free_port()).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="2 processes were to meet at 127.0.0.1:"):
        distributed.start(timeout=0.5)
    assert distributed.size() == 1
