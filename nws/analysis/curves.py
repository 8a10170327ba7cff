"""Training curves as numbers: runs in groups, and the mean and the deviation of each group."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nws.analysis.runs import Run, differing_keys, find_key, label
from nws.errors import UserError

GRADED = ("log_likelihood", "loss", "kl")  # parts of the names of columns that have a best value
GAP = 5.0  # between the curves that set the scale and those that are cut
START = 1.5  # with the rows at step 0, the scale is that much larger at most
MAX_NAMED = 3  # keys in a group's name, where fewer tell the groups apart


class Band(NamedTuple):
    """The curve of a group, all of shape (points,)."""

    x: NDArray[np.float64]  # in epochs or in seconds of training
    mean: NDArray[np.float64]  # over the runs
    deviation: NDArray[np.float64]  # sample standard deviation over the runs; 0 for one run


class Scale(NamedTuple):
    """The ends of a y axis, None where the curves need no other than their own, and what is cut."""

    low: float | None
    high: float | None
    cut: dict[str, float]  # how far the curves go that leave the axis, by their names


def group_runs(runs: Sequence[Run], by: str = "auto") -> dict[str, list[Run]]:
    """Group runs, and name the groups.

    Args:
        runs: The runs.
        by: Keys such as optimizer.lr or lr, with commas between them; `argument`: the path given;
            `run`: each run by itself; `auto`: all keys in which the runs differ but for the seed.

    Raises:
        UserError: No run has such a key.
    """
    if by == "run":
        return _by_name(runs, differing_keys(runs), alone=True)
    if by != "auto":
        names = by.split(",")
        keys = [find_key(name, runs) for name in names if name != "argument"]
        return _by_name(runs, keys, "argument" in names)
    keys = [key for key in differing_keys(runs) if key != "seed"]
    return _by_name(runs, _telling(runs, keys) or ["algorithm.name"])


def _by_name(
    runs: Sequence[Run], keys: Sequence[str], argument: bool = False, alone: bool = False
) -> dict[str, list[Run]]:
    """Groups of runs by their labels, with the path given, or each run by itself."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        parts = [run.argument] * argument + [label(run, keys)] * bool(keys)
        name = ", ".join(parts) or run.path.name
        if alone and name in groups:
            name += f" ({run.path.parent.name}/{run.path.name})"
        groups.setdefault(name, []).append(run)
    return groups


def _telling(runs: Sequence[Run], keys: Sequence[str]) -> list[str]:
    """The keys without some of the last, where others tell as many groups apart."""
    kept = list(keys)
    for key in reversed(keys):
        fewer = [each for each in kept if each != key]
        if len(kept) > MAX_NAMED and len(_by_name(runs, fewer)) == len(_by_name(runs, keys)):
            kept = fewer
    return kept


def scale(bands: dict[str, Band], column: str) -> Scale:
    """Which part of the y axis the curves need, where a few must not flatten the others.

    The distance of a curve is that of its worst point from the best point of all. In the order of
    distances, the curves after a gap of a factor `GAP` are cut, at most half of them. So a run that
    diverged is cut. Rows at step 0, before any training, set no limit where they would take more
    than a factor `START` of room.
    """
    parts = {name: _trained(band) for name, band in bands.items() if len(band.x)}
    if not parts or not any(word in column for word in GRADED):
        return Scale(None, None, {})
    sign = 2.0 * ("log_likelihood" in column) - 1.0  # 1: higher is better, -1: lower
    best, far = _distances(parts, sign)
    names = list(far)
    kept = _before_gap([*far.values()], abs(best) / 2)
    low, high = _ends([parts[name] for name in names[:kept]])
    least, most = _ends([*bands.values()])
    if kept == len(names) and most - least <= START * (high - low):
        return Scale(None, None, {})
    margin = 0.05 * (high - low) or 0.5
    cut = {name: sign * (best - far[name]) for name in names[kept:]}
    return Scale(low - margin, high + margin, cut)


def _distances(bands: dict[str, Band], sign: float) -> tuple[float, dict[str, float]]:
    """The best point of all, times the sign, and how far each curve goes below it, sorted.

    Curves of one point each have no shape to flatten: their distances count as 0.
    """
    best = max(float((sign * band.mean).max()) for band in bands.values())
    several = any(len(band.x) > 1 for band in bands.values())
    far = {name: several * (best - float((sign * band.mean).min())) for name, band in bands.items()}
    return best, dict(sorted(far.items(), key=lambda item: item[1]))


def _ends(bands: Sequence[Band]) -> tuple[float, float]:
    """The lowest and the highest point of bands."""
    low = np.concatenate([band.mean - band.deviation for band in bands])
    high = np.concatenate([band.mean + band.deviation for band in bands])
    return float(low.min()), float(high.max())


def _before_gap(distances: Sequence[float], least: float) -> int:
    """How many of the sorted distances, at least half, come before a gap of `GAP`."""
    for place in range((len(distances) + 1) // 2, len(distances)):
        if distances[place] > GAP * max(distances[place - 1], least):
            return place
    return len(distances)


def _trained(band: Band) -> Band:
    """A band without its points at epoch 0, if it has others."""
    later = band.x > 0
    return Band(*(each[later] for each in band)) if later.any() else band


def differences(runs: Sequence[Run]) -> list[str]:
    """The keys in which runs differ, but for the seed."""
    return [key for key in differing_keys(runs) if key != "seed"]


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
