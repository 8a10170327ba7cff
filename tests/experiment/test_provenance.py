"""provenance.json: what a run says of itself, from its start to its end."""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, SMALL, Command, Interrupt, assert_same_run, checkpoint, metrics

import nws.experiment.provenance as provenance
import nws.experiment.trainer as trainer_module
from nws.experiment.hardware import pick_device
from nws.experiment.storage.git import Code
from nws.experiment.provenance import read_provenance
from nws.experiment.loading import load_run
from nws.experiment.build import build_machine
from nws.experiment.training.loggers import Outputs
from nws.experiment.evaluation import validate

DEVICE = pick_device("auto")
KEYS = {
    "command", "overrides", "experiment", "version", "git", "python", "torch", "platform",
    "processor", "host", "device", "threads", "layers", "parameters", "ms_per_step",
    "evaluation_seconds", "training_seconds", "peak_memory_bytes", "processes", "steps",
    "total_steps", "epochs", "state", "best", "last", "started", "ended", "resumed", "pid",
}  # fmt: skip


def change_code(monkeypatch: pytest.MonkeyPatch, commit: str, diff: bytes) -> None:
    monkeypatch.setattr(provenance, "code_of_this_process", lambda: Code(commit, diff))


def test_a_finished_run(train: Command) -> None:
    run = train("experiment=digits", "hydra.run.dir=a run", "model.layers=[5,3]").run
    found = read_provenance(run)
    assert found.keys() == KEYS and found["state"] == "finished" and found["resumed"] == []
    given = [*SMALL, "experiment=digits", "hydra.run.dir=a run", "model.layers=[5,3]"]
    assert found["command"] == ["python", str(ROOT / "train.py"), *given]
    assert found["overrides"] == [text for text in given if not text.startswith("hydra.")]
    assert found["experiment"] == "digits"
    assert (found["torch"], found["python"]) == (torch.__version__, platform.python_version())
    assert (found["device"], found["threads"]) == (DEVICE.type, torch.get_num_threads())
    assert found["layers"] == [64, 5, 3]
    assert found["parameters"] == sum(each.numel() for each in checkpoint(run)["machine"].values())
    assert (found["steps"], found["total_steps"], found["epochs"]) == (12, 12, 2)
    values = [float(row["valid/log_likelihood"]) for row in metrics(run)]
    assert (found["best"], found["last"]) == (max(values), values[-1])
    assert found["ms_per_step"] == pytest.approx(1000 * found["training_seconds"] / 12, rel=0.1)
    assert found["peak_memory_bytes"] > 2**20 and found["started"] <= found["ended"]
    assert "finished at step 12 of 12" in (run / "train.log").read_text()


def test_how_a_run_ends(train: Command, interrupt: Interrupt) -> None:
    assert train("optimizer.lr=1e38", "optimizer=sgd", "hydra.run.dir=diverged").code == 1
    found = read_provenance("diverged")
    assert found["state"] == "diverged" and found["best"] is None and found["ended"]
    interrupt(8, MemoryError("broken"))
    assert train("hydra.run.dir=failed").code == 1
    found = read_provenance("failed")
    assert (found["state"], found["steps"]) == ("failed", 7)
    assert found["last"] == float(metrics(Path("failed"))[0]["valid/log_likelihood"])
    assert "failed at step 7 of 12" in Path("failed/train.log").read_text()


