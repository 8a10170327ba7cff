"""Weights & Biases: what goes there, and that training survives failures."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from conftest import Command, Interrupt, checkpoint, metrics
from PIL import Image

from nws.errors import UserError
from nws.experiment.training.loggers import RunInfo
from nws.experiment.wandb_logger import WandbLogger


def test_an_unknown_mode() -> None:
    with pytest.raises(
        UserError, match="logger.mode must be one of online, offline, disabled, got 'off'"
    ):
        WandbLogger("off")  # type: ignore[arg-type]


class FakeRun:
    """Stands for a W&B run, and fails where it is told to."""

    def __init__(self, fail: str, options: dict[str, Any]) -> None:
        self.id, self.fail, self.options = options["id"] or "new-id", fail, options
        self.rows: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.exit_code: int | None = None
        self.tags: tuple[str, ...] = ("mine", "stopped")  # as one that goes on may have
        self.dir = str(Path(options["dir"]) / "wandb" / f"offline-run-{id(self)}" / "files")
        self.written = False
        self.failures = 0

    def define_metric(self, *_: Any, **__: Any) -> None: ...

    def log(self, row: dict[str, Any], step: int) -> None:
        if self.fail == "log" and step > 6:
            self.failures += 1
            raise ConnectionError("the network is gone")
        self.rows.append(row)

    def finish(self, exit_code: int) -> None:
        if self.fail == "finish":
            raise ConnectionError("the network is gone")
        self.exit_code = exit_code

    def teardown(self) -> None:
        if self.fail == "teardown":
            raise SystemExit(1)  # as wandb.teardown() does when its service failed
        self.written = self.exit_code is not None


Fake = Callable[..., list[FakeRun]]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    def install(fail: str = "") -> list[FakeRun]:
        import wandb

        runs: list[FakeRun] = []

        def init(**options: Any) -> FakeRun:
            if fail == "init":
                raise RuntimeError("no W&B today")
            runs.append(FakeRun(fail, options))
            return runs[-1]

        monkeypatch.setattr(wandb, "init", init)
        monkeypatch.setattr(wandb, "teardown", lambda: runs[-1].teardown())
        return runs

    return install


ON = "logger=wandb_offline"


def test_what_goes_to_wandb(train: Command, fake: Fake) -> None:
    runs = fake()
    path = train(ON, "hydra.run.dir=run", "trainer.images_every=1").run
    (run,) = runs
    assert (
        run.options["mode"] == "offline"
        and run.options["dir"] == path
        and run.options["group"] is None
    )
    assert (
        run.options["config"]["model"]["layers"] == [5, 3]
        and run.options["config"]["name"] == "digits_rws"
    )
    rows = [row for row in run.rows if "valid/log_likelihood" in row]
    assert [float(each["valid/log_likelihood"]) for each in metrics(path, start=True)] == [
        row["valid/log_likelihood"] for row in rows
    ]
    images = [name for row in run.rows for name in row if name.startswith("images/")]
    assert sorted(set(images)) == ["images/generated", "images/reconstructed"] and len(images) == 4
    assert (
        run.summary["steps"] == 12
        and run.summary["best/log_likelihood"] == checkpoint(path)["best"]
    )
    assert run.exit_code == 0 and run.written
    assert run.summary["provenance/state"] == "finished"
    assert run.summary["provenance/command"].startswith("python ")

    train("resume=run", "trainer.epochs=3")
    assert runs[1].options["id"] == run.id == "new-id" and runs[1].options["resume"] == "allow"
    assert [row["step"] for row in runs[1].rows if "epoch" in row] == [18]


def test_states(train: Command, fake: Fake, interrupt: Interrupt) -> None:
    """W&B shows a run as failed that failed; a stopped one says so by a tag and in the summary."""
    runs = fake()
    interrupt(8, signal.SIGINT)
    path = train(ON, "hydra.run.dir=run").run
    assert path.name == "run" and runs[0].exit_code == 0
    assert runs[0].tags == ("mine", "stopped") and runs[0].summary["state"] == "stopped"
    assert train("resume=run").code == 0
    assert runs[1].tags == ("mine",) and runs[1].summary["state"] == "finished"
    assert train(ON, "optimizer=sgd", "optimizer.lr=1e38").code == 1
    assert runs[2].exit_code == 1 and runs[2].tags == ("mine", "diverged")
    interrupt(3, OSError("the disk is gone"))
    assert train(ON).code == 1
    assert runs[3].exit_code == 1 and runs[3].summary["state"] == "failed"


def test_jobs_of_a_sweep(train: Command, fake: Fake, tmp_path: Path) -> None:
    """They share a group, are named by what varies, and lie side by side for wandb leet."""
    runs = fake()
    options = ("algorithm=ws,rws", "optimizer.lr=0.01,0.002", "trainer.epochs=1")
    assert train(ON, "-m", *options).code == 0
    (folder,) = (tmp_path / "multirun").glob("*/*")
    assert [run.options["group"] for run in runs] == [f"digits/{folder.name}"] * 4
    names = [f"{name} digits optimizer.lr={lr}" for name in ("ws", "rws") for lr in (0.01, 0.002)]
    assert [run.options["name"] for run in runs] == names
    links = sorted((folder / "wandb").iterdir())
    assert [link.name for link in links] == sorted(Path(run.dir).parent.name for run in runs)
    assert {os.path.normpath(folder / "wandb" / os.readlink(link)) for link in links} == {
        str(Path(run.dir).parent) for run in runs
    }
    # A job that goes on by itself keeps its name and its group.
    assert train(f"resume={folder / '3'}", "trainer.epochs=2").code == 0
    assert (
        runs[4].options["name"] == names[3] and runs[4].options["group"] == runs[3].options["group"]
    )


def test_what_an_experiment_varies_is_in_the_names(
    train: Command, fake: Fake, tmp_path: Path
) -> None:
    runs = fake()
    (folder := tmp_path / "experiment").mkdir()
    varied = {"sweeper": {"params": {"seed": "4,5", "device": "cpu"}}}
    (folder / "mine.yaml").write_text(f"# @package _global_\n{json.dumps({'hydra': varied})}")
    search = f"hydra.searchpath=[file://{tmp_path}]"
    assert train(ON, "-m", search, "experiment=mine", "trainer.epochs=1").code == 0
    assert [run.options["name"] for run in runs] == ["rws digits seed=4", "rws digits seed=5"]


@pytest.mark.parametrize("fail", ["init", "log", "finish", "teardown"])
def test_a_failure_warns_once_and_training_goes_on(train: Command, fake: Fake, fail: str) -> None:
    runs = fake(fail)
    outcome = train(ON, "trainer.epochs=4")
    assert (
        outcome.code == 0
        and len(metrics(outcome.run)) == 4
        and checkpoint(outcome.run)["step"] == 24
    )
    assert (
        outcome.err.count("WARNING: Weights & Biases failed") == 1
        and "going on without it" in outcome.err
    )
    assert "Traceback" not in outcome.err
    assert fail != "log" or runs[0].failures == 1


def test_offline_and_none(train: Command) -> None:
    outcome = train(ON, "hydra.run.dir=on")
    assert outcome.code == 0 and outcome.err == "" and "wandb" not in outcome.out.lower()
    (folder,) = (outcome.run / "wandb").glob("offline-run-*")
    identity = folder.name.rsplit("-", 1)[1]
    content = (folder / f"run-{identity}.wandb").read_bytes()
    assert (
        b"valid/log_likelihood" in content
        and b"weight_scale" in content
        and b"best/log_likelihood" in content
    )
    assert len(list(folder.rglob("*.png"))) == 2
    train("resume=on", "trainer.epochs=3")
    # Where both starts fall into one second, W&B adds -1 to the second folder's name.
    assert {each.name.split("-")[3] for each in (outcome.run / "wandb").glob("offline-run-*")} == {
        identity
    }
    assert not (train("hydra.run.dir=off").run / "wandb").exists()


class Diary:
    """A logger of a user's own: everything that it is told."""

    heard: ClassVar[list[tuple[Any, ...]]] = []

    def start(self, info: RunInfo) -> None:
        self.heard.append(("start", info.name, info.step))

    def write(self, row: dict[str, Any]) -> None:
        self.heard.append(("write", row["step"]))

    def images(self, name: str, path: Path, step: int) -> None:
        self.heard.append((name, path.is_file(), step))

    def finish(self, summary: dict[str, Any], state: str) -> None:
        self.heard.append(("finish", summary["steps"], state))


