"""Early stopping: when a run ends, what that leaves, and how it goes on."""

from __future__ import annotations

import math
import signal
from pathlib import Path

import pytest
from conftest import Command, Interrupt, assert_same_run, checkpoint, metrics, snapshot

from nws.experiment.run import RunDirectory
from nws.experiment.trainer import Trainer

LONG = ("trainer.epochs=8", "scheduler=constant")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Values that take the place of valid/log_likelihood after step 0, one a row, while there
    are.
    """
    values: list[float] = []
    original = Trainer._row

    def row(self: Trainer) -> dict[str, float]:
        found = original(self)
        return found | ({"valid/log_likelihood": values.pop(0)} if values and self.step else {})

    monkeypatch.setattr(Trainer, "_row", row)
    return values


def steps(run: Path) -> list[int]:
    return [int(row["step"]) for row in metrics(run)]


@pytest.mark.parametrize(
    ("patience", "values", "evaluations"),
    [
        (1, [-9, -8, -8, -7, -6, -5, -4, -3], 3),  # equal is not better
        (2, [-9, -8, -9, -7, -7.5, -7.2, -3, -2], 6),  # a better one starts the count again
        (2, [-9, math.nan, math.nan, -3, -2, -1, 0, 0], 3),  # what is no number is not better
        (3, [-9, -8, -9, -9, -7, -9, -9, -6], 8),
        ("null", [-9, -10, -11, -12, -13, -14, -15, -16], 8),
    ],
)
def test_a_run_ends_after_so_many_evaluations_without_a_better_one(
    train: Command, script: list[float], patience: object, values: list[float], evaluations: int
) -> None:
    script += values
    outcome = train(*LONG, f"trainer.patience={patience}")
    assert outcome.code == 0 and steps(outcome.run) == [6 * n for n in range(1, evaluations + 1)]
    said = f"the run ends at step {6 * evaluations} of 48: trainer.patience={patience}, no better"
    assert (said in outcome.err) == (evaluations < 8)
    assert RunDirectory(outcome.run).is_finished()
    assert checkpoint(outcome.run, "best.pt")["best"] == max(values[:evaluations])


def test_a_run_that_ended_is_finished_for_resume(
    train: Command, command: Command, script: list[float]
) -> None:
    from conftest import SMALL

    script += [-9, -10]
    options = (*LONG, "trainer.patience=1", "hydra.run.dir=run")
    assert train(*options).code == 0
    run = Path("run")
    assert steps(run) == [6, 12]
    before = snapshot(run)
    again = command("train.py", *SMALL, *options, "resume=auto")
    assert again.code == 0 and "finished already: step 12 of 48" in again.out
    for more in ((), ("trainer.epochs=9",), ("trainer.patience=1",)):
        outcome = train("resume=run", *more)
        assert outcome.code == 0 and "nothing to do: step 12 of" in outcome.out
        assert "trainer.patience=N, N > 1" in outcome.out
        assert snapshot(run) == before


def test_more_patience_goes_on_as_if_it_had_been_there(train: Command, script: list[float]) -> None:
    values = [-9, -8, -8.5, -8.4, -8.3, -7, -8, -8]
    script += values
    whole = train("hydra.run.dir=whole", *LONG, "trainer.patience=4").run
    assert steps(whole)[-1] == 48 and not script
    script += values
    train("hydra.run.dir=part", *LONG, "trainer.patience=2")
    assert steps(Path("part"))[-1] == 24
    assert train("resume=part", "trainer.patience=4").code == 0
    assert_same_run(whole, Path("part"))
    script[:] = [-8] * 9
    assert train("resume=part", "trainer.patience=null", "trainer.epochs=10").code == 0
    assert steps(Path("part"))[-1] == 60


def test_the_count_goes_on_in_a_resumed_run(
    train: Command, interrupt: Interrupt, script: list[float]
) -> None:
    values = [-9, -8, -8.5, -8.4, -8.3]
    options = (*LONG, "trainer.patience=3")
    script += values
    whole = train("hydra.run.dir=whole", *options).run
    script[:] = values
    interrupt(20, signal.SIGTERM)  # after two of three
    stopped = train("hydra.run.dir=stopped", *options)
    assert "go on with" in stopped.out and checkpoint(stopped.run)["waited"] == 1
    assert not RunDirectory(stopped.run).is_finished()
    assert train("resume=stopped").code == 0
    assert_same_run(whole, stopped.run)
    assert steps(whole)[-1] == 30


def test_a_sweep_skips_a_job_that_ended(sweep: Command, script: list[float]) -> None:
    script += [-9, -10, -9, -10]
    options = (*LONG, "trainer.patience=1", "seed=0,1", "hydra.sweep.dir=sweep")
    assert sweep(*options).code == 0
    before = snapshot(Path("sweep"))
    again = sweep(*options, "resume=auto")
    assert again.code == 0 and again.out.count("finished already: step 12 of 48") == 2
    assert {path: before[path] for path in before if "/checkpoints/" in path} == {
        path: content
        for path, content in snapshot(Path("sweep")).items()
        if "/checkpoints/" in path
    }


@pytest.mark.parametrize("patience", ["0", "1.5", "-1", "long", "true"])
def test_patience_is_a_whole_number(train: Command, patience: str) -> None:
    message = train(f"trainer.patience={patience}").message()
    assert "trainer.patience must be a whole number of at least 1" in message
