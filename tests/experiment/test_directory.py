"""Run directories: what a run leaves there, and who may write into one."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import yaml
from conftest import SMALL, Command, Interrupt, assert_same_run, checkpoint, metrics, snapshot
from omegaconf import OmegaConf
from PIL import Image

from nws.errors import UserError
from nws.experiment.run import RunDirectory, find_runs

CONFIG = OmegaConf.create({"seed": 0})


def test_a_run_leaves_what_the_design_says(train: Command, tmp_path: Path) -> None:
    outcome = train("trainer.images_every=1", "data.root=some/folder")
    run = outcome.run
    assert outcome.code == 0 and outcome.err == ""
    lines = outcome.out.splitlines()
    assert f"  directory  {run.relative_to(tmp_path)}" in lines and lines[-1] == str(run)
    assert re.fullmatch(
        r"outputs/digits_rws/\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-\d{6}", str(run.relative_to(tmp_path))
    )

    header = (run / "metrics.csv").read_text().splitlines()[0].split(",")
    assert header[:8] == [
        "epoch", "step", "seconds", "train/wake_loss", "train/dream_loss", "train/log_likelihood",
        "valid/log_likelihood", "train/ess",
    ]  # fmt: skip
    rows = metrics(run)
    assert [(row["epoch"], row["step"], row["valid/samples"]) for row in rows] == [
        ("1.0", "6", "5"),
        ("2.0", "12", "5"),
    ]
    assert all(
        -100 < float(row["valid/log_likelihood"]) < 0 < float(row["train/wake_loss"])
        for row in rows
    )

    config = yaml.safe_load((run / ".hydra" / "config.yaml").read_text())
    assert (
        config["name"] == "digits_rws"
        and config["model"]["layers"] == [5, 3]
        and config["seed"] == 0
    )
    assert config["data"]["root"] == str(tmp_path / "some" / "folder")
    assert "${" not in (run / ".hydra" / "config.yaml").read_text()

    assert sorted(path.name for path in (run / "images").iterdir()) == [
        f"{kind}_step_{step:07d}.png" for kind in ("generated", "reconstructed") for step in (6, 12)
    ]
    with Image.open(run / "images" / "generated_step_0000012.png") as image:
        assert image.format == "PNG" and 850 <= image.width <= 950  # and its caption below
        assert image.width < image.height < 1.2 * image.width
        assert len(set(image.convert("L").tobytes())) > 10
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["best.pt", "last.pt"]
    assert checkpoint(run)["step"] == 12
    assert "epoch   2.00  step      12" in (run / "train.log").read_text()
    assert not [
        path for path in run.rglob("*") if path.name.endswith(".tmp") or path.name == "wandb"
    ]


def test_a_directory_that_holds_a_run_is_refused_and_left_alone(
    train: Command, tmp_path: Path
) -> None:
    run = train("hydra.run.dir=run").run
    files = {
        path: path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and path.suffix != ".log"
    }
    message = train("hydra.run.dir=run", "seed=1").message()
    assert f"{run} holds a run already" in message and f"resume={run}" in message
    assert files == {
        path: path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and path.suffix != ".log"
    }
    sweep = ("-m", "seed=0,1", "hydra.sweep.dir=sweep")
    assert train(*sweep).code == 0
    assert "holds a run already" in train(*sweep).err


AUTO = (*SMALL, "hydra.run.dir=run", "resume=auto")


@pytest.mark.parametrize("again", [("hydra.run.dir=run",), AUTO], ids=["new", "auto"])
def test_what_a_killed_start_left_is_no_run(train: Command, again: tuple[str, ...]) -> None:
    whole = train("hydra.run.dir=whole").run
    Path("run/.hydra").mkdir(parents=True)
    Path("run/.hydra/choices.yaml").write_text("data: mnist\n")
    Path("run/.hydra/.config.yaml.99999999.tmp").write_text("half")
    Path("run/.lock").write_text("{")
    assert_same_run(whole, train(*again).run)
    assert {path.name for path in Path("run/.hydra").iterdir()} == {"config.yaml", "choices.yaml"}
    assert not Path("run/.lock").exists()


@pytest.mark.parametrize("again", [("resume=run",), AUTO], ids=["named", "auto"])
def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(
    train: Command, interrupt: Interrupt, again: tuple[str, ...]
) -> None:
    whole = train("hydra.run.dir=whole").run
    interrupt(2, MemoryError("killed"))
    train("hydra.run.dir=run")
    run = whole.with_name("run")
    assert not RunDirectory(run).last.exists() and len(metrics(run, start=True)) == 1
    assert_same_run(whole, train(*again).run)


def test_checkpoints_without_a_configuration_are_left_alone(train: Command) -> None:
    run = train("hydra.run.dir=run").run
    shutil.rmtree(run / ".hydra")
    before = snapshot(run)
    for again in (("hydra.run.dir=run",), AUTO):
        refused = train(*again).message()
        assert "holds checkpoints of a run without its .hydra/config.yaml" in refused
    assert snapshot(run) == before


def test_a_start_on_a_full_disk_takes_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: object, target: object) -> None:
        raise OSError("No space left on device")

    run = RunDirectory(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(UserError, match="could not write"):
            run.claim(CONFIG, {}, again=False)
    run.check_free()
    run.claim(CONFIG, {}, again=False)
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match="could not write"):
        run.claim(CONFIG, {}, again=True)  # what is there stays
    assert run.config.is_file()


def test_runs_of_the_same_second_have_directories_of_their_own(train: Command) -> None:
    assert len({train("trainer.epochs=0.1").run for _ in range(3)}) == 3


def test_runs_below_a_folder_come_in_their_order(train: Command, tmp_path: Path) -> None:
    run = train("hydra.run.dir=many/10", "trainer.epochs=1").run
    for name in ("many/2", "many/other/1"):
        shutil.copytree(run, tmp_path / name)
    (tmp_path / "empty").mkdir()
    found = [str(path.relative_to(tmp_path)) for path in find_runs("many")]
    assert found == ["many/other/1", "many/2", "many/10"]
    assert find_runs(run) == [run]
    with pytest.raises(UserError, match="no run is below it"):
        find_runs("empty")
    with pytest.raises(UserError, match="does not exist"):
        find_runs("missing")


def test_a_run_is_finished_at_its_last_step(train: Command, interrupt: Interrupt) -> None:
    interrupt(3, signal.SIGTERM)
    run = RunDirectory(train("hydra.run.dir=run").run)
    assert not run.is_finished()
    train("resume=run")
    assert run.is_finished()
    run.last.write_bytes(b"damaged")
    assert not run.is_finished() and not RunDirectory(Path("none")).is_finished()


def test_a_configuration_behind_its_checkpoint_is_written_again(train: Command) -> None:
    """As after a kill between the two. One that was edited since stays."""
    run = RunDirectory(train("hydra.run.dir=run").run)
    before = run.config.read_text()
    train("resume=run", "trainer.epochs=3", "optimizer=sgd")
    after, choices = run.config.read_text(), run.choices.read_text()
    assert before != after
    run.config.write_text(before)
    run.choices.write_text("")
    assert train("resume=run", "trainer.epochs=4").code == 0
    assert OmegaConf.load(run.config).optimizer == OmegaConf.create(after).optimizer
    assert run.choices.read_text() == choices
    edited = run.config.read_text().replace("epochs: 4", "epochs: 5")
    run.config.write_text(edited)
    run.settle_config()
    assert run.config.read_text() == edited
