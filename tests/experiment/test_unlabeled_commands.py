"""metric.batch=unlabeled: recognition's Fisher matrix comes from unlabelled images.

Everything else comes from the gradient's batch.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Command, assert_same_run, checkpoint, flatten
from omegaconf import OmegaConf
from scipy.io import savemat
from test_rule_commands import config_of
from torch import Tensor

from nws.data import Dataset, Split
from nws.experiment.hardware import pick_device
from nws.experiment.build import (
    build_data,
    build_machine,
    build_metrics,
    build_optimizer,
    build_rule,
)
from nws.experiment.batches import derive_seed
from nws.learning import WakeSleep

# --- the command line, on a small file in TFD's layout --------------------------------------------

IMAGES = 70  # 40 unlabelled, 16 train, 6 valid, 8 test
OPTIONS = (
    "data=tfd", "data.root=.", "data.split=train", "data.binarize=resample",
    "algorithm=nrws", "algorithm.samples=3", "metric=fisher", "metric.batch=unlabeled",
    "model.layers=[5,3]", "trainer.batch_size=8", "trainer.epochs=6", "trainer.evaluate_every=2",
    "trainer.images_every=100", "trainer.evaluation_samples=5", "optimizer.lr=0.05",
    "scheduler=constant", "logger=none",
)  # fmt: skip


@pytest.fixture
def tfd(command: Command, tmp_path: Path) -> Callable[..., Any]:
    """tfd("seed=1", ...): train.py with OPTIONS in a folder that has a small TFD_48x48.mat."""
    kinds = np.repeat([0, 1, 2, 3], [40, 16, 6, 8]).astype(np.uint8)
    images = np.random.default_rng(0).integers(0, 256, (IMAGES, 48, 48), dtype=np.uint8)
    images[kinds == 0, :24] //= 4  # so that the unlabelled images are of another distribution
    (tmp_path / "TFD").mkdir()
    arrays = {"images": images, "folds": np.tile(kinds[:, None], 5)}
    savemat(tmp_path / "TFD" / "TFD_48x48.mat", arrays, do_compression=True)

    def run(*arguments: str) -> Any:
        resumed = any(text.startswith("resume=") for text in arguments)
        return command("train.py", *(() if resumed else OPTIONS), *arguments)

    return run


def test_a_run_on_tfd(tfd: Callable[..., Any]) -> None:
    outcome = tfd()
    assert outcome.code == 0 and outcome.run.parent.name == "tfd_nrws"
    # The warning comes once, and nothing else comes.
    assert outcome.err.count("is not the official file of the Toronto Face Dataset") == 1
    assert len(outcome.err.splitlines()) == 1
    assert (
        checkpoint(outcome.run)["step"] == 12
        and len(list((outcome.run / "images").glob("*.png"))) == 2
    )


def after_six_steps(run: Path, source: Callable[[Dataset], Any]) -> dict[str, Any]:
    """The parameters after the first six steps of a run's configuration, without the trainer."""
    config = OmegaConf.create(config_of(run))
    device = pick_device("auto")
    data = build_data(config, device)
    machine = build_machine(config, data).to(device)
    rng = torch.Generator(device).manual_seed(derive_seed(0, 1))
    learning = WakeSleep(machine, build_rule(config), rng, build_metrics(config, 6, machine))
    optimizer = build_optimizer(config, 6, machine)

    def rows(part: Split, stream: int) -> list[Tensor]:  # of each step, over three passes and more
        seeds = [derive_seed(0, stream, epoch) for epoch in range(3)]
        orders = [
            torch.randperm(len(part), generator=torch.Generator().manual_seed(seed)).to(device)
            for seed in seeds
        ]
        return [batch for order in orders for batch in order.split(8)]

    other = source(data)
    for labelled, unlabelled in list(zip(rows(data.train, 2), rows(other, 3), strict=False))[:6]:
        learning.step(data.train.batch(labelled, rng), other.batch(unlabelled, rng))
        optimizer.step()
    return flatten(machine.cpu().state_dict())


def test_the_trainer_draws_the_unlabelled_batches_by_a_shuffle_of_their_own(
    tfd: Callable[..., Any],
) -> None:
    """Six steps are three passes over the 16 labelled images.

    They are also one pass over the 40 unlabelled images, and the start of the next one.
    """
    run = tfd("trainer.epochs=3").run
    parameters = flatten(checkpoint(run)["machine"])
    assert after_six_steps(run, lambda data: data.unlabeled) == parameters
    # The control: as many labelled images.
    assert after_six_steps(run, lambda data: data.train) != parameters


@pytest.mark.parametrize("batch", ["same", "other"])
def test_unlabelled_is_no_other_choice_in_disguise(tfd: Callable[..., Any], batch: str) -> None:
    unlabelled = tfd("trainer.epochs=1", "hydra.run.dir=unlabelled").run
    other = tfd("trainer.epochs=1", f"metric.batch={batch}", "hydra.run.dir=other").run
    ends = [
        checkpoint(run)["machine"]["recognition.layers.0.weight"] for run in (unlabelled, other)
    ]
    assert not torch.equal(*ends)


@pytest.mark.parametrize(
    "options", [(), ("metric.refresh_every=4", "metric.max_rows=10", "data.split=both")], ids=str
)
def test_a_resumed_run_ends_as_one_never_stopped(
    tfd: Callable[..., Any], interrupt: Callable[[int, int], None], options: tuple[str, ...]
) -> None:
    whole = tfd("hydra.run.dir=whole", *options).run
    interrupt(7, signal.SIGTERM)  # the unlabelled images begin their second pass at step 5
    stopped = tfd("hydra.run.dir=stopped", *options)
    assert stopped.code == 128 + signal.SIGTERM and checkpoint(stopped.run)["step"] == 7
    resumed = tfd("resume=stopped", "data.where=host")  # which changes no number
    assert resumed.code == 0, resumed.err
    assert_same_run(whole, resumed.run)


# --- bad input ------------------------------------------------------------------------------------


def test_a_data_set_without_unlabelled_images(train: Command, tmp_path: Path) -> None:
    message = train("algorithm=nrws", "metric.batch=unlabeled").message()
    assert (
        "metric.batch=unlabeled needs a data set with unlabelled images, "
        "digits has none; use data=tfd"
    ) in message
    assert not list(tmp_path.glob("outputs/*/*"))  # before any work


def test_fewer_unlabelled_images_than_a_batch(tfd: Callable[..., Any]) -> None:
    message = tfd("data.split=both", "trainer.batch_size=41").err
    assert (
        "trainer.batch_size must be at most the 40 unlabelled images, got 41; lower it" in message
    )


def test_tfd_that_is_not_there(tfd: Callable[..., Any]) -> None:
    message = tfd("data.root=elsewhere").message()
    assert "TFD_48x48.mat, found none" in message and "requested from its maker" in message
