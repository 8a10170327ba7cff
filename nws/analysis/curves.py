"""Training curves as numbers: runs in groups, and the mean and the deviation of each group."""

import difflib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nws.analysis.runs import Run
from nws.errors import UserError

#: configuration that may differ within a group: none of it changes a curve, but for the seed
INCIDENTAL = (
    "seed", "name", "device", "progress", "resume", "logger", "data.root",
    "trainer.check_every", "trainer.images_every",
)  # fmt: skip


class Band(NamedTuple):
    """The curve of a group, all of shape (points,)."""

    x: NDArray[np.float64]  # in epochs or in seconds of training
    mean: NDArray[np.float64]  # over the runs
    deviation: NDArray[np.float64]  # sample standard deviation over the runs; 0 for one run


def group_runs(runs: Sequence[Run], keys: Sequence[str]) -> dict[str, list[Run]]:
    """Group runs by keys such as optimizer.lr (`argument`: the path given); `UserError` if none."""
    known = sorted({key for run in runs for key in run.config} | {"argument"})
    for key in keys:
        if key not in known:
            below = [each for each in known if each.startswith(f"{key}.")]
            near = below or difflib.get_close_matches(key, known)
            hint = f"; perhaps {', '.join(near[:6])}" if near else ""
            raise UserError(f"no run's .hydra/config.yaml has the configuration key {key!r}{hint}")
    groups: dict[str, list[Run]] = {}
    for run in runs:
        values = run.config | {"argument": run.argument}
        groups.setdefault(", ".join(_part(key, values.get(key)) for key in keys), []).append(run)
    return groups


def _part(key: str, value: Any) -> str:
    """A key's part of a group's name."""
    text = f"{value:g}" if isinstance(value, float) else str(value).lower()
    if isinstance(value, str):
        text = value.split(".")[-1] if key.endswith("_target_") else value
    elif isinstance(value, list):
        text = "-".join(map(str, value))
    named = key == "argument" or key.endswith((".name", "_target_"))
    return text if named else f"{key.split('.')[-1]} {text}"


def differences(runs: Sequence[Run]) -> list[str]:
    """The configuration keys in which runs differ, without those of `INCIDENTAL`."""
    keys = {key for run in runs for key in run.config}
    keys = {key for key in keys if not f"{key}.".startswith(tuple(f"{n}." for n in INCIDENTAL))}
    unlike = [k for k in keys if any(r.config.get(k) != runs[0].options.get(k) for r in runs)]
    return sorted(unlike, key=lambda key: (not key.endswith((".name", ".lr")), key))


def count(runs: Sequence[Run]) -> str:
    """`5 seeds` for runs that differ in nothing else, `5 runs` for others."""
    seeds = len({run.config.get("seed") for run in runs}) == len(runs) and not differences(runs)
    return f"{len(runs)} {'seed' if seeds else 'run'}{'s' * (len(runs) > 1)}"


def with_column(runs: Sequence[Run], column: str, start: float = 0.0) -> list[Run]:
    """The runs with numbers in a column from an epoch on, with these lines; `UserError` if none."""
    tables = [run.metrics.reindex(columns=list({"epoch", column})).dropna() for run in runs]
    if all(table.empty for table in tables):
        columns = dict.fromkeys(name for run in runs for name in run.metrics)
        raise UserError(f"no run has numbers in column {column!r}; there are {', '.join(columns)}")
    lines = [table.index[table["epoch"] >= start] for table in tables]
    if not any(map(len, lines)):
        last = max(table["epoch"].max() for table in tables if len(table))
        raise UserError(f"no rows from epoch {start:g} on: the runs end at epoch {last:g}")
    pairs = zip(runs, lines, strict=True)
    return [replace(run, metrics=run.metrics.loc[kept]) for run, kept in pairs if len(kept)]


def by_epochs(runs: Sequence[Run], column: str) -> Band:
    """Mean and deviation at the epochs of all runs; interpolated where they share none."""
    series = [_series(run, "epoch", column) for run in runs]
    table = pd.concat(series, axis=1, join="inner").sort_index()
    return _band(table) if len(table) else interpolate(runs, "epoch", column)


def interpolate(runs: Sequence[Run], axis: str, column: str) -> Band:
    """Mean and deviation over the span that all runs share, each run interpolated linearly.

    The points are those of all runs: none where no span is shared, the mean of runs of one point.
    """
    series = [_series(run, axis, column) for run in runs]
    if all(len(each) == 1 for each in series):
        x = float(np.mean([each.index[0] for each in series]))
        return _band(pd.DataFrame([[each.iloc[0] for each in series]], index=[x]))
    table = pd.concat(series, axis=1).sort_index()
    return _band(table.interpolate("index", limit_area="inside").dropna())


def _series(run: Run, axis: str, column: str) -> pd.Series:
    """The numbers of a column, by the numbers of another; the last where these repeat."""
    return run.metrics.groupby(run.metrics[axis].round(9))[column].last().dropna()


def _band(table: pd.DataFrame) -> Band:
    """The band of a table with a line for each point and a column for each run."""
    deviation = table.std(axis=1).fillna(0.0)  # of one run there is none
    return Band(table.index.to_numpy(), table.mean(axis=1).to_numpy(), deviation.to_numpy())
