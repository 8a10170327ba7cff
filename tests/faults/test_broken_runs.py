"""Files of runs that are broken: each ends in a `UserError`, or is harmless.

The files are made here from good ones, a few hundred in all. With `--faults-long` there are
thousands, from a seed that is printed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from conftest import Command, composed
from faults import corpus
from faults.trial import Trial
from omegaconf import DictConfig, OmegaConf

from nws.analysis.evaluation import read_rows
from nws.analysis.runs import read_run
from nws.errors import UserError
from nws.experiment.launch.resume import Start
from nws.experiment.process.processes import AgreedStop
from nws.experiment.signals import StopSignals
from nws.experiment.run import RunDirectory, open_run
from nws.experiment.provenance import Provenance, read_provenance
from nws.experiment.loading import load_run
from nws.programs.train import build_trainer

GREY = np.random.default_rng(0).integers(0, 256, (12, 9), dtype=np.uint8)
pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a natural rule with Adam, an average, and an evaluation."""
    folder = tmp_path_factory.mktemp("good") / "run"
    from nws.analysis.evaluation import Request, evaluate
    from nws.experiment.launch.panels import start_record

    overrides = [
        "model.layers=[4,3]", "trainer.batch_size=300", "trainer.epochs=2", "logger=none",
        "trainer.evaluate_every=1", "trainer.images_every=100", "trainer.evaluation_samples=2",
        "trainer.evaluation_points=4", "algorithm=nrws", "metric=fisher", "optimizer=adam",
        "average=exponential", "device=cpu",
    ]  # fmt: skip
    config = composed(*overrides)
    OmegaConf.set_struct(config, False)
    run = RunDirectory(folder)
    trainer = build_trainer(Start(run, config), {})
    run.claim(config, {}, again=False)
    origin = {"command": ["train"], "overrides": overrides, "experiment": None}
    start_record(trainer, origin, resumed=False)
    trainer.fit()
    evaluate(load_run(folder, device="cpu"), Request(samples=2, data_points=3))
    return folder


@pytest.fixture
def run(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "run"))


@cache
def read_config(file: Path) -> DictConfig:
    return cast(DictConfig, OmegaConf.load(file))


def go_on(path: Path) -> None:
    """Go on with a run for one epoch, as `resume=RUN trainer.epochs=3` does."""
    from nws.experiment.checkpoints import load_checkpoint

    run, config = RunDirectory(path), read_config(path / ".hydra" / "config.yaml").copy()
    state = load_checkpoint(run.last, resume=True)
    OmegaConf.set_struct(config, False)
    config.trainer.epochs = 2.25  # a step more
    trainer = build_trainer(Start(run, config, state), {})
    with torch.no_grad():
        trainer._train_until_due(AgreedStop(StopSignals()))  # files as ever


def keep_metrics(path: Path) -> Callable[[], None]:
    """An action that goes on with a run whose metrics.csv is as it was."""
    metrics = (path / "metrics.csv").read_bytes()

    def action() -> None:
        (path / "metrics.csv").write_bytes(metrics)
        go_on(path)

    return action


def test_checkpoints_of_other_bytes(trial: Trial, run: Path) -> None:
    """No byte can change without a `UserError`, unless it is none of the contents."""
    file = run / "checkpoints" / "best.pt"
    content, before = file.read_bytes(), load_run(run, device="cpu").machine.state_dict()
    for name, broken in corpus.broken_bytes(content, 1000 if trial.long else 60, trial.rng):
        file.write_bytes(broken)
        if trial.read(name, lambda: load_run(run, device="cpu")):
            after = load_run(run, device="cpu").machine.state_dict()
            assert all(after[key].equal(before[key]) for key in before), name


def test_checkpoints_of_other_values(trial: Trial, run: Path) -> None:
    file = run / "checkpoints" / "last.pt"
    state = torch.load(file, weights_only=True)
    action, count = keep_metrics(run), 400 if trial.long else 20
    versions = [(f"version {each}", state | {"version": each}) for each in (99, -1, "1", 1.5)]
    for name, broken in [
        *corpus.broken_values(state, count, trial.rng),
        *corpus.broken_tensors(state, trial.rng, 20 if trial.long else 2),
        *[(f"version {name}", each) for name, each in versions],
    ]:
        torch.save(broken, file)
        trial.read(name, action)
    torch.save(state, file)
    assert trial.read("good", action)
    for key in ("machine", "step", "optimizer", "scheduler", "metrics", "rng", "sums", "count"):
        torch.save({name: each for name, each in state.items() if name != key}, file)
        with pytest.raises(UserError, match=f"the key {key} is missing.*best.pt beside it is good"):
            action()


