"""What runs leave behind, read back: one run, and all of them as one table of pandas.

Log-likelihoods are in nats per data point, seconds are of training without evaluation.
"""

import io
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from nws.errors import UserError, explained
from nws.experiment.config import flatten, to_dict
from nws.experiment.provenance import read_provenance
from nws.experiment.run import find_runs, open_run
from nws.files import read_text

LOG_LIKELIHOOD, ERROR = "valid/log_likelihood", "valid/standard_error"  # of metrics.csv, in nats
POSITION = ["epoch", "step", "seconds"]  # the columns that every metrics.csv has


@dataclass(frozen=True)
class Run:
    """What a run directory says about its run."""

    path: Path
    argument: str  # the path of the command line that led to it
    config: dict[str, Any]  # by keys such as optimizer.lr
    metrics: pd.DataFrame  # the numbers of metrics.csv, a line for each evaluation, nan for none
    provenance: dict[str, Any] = field(default_factory=dict)  # provenance.json, {} where unread

    @property
    def state(self) -> str:
        """As in provenance.json; or `pruned`; or `killed`, its process being gone; or `unknown`."""
        pruned = "callbacks.pruning" in str(self.provenance.get("reason"))
        return "pruned" if pruned else str(self.provenance.get("state", "unknown"))

    @property
    def end(self) -> dict[str, float]:
        """Its `epoch`, `step` and `seconds`: of the last row, or where it ended after that."""
        last = {"epoch": 0.0, "step": 0.0, "seconds": math.nan} | self.last
        names = ("steps", "total_steps", "epochs", "training_seconds")
        steps, total, epochs, seconds = (self.provenance.get(name) or 0 for name in names)
        if not total or steps <= last["step"]:
            return last
        return {"epoch": steps / total * epochs, "step": steps, "seconds": seconds}

    @cached_property
    def best(self) -> dict[str, float]:
        """The row with the best `valid/log_likelihood`, without step 0; {} where there is none."""
        values = self.metrics.get(LOG_LIKELIHOOD, pd.Series(dtype=float))
        values = values[self.metrics["step"] > 0].dropna()
        return dict(self.metrics.loc[values.idxmax()]) if len(values) else {}

    @cached_property
    def last(self) -> dict[str, float]:
        """The last row of metrics.csv; {} where there is none."""
        return dict(self.metrics.iloc[-1]) if len(self.metrics) else {}


def read_run(path: str | Path, argument: str | None = None) -> Run:
    """Read a run's configuration, metrics and provenance; without metrics.csv it has no rows."""
    directory, config = open_run(path)
    with explained(f"{directory.config} cannot be read"):
        flat = flatten({key: each for key, each in to_dict(config).items() if key != "tuned"})
    metrics = pd.DataFrame(columns=POSITION, dtype=float)
    if os.path.lexists(directory.metrics):
        expected = "expected rows of numbers with columns epoch, step and seconds"
        with explained(f"{directory.metrics} cannot be read", expected):
            text = io.StringIO(read_text(directory.metrics))
            metrics = pd.read_csv(text, dtype=float, float_precision="round_trip")
            _ = metrics[POSITION]
        metrics = metrics.replace([math.inf, -math.inf], math.nan)
    record = read_provenance(directory.path)
    return Run(directory.path, argument or str(path), flat, metrics, record)


def read_runs(folders: Iterable[str | Path]) -> tuple[list[Run], list[str]]:
    """Read the runs at or below folders, each once; say what is wrong with those left out.

    `UserError` where none can be read.
    """
    found: dict[Path, str] = {}
    for folder in folders:
        for path in find_runs(folder):
            found.setdefault(path, str(folder))
    runs, wrong = [], []
    for path, argument in found.items():
        try:
            runs.append(read_run(path, argument))
        except UserError as error:
            wrong.append(f"left out: {error}")
    if not runs:
        raise UserError("\n".join([f"none of {len(found)} runs can be read", *wrong]))
    return runs, wrong


def frame(runs: Sequence[Run]) -> pd.DataFrame:
    """One line a run: what became of it (`ms` is of a step), then its configuration by its keys."""
    table = pd.DataFrame({"run": [str(run.path) for run in runs]})
    table["state"] = [run.state for run in runs]
    for name, column in (("best", LOG_LIKELIHOOD), ("error", ERROR)):
        table[name] = [run.best.get(column, math.nan) for run in runs]
    table["last"] = [run.last.get(LOG_LIKELIHOOD, math.nan) for run in runs]
    table[["epochs", "steps", "seconds"]] = pd.DataFrame([run.end for run in runs])[POSITION]
    table.insert(7, "ms", 1000 * table["seconds"] / table["steps"].where(table["steps"] > 0))
    for name in ("started", "host"):
        table[name] = [str(run.provenance.get(name, "")) for run in runs]
    return pd.concat([table, pd.DataFrame([run.config for run in runs])], axis=1)


def folder_names(runs: Sequence[Run]) -> list[str]:
    """What lies below the runs' common folder; the end of a single run's path."""
    if len(runs) == 1:
        return [str(Path(*runs[0].path.parts[-2:]))]
    common = os.path.commonpath([run.path.parent for run in runs])
    return [str(run.path.relative_to(common)) for run in runs]
