"""Broken files of runs, made from good ones: each ends in one line for a person, or is harmless."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import Command
from faults.trial import Trial

from nws.analysis.evaluation import Request, evaluate, read_rows
from nws.analysis.runs import read_run
from nws.analysis.summaries import side_by_side
from nws.errors import UserError
from nws.experiment.loading import load_run
from nws.experiment.provenance import read_provenance
from nws.experiment.run import open_run

pytestmark = pytest.mark.usefixtures("quick_disk")


def test_checkpoints_of_other_bytes(trial: Trial, finished: Path) -> None:
    """No byte can change without an error, unless it is none of the contents."""
    file, before = finished / "checkpoints" / "best.pt", load_run(finished, device="cpu").machine

    def load() -> None:
        after = load_run(finished, device="cpu").machine.state_dict()
        assert all(after[key].equal(each) for key, each in before.state_dict().items())

    trial.read_bytes(file, 40, load)


def test_checkpoints_of_other_values(trial: Trial, finished: Path, command: Command) -> None:
    file = finished / "checkpoints" / "last.pt"
    state = torch.load(file, weights_only=True)

    def load() -> None:
        load_run(finished, "last", device="cpu")

    def go_on() -> None:
        outcome = command("train.py", f"resume={finished}", "trainer.epochs=2.25")
        if outcome.code:
            raise UserError(outcome.message())

    for action, number in ((load, 40), (go_on, 6)):
        for name, broken in trial.broken_values(state, number):
            torch.save(broken, file)
            trial.read(name, action)
    torch.save(state, file)
    go_on()


READERS: dict[str, Callable[[Path], object]] = {
    "evaluation.json": read_rows,
    "provenance.json": lambda run: (read_provenance(run), side_by_side([read_run(run)])),
    "metrics.csv": lambda run: read_run(run).best,
    ".hydra/config.yaml": open_run,
}


@pytest.mark.parametrize("name", READERS)
def test_views(trial: Trial, finished: Path, command: Command, name: str) -> None:
    """A broken record of where a run comes from is never in the way of reading it."""
    evaluate(load_run(finished, device="cpu"), Request(samples=2, data_points=3))
    file, trial.refuses = finished / name, name != "provenance.json"
    trial.read_bytes(file, 30, lambda: READERS[name](finished))
    if name.endswith(".json"):
        for broken in trial.broken_values(json.loads(file.read_text()), 40):
            file.write_text(json.dumps(broken[1]))
            trial.read(broken[0], lambda: READERS[name](finished))
        file.write_text("[" * 100_000)
        trial.read("deep", lambda: READERS[name](finished))


def test_numbers_that_are_not_finite(command: Command, finished: Path) -> None:
    best, last = finished / "checkpoints" / "best.pt", finished / "checkpoints" / "last.pt"
    state = torch.load(last, weights_only=True)
    state["machine"]["generator.layers.0.bias"][:3] = float("nan")
    torch.save(state, best)
    for program in ("sample", "evaluate"):
        message = command(f"scripts/{program}.py", str(finished)).message()
        assert "parameters that are not finite" in message and "last.pt beside it" in message
    assert not (finished / "evaluation.json").exists()
    message = command("scripts/export.py", str(finished), "small").message()
    assert "not finite" in message and not Path("small").exists()
    shutil.rmtree(finished / "checkpoints")
    assert "found none" in command("train.py", f"resume={finished}").message()