def test_an_old_checkpoint_without_a_version_loads(run: Path) -> None:
    for name in ("last.pt", "best.pt"):
        file = run / "checkpoints" / name
        state = torch.load(file, weights_only=True)
        for key in ("version", "waited", "back_offs", "finished"):
            del state[key]
        torch.save(state, file)
    load_run(run, device="cpu")
    go_on(run)


def test_exported_machines(trial: Trial, run: Path, tmp_path: Path) -> None:
    from nws.experiment.trained.export import export_run

    export_run(load_run(run, device="cpu"), tmp_path / "small")
    file = tmp_path / "small" / "checkpoints" / "best.pt"
    state = torch.load(file, weights_only=True)
    for name, broken in [
        *corpus.broken_values(state, 200 if trial.long else 40, trial.rng),
        *corpus.broken_tensors(state, trial.rng, None if trial.long else 3),
    ]:
        torch.save(broken, file)
        trial.read(name, lambda: load_run(tmp_path / "small", device="cpu").shape)


def broken_json(trial: Trial, file: Path, action: Callable[[], object]) -> None:
    good, value = file.read_bytes(), json.loads(file.read_text())
    for name, broken in corpus.broken_values(value, 400 if trial.long else 60, trial.rng):
        file.write_text(json.dumps(broken))
        trial.read(f"{file.name}, {name}", action)
    file.write_text("[" * 100_000)
    trial.read("deep", action)
    file.write_bytes(good)
    trial.read_bytes(file, 20, action)


def test_evaluation(trial: Trial, run: Path) -> None:
    broken_json(trial, run / "evaluation.json", lambda: read_rows(run))


def test_provenance(trial: Trial, run: Path) -> None:
    """It is never in the way: a record of other types counts as none."""

    def action() -> None:
        record = read_provenance(run)
        made = read_run(run)
        _ = (made.state, made.steps, made.ms_per_step)
        given = {"command": ["train"], "version": "0", "overrides": [], "experiment": None}
        Provenance(run, given | {k: v for k, v in record.items() if k == "host"}, step=3).summary()

    file = run / "provenance.json"
    good = file.read_bytes()

    def fresh() -> None:
        content = file.read_bytes()
        try:
            action()
        finally:
            file.write_bytes(content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nws.experiment.provenance.code_of_this_process", lambda: None)
        broken_json(trial, file, fresh)
    assert file.read_bytes() == good
    trial.refuses = False


def test_metrics_and_configuration(trial: Trial, run: Path) -> None:
    trial.read_bytes(run / "metrics.csv", 40, lambda: read_run(run).best)
    trial.read_bytes(run / ".hydra" / "config.yaml", 20, lambda: open_run(run))


# --- the command line -----------------------------------------------------------------------------


def test_what_a_user_sees(command: Command, run: Path) -> None:
    """One line, which says what to do; and no file is lost."""
    best, last = run / "checkpoints" / "best.pt", run / "checkpoints" / "last.pt"
    content = best.read_bytes()
    best.write_bytes(content[:-100])
    message = command("scripts/sample.py", str(run)).message()
    assert (
        message.count("\n") == 1 and "best.pt is not a checkpoint of nws or is damaged" in message
    )
    assert "last.pt beside it is good (step 8," in message and "--checkpoint last" in message
    assert f"cp {last} {best}" in message
    assert command("scripts/sample.py", str(run), "--checkpoint", "last").code == 0
    best.write_bytes(content)
    state = torch.load(last, weights_only=True)
    state["optimizer"]["state"][0]["exp_avg"] = torch.zeros(7)
    torch.save(state, last)
    message = command("train.py", f"resume={run}", "trainer.epochs=3").message()
    assert "last.pt does not fit this run: going on from it failed" in message
    assert "best.pt beside it is good" in message and message.count("\n") == 1
    state["machine"]["generator.layers.0.bias"][:3] = float("nan")
    torch.save(state, best)
    for program in ("sample", "evaluate"):
        message = command(f"scripts/{program}.py", str(run)).message()
        assert "3 of 64 numbers of generator.layers.0.bias are not finite" in message
    message = command("scripts/export.py", str(run), "small").message()
    assert "not finite" in message and not Path("small").exists()
