"""Reading runs: which directories hold one, its configuration, its metrics.csv."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf

from nws.errors import UserError
from nws.experiment.configuration import flatten_config
from nws.experiment.directory import RunDirectory, find_runs, open_run


@dataclass(frozen=True)
class Run:
    """What a run directory says about its run."""

    path: Path
    argument: str  # the path of the command line that led to it
    options: dict[str, Any]  # its configuration, by keys such as optimizer.lr
    metrics: pd.DataFrame  # the numbers of metrics.csv, a line for each evaluation, nan for none


def is_bidirectional(config: DictConfig) -> bool:
    """Whether a run's rule trains the bidirectional machine p*, which log p* and Gibbs are for."""
    named = config.algorithm.get("name") in ("bihm", "nbihm")  # for runs of version 0.1
    return bool(config.algorithm.get("bidirectional", named))


def read_run(path: str | Path, argument: str | None = None) -> Run:
    """Read a run's configuration and metrics; `UserError` where a file cannot be read."""
    directory, config = open_run(path)
    try:
        table = pd.read_csv(directory.metrics, dtype=float, float_precision="round_trip")
        _ = table[["epoch", "step", "seconds"]]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{directory.metrics} cannot be read: expected rows of numbers with columns epoch, "
            f"step and seconds ({type(error).__name__}: {error})"
        ) from error
    options = flatten_config(OmegaConf.to_container(config, resolve=True))
    metrics = table.replace([math.inf, -math.inf], math.nan)
    return Run(directory.path, argument or str(path), options, metrics)


def read_runs(folders: Iterable[str | Path]) -> list[Run]:
    """Read all runs at or below folders that have a metrics.csv, each once; `UserError` if none."""
    found: dict[Path, str] = {}
    for folder in folders:
        runs = [path for path in find_runs(folder) if RunDirectory(path).metrics.is_file()]
        if not runs:
            when = "it is there after the first evaluation"
            raise UserError(f"no run at or below {folder} has a metrics.csv yet: {when}")
        for path in runs:
            found.setdefault(path, str(folder))
    return [read_run(path, argument) for path, argument in found.items()]
