"""What is built from the configuration: every choice of the groups, every torch optimizer, the seed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import Command, assert_same_run, checkpoint, flatten, metrics, names


def test_the_seed_fixes_a_run(train: Command) -> None:
    def run(name: str, seed: int) -> Path:
        return train(f"hydra.run.dir={name}", f"seed={seed}").run

    first, again, other = run("a", 3), run("b", 3), run("c", 4)
    assert_same_run(first, again)
    assert metrics(first) != metrics(other)
    for key in ("rng", "machine/generator.layers.0.weight"):
        assert flatten(checkpoint(first))[f"/{key}"] != flatten(checkpoint(other))[f"/{key}"]


@pytest.mark.parametrize("group", ["optimizer", "scheduler", "model"])
def test_group_choices_train(train: Command, group: str) -> None:
    before = None
    for name in names(group):
        outcome = train(f"{group}={name}", "trainer.epochs=0.5", f"hydra.run.dir={name}")
        assert outcome.code == 0, (name, outcome.err)
        assert checkpoint(outcome.run)["step"] == 3
        after = checkpoint(outcome.run)["machine"]["generator.layers.0.weight"]
        assert after.isfinite().all()
        assert (
            before is None
            or group == "model"
            or not torch.equal(after, before)
            or group == "scheduler"
        )
        before = after


OPTIMIZERS = sorted(
    name
    for name, each in vars(torch.optim).items()
    if isinstance(each, type)
    and issubclass(each, torch.optim.Optimizer)
    and each is not torch.optim.Optimizer
)


def test_every_torch_optimizer_trains(train: Command) -> None:
    assert {"SGD", "Adam", "LBFGS", "Rprop"} <= set(OPTIMIZERS)
    start = None
    for name in OPTIMIZERS:
        options = (
            f"optimizer._target_=torch.optim.{name}",
            "~optimizer.betas",
            "trainer.epochs=0.5",
            f"hydra.run.dir={name}",
        )
        outcome = train(*options, "scheduler=plateau")
        if name in ("SparseAdam", "Muon"):  # for sparse gradients; for matrices alone
            assert name in outcome.message()
            continue
        assert outcome.code == 0, (name, outcome.err)
        state = checkpoint(outcome.run)
        assert state["step"] == 3 and state["optimizer_class"] == name
        weight = state["machine"]["generator.layers.0.weight"]
        assert weight.isfinite().all() and (start is None or not torch.equal(weight, start))
        start = weight
