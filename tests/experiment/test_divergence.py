"""Numbers that are not finite: the message, and the checkpoint that is kept."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command, checkpoint, metrics

from nws.errors import UserError


def test_not_finite_names_step_layer_and_remedy(train: Command) -> None:
    outcome = train("optimizer=sgd", "optimizer.lr=3e38", "hydra.run.dir=run")
    message = outcome.message()
    place = r"step 2: the loss of (generator|recognition) layer \d is not finite"
    assert re.search(place, message)
    assert (
        "a learning rate of " in message
        and "lower optimizer.lr" in message
        and "no checkpoint" in message
    )
    assert (
        "not finite" in Path("run/train.log").read_text() and not Path("run/checkpoints").exists()
    )


def test_not_finite_keeps_the_last_good_checkpoint(
    train: Command, command: Command, monkeypatch: Any
) -> None:
    from nws.learning import WakeSleep

    original, calls = WakeSleep.step, 0

    def step(self: WakeSleep, *batches: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 9:  # a gradient, whose step the parameters show before any loss does
            result = original(self, *batches)
            self.machine.recognition.layers[1].weight.grad[0, 0] = torch.nan
            return result
        return original(self, *batches)

    monkeypatch.setattr(WakeSleep, "step", step)
    message = train("trainer.check_every=1", "hydra.run.dir=run").message()
    assert "step 9: the parameter of recognition.layers.1.weight is not finite" in message
    assert "last.pt (step 6) is the last good checkpoint" in message
    assert checkpoint(Path("run"))["step"] == 6
    assert all(value.isfinite().all() for value in checkpoint(Path("run"))["machine"].values())
    assert command("scripts/sample.py", "run").code == 0


def test_a_solver_that_fails_over_numbers_that_are_not_finite_says_where_they_began(
    train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nws.learning import WakeSleep

    def step(self: WakeSleep, *batches: Any) -> Any:
        next(self.machine.parameters()).data.fill_(float("nan"))
        raise UserError("the solver's words")

    monkeypatch.setattr(WakeSleep, "step", step)
    message = train().message()
    assert (
        "the parameter of generator.layers.0.weight is not finite" in message
        and "words" not in message
    )


def test_an_evaluation_that_is_no_number_is_never_the_best(
    train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nws.experiment import trainer

    original, means = trainer.validate, iter([math.nan])
    monkeypatch.setattr(
        trainer,
        "validate",
        lambda *given: (
            (row := original(*given))
            | {"valid/log_likelihood": next(means, row["valid/log_likelihood"])}
        ),
    )
    run = train().run
    assert checkpoint(run, "best.pt")["step"] == 12 and math.isfinite(checkpoint(run)["best"])


def test_an_end_below_coin_flips_is_warned_of(train: Command) -> None:
    outcome = train("optimizer=sgd", "optimizer.lr=3e3", "scheduler=constant")
    assert (
        outcome.code == 0
        and "WARNING: the run ended at" in outcome.err
        and "lower optimizer.lr" in outcome.err
    )
    assert float(metrics(outcome.run)[-1]["valid/log_likelihood"]) < 1.5 * -64 * math.log(2)
