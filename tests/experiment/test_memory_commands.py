"""Metrics with a memory on the command line: options, and messages for bad ones."""

from __future__ import annotations

import pytest
from conftest import Command, checkpoint

KRONECKER = ("algorithm=nrws", "metric=kronecker")
FISHER = ("algorithm=nrws", "metric=fisher")


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ((), 15),
        (("metric.rank=full", "metric.memory=1", "metric.refresh_every=1"), 20),
        (("metric.rank=0",), 0),
        (("metric.max_kl=0.01", "metric.rank=4"), 4),
        (("damping=levenberg_marquardt", "metric.rank=4"), 4),
    ],
    ids=str,
)
def test_a_run_with_the_kronecker_metric(
    train: Command, options: tuple[str, ...], columns: int
) -> None:
    outcome = train(*KRONECKER, "model.layers=[20,10]", *options)
    assert outcome.code == 0 and outcome.err == "", outcome.err
    generator = checkpoint(outcome.run)["metrics"][0]["metric"]
    assert generator["step"] == checkpoint(outcome.run)["step"] == 12
    assert generator["bases"][0]["vectors"].shape == (20, columns)


def test_it_takes_no_solver(train: Command) -> None:
    unused = train(*KRONECKER, "solver=cholesky", "trainer.epochs=0.2")
    assert (
        unused.code == 0 and "without effect with metric=kronecker: solver=cholesky" in unused.err
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((*KRONECKER, "metric.memory=0"), "metric.memory must be a whole number of at least 1"),
        ((*KRONECKER, "metric.memory=x"), "metric.memory must be a whole number"),
        ((*KRONECKER, "metric.rank=-1"), "metric.rank must be a whole number of at least 0"),
        ((*KRONECKER, "metric.rank=all"), "a whole number of at least 0 or full, got 'all'"),
        ((*KRONECKER, "metric.rank=null"), "metric.rank must be a whole number"),
        ((*KRONECKER, "metric.refresh_every=0"), "metric.refresh_every must be a whole number"),
        ((*KRONECKER, "metric.max_rows=0"), "metric.max_rows must be a whole number"),
        ((*KRONECKER, "damping.value=0"), "damping.value"),
        (("algorithm=nrws", "metric=diagonal", "metric.memory=0"), "metric.memory must be"),
        (("algorithm=nrws", "metric=fisher", "metric.memory=0.5"), "metric.memory must be"),
        (("algorithm=nrws", "metric=empirical", "metric.memory=0"), "metric.memory must be"),
    ],
    ids=str,
)
def test_bad_values_are_messages(train: Command, options: tuple[str, ...], message: str) -> None:
    assert message in train(*options).message()


def test_a_class_without_memory_needs_none(train: Command) -> None:
    """The 1 of metric=fisher is left out; another number is not."""
    own = (*FISHER, "metric._target_=nws.natural.metrics.mean.Mean", "trainer.epochs=0.2")
    outcome = train(*own)
    assert outcome.code == 0 and outcome.err == "", outcome.err
    assert "there is no option metric.memory;" in train(*own, "metric.memory=5").message()


@pytest.mark.parametrize(
    ("group", "options"),
    [("kronecker", ["metric.memory", "metric.rank"]), ("diagonal", ["metric.memory"])],
)
def test_a_class_that_gets_the_options_of_another_is_told_of_each(
    train: Command, group: str, options: list[str]
) -> None:
    own = "metric._target_=nws.natural.metrics.mean.Mean"
    message = train("algorithm=nrws", f"metric={group}", own).message()
    assert all(f"there is no option {option}; the options are" in message for option in options)
