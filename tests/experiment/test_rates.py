"""Learning rates of the two networks apart: groups of parameters, the log, resuming, errors."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command, Interrupt, assert_same_run, checkpoint, metrics, names

ROUNDING = 1e-6  # of w + step in float32, where w is a visible bias of up to 5
APART = ("optimizer.generator_lr=0.02", "optimizer.recognition_lr=0.05")


def networks(run: Path, name: str = "last.pt") -> dict[str, torch.Tensor]:
    """All parameters of each network as one vector."""
    state = checkpoint(run, name)["machine"]
    return {
        network: torch.cat([part.flatten() for key, part in state.items() if network in key])
        for network in ("generator", "recognition")
    }


@pytest.mark.parametrize("optimizer", names("optimizer"))
def test_a_network_of_rate_zero_stays_and_the_other_learns(train: Command, optimizer: str) -> None:
    options = (f"optimizer={optimizer}", "trainer.epochs=0.5")
    both = networks(train("hydra.run.dir=both", *options).run)
    start = networks(train("hydra.run.dir=start", *options, "optimizer.lr=0").run)
    for still, other in (("generator", "recognition"), ("recognition", "generator")):
        after = networks(train(f"hydra.run.dir={still}", *options, f"optimizer.{still}_lr=0").run)
        assert torch.equal(after[still], start[still]) and not torch.equal(
            after[other], start[other]
        )
        assert not torch.equal(both[still], start[still])  # the control


def test_each_network_takes_steps_of_its_own_length(train: Command) -> None:
    """Of plain SGD the first step is proportional to the rate."""
    options = ("optimizer=sgd", "scheduler=constant", "trainer.epochs=1e-6")
    runs = {
        name: networks(train(f"hydra.run.dir={name}", *options, *extra).run)
        for name, extra in {
            "start": ("optimizer.lr=0",), "same": ("optimizer.lr=0.1",), "apart": APART,
        }.items()
    }  # fmt: skip
    for network, factor in {"generator": 0.2, "recognition": 0.5}.items():
        same, apart = (runs[name][network] - runs["start"][network] for name in ("same", "apart"))
        torch.testing.assert_close(apart, factor * same, rtol=1e-3, atol=ROUNDING)


def test_schedules_scale_both_rates_and_both_are_logged(train: Command) -> None:
    rows = metrics(train("trainer.epochs=4", *APART).run)
    for column, rate in {"learning_rate": 0.02, "recognition/learning_rate": 0.05}.items():
        expected = [rate * left for left in (0.75, 0.5, 0.25, 0)]
        assert [float(row[column]) for row in rows] == pytest.approx(expected)
    plateau = ("scheduler=plateau", "scheduler.patience=0", "+scheduler.threshold=1e9")
    plateau += ("+scheduler.threshold_mode=abs",)  # nothing is better, so it falls
    fallen = metrics(train("trainer.epochs=4", *APART, *plateau).run)
    assert float(fallen[-1]["learning_rate"]) < 0.02
    ratio = float(fallen[-1]["recognition/learning_rate"]) / float(fallen[-1]["learning_rate"])
    assert ratio == pytest.approx(2.5)


# What each scheduler makes of the rate by steps 6 and 12 of 12. A warm-up of 20 steps has come to
# (step + 1) / 21, and wsd falls over the last fifth of the run.
FACTORS = {
    "constant": (1, 1),
    "cosine": (1 / 2, 0),
    "exponential": (0.5**0.006, 0.5**0.012),
    "linear": (1 / 2, 0),
    "linear_warmup": (7 / 21 / 2, 0),
    "plateau": (1, 1),
    "wsd": (7 / 21, 0),
}


@pytest.mark.parametrize("scheduler", names("scheduler"))
def test_the_rates_of_every_scheduler(train: Command, scheduler: str) -> None:
    rows = metrics(train(f"scheduler={scheduler}", "optimizer.lr=0.02").run)
    expected = [0.02 * factor for factor in FACTORS[scheduler]]
    assert [float(row["learning_rate"]) for row in rows] == pytest.approx(expected, abs=1e-12)


def test_equal_rates_are_one_group_and_one_column(train: Command) -> None:
    plain = train("hydra.run.dir=plain", "optimizer.lr=0.02").run
    other = ("optimizer.lr=7", "optimizer.generator_lr=0.02", "optimizer.recognition_lr=0.02")
    for name, options in {"both": other, "one": ("optimizer.lr=0.02", APART[0])}.items():
        assert_same_run(plain, train(f"hydra.run.dir={name}", *options).run)
    assert "recognition/learning_rate" not in metrics(plain)[0]
    assert len(checkpoint(plain)["optimizer"]["param_groups"]) == 1


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_a_resumed_run_ends_as_one_never_stopped(
    train: Command, interrupt: Interrupt, optimizer: str
) -> None:
    options = (f"optimizer={optimizer}", "scheduler=cosine", *APART)
    whole = train("hydra.run.dir=whole", *options).run
    interrupt(8, signal.SIGTERM)
    stopped = train("hydra.run.dir=stopped", *options)
    assert checkpoint(stopped.run)["step"] == 8
    resumed = train("resume=stopped")
    assert resumed.code == 0, resumed.err
    assert_same_run(whole, resumed.run)
    assert len(checkpoint(whole)["optimizer"]["param_groups"]) == 2


def test_rates_may_part_and_join_again_in_a_resumed_run(train: Command) -> None:
    """What Adam has gathered stays, and each network goes on with its own rate."""
    options = ("optimizer=adam", "scheduler=constant", "trainer.epochs=1")
    train("hydra.run.dir=run", *options)
    before = checkpoint(Path("run"))["optimizer"]["state"]
    start = networks(Path("run"))
    parted = train("resume=run", "trainer.epochs=2", "optimizer.generator_lr=0")
    assert parted.code == 0, parted.err
    after = checkpoint(Path("run"))["optimizer"]
    assert [group["lr"] for group in after["param_groups"]] == [0, 0.01]
    assert {key: state["step"] for key, state in after["state"].items()} == {
        key: state["step"] + 6 for key, state in before.items()
    }
    assert torch.equal(networks(Path("run"))["generator"], start["generator"])
    assert not torch.equal(networks(Path("run"))["recognition"], start["recognition"])
    joined = train("resume=run", "trainer.epochs=3", "optimizer.generator_lr=null")
    assert joined.code == 0, joined.err
    assert len(checkpoint(Path("run"))["optimizer"]["param_groups"]) == 1
    rows = metrics(Path("run"))
    assert [row["learning_rate"] for row in rows] == ["0.01", "0.0", "0.01"]
    assert [row["recognition/learning_rate"] for row in rows] == ["", "0.01", ""]


def test_the_trust_region_takes_the_rate_of_its_network(
    train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nws.learning import NaturalMetric

    seen: dict[str, set[float]] = {"generator": set(), "recognition": set()}
    original = NaturalMetric.precondition

    def precondition(self: NaturalMetric, *given: Any) -> None:
        seen[self.network.name].add(round(float(self.learning_rate), 6))
        original(self, *given)

    monkeypatch.setattr(NaturalMetric, "precondition", precondition)
    options = ("algorithm=nrws", "metric.max_kl=0.01", "scheduler=constant", "trainer.epochs=0.5")
    assert train(*options, *APART).code == 0
    assert seen == {"generator": {0.02}, "recognition": {0.05}}


MY_OPTIMIZER = """
import torch

