"""The noise scale of the gradients in metrics.csv, through the command line."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from conftest import Command, Interrupt, assert_same_run, checkpoint, flatten, metrics

NOISE = "trainer.noise_batches=3"
COLUMNS = ("noise_scale/generator", "noise_scale/recognition")


@pytest.mark.parametrize(
    "options",
    [
        ("algorithm=rws",),
        ("algorithm=nrws", "damping=levenberg_marquardt", "metric.batch=other"),
        ("optimizer=momentum", "trainer.batch_size=1", "trainer.epochs=0.01"),
    ],
    ids=["rws", "nrws", "single"],
)
def test_it_leaves_training_as_it_is(train: Command, options: tuple[str, ...]) -> None:
    plain = train("hydra.run.dir=plain", *options).run
    noisy = train("hydra.run.dir=noisy", *options, NOISE).run
    assert flatten(checkpoint(plain)) == flatten(checkpoint(noisy))
    rows = metrics(noisy)
    assert all(float(row.pop(column)) > 0 for row in rows for column in COLUMNS)
    assert rows == metrics(plain)


def test_a_resumed_run_ends_as_one_never_stopped(train: Command, interrupt: Interrupt) -> None:
    options = (NOISE, "algorithm=nrws")
    whole = train("hydra.run.dir=whole", *options).run
    interrupt(8, signal.SIGTERM)
    train("hydra.run.dir=stopped", *options)
    assert train("resume=stopped").code == 0
    assert_same_run(whole, Path("stopped"))
    assert len({row[COLUMNS[0]] for row in metrics(whole)}) == 2


@pytest.mark.parametrize("count", ["1", "true", "2.5", "many"])
def test_the_number_of_batches_is_checked(train: Command, count: str) -> None:
    message = train(f"trainer.noise_batches={count}").message()
    assert "trainer.noise_batches must be a whole number of at least 2" in message
