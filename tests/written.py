"""Run directories that tests write themselves, and two that are trained once for all tests."""

import csv
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

LL = "valid/log_likelihood"
TEST, VALID = 12, 7  # images of `trained`
Make = Callable[..., Path]


def write_run(
    folder: Path, name: str, rows: list[tuple[float, float, Any]], algorithm: str = "rws",
    lr: float = 0.1, seed: int = 0, batch_size: int = 10, **more: dict[str, Any],
) -> Path:  # fmt: skip
    """A run directory with rows of (epoch, seconds, value) and this configuration."""
    path = folder / name
    (path / ".hydra").mkdir(parents=True)
    config = {
        "seed": seed,
        "algorithm": {"_target_": "nws.learning.Rule", "name": algorithm},
        "optimizer": {"_target_": "torch.optim.SGD", "lr": lr},
        "trainer": {"batch_size": batch_size},
        "tuned": {"adam": {"lr": 1.0}, "sgd": {"lr": 2.0}},  # as of a preset, in no table
    } | more
    (path / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config))
    with open(path / "metrics.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["epoch", "step", "seconds", LL, "valid/samples"])
        writer.writerows([e, round(10 * e), seconds, value, 50] for e, seconds, value in rows)
    return path


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make("a/0", [(epoch, seconds, value), ...], seed=1, ...): a run directory."""
    return partial(write_run, tmp_path)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trained")


@pytest.fixture
def trained(train: Callable[..., Any], home: Path, tmp_path: Path) -> Path:
    """A folder with two runs, rws and bihm, on images of 2 x 3 pixels; of every test its own."""
    if not (home / "sweep").is_dir():
        rng = np.random.default_rng(0)
        parts = {"train": 60, "valid": VALID, "test": TEST}
        images = {name: rng.integers(0, 2, (n, 2, 3), np.uint8) for name, n in parts.items()}
        np.savez(home / "mine.npz", **images)
        data = ("data=npz", f"data.path={home / 'mine.npz'}", "trainer.batch_size=20")
        for algorithm in ("rws", "bihm"):
            place = f"hydra.run.dir={home / 'sweep' / algorithm}"
            outcome = train(*data, "model.layers=[3,2]", f"algorithm={algorithm}", place)
            assert outcome.code == 0, outcome.err
    return Path(shutil.copytree(home / "sweep", tmp_path / "sweep"))
