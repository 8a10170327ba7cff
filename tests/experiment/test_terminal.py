"""A run on a terminal: lines, the bar, Ctrl-C, and silence where it is asked for."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import signal
import struct
import sys
import termios
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT, SMALL, Command

from nws.experiment.terminal import write_line


def test_progress_in_a_terminal(tmp_path: Path) -> None:
    """A bar with epoch, rate and bound, one line an evaluation, and Ctrl-C; W&B is on, as by
    default.
    """
    options = [
        *SMALL[:-1],
        "trainer.epochs=2000",
        "trainer.evaluate_every=10",
        "trainer.check_every=5",
    ]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, [sys.executable, str(ROOT / "train.py"), *options])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 40, 120, 0, 0))
    text, interrupted, deadline = b"", False, time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            text += os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        if (
            not interrupted and text.count(b"valid") >= 3
        ):  # the terminal's ^C may fall into the third line
            os.write(terminal, b"\x03")  # to the whole foreground group, as a keyboard does
            interrupted = True
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGINT
    os.close(terminal)

    output = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.decode())  # without colours and cursor
    bar = r"\repoch \d+\.\d\d/2000 .* \d:\d\d:\d\d \d+\.\d steps/s bound -\d+\.\d\d nats"
    assert re.search(bar, output)
    lines = [line.split("\r")[-1] for line in output.split("\r\n")]
    evaluation = r"epoch +\d+\.00  step +\d+  valid +-\d+\.\d+ ± \d+\.\d+ nats"
    evaluation += r" \(5 samples\)  train bound .* s"
    assert sum(bool(re.fullmatch(evaluation, line)) for line in lines) >= 2
    lines = [line for line in lines if line]
    run = Path(lines[-1])
    assert Path(lines[0]) == run
    assert lines[-3].startswith("stopped by signal 2; go on with") and lines[-2].endswith(
        f"train.py resume={run}"
    )
    assert "Traceback" not in output
    state = torch.load(run / "checkpoints" / "last.pt", weights_only=True)
    assert state["wandb_id"] and list((run / "wandb").glob(f"offline-run-*-{state['wandb_id']}"))


def test_progress_false_is_quiet_in_a_terminal(
    train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    quiet = train("progress=false")
    assert quiet.err == "" and len(quiet.out.splitlines()) == 2
    loud = train("progress=true")  # the control: this terminal does get lines and a bar
    assert "valid" in loud.out and "steps/s" in loud.out


def test_a_line_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parallel jobs share the output: a line in two pieces could be torn by another one's."""
    pieces: list[str] = []

    class Output(io.StringIO):
        def write(self, text: str) -> int:
            pieces.append(text)
            return len(text)

    monkeypatch.setattr(sys, "stdout", Output())
    write_line(Path("runs/7"))
    assert pieces == ["runs/7\n"]
    print(Path("runs/7"))  # the control
    assert pieces[1:] == ["runs/7", "\n"]
