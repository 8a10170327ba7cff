"""Options that a class of torch cannot work with are found before anything of a run is written."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from conftest import Command, assert_same_run

from nws.experiment.training.trial import beside

STEP = "torch.optim.lr_scheduler"


def schedule(name: str, **options: object) -> tuple[str, ...]:
    given = "".join(f", {key}: {value}" for key, value in options.items())
    return "~scheduler", f"+scheduler={{_target_: {STEP}.{name}{given}}}"


LBFGS = ("optimizer._target_=torch.optim.LBFGS", "~optimizer.betas", "~optimizer.fused")
WRONG = [
    (schedule("StepLR", step_size="abc"), "scheduler.step_size must be a number, got 'abc'"),
    (schedule("StepLR", step_size=0), "StepLR fails at step 1 with the options {'step_size': 0}"),
    (schedule("StepLR", step_size=3, gamma="abc"), "scheduler.gamma must be a number, got 'abc'"),
    (schedule("CosineAnnealingLR", T_max=0), "CosineAnnealingLR fails at step 1"),
    (schedule("OneCycleLR", max_lr=0.1, total_steps=3), "OneCycleLR fails at step 12"),
    ((*LBFGS, "+optimizer.history_size=abc"), "optimizer.history_size must be a number, got 'abc'"),
    (("+optimizer.capturable=abc",), "optimizer.capturable must be true or false, got 'abc'"),
    (("+optimizer.capturable=5",), "optimizer.capturable must be true or false, got 5"),
    (
        ("~optimizer.fused", "+optimizer.foreach=true", "+optimizer.differentiable=true"),
        "optimizer._target_=torch.optim.Adam fails at the first step with the options",
    ),
]


@pytest.mark.parametrize(("options", "expected"), WRONG, ids=str)
def test_wrong_options_leave_no_run(
    train: Command, tmp_path: Path, options: tuple[str, ...], expected: str
) -> None:
    message = train("device=cpu", "hydra.run.dir=run", *options).message()
    assert expected in message and message.count("\n") == 1
    assert not (tmp_path / "run" / ".hydra" / "config.yaml").exists()


@pytest.mark.parametrize(
    "options",
    [
        schedule("StepLR", step_size=3),
        schedule("OneCycleLR", max_lr=0.01, total_steps="total_steps"),
        schedule("CosineAnnealingWarmRestarts", T_0=4),
        schedule("PolynomialLR", total_iters="total_steps"),
        schedule("CyclicLR", base_lr=0.001, max_lr=0.01, cycle_momentum="false"),
        (*LBFGS, "+optimizer.line_search_fn=strong_wolfe", "+optimizer.history_size=3"),
    ],
    ids=str,
)
def test_good_ones_train(train: Command, options: tuple[str, ...]) -> None:
    outcome = train("device=cpu", *options)
    assert outcome.code == 0 and not re.search("[Ww]arning", outcome.err), outcome.err


def test_a_trial_changes_no_run(train: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    options = schedule("OneCycleLR", max_lr=0.1, total_steps="total_steps")
    tried = train("hydra.run.dir=tried", *options)
    for name in ("try_optimizer", "try_scheduler"):
        monkeypatch.setattr(f"nws.experiment.training.trial.{name}", lambda *arguments: None)
    plain = train("hydra.run.dir=plain", *options)
    assert_same_run(tried.run, plain.run)


OWN = """
from torch.optim import Adam
from torch.optim.lr_scheduler import ConstantLR


class MyAdam(Adam):
    def __init__(self, *arguments, **options):
        print("MyAdam is made")
        super().__init__(*arguments, **options)


class MyRate(ConstantLR):
    def __init__(self, *arguments, **options):
        print("MyRate is made")
        super().__init__(*arguments, **options)
"""


def test_classes_of_the_users_own_are_made_once(
    train: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "my_steps", raising=False)
    (tmp_path / "my_steps.py").write_text(OWN)
    scheduler = ("~scheduler", "+scheduler={_target_: my_steps.MyRate}")
    outcome = train("device=cpu", "optimizer._target_=my_steps.MyAdam", *scheduler)
    assert outcome.code == 0, outcome.err
    for name in ("MyAdam", "MyRate"):
        assert outcome.out.count(f"{name} is made") == 1


def test_rates_beside_change_apart() -> None:
    """Also a rate that is a tensor, which a scheduler fills."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight], lr=torch.tensor(0.1))
    other = beside(optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(other, 1, gamma=0.5)
    other.step()
    schedule.step()
    assert float(other.param_groups[0]["lr"]) == pytest.approx(0.05)
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.1)
    assert "initial_lr" not in optimizer.param_groups[0]
    assert other.param_groups[0]["params"][0] is weight
