"""Reading runs: which directories hold one, its configuration, its metrics.csv, whether it ended.

Units: epochs, seconds of training, log-likelihoods in nats.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf

from nws.errors import UserError
from nws.experiment.checkpoint import load_checkpoint
from nws.experiment.run import RunDirectory, open_run


@dataclass(frozen=True)
class Run:
    """What a run directory says about its run."""

    path: Path
    argument: str  # the path of the command line that led to it
    options: dict[str, Any]  # its configuration, by keys such as optimizer.lr
    metrics: pd.DataFrame  # the numbers of metrics.csv, a line for each evaluation


def find_runs(path: str | Path) -> list[Path]:
    """The run directory itself, or all run directories below a folder, 2 before 10.

    Raises:
        UserError: There is none.
    """
    folder = Path(path).expanduser().resolve()
    if RunDirectory(folder).config.is_file() or not folder.is_dir():
        return [open_run(folder)[0].path]
    runs = []
    for here, below, _ in os.walk(folder):
        if RunDirectory(Path(here)).config.is_file():
            runs.append(Path(here))
            below.clear()
        below.sort(key=lambda name: (len(name), name) if name.isdigit() else (0, name))
    if not runs:
        raise UserError(
            f"{folder} is not a run directory: it has no .hydra/config.yaml, and no run is below it"
        )
    return runs


def is_finished(path: Path) -> bool:
    """Whether a run directory holds a run that reached its last step."""
    try:
        state = load_checkpoint(RunDirectory(path).last)
    except UserError:  # missing or damaged: train.py says which
        return False
    return bool(state["step"] >= state["total_steps"])


def is_bidirectional(config: DictConfig) -> bool:
    """Whether a run's rule trains the bidirectional machine p*, which log p* and Gibbs are for."""
    stated = config.algorithm.get("bidirectional")
    if stated is None:  # OLDER RUNS: their configurations have no such key
        return config.algorithm.get("name") in ("bihm", "nbihm")
    return bool(stated)


def read_run(path: str | Path, argument: str | None = None) -> Run:
    """Read a run's configuration and metrics.

    Raises:
        UserError: A file is missing or cannot be read.
    """
    directory, config = open_run(path)
    try:
        metrics = pd.read_csv(directory.metrics, dtype=float, float_precision="round_trip")
        _ = metrics[["epoch", "step", "seconds"]]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{directory.metrics} cannot be read: expected rows of numbers with columns epoch, "
            f"step and seconds ({type(error).__name__}: {error})"
        ) from error
    options = flatten(OmegaConf.to_container(config, resolve=True))
    return Run(directory.path, argument or str(path), options, metrics)


def read_runs(folders: Iterable[str | Path]) -> list[Run]:
    """Read all runs at or below folders that have been evaluated, each run once, in order.

    Raises:
        UserError: A folder holds none, or a run cannot be read.
    """
    found: dict[Path, str] = {}
    for folder in folders:
        runs = [path for path in find_runs(folder) if RunDirectory(path).metrics.is_file()]
        if not runs:
            raise UserError(
                f"no run at or below {folder} has a metrics.csv yet: "
                "it is there after the first evaluation"
            )
        for path in runs:
            found.setdefault(path, str(folder))
    return [read_run(path, argument) for path, argument in found.items()]


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one whose keys are joined by dots; a list is a value."""
    if not isinstance(value, dict):
        return {prefix: value}
    items = [(f"{prefix}.{key}" if prefix else str(key), each) for key, each in value.items()]
    return {key: leaf for name, each in items for key, leaf in flatten(each, name).items()}