def test_stops_and_resumes_are_noted(
    train: Command, interrupt: Interrupt, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_code(monkeypatch, "a" * 40, b"diff 1\n")
    interrupt(8, signal.SIGTERM)
    run = train("hydra.run.dir=run").run
    before = read_provenance(run)
    assert (before["state"], before["steps"]) == ("stopped", 8)
    assert before["git"] == {"commit": "a" * 40, "changed": True, "diff": "provenance.diff"}
    assert (run / "provenance.diff").read_bytes() == b"diff 1\n"

    assert train("resume=run").code == 0
    (entry,) = read_provenance(run)["resumed"]
    assert entry["step"] == 8 and entry["command"][2:] == ["resume=run"]
    assert entry.keys() == {"step", "time", "command"}  # the same code on the same machine

    change_code(monkeypatch, "a" * 40, b"diff 2\n")
    assert train("resume=run", "trainer.epochs=3").code == 0
    after = read_provenance(run)
    assert [entry["step"] for entry in after["resumed"]] == [8, 12]
    git = {"commit": "a" * 40, "changed": True, "diff": "provenance_resumed_1.diff"}
    assert after["resumed"][1]["git"] == git and after["git"] == before["git"]
    assert (run / git["diff"]).read_bytes() == b"diff 2\n"
    assert after["started"] == before["started"] and after["command"] == before["command"]
    assert (after["state"], after["steps"], after["total_steps"]) == ("finished", 18, 18)
    assert after["evaluation_seconds"] > before["evaluation_seconds"]
    log = (run / "train.log").read_text()
    assert "stopped at step 8 of 12" in log and log.count("resumed at step") == 2
    assert read_provenance(train("hydra.run.dir=other").run)["resumed"] == []  # the control


def test_resumes_at_one_step_keep_their_code_apart(
    train: Command, interrupt: Interrupt, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train("hydra.run.dir=run", "trainer.epochs=1").run
    diffs = [b"diff 1\n", b"diff 2\n"]
    for diff in diffs:
        with monkeypatch.context() as patch:
            change_code(patch, "a" * 40, diff)
            interrupt(1, MemoryError("before anything is saved"))
            assert train("resume=run", "trainer.epochs=2").code == 1
    entries = read_provenance(run)["resumed"]
    assert [entry["step"] for entry in entries] == [6, 6]
    assert [(run / entry["git"]["diff"]).read_bytes() for entry in entries] == diffs


def test_code_without_changes_and_without_git(
    train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_code(monkeypatch, "b" * 40, b"")
    run = train("trainer.epochs=1").run
    assert read_provenance(run)["git"] == {"commit": "b" * 40, "changed": False, "diff": None}
    monkeypatch.setattr(provenance, "code_of_this_process", lambda: None)
    without = train("trainer.epochs=1")
    assert read_provenance(without.run)["git"] is None
    assert without.out.splitlines()[0].endswith(f"(nws {provenance.installed_version()})")
    assert not [*run.glob("*.diff"), *without.run.glob("*.diff")]


def test_a_long_diff_is_cut_and_says_so(train: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "MAX_DIFF", 10)
    change_code(monkeypatch, "c" * 40, b"0123456789abc")
    run = train("trainer.epochs=1").run
    text = (run / "provenance.diff").read_text()
    assert text == "0123456789\n# cut: 10 of 13 bytes\n"
    assert "provenance.diff is cut: 10 of 13 bytes" in (run / "train.log").read_text()


def test_jobs_of_a_sweep_know_its_command(sweep: Command) -> None:
    outcome = sweep("seed=0,1", "trainer.epochs=1")
    records = [read_provenance(outcome.run.with_name(name)) for name in "01"]
    command = ["python", str(ROOT / "train.py"), "-m", *SMALL, "seed=0,1", "trainer.epochs=1"]
    assert [record["command"] for record in records] == [command] * 2
    seeds = [text for record in records for text in record["overrides"] if "seed" in text]
    assert seeds == ["seed=0", "seed=1"]


def test_reading(tmp_path: Path) -> None:
    file = tmp_path / "provenance.json"
    assert read_provenance(tmp_path) == {}
    for text in ("", "{", "[]"):
        file.write_text(text)
        assert read_provenance(tmp_path) == {}
    process = subprocess.Popen(["true"])
    process.wait()
    running: dict[str, Any] = {"state": "running", "host": socket.gethostname()}
    for facts, state in (
        ({"pid": os.getpid()}, "running"),
        ({"pid": process.pid}, "failed"),  # it was killed before it could say so
        ({"pid": process.pid, "host": "elsewhere"}, "running"),
        ({"pid": process.pid, "state": "finished"}, "finished"),
    ):
        file.write_text(json.dumps(running | facts))
        assert read_provenance(tmp_path)["state"] == state


# --- the row of step 0 ----------------------------------------------------------------------------


def test_the_row_of_step_0_is_of_the_untrained_machine(train: Command) -> None:
    run = train("algorithm=nrws").run
    first, second, _ = metrics(run, start=True)
    loaded = load_run(run, "last")
    config, data = loaded.config, loaded.data
    found = validate(build_machine(config, data).to(DEVICE), data, 5, 20)
    assert {key: float(first[key]) for key in found} == found
    training = [key for key in first if key.startswith("train/") or "damping" in key]
    assert len(training) > 4 and not any(first[key] for key in training)
    assert all(second[key] for key in training)
    assert (first["epoch"], float(first["learning_rate"])) == ("0.0", 0.1)


@pytest.mark.parametrize(
    ("owner", "method", "has_row"),
    [(trainer_module, "validate", True), (Outputs, "start_logger", False)],  # W&B takes seconds
)
def test_a_run_that_is_stopped_before_its_first_step_goes_on(
    train: Command, monkeypatch: pytest.MonkeyPatch, owner: Any, method: str, has_row: bool
) -> None:
    whole = train("hydra.run.dir=whole").run
    original = getattr(owner, method)

    def stop_at_once(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, stop_at_once)
        stopped = train("hydra.run.dir=run")
    assert stopped.code == 128 + signal.SIGTERM and checkpoint(stopped.run)["step"] == 0
    assert "resume=" in stopped.out and (stopped.run / "metrics.csv").is_file() == has_row
    assert read_provenance(stopped.run)["state"] == "stopped"
    assert_same_run(whole, train("resume=run").run)
