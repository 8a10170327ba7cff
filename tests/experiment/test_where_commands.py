"""data.where through the command line: the same run wherever bytes are held, after a resume too."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL, Command, assert_same_run, checkpoint

OPTIONS = (
    "data=npz", "data.path=images.npy", "trainer.batch_size=16", "algorithm=nrws",
    "algorithm.samples=3", "metric=fisher", "trainer.evaluation_points=10",
)  # fmt: skip


@pytest.fixture(autouse=True)
def images(tmp_path: Path) -> None:
    grey = np.random.default_rng(0).integers(0, 256, (80, 5, 5), dtype=np.uint8)
    np.save(tmp_path / "images.npy", grey)


@pytest.mark.parametrize("batch", ["same", "other"])
def test_host_and_device_are_the_same_run(
    train: Command, interrupt: Callable[[int, int], None], batch: str
) -> None:
    options = (*OPTIONS, f"metric.batch={batch}")
    device = train(*options, "data.where=device")
    host = train(*options, "data.where=host", "name=host")
    assert device.code == host.code == 0, host.err
    assert "in host memory" in host.out and "in host memory" not in device.out
    assert_same_run(device.run, host.run)
    interrupt(3, signal.SIGTERM)  # in the middle of an epoch
    broken = train(*options, "data.where=host", "name=broken")
    assert broken.code == 128 + signal.SIGTERM
    resumed = train(f"resume={broken.run}", "data.where=device")
    assert resumed.code == 0, resumed.err
    assert_same_run(device.run, resumed.run)


def test_auto_goes_on_with_a_run_of_another_place(command: Command) -> None:
    """Runs of before the option was there go on too: a key that changes no number is left aside."""
    options = (*SMALL, *OPTIONS, "hydra.run.dir=here", "resume=auto")
    for where in ("host", "device"):
        done = command("train.py", *options, f"data.where={where}")
        assert done.code == 0, done.err
    config = Path("here/.hydra/config.yaml")
    config.write_text("".join(
        line for line in config.read_text().splitlines(keepends=True) if "where:" not in line
    ))  # fmt: skip
    assert "where" not in config.read_text()
    assert command("train.py", *options).code == 0
    again = command("train.py", "resume=here", "trainer.epochs=3")
    assert again.code == 0, again.err
    assert checkpoint(Path("here"), "last.pt")["step"] == 12


def test_a_wrong_place_is_refused(train: Command) -> None:
    assert "data.where" in train("data.where=disk").message()