def test_a_logger_of_ones_own(train: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "logger._target_=test_loggers.Diary"
    outcome = train("logger=none", own, "trainer.images_every=2", "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    heard = sys.modules["test_loggers"].Diary.heard
    images = [("images/generated", True, 12), ("images/reconstructed", True, 12)]
    assert [each for each in heard if each[0] != "write"] == [
        ("start", "rws digits", 0), *images, ("finish", 12, "finished")
    ]  # fmt: skip
    assert [step for kind, step, *_ in heard if kind == "write"] == [
        int(row["step"]) for row in metrics(outcome.run, start=True)
    ]
    heard.clear()
    assert train("resume=run", "trainer.epochs=3").code == 0
    assert heard[0] == ("start", "rws digits", 12) and heard[-1] == ("finish", 18, "finished")


def test_tensorboard(train: Command) -> None:
    """The event file says what metrics.csv says; rows that are written again are hidden."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    outcome = train("logger=tensorboard", "trainer.images_every=1", "hydra.run.dir=run")
    assert outcome.code == 0 and outcome.err == "", outcome.err
    assert train("resume=run", "trainer.epochs=3").code == 0

    board = events.EventAccumulator(str(outcome.run / "tensorboard")).Reload()
    rows = metrics(outcome.run, start=True)
    for name in set(rows[0]) - {"step"}:
        found = [(each.step, each.value) for each in board.Scalars(name)]
        numbers = [(int(row["step"]), row[name]) for row in rows if row[name]]
        expected = [(step, float(np.float32(number))) for step, number in numbers]
        assert found == expected, name
    shown = board.Images("images/generated")
    assert [each.step for each in shown] == [6, 12, 18]
    file = outcome.run / "images" / "generated_step_0000018.png"
    with Image.open(io.BytesIO(shown[-1].encoded_image_string)) as one, Image.open(file) as other:
        assert np.array_equal(np.asarray(one), np.asarray(other.convert("RGB")))
    best = [each.value for each in board.Scalars("best/log_likelihood")]
    assert best[-1] == float(np.float32(checkpoint(outcome.run)["best"]))
    hparams = board.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"optimizer.lr" in hparams and b"rws digits" in hparams and b"finished" in hparams


def test_tensorboard_that_is_not_installed(train: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find(name)
    )
    message = train("logger=tensorboard").message()
    assert "logger=tensorboard needs the package tensorboard" in message
    assert "pip install -c constraints.txt '.[tensorboard]'" in message
