"""Each group of the configuration takes a class of the user's own, from a file of the user's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from conftest import Command, assert_same_run, checkpoint

IDEAS = '''
import torch
from nws import HelmholtzMachine, Rule
from nws.models.units import Binary
from nws.natural import Damping, Metric, Solver


class Unscaled(Metric):
    """The plain gradient, as a metric: (0 + alpha I)^{-1} g."""

    def update(self, rows, alpha):
        self.alpha = alpha.clone()

    def direction(self, gradients):
        return [g / self.alpha for g in gradients]


class Solved(Solver):
    """Plain descent along the damped system, ten steps."""

    def __init__(self, rate=0.5):
        self.rate = rate

    def factor(self, operator, damping):
        self.operator, self.damping = operator, damping.clone()

    def solve(self, gradient):
        x = gradient / self.damping
        for _ in range(10):
            x = x - self.rate * (self.operator.matmul(x) + self.damping * x - gradient)
        return x


def sharpened(log_p, log_q, power):
    weights = torch.softmax(log_p - log_q, dim=1) ** power
    weights = weights / weights.sum(1, keepdim=True)
    return weights, weights


class Twice(Rule):
    """Twice the samples that the file asks for."""

    def __post_init__(self):
        object.__setattr__(self, "samples", 2 * self.samples)
        super().__post_init__()


class Shy(HelmholtzMachine):
    """Half the weights to start with."""

    def __init__(self, sizes, shyness, **options):
        super().__init__(sizes, **options)
        for parameter in self.parameters():
            parameter.data.mul_(shyness)


class Flat(Binary):
    """Binary units of a temperature: states are as ever."""


class Stubborn(Damping):
    def start_step(self, step):
        self.alpha.fill_(0.3)
'''
NRWS = ("algorithm=nrws", "metric=fisher", "trainer.epochs=1")
OWN = {
    "metric": (*NRWS, "metric._target_=my_classes.Unscaled"),
    "solver": (*NRWS, "~solver", "+solver={_target_: my_classes.Solved, rate: 0.2}"),
    "weighting": (
        "~algorithm.weighting",
        "+algorithm.weighting={_target_: my_classes.sharpened, _partial_: true, power: 2}",
    ),
    "algorithm": ("algorithm._target_=my_classes.Twice", "algorithm.samples=2"),
    "model": ("model._target_=my_classes.Shy", "+model.shyness=0.5"),
    "units": ("++model.units={_target_: my_classes.Flat}",),
    "visible units": ("model.visible={_target_: my_classes.Flat}",),
    "damping": (*NRWS, "damping._target_=my_classes.Stubborn"),
}


@pytest.mark.parametrize("options", OWN.values(), ids=OWN)
def test_a_class_of_the_users_own_trains_and_goes_on(
    train: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    (tmp_path / "my_classes.py").write_text(IDEAS)
    monkeypatch.delitem(sys.modules, "my_classes", raising=False)
    monkeypatch.setattr(sys, "path", sys.path[:])
    at_once = train("hydra.run.dir=at_once", "scheduler=constant", *options, "trainer.epochs=2")
    assert at_once.code == 0, at_once.err
    first = train("hydra.run.dir=later", "scheduler=constant", *options, "trainer.epochs=1")
    assert first.code == 0, first.err
    resumed = train("resume=later", "trainer.epochs=2")
    assert resumed.code == 0, resumed.err
    assert checkpoint(resumed.run)["step"] == 12
    assert_same_run(at_once.run, resumed.run)


def test_own_classes_are_what_trains(
    train: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plain gradient as a metric is (1 + alpha) / alpha times the plain gradient: six times."""
    (tmp_path / "my_classes.py").write_text(IDEAS)
    monkeypatch.delitem(sys.modules, "my_classes", raising=False)
    monkeypatch.setattr(sys, "path", sys.path[:])
    short = ("trainer.epochs=0.1", "scheduler=constant", "optimizer=sgd")
    own = train("hydra.run.dir=own", *OWN["metric"], *short, "optimizer.lr=0.01").run
    plain = train("hydra.run.dir=plain", *short, "optimizer.lr=0.06").run
    ends = [checkpoint(run)["machine"]["generator.layers.0.weight"] for run in (own, plain)]
    assert (ends[0] - ends[1]).abs().max() < 1e-6
    config = yaml.safe_load((own / ".hydra" / "config.yaml").read_text())
    assert config["metric"]["_target_"] == "my_classes.Unscaled"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("metric._target_=my_classes.Stubborn",), "must be a class that derives from"),
        (("damping._target_=my_classes.Flat", "~damping.value"), "must be a class of nws.natural"),
        (("metric._target_=builtins.dict",), "derives from nws.natural.Metric, got builtins.dict"),
        (("algorithm._target_=builtins.dict",), "algorithm._target_ must be nws.learning.Rule"),
        (("++model.units={_target_: my_classes.Solved}",), "model.units must be binary or bipolar"),
    ],
    ids=str,
)
def test_a_class_of_another_kind_gets_one_message(
    train: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    expected: str,
) -> None:
    (tmp_path / "my_classes.py").write_text(IDEAS)
    monkeypatch.delitem(sys.modules, "my_classes", raising=False)
    monkeypatch.setattr(sys, "path", sys.path[:])
    assert expected in train(*NRWS, *options).message()
