"""Numbers that are not finite: the message, and the checkpoint that is kept."""

from __future__ import annotations

import math
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command, Interrupt, Outcome, assert_same_run, checkpoint, metrics

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
    from nws.experiment.training import trainer

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


# --- while it trains ------------------------------------------------------------------------------

FAR = ("optimizer=sgd", "scheduler=constant", "trainer.check_every=1", "hydra.run.dir=run")


def warnings_of(outcome: Outcome) -> list[str]:
    return [line for line in outcome.err.splitlines() if line.startswith("WARNING")]


def test_a_bound_far_below_a_coin_is_warned_of_once_and_at_once(train: Command) -> None:
    outcome = train(*FAR, "optimizer.lr=3e3")
    assert outcome.code == 0
    first, *others = [line for line in warnings_of(outcome) if "the training bound is" in line]
    step = re.search(r"step (\d+): the training bound is -[\d.e+]+ nats, far below", first)
    assert step is not None and int(step[1]) <= 2 and others == []
    assert "lower optimizer.lr" in first
    assert warnings_of(train("hydra.run.dir=good")) == []  # the control


def test_the_bound_of_other_units_is_no_coins(train: Command) -> None:
    outcome = train("model/visible=gaussian", "data.binarize=none")
    assert outcome.code == 0 and "coin" not in outcome.err


def test_back_off_halves_the_rate_and_starts_again(train: Command) -> None:
    """From the start, as there is no checkpoint: then all is as with half the rate at once."""
    outcome = train(*FAR, "optimizer.lr=20", "trainer.on_divergence=back_off")
    assert outcome.code == 0, outcome.err
    lines = [line for line in warnings_of(outcome) if "back-off" in line]
    assert lines and f"(back-off {len(lines)} of 3)" in lines[-1] and "back to step 0" in lines[0]
    rate = 20 * 0.5 ** len(lines)
    assert f"with a learning rate of {rate:g} (back-off" in lines[-1]
    assert {float(row["learning_rate"]) for row in metrics(outcome.run)} == {rate}
    assert "back-off 1 of 3" in Path("run/train.log").read_text()
    assert checkpoint(outcome.run)["back_offs"] == len(lines)
    at_once = train(*FAR, "hydra.run.dir=at_once", f"optimizer.lr={rate}")
    assert metrics(at_once.run) == metrics(outcome.run)
    machines = [checkpoint(each.run)["machine"] for each in (at_once, outcome)]
    assert all(machines[0][name].equal(machines[1][name]) for name in machines[0])


def spoil(monkeypatch: pytest.MonkeyPatch, bad: int) -> None:
    """From step `bad` on a gradient is no number, unless the rate is half of what it was."""
    from nws.experiment.trainer import Trainer

    original = Trainer._loss

    def loss(self: Trainer, *batches: Any) -> Any:
        result = original(self, *batches)
        if self.step + 1 >= bad and self.back_offs == 0:
            self.machine.recognition.layers[0].weight.grad.fill_(torch.nan)
        return result

    monkeypatch.setattr(Trainer, "_loss", loss)


def test_back_off_from_a_checkpoint_goes_on_the_same_after_a_stop(
    train: Command, monkeypatch: pytest.MonkeyPatch, interrupt: Interrupt
) -> None:
    options = ("trainer.on_divergence=back_off", "trainer.epochs=4", "algorithm=nrws")
    with monkeypatch.context() as patch:
        spoil(patch, bad=9)
        whole = train(*options, "hydra.run.dir=whole")
    assert whole.code == 0, whole.err
    (line,) = warnings_of(whole)
    assert "is not finite" in line and "back to step 6 with a learning rate of" in line
    rates = [float(row["learning_rate"]) for row in metrics(whole.run)]
    steps = [int(row["step"]) for row in metrics(whole.run)]
    assert steps == [6, 12, 18, 24] and rates[1] < 0.5 * rates[0]
    for stop in (8, 16):  # before the back-off is seen, and after it
        with monkeypatch.context() as patch:
            spoil(patch, bad=9)
            interrupt(stop, signal.SIGTERM)
            stopped = train(*options, f"hydra.run.dir=stopped_{stop}")
            assert stopped.code == 143
        with monkeypatch.context() as patch:
            spoil(patch, bad=9)
            assert train(f"resume={stopped.run}").code == 0
        assert_same_run(whole.run, stopped.run)


def test_back_off_gives_up_after_three_halvings(train: Command) -> None:
    outcome = train(*FAR, "optimizer.lr=3e38", "trainer.on_divergence=back_off")
    assert outcome.err.count("(back-off ") == 3 and outcome.code == 1
    assert "3 times half the rate was no help" in outcome.err.splitlines()[-1]


def test_warn_goes_on_while_the_parameters_are_finite(
    train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nws.learning import WakeSleep

    original, calls = WakeSleep.step, 0

    def step(self: WakeSleep, *batches: Any) -> Any:
        nonlocal calls
        calls += 1
        result = original(self, *batches)
        bad = torch.full_like(result.layer_losses, math.inf)
        return result._replace(layer_losses=bad) if calls == 3 else result

    monkeypatch.setattr(WakeSleep, "step", step)
    outcome = train("trainer.on_divergence=warn")
    (line,) = warnings_of(outcome)
    assert outcome.code == 0 and "step 3: the loss of generator layer 0 is not finite" in line
    calls = 0
    assert "is not finite" in train().message()  # the control: by default it stops
    message = train("optimizer=sgd", "optimizer.lr=3e38", "trainer.on_divergence=warn").message()
    assert "not finite" in message
    message = train("trainer.on_divergence=maybe").message()
    assert "trainer.on_divergence must be stop, warn or back_off, got 'maybe'" in message


# --- whose fault it is ----------------------------------------------------------------------------


def test_a_damping_that_is_lost_is_blamed_and_not_the_rate(train: Command) -> None:
    natural = ("algorithm=nrws", "metric=fisher", "solver=auto", "trainer.check_every=1")
    outcome = train(
        *natural, "damping.value=1e-8", "trainer.batch_size=32", "trainer.epochs=1",
        "optimizer.lr=0.1",
    )  # fmt: skip
    damping, *others = warnings_of(outcome)
    assert "alpha is 1e-08, and torch.float32 loses what is below" in damping
    assert any("has come to" in line and "raise damping.value" in line for line in others), others
    assert not any("lower optimizer.lr" in line for line in others if "ended" not in line)
    assert warnings_of(train(*natural, "damping.value=0.2")) == []  # the control


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1e39", "damping.value must be a number above 0 and at most 10,000,000, got 1e+39"),
        ("1e37", "damping.value must be a number above 0 and at most 10,000,000, got 1e+37"),
        ("1e-50", "damping.value=1e-50 is 0 in torch.float32"),
        ("0", "damping.value must be a number above 0"),
    ],
)
def test_dampings_at_their_limits(train: Command, value: str, message: str) -> None:
    text = train("algorithm=nrws", f"damping.value={value}").message()
    assert message in text and "optimizer.lr" not in text


def test_a_machine_that_starts_wrong_is_not_the_rates_fault(
    train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nws.experiment.training import parts

    original = parts.build_machine

    def build(*given: Any) -> Any:
        machine = original(*given)
        machine.generator.layers[0].bias.data.fill_(math.nan)
        return machine

    monkeypatch.setattr(parts, "build_machine", build)
    message = train().message()
    assert "before any training; see model.weight_scale" in message
    assert "optimizer.lr" not in message
