"""K on a schedule: how many samples each step draws, the log, resuming, what is refused."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command, Interrupt, assert_same_run, checkpoint, flatten, metrics

from nws.errors import UserError
from nws.learning import Rule, WakeSleep
from nws.learning.vimco import vimco
from nws.models import HelmholtzMachine
from nws.schedules import constant, linear


def schedule(name: str, **options: object) -> str:
    """The override for a schedule of nws/schedules.py."""
    given = "".join(f", {key}: {value}" for key, value in options.items())
    return f"algorithm.samples_schedule={{_target_: nws.schedules.{name}, _partial_: true{given}}}"


RISING = schedule("constant", warmup_steps=9)  # from a tenth of K to all of it
FALLING = schedule("linear", total_steps="total_steps", final=0.2)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The samples of each data point in the wake phases of training from now on."""
    counts: list[int] = []
    original = WakeSleep.step

    def step(self: WakeSleep, *batches: Any) -> Any:
        wake = type(self.machine).wake

        def counted(machine: HelmholtzMachine, x: Any, samples: int, rng: Any) -> Any:
            counts.append(samples)
            return wake(machine, x, samples, rng)

        with monkeypatch.context() as patch:
            patch.setattr(type(self.machine), "wake", counted)
            return original(self, *batches)

    monkeypatch.setattr(WakeSleep, "step", step)
    return counts


def test_the_number_is_a_rounded_share_of_at_least_one() -> None:
    rule = Rule("rws", 10, samples_schedule=partial(constant, warmup_steps=24))
    assert [rule.samples_at(step) for step in (0, 2, 3, 5, 12, 23, 24, 10**6)] == [
        1, 1, 2, 2, 5, 10, 10, 10,
    ]  # fmt: skip
    none = Rule("rws", 10, samples_schedule=lambda step: 0.0)
    assert none.samples_at(0) == 1
    assert Rule("rws", 10).samples_at(7) == 10


def test_a_step_is_that_of_a_rule_with_so_many_samples() -> None:
    def gradient(rule: Rule, step: int) -> torch.Tensor:
        rng = torch.Generator().manual_seed(0)
        machine = HelmholtzMachine([6, 4, 3], rng=rng)
        learner = WakeSleep(machine, rule, rng)
        learner.start_step(step)
        learner.step(torch.ones(5, 6))
        return torch.cat([each.grad.flatten() for each in machine.parameters()])  # type: ignore

    rising = Rule("rws", 10, samples_schedule=partial(constant, warmup_steps=9))
    for step, samples in ((0, 1), (3, 4), (9, 10)):
        assert torch.equal(gradient(rising, step), gradient(Rule("rws", samples), 0))
    assert not torch.equal(gradient(rising, 3), gradient(rising, 4))


@pytest.mark.parametrize("algorithm", ["rws", "nrws", "bihm"])
def test_training_draws_what_the_schedule_says(
    train: Command, drawn: list[int], algorithm: str
) -> None:
    run = train(f"algorithm={algorithm}", RISING).run
    assert drawn == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10]
    assert [row["train/samples"] for row in metrics(run)] == ["6.0", "10.0"]


def test_a_schedule_of_the_whole_run(train: Command, drawn: list[int]) -> None:
    train(FALLING, "algorithm.samples=20", "metric.batch=other", "algorithm=nrws", "metric=fisher")
    assert drawn[::2] == drawn[1::2]  # the other batch, for the metric
    assert drawn[::2] == [20, 19, 17, 16, 15, 13, 12, 11, 9, 8, 7, 5]


def test_all_of_k_is_the_run_without_a_schedule(train: Command) -> None:
    plain = train("hydra.run.dir=plain").run
    whole = train("hydra.run.dir=whole", schedule("constant")).run
    assert flatten(checkpoint(plain)) == flatten(checkpoint(whole))
    assert "train/samples" not in metrics(plain)[0]
    other = train("hydra.run.dir=other", RISING).run  # the control
    assert flatten(checkpoint(plain)) != flatten(checkpoint(other))


@pytest.mark.parametrize(
    "options",
    [
        ("algorithm=rws",),
        ("algorithm=nrws",),
        ("algorithm=nrws", "metric=fisher", "damping=levenberg_marquardt"),
        ("algorithm=nrws", "metric=fisher", "metric.refresh_every=4"),
        ("algorithm=nrws", "metric=fisher", "solver=sherman_morrison", "solver.forgetting=0.9"),
    ],
    ids=["rws", "nrws", "adaptive", "cached", "running"],
)
def test_a_resumed_run_ends_as_one_never_stopped(
    train: Command, interrupt: Interrupt, options: tuple[str, ...]
) -> None:
    whole = train("hydra.run.dir=whole", RISING, *options).run
    interrupt(7, signal.SIGTERM)
    assert checkpoint(train("hydra.run.dir=stopped", RISING, *options).run)["step"] == 7
    resumed = train("resume=stopped")
    assert resumed.code == 0, resumed.err
    assert_same_run(whole, Path("stopped"))


def test_vimco_needs_two_samples_at_the_first_step_too() -> None:
    with pytest.raises(UserError, match="at least 2, got 1"):
        Rule("vimco", 10, vimco, samples_schedule=partial(constant, warmup_steps=9))
    rule = Rule("vimco", 10, vimco, samples_schedule=partial(linear, total_steps=9))
    with pytest.raises(UserError, match="at least 2, got 1"):
        rule.try_step(8)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "algorithm.samples_schedule=0.5",
            "algorithm.samples_schedule must be an object or function by _target_",
        ),
        (schedule("linear"), "algorithm.samples_schedule.total_steps is missing; it must be"),
        (schedule("linear", total_steps=5, final=3.0), "shares of algorithm.samples from 0 to 1"),
        (
            schedule("linear", total_steps=5, final=-1.0),
            "final must be a number of at least 0, got -1",
        ),
        (schedule("constant", warmup=5), "did you mean algorithm.samples_schedule.warmup_steps?"),
        ("algorithm.samples_schedule={_target_: nws.schedules.no, _partial_: true}", "no"),
    ],
)
def test_wrong_schedules_are_errors(
    train: Command, tmp_path: Path, override: str, expected: str
) -> None:
    assert expected in train(override).message()
    assert not list(tmp_path.rglob("checkpoints"))
