"""metrics.csv, and Weights & Biases: what goes there, and that training survives failures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, checkpoint, metrics

from nws.errors import UserError
from nws.experiment.loggers import MetricsFile, WandbLogger


def test_metrics_grow_columns_and_go_on(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    file = MetricsFile(path)
    file.write({"step": 1, "a": 0.1})
    file.write({"step": 2, "a": 1 / 3, "b": 5})
    assert path.read_text() == f"step,a,b\n1,0.1,\n2,{1 / 3!r},5\n"
    again = MetricsFile(path, last_step=1)  # the row of step 2 came after the checkpoint
    again.write({"step": 2, "a": 7})
    assert path.read_text() == "step,a,b\n1,0.1,\n2,7,\n"
    path.write_text("nonsense\n1\n")
    with pytest.raises(UserError, match="expected a column step of whole numbers"):
        MetricsFile(path, last_step=1)


def test_an_unknown_mode(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="logger.mode must be one of online, offline, disabled, got 'off'"
    ):
        WandbLogger(tmp_path, "off", {}, None, None)  # type: ignore[arg-type]


class FakeRun:
    """Stands for a W&B run, and fails where it is told to."""

    def __init__(self, fail: str, options: dict[str, Any]) -> None:
        self.id, self.fail, self.options = options["id"] or "new-id", fail, options
        self.rows: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.exit_code: int | None = None
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


def test_a_failed_run_is_marked(train: Command, fake: Fake) -> None:
    (runs, outcome) = (fake(), train(ON, "optimizer=sgd", "optimizer.lr=1e38"))
    assert outcome.code == 1 and runs[0].exit_code == 1


def test_jobs_of_a_sweep_share_a_group(train: Command, fake: Fake, tmp_path: Path) -> None:
    runs = fake()
    assert train(ON, "-m", "algorithm=ws,rws", "seed=0,1").code == 0
    (folder,) = (tmp_path / "multirun").glob("*/*")
    assert [run.options["group"] for run in runs] == [f"digits/{folder.name}"] * 4
    assert len({run.options["name"] for run in runs}) == 4


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
