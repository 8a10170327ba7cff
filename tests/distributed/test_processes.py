"""Processes that meet, end and lose each other: no test of mathematics."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from conftest import ROOT
from processes import environment, free_port

from nws import distributed
from nws.errors import UserError

KILLED = """
import atexit, os, signal, sys, torch
atexit.register(lambda: print("left" if not torch.distributed.is_initialized() else "in it"))
from nws import distributed
distributed.start(timeout=60)
numbers = torch.ones(1000)
try:
    for step in range(100):
        if step == 20 and distributed.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        distributed.sum_([numbers])
except distributed.Lost as error:
    sys.exit(f"error: {error}")
"""


@pytest.mark.slow
def test_processes_that_have_lost_another_end_with_status_1() -> None:
    """One time in three it was SIGABRT, by gloo's threads that nobody had joined at the end."""
    port = free_port()
    started = [
        subprocess.Popen(
            [sys.executable, "-c", KILLED], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=os.environ | environment(rank, 3, port) | {"PYTHONPATH": str(ROOT)}, text=True,
        )
        for rank in range(3)
    ]  # fmt: skip
    outputs = [each.communicate(timeout=100) for each in started]
    assert [each.returncode for each in started] == [1, -signal.SIGKILL, 1], outputs
    for out, err in outputs[::2]:
        assert "another process of this run has ended" in err and out == "left\n"


@pytest.mark.parametrize(("rank", "torchrun"), [(0, False), (1, False), (0, True)])
def test_processes_that_do_not_meet_end_in_time(
    rank: int, torchrun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first waits for the other, the other for the first, and all for torchrun's store."""
    for name, value in environment(rank, 2, free_port()).items():
        monkeypatch.setenv(name, value)
    if torchrun:
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(UserError, match="2 processes were to meet at 127.0.0.1:"):
        distributed.start(timeout=1)
    assert distributed.size() == 1
