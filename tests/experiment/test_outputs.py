"""Writing what a run leaves: captions, and where the disk is full."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, SMALL, Command, assert_same_run, metrics, snapshot

from nws.experiment.training import loggers


def test_a_full_disk_keeps_the_good_checkpoint(
    train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train("hydra.run.dir=run", "scheduler=constant").run
    before, replace = snapshot(run), os.replace

    def full(source: Any, target: Any) -> None:
        if str(target).endswith("last.pt"):
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    message = train("resume=run", "trainer.epochs=4").message()
    assert (
        "could not write" in message
        and "No space left on device" in message
        and "untouched" in message
    )
    after = snapshot(run)
    kept = ("checkpoints/last.pt", ".hydra/config.yaml")
    assert [after[name] for name in kept] == [before[name] for name in kept]
    assert not [name for name in after if name.endswith(".tmp")]
    monkeypatch.undo()
    monkeypatch.chdir(run.parent)
    assert_same_run(
        train("resume=run", "trainer.epochs=4").run,
        train("trainer.epochs=4", "scheduler=constant").run,
    )


def test_a_file_size_limit_in_a_real_process(tmp_path: Path) -> None:
    """The write itself fails here, half-way, and with it the log's."""
    code = "import resource, runpy, sys; sys.argv = sys.argv[1:]"
    code += "; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))"
    code += "; runpy.run_path(sys.argv[0], run_name='__main__')"
    process = subprocess.run(
        [sys.executable, "-c", code, ROOT / "train.py", *SMALL, "hydra.run.dir=run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 1 and "finished" not in process.stdout
    assert re.fullmatch(
        r"error: could not write .*: File too large; nothing was left in its place\..*\n",
        process.stderr,
    )
    assert not list(tmp_path.rglob("*.tmp")) and not list((tmp_path / "run").rglob("*.pt"))


def test_captions_say_step_and_likelihood(train: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures between evaluations have no likelihood."""
    captions: list[str] = []
    monkeypatch.setattr(loggers, "save_png", lambda grid, path, caption: captions.append(caption))
    run = train("trainer.images_every=1", "trainer.evaluate_every=2").run
    last = metrics(run)[-1]["valid/log_likelihood"]
    first = [caption.splitlines()[0] for caption in captions if caption.startswith("generated")]
    assert [", step 6" in first[0], "validation" in first[0]] == [True, False]
    assert f", step 12, validation log p {float(last):.2f} ± " in first[1]
