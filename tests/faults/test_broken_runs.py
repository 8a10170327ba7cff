"""Files of runs that are broken: each ends in one line for a person, or is harmless.

The files are made here from good ones, a few hundred in all. With `--faults-long` there are
thousands, from a seed that is printed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SMALL, Command
from faults import corpus
from faults.trial import Trial

from nws.analysis.evaluation import Request, evaluate, read_rows
from nws.analysis.export import export_run
from nws.analysis.runs import read_run
from nws.errors import UserError
from nws.experiment import boundary
from nws.experiment.build import build_parts
from nws.experiment.checkpoints import load_checkpoint
from nws.experiment.loading import load_run
from nws.experiment.provenance import read_provenance
from nws.experiment.run import RunDirectory, open_run, parse_yaml
from nws.experiment.signals import StopSignals
from nws.experiment.trainer import Trainer

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def run(command: Command, tmp_path: Path) -> Path:
    """A run of a natural rule with Adam, an average, and an evaluation."""
    natural = ("algorithm=nrws", "metric=fisher", "optimizer=adam", "average=exponential")
    outcome = command("train.py", *SMALL, *natural, "hydra.run.dir=run", "device=cpu")
    assert outcome.code == 0, outcome.err
    evaluate(load_run(tmp_path / "run", device="cpu"), Request(samples=2, data_points=3))
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def own_logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tracebacks go where the test's files go."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@contextmanager
def one_line() -> Iterator[None]:
    """What the boundary of all programs makes of an error."""
    try:
        yield
    except Exception as error:
        message = boundary.explain(error)
        assert len(message.splitlines()) == 1, message
        raise UserError(message) from error


def go_on(path: Path) -> None:
    """Go on with a run for some steps, as `resume=RUN trainer.epochs=3` does; write nothing."""
    with one_line():
        directory = RunDirectory(path, writes=False)
        state = load_checkpoint(directory.last)
        config = parse_yaml(state["configuration"], directory.last)
        config.trainer.epochs = 2.25
        trainer = Trainer(build_parts(config, torch.device("cpu")), config, directory)
        trainer.load_state_dict(state, set())
        trainer.callbacks = {}
        with trainer.terminal.training(trainer):
            trainer._train_until_due(StopSignals())


def test_checkpoints_of_other_bytes(trial: Trial, run: Path) -> None:
    """No byte can change without an error, unless it is none of the contents."""
    file = run / "checkpoints" / "best.pt"
    content, before = file.read_bytes(), load_run(run, device="cpu").machine.state_dict()
    for name, broken in corpus.broken_bytes(content, 1000 if trial.long else 40, trial.rng):
        file.write_bytes(broken)
        if trial.read(name, lambda: load_run(run, device="cpu")):
            after = load_run(run, device="cpu").machine.state_dict()
            assert all(after[key].equal(before[key]) for key in before), name


def test_checkpoints_of_other_values(trial: Trial, run: Path) -> None:
    file = run / "checkpoints" / "last.pt"
    state = torch.load(file, weights_only=True)
    for name, broken in [
        *corpus.broken_values(state, 400 if trial.long else 20, trial.rng),
        *corpus.broken_tensors(state, trial.rng, 20 if trial.long else 2),
        *[(f"version {each}", state | {"version": each}) for each in (99, -1, "1", 1.5)],
    ]:
        torch.save(broken, file)
        trial.read(name, lambda: go_on(run))
    for key in ("machine", "step", "optimizer", "metrics", "rng", "sums", "count"):
        torch.save({name: each for name, each in state.items() if name != key}, file)
        with pytest.raises(UserError, match=f"{key}.*best.pt beside it is good"):
            go_on(run)
    torch.save(state, file)
    go_on(run)


def test_exported_machines(trial: Trial, run: Path, tmp_path: Path) -> None:
    export_run(load_run(run, device="cpu"), tmp_path / "small")
    file = tmp_path / "small" / "checkpoints" / "best.pt"
    state = torch.load(file, weights_only=True)

    def action() -> None:
        with one_line():
            _ = load_run(tmp_path / "small", device="cpu").shape

    for name, broken in [
        *corpus.broken_values(state, 200 if trial.long else 20, trial.rng),
        *corpus.broken_tensors(state, trial.rng, None if trial.long else 2),
    ]:
        torch.save(broken, file)
        trial.read(name, action)


def broken_json(trial: Trial, file: Path, action: Callable[[], Any]) -> None:
    good, value = file.read_bytes(), json.loads(file.read_text())
    for name, broken in corpus.broken_values(value, 400 if trial.long else 40, trial.rng):
        file.write_text(json.dumps(broken))
        trial.read(f"{file.name}, {name}", action)
    file.write_text("[" * 100_000)
    trial.read("deep", action)
    file.write_bytes(good)
    trial.read_bytes(file, 20, action)


def test_evaluation(trial: Trial, run: Path) -> None:
    broken_json(trial, run / "evaluation.json", lambda: read_rows(run))


def test_provenance(trial: Trial, run: Path) -> None:
    """It is never in the way of reading a run."""

    def action() -> None:
        with one_line():
            read_provenance(run)
            found = read_run(run)
            _ = (found.state, found.steps, found.ms_per_step)

    broken_json(trial, run / "provenance.json", action)
    trial.refuses = False


def test_metrics_and_configuration(trial: Trial, run: Path) -> None:
    trial.read_bytes(run / "metrics.csv", 40, lambda: read_run(run).best)
    trial.read_bytes(run / ".hydra" / "config.yaml", 20, lambda: open_run(run))


def test_what_a_user_sees(command: Command, run: Path) -> None:
    """One line, which says what to do; and no file is lost."""
    best, last = run / "checkpoints" / "best.pt", run / "checkpoints" / "last.pt"
    content = best.read_bytes()
    best.write_bytes(content[:-100])
    message = command("scripts/sample.py", str(run)).message()
    assert message.count("\n") == 1 and "best.pt is damaged" in message
    assert f"last.pt beside it is good (step 12): cp {last} {best}" in message
    assert command("scripts/sample.py", str(run), "--checkpoint", "last").code == 0
    best.write_bytes(content)
    state = torch.load(last, weights_only=True)
    state["optimizer"]["state"][0]["exp_avg"] = torch.zeros(7)
    torch.save(state, last)
    message = command("train.py", f"resume={run}", "trainer.epochs=3").message()
    assert "last.pt is damaged, does not fit this run" in message
    assert "best.pt beside it is good" in message and message.count("\n") == 1
    state["machine"]["generator.layers.0.bias"][:3] = float("nan")
    torch.save(state, best)
    for program in ("sample", "evaluate"):
        message = command(f"scripts/{program}.py", str(run)).message()
        assert "3 of 64 numbers of generator.layers.0.bias are not finite" in message
    message = command("scripts/export.py", str(run), "small").message()
    assert "not finite" in message and not Path("small").exists()
    shutil.rmtree(run / "checkpoints")
    message = command("train.py", f"resume={run}").message()
    assert "found none" in message
