"""Run directories that tests write themselves."""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

LL = "valid/log_likelihood"
Make = Callable[..., Path]


def write_run(
    folder: Path,
    name: str,
    rows: list[tuple[float, float, Any]],
    algorithm: str = "rws",
    lr: float = 0.1,
    seed: int = 0,
    batch_size: int = 10,
) -> Path:
    """A run directory with rows of (epoch, seconds, value) and this configuration."""
    path = folder / name
    (path / ".hydra").mkdir(parents=True)
    config = {
        "seed": seed,
        "algorithm": {"name": algorithm},
        "optimizer": {"_target_": "torch.optim.SGD", "lr": lr},
        "trainer": {"batch_size": batch_size},
    }
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
