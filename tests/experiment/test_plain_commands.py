"""The plain step at the command line: dreams that only the log wants, and fused optimizers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from conftest import SMALL, Command, checkpoint, metrics

from nws.experiment.loading import load_run
from nws.experiment.evaluation import dream_loss
from nws.experiment.batches import derive_seed


@pytest.mark.parametrize(("algorithm", "dreams"), [("bihm", None), ("vimco", 3), ("nbihm", None)])
def test_the_dream_loss_of_a_rule_without_dreams_is_taken_at_evaluations(
    train: Command, algorithm: str, dreams: int | None
) -> None:
    options = [] if dreams is None else [f"algorithm.dreams={dreams}"]
    run = train(f"algorithm={algorithm}", "seed=3", *options).run
    found = float(metrics(run)[-1]["train/dream_loss"])
    machine = load_run(run, "last").machine  # draws depend on the kind of device
    rows = 200 * (dreams or 10)
    assert found == dream_loss(machine, rows, derive_seed(3, 4, 12))
    assert found != dream_loss(machine, rows, derive_seed(3, 4, 6))  # the control


def test_the_dream_loss_of_a_rule_with_dreams_is_of_its_steps(train: Command) -> None:
    """A row has the mean over the steps since the last one: of two rows with a step each."""

    def rows(steps: int) -> list[float]:
        run = train("algorithm=rws", "seed=3", f"trainer.evaluate_every={steps / 6}").run
        return [float(row["train/dream_loss"]) for row in metrics(run)]

    single, pairs = rows(1), rows(2)
    assert len(single) == 12 and len(set(single)) == 12
    means = [sum(pair) / 2 for pair in zip(single[::2], single[1::2], strict=True)]
    assert pairs == pytest.approx(means, rel=1e-6)  # float32


def test_bad_dreams_are_one_message(train: Command) -> None:
    message = train("algorithm.dreams=0").message()
    assert "algorithm.dreams must be a whole number of at least 1 or null, got 0" in message


def final(run: Path) -> torch.Tensor:
    return torch.cat([each.flatten() for each in checkpoint(run)["machine"].values()])


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
@pytest.mark.parametrize(("before", "after"), [("false", "true"), ("true", "false")])
def test_fused_and_plain_optimizers_go_on_from_each_other(
    train: Command, optimizer: str, before: str, after: str
) -> None:
    base = (f"optimizer={optimizer}", "scheduler=constant", "optimizer.lr=0.001")
    whole = train("hydra.run.dir=whole", *base, f"optimizer.fused={before}").run
    part = ("hydra.run.dir=part", *base, f"optimizer.fused={before}", "trainer.epochs=1")
    train(*part)
    (group,) = checkpoint(Path("part"))["optimizer"]["param_groups"]
    assert str(group["fused"]).lower() == before
    half = final(Path("part"))
    resumed = train("resume=part", "trainer.epochs=2", f"optimizer.fused={after}")
    assert resumed.code == 0, resumed.err
    (group,) = checkpoint(resumed.run)["optimizer"]["param_groups"]
    assert str(group["fused"]).lower() == after
    # 6 steps round otherwise: by some 1e-7 each, times what Adam makes of a gradient near 0; a
    # step that lost its moments would be off by its own length, 1e-3
    moved = (final(whole) - half).abs().max()
    assert (final(resumed.run) - final(whole)).abs().max() < 0.02 * moved


def test_a_run_of_before_dreams_and_fused_goes_on(train: Command) -> None:
    run = train("trainer.epochs=1", "optimizer.fused=false").run
    path = run / ".hydra" / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config["algorithm"].pop("dreams")
    config["optimizer"].pop("fused")
    path.write_text(yaml.safe_dump(config))
    resumed = train(f"resume={run}", "trainer.epochs=2")
    assert resumed.code == 0 and checkpoint(run)["step"] == 12, resumed.err
    assert "fused" not in yaml.safe_load(path.read_text())["optimizer"]
    config["trainer"]["epochs"] = 2  # as the command below says
    path.write_text(yaml.safe_dump(config))
    auto = (*SMALL, f"hydra.run.dir={run}", "resume=auto")
    assert train(*auto, "~optimizer.fused").code == 0
    refused = train(*auto, "optimizer.fused=true").message()  # the control
    assert "optimizer.fused is none there, and True is asked for" in refused
