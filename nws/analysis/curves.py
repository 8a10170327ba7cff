"""Training curves as numbers: runs in groups, and the mean and the deviation of each group."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import pandas as pd

from nws.analysis.keys import but_seed, differing_keys, find_key, label
from nws.analysis.runs import Run, folder_names
from nws.errors import UserError

#: parts of the names of columns that have a best value, and whether higher is better
GRADED = {"log_likelihood": True, "loss": False, "kl": False}
GAP = 5.0  # a curve so many times as far from the best point as the middle one is cut

#: A curve: columns `mean` and `deviation` (the sample standard deviation over the runs, 0 of one
#: run), by epochs or by seconds of training.
Band: TypeAlias = pd.DataFrame


class Scale(NamedTuple):
    """The ends of a y axis, and the curves that leave it."""

    low: float | None  # None where the curves need no other than their own
    high: float | None
    cut: dict[str, float]  # how far the curves go that are cut, by their names


def group_runs(runs: Sequence[Run], by: str = "auto") -> dict[str, list[Run]]:
    """Group runs, and name the groups.

    They are grouped `by` keys such as optimizer.lr or lr, with commas between them; `argument`: the
    path given; `run`: each by itself; `auto`: all keys in which they differ but for the seed.
    """
    if by == "run":
        keys, places = differing_keys(runs), folder_names(runs)
        names = [label(run, keys) or place for run, place in zip(runs, places, strict=True)]
        return {
            name if names.count(name) == 1 else f"{name} ({place})": [run]
            for name, place, run in zip(names, places, runs, strict=True)
        }
    names = by.split(",")
    if by == "auto":
        keys = but_seed(differing_keys(runs)) or ["algorithm.name"]
    else:
        known = dict.fromkeys(key for run in runs for key in run.config)
        keys = [find_key(name, known) for name in names if name != "argument"]
    groups: dict[str, list[Run]] = {}
    for run in runs:
        parts = [run.argument] * ("argument" in names) + [label(run, keys)] * bool(keys)
        groups.setdefault(", ".join(parts), []).append(run)
    return groups


def count(runs: Sequence[Run]) -> str:
    """`5 seeds` for runs that differ in nothing else, `5 runs` for others."""
    others = but_seed(differing_keys(runs))
    seeds = len({run.config.get("seed") for run in runs}) == len(runs) and not others
    return f"{len(runs)} {'seed' if seeds else 'run'}{'s' * (len(runs) > 1)}"


def with_column(runs: Sequence[Run], column: str) -> list[Run]:
    """The runs with numbers in a column, with these lines; `UserError` if there are none."""
    has = [run for run in runs if column in run.metrics and run.metrics[column].notna().any()]
    if not has:
        columns = dict.fromkeys(name for run in runs if len(run.metrics) for name in run.metrics)
        there = ", ".join(columns) or "no rows, as before the first evaluation or in a copy"
        raise UserError(f"no run has numbers in column {column!r}; there are {there}")
    return [replace(run, metrics=run.metrics.dropna(subset=[column])) for run in has]


def curve(runs: Sequence[Run], axis: str, column: str) -> Band:
    """Mean and deviation of a column over runs, by `epoch` or by `seconds`.

    By epochs the points are those that all runs have. By seconds, or where these are under half of
    each run's, they are those of any run within the span that all share. There each run is
    interpolated linearly. Where no span is shared, there are no points.
    """
    # The last number where those of the axis repeat.
    tables = (run.metrics.groupby(run.metrics[axis].round(9)) for run in runs)
    table = pd.concat([each[column].last().dropna() for each in tables], axis=1).sort_index()
    values = table.dropna()
    if axis == "seconds" or 2 * len(values) < table.count().min():
        values = table.interpolate("index", limit_area="inside").dropna()
    spread = values.std(axis=1).fillna(0.0)  # of one run there is none
    return pd.DataFrame({"mean": values.mean(axis=1), "deviation": spread})


def scale(bands: Mapping[str, Band], column: str) -> Scale:
    """Which part of the y axis the curves need, where a few must not flatten the others.

    The distance of a curve is that of its worst point from the best point of all. A curve more than
    `GAP` times as far as the middle one (at least half the best value) is cut, as that of a run
    that diverged is. Rows at step 0, before any training, set no limit.
    """
    higher = next((up for word, up in GRADED.items() if word in column), None)
    parts = {name: band[band.index > 0] if band.index.max() > 0 else band
             for name, band in bands.items() if len(band)}  # fmt: skip
    if higher is None or not parts:
        return Scale(None, None, {})
    sign = 1.0 if higher else -1.0
    signed = sign * pd.concat({name: band["mean"] for name, band in parts.items()}, axis=1)
    best, worst = signed.max().max(), signed.min()
    middle = max((best - worst).quantile(0.5, interpolation="lower"), abs(best) / 2)
    several = signed.count().max() > 1  # points alone flatten nothing
    cut = sign * worst[(best - worst > GAP * middle) & several]
    kept = pd.concat([band for name, band in parts.items() if name not in cut])
    low, high = (kept["mean"] - kept["deviation"]).min(), (kept["mean"] + kept["deviation"]).max()
    margin = 0.05 * (high - low) or 0.5
    return Scale(float(low - margin), float(high + margin), dict(cut))