class Signs(torch.optim.Optimizer):
    def __init__(self, params, lr=0.001):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            closure()
        for group in self.param_groups:
            for each in group["params"]:
                each.sub_(each.grad.sign(), alpha=group["lr"])
"""


def test_an_optimizer_of_ones_own_has_two_rates_too(train: Command, tmp_path: Path) -> None:
    (tmp_path / "my_signs.py").write_text(MY_OPTIMIZER)
    options = ("~optimizer", "+optimizer._target_=my_signs.Signs", "scheduler=constant")
    rows = metrics(train(*options, "+optimizer.recognition_lr=0.002").run)
    assert (rows[0]["learning_rate"], rows[0]["recognition/learning_rate"]) == ("0.001", "0.002")


@pytest.mark.parametrize("rate", ["-0.1", "fast", "true", "inf", "nan"])
def test_a_rate_that_is_no_number_is_refused(train: Command, tmp_path: Path, rate: str) -> None:
    message = train(f"optimizer.generator_lr={rate}").message()
    assert "optimizer.generator_lr must be a number of at least 0" in message
    assert not list(tmp_path.rglob("checkpoints"))


def test_an_optimizer_without_groups_says_so(train: Command) -> None:
    missing = ("~optimizer.betas", "~optimizer.fused")  # options that it does not take
    options = ("optimizer._target_=torch.optim.LBFGS", *missing, "optimizer.lr=0.01")
    assert "LBFGS doesn't support per-parameter options" in train(*options, APART[0]).message()


def test_a_divergence_names_both_rates(train: Command) -> None:
    options = ("optimizer=sgd", "scheduler=constant", "optimizer.recognition_lr=1e38")
    message = train(*options).message()
    assert "rate of 0.1 for the generator, 1e+38 for recognition" in message
