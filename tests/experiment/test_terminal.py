"""What a run shows: panels, bars and Ctrl-C on a terminal, lines elsewhere, or nothing."""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT, SMALL, Command, Interrupt, metrics

from nws.experiment.process import terminal
from nws.experiment.hardware import device_text
from nws.experiment.terminal import write_line


def test_progress_in_a_terminal(tmp_path: Path) -> None:
    """A bar with epoch, rate and bound, one line an evaluation, and Ctrl-C; W&B is on, as by
    default.
    """
    options = [*SMALL[:-1], "trainer.epochs=2000", "trainer.evaluate_every=10"]
    pid, screen = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.environ |= {"TERM": "xterm", "COLUMNS": "120"}
        os.execv(sys.executable, [sys.executable, str(ROOT / "train.py"), *options])
    text, interrupted, deadline = b"", False, time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            text += os.read(screen, 4096)
        except OSError:  # the other end is closed
            break
        if (
            not interrupted and text.count(b"ess ") >= 3
        ):  # the terminal's ^C may fall into the third line
            os.write(screen, b"\x03")  # to the whole foreground group, as a keyboard does
            interrupted = True
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGINT
    os.close(screen)

    output = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.decode())  # without colours and cursor
    pace = r"\d:\d\d:\d\d left  \d+\.\d ms/step  bound -\d+\.\d\d nats"
    assert re.search(rf"epoch \d+\.\d\d/2000 .* {pace}", output)
    assert re.search(r"evaluation +\S+ +", output)
    lines = [line.split("\r")[-1] for line in output.split("\r\n")]
    evaluation = r"epoch +\d+\.00  step +\d+  valid +-\d+\.\d+ ± \d+\.\d+ nats"
    first = rf"{evaluation}  0\.0 s  5 samples"
    evaluation += r"  bound +-\d+\.\d+  \d+\.\d s  ess \d\.\d\d  5 samples"
    assert sum(bool(re.fullmatch(evaluation, line)) for line in lines) >= 2
    assert sum(bool(re.fullmatch(first, line)) for line in lines) == 1  # of step 0
    lines = [line for line in lines if line]
    run = Path(lines[-1])
    assert re.fullmatch("╭─ digits_rws ─+╮", lines[0])
    assert any(line.startswith("╭─ stopped at step ") for line in lines)
    assert lines[-3].startswith("stopped by signal 2; go on with") and lines[-2].endswith(
        f"train.py resume={run}"
    )
    assert "Traceback" not in output
    state = torch.load(run / "checkpoints" / "last.pt", map_location="cpu", weights_only=True)
    assert state["wandb_id"] and list((run / "wandb").glob(f"offline-run-*-{state['wandb_id']}"))


def test_progress_false_silences_the_bars_alone(
    train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    loud = train("progress=true")  # the control: this terminal does get bars
    assert "valid" in loud.out and "ms/step" in loud.out and "━" in loud.out
    calm = train("progress=false")
    assert calm.err == "" and "valid" in calm.out and "finished" in calm.out
    assert "ms/step" not in calm.out and "━" not in calm.out
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", calm.out).splitlines()
    assert max(map(len, lines[:-5])) <= 80  # all but the commands and the path


def test_a_quiet_run_prints_its_directory_alone(
    train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    warning = ("metric=euclidean", "damping.value=0.3")  # which has no effect
    assert "without effect" in train(*warning).err  # the control
    for is_terminal in (False, True):
        monkeypatch.setattr(sys.stdout, "isatty", lambda answer=is_terminal: answer)
        quiet = train("verbosity=quiet", *warning)
        assert quiet.code == 0 and (quiet.out, quiet.err) == (f"{quiet.run}\n", "")
        assert "without effect" in (quiet.run / "train.log").read_text()
    assert "is not finite" in train("verbosity=quiet", "optimizer.lr=1e38").message()
    wrong = train("verbosity=loud").message()
    assert "verbosity must be normal or quiet, got 'loud'" in wrong


def test_a_quiet_sweep(sweep: Command) -> None:
    quiet = sweep("verbosity=quiet", "seed=0,1", "resume=auto")
    assert quiet.code == 0 and quiet.err == ""
    assert [Path(line).name for line in quiet.out.splitlines()] == ["0", "1"]


def test_without_a_terminal_a_run_says_the_same_in_lines(
    train: Command, interrupt: Interrupt, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(8, signal.SIGTERM)
    stopped = train("algorithm=nrws", "hydra.run.dir=my run")
    lines = stopped.out.splitlines()
    assert re.fullmatch(r"digits_nrws \(nws .*\)", lines[0])
    said = dict(line.split(maxsplit=1) for line in lines[1:9])
    assert said == {
        "algorithm": "nrws, K = 10",
        "metric": "Kronecker, damping 0.2",
        "optimizer": "SGD, rate 0.1, linear",
        "data": "digits 8x8: 1,297 train, 250 valid, 250 test",
        "layers": "64-5-3 (3 layers), 750 parameters",
        "device": device_text("auto"),
        "steps": "12 of 200 images, 2 epochs",
        "directory": "my run",
    }
    assert [line.split()[3] for line in lines if line.startswith("epoch")] == ["0", "6"]
    assert "stopped at step 8 of 12" in lines and "next:" not in lines

    resumed = train("resume=my run")
    lines = resumed.out.splitlines()
    assert "  resumed    from step 8 (epoch 1.33)" in lines and "finished" in lines
    best = next(line for line in lines if line.startswith("  best"))
    row = max(metrics(resumed.run), key=lambda row: float(row["valid/log_likelihood"]))
    value, error = (float(row[f"valid/{name}"]) for name in ("log_likelihood", "standard_error"))
    assert f"{value:.3f} ± {error:.3f} nats" in best
    assert lines[-5] == "next:" and lines[-1] == str(resumed.run)


def test_the_next_commands_work(train: Command, command: Command) -> None:
    outcome = train("hydra.run.dir=a run")
    commands = [shlex.split(line) for line in outcome.out.splitlines()[-4:-1]]
    names = [Path(script).name for _, script, *_ in commands]
    assert names == ["sample.py", "evaluate.py", "plot_curves.py"]
    for python, script, *arguments in commands:
        assert python == "python" and Path(script) == ROOT / "scripts" / names.pop(0)
        assert arguments == ["a run"]
        done = command(f"scripts/{Path(script).name}", *arguments)
        assert done.code == 0 and "Traceback" not in done.err, done.err


def test_a_line_a_minute_where_there_is_no_bar(
    train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute is no time here: every step speaks, and every part of an evaluation."""
    assert "ms/step" not in train().out  # the control
    monkeypatch.setattr(terminal, "SPEAK_EVERY", 0.0)
    lines = train().out.splitlines()
    steps = [line for line in lines if "ms/step" in line]
    pattern = r"epoch 0\.17 of 2  step 1 of 12  \d:\d\d:\d\d left  .*  bound -\d+\.\d\d nats"
    assert re.fullmatch(pattern, steps[0]) and len(steps) == 12
    assert "evaluation: 20 of 20 images" in lines


def test_a_line_is_cut_to_the_terminal_and_to_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = ["epoch   1.00", "step      40", "valid  -27.240 ± 0.176 nats", "x" * 40]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    terminal.Terminal().row(parts)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    terminal.Terminal().row(parts)
    assert capsys.readouterr().out.splitlines() == ["  ".join(parts[:3]), "  ".join(parts)]


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
