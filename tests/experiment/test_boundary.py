"""The boundary of all programs: one line for an error, whatever it is, and quiet ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT, SMALL, Command, Interrupt

from nws.errors import UserError
from nws.experiment.process import boundary

DEFECT = "RuntimeError: the wheels came off. This is a defect of nws, please report it"


@pytest.fixture
def broken(interrupt: Interrupt) -> None:
    """The third training step has a defect."""
    interrupt(3, RuntimeError("the wheels came off\nand a second line"))


def test_a_defect_is_one_line_and_its_traceback_is_in_the_log(
    train: Command, broken: None, tmp_path: Path
) -> None:
    outcome = train("hydra.run.dir=run")
    assert outcome.code == boundary.DEFECT == 70
    log = tmp_path / "run" / "train.log"
    assert outcome.err == f"error: {DEFECT}; its traceback is in {log}\n"
    assert "Traceback" not in outcome.out
    text = log.read_text()
    assert "Traceback (most recent call last)" in text and "and a second line" in text
    assert '"state": "failed"' in (tmp_path / "run" / "provenance.json").read_text()


def test_a_defect_of_a_program_without_a_run(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("nws.programs.runs.read_arguments", lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path))
        outcome = command("scripts/runs.py", ".")
    (log,) = tmp_path.glob("nws_*.log")
    assert outcome.code == 70 and outcome.err.count("\n") == 1
    message = "AttributeError: 'NoneType' object has no attribute"
    assert "This is a defect of nws, please report it" in outcome.err
    assert message in outcome.err and f"; its traceback is in {log}" in outcome.err
    assert "Traceback" in log.read_text()
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
        assert "could not be written" in command("scripts/runs.py", ".").err


def test_NWS_DEBUG_shows_the_traceback(
    train: Command, broken: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NWS_DEBUG", "1")
    with pytest.raises(RuntimeError, match="the wheels came off"):
        train()


def test_a_sweep_goes_on_after_a_job_with_a_defect(
    sweep: Command, broken: None, tmp_path: Path
) -> None:
    outcome = sweep("seed=0,1", "hydra.sweep.dir=sweep")
    assert outcome.code == 1 and "Traceback" not in outcome.err + outcome.out
    assert f"error: {DEFECT}; its traceback is in {tmp_path}/sweep/0/train.log" in outcome.err
    assert "Traceback" in (tmp_path / "sweep" / "0" / "train.log").read_text()
    assert re.search(r"\bfailed\b", outcome.out) and re.search(r"\bfinished\b", outcome.out)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UserError("a mistake"), "a mistake"),
        (MemoryError("Unable to allocate 7.28 TiB for an array"), "not enough memory for 7.28 TiB"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"
                         " 4294967296 bytes."),
            "not enough memory for 4.0 GiB; lower trainer.batch_size",
        ),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a"
                                   " total capacity of 79.11 GiB of which 3.50 GiB is free."),
            "not enough memory for 20.00 GiB, 3.50 GiB is free; lower",
        ),
        (MemoryError(), "there is not enough memory; lower"),
        (FileNotFoundError(2, "No such file or directory", "/x/y"), "/x/y: No such file"),
        (OSError(28, "No space left on device"), "No space left on device; the system refused"),
    ],
)  # fmt: skip
def test_errors_that_are_no_defects(error: Exception, message: str) -> None:
    text, status = boundary.explain(error)
    assert message in text and status == 1 and "\n" not in text


def test_ctrl_c_is_quiet(train: Command, interrupt: Interrupt, command: Command) -> None:
    interrupt(3, KeyboardInterrupt())
    outcome = train()
    assert (outcome.code, outcome.err) == (130, "interrupted\n")


def test_ctrl_c_while_a_program_still_imports_is_quiet(tmp_path: Path) -> None:
    """Torch takes a second: the signal comes then."""
    script = str(ROOT / "scripts" / "sample.py")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    (tmp_path / "torch.py").write_text(  # what is imported instead of torch
        "import time\nprint('importing', flush=True)\ntime.sleep(60)\n"
    )
    child = subprocess.Popen(
        [sys.executable, script, "RUN"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert child.stdout is not None and child.stdout.readline() == "importing\n"
    time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert (child.returncode, errors) == (130, "interrupted\n")


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "nws", "--help"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (boundary.PIPE_CLOSED, "")


def test_help_imports_no_torch() -> None:
    code = "import sys, nws.programs.command; print('torch' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    assert done.stdout == b"False\n"


def test_errors_of_hydra_are_no_tracebacks(command: Command) -> None:
    for wrong in ("trainer.nosuch=3", "data=nosuch", "seed=[1", "hydra.run.dir=${nosuch}"):
        outcome = command("train.py", *SMALL, wrong)
        assert outcome.code == 1 and "Traceback" not in outcome.err, outcome.err
        assert "HYDRA_FULL_ERROR" not in outcome.err and outcome.err.strip()
    assert "HYDRA_FULL_ERROR" not in os.environ
