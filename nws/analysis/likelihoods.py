"""The tables that `nws evaluate` prints."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

import pandas as pd
from omegaconf.errors import OmegaConfBaseException

from nws.analysis.evaluation import Figures, Request, evaluate
from nws.analysis.figures import draw_bound, figure_paths, save
from nws.analysis.keys import columns_of, differing_keys
from nws.analysis.runs import Run, folder_names, read_run
from nws.analysis.summaries import means_table
from nws.analysis.tables import show, with_error
from nws.errors import UserError
from nws.experiment.loading import LoadedRun
from nws.experiment.run import find_runs
from nws.models.likelihood import TRUSTED_ESS, resolves

LOW = "(low)"  # beside an effective sample size that is


def evaluate_runs(given: argparse.Namespace, open_run: Callable[[Path], LoadedRun]) -> None:
    """Evaluate runs, print their table, draw the bound where asked; raise for those that fail."""
    common = {each.name: getattr(given, each.name) for each in fields(Request)}
    requests = [Request(**common | {"samples": each}) for each in sorted({*given.samples})]
    paths = figure_paths(given.plot) if given.plot else []
    runs: list[Run] = []
    found: list[Figures] = []
    failures: dict[Path, Exception] = {}
    for path in dict.fromkeys(path for folder in given.runs for path in find_runs(folder)):
        try:
            loaded, run = open_run(path), read_run(path)
            for request in requests:
                row, there = evaluate(loaded, request)
                runs.append(run)
                found.append(row | {"there": there})
        except (UserError, OmegaConfBaseException) as error:
            failures[path] = error
    if runs:
        rows = pd.DataFrame(found)
        report(runs, rows, given)
        if paths:
            save(draw_bound(folder_names(runs), rows), paths)
        most = rows["samples"] == rows["samples"].max()
        if not any(key.startswith("data.") for key in differing_keys(runs)):
            print(runs[int(rows["log_likelihood"][most].idxmax())].path)  # the best
    elif len(failures) == 1:
        raise next(iter(failures.values()))
    if failures:
        counts = f"{len(failures)} of {len({run.path for run in runs} | {*failures})}"
        lines = [f"  {path}: {error}" for path, error in failures.items()]
        raise UserError("\n".join([f"{counts} could not be evaluated", *lines]))


def report(runs: Sequence[Run], rows: pd.DataFrame, given: argparse.Namespace) -> None:
    """Print the tables, and what they mean."""
    keys = differing_keys(runs)
    show(table(runs, keys, rows))
    averages = means_table(runs, list(rows["log_likelihood"]), keys, "log p, nats")
    if averages is not None and rows["samples"].nunique() == 1:
        print()
        show(averages)
        print()
    print(
        "nats per data point, mean ± standard error over the data points\n"
        f"{given.split}, {span(rows['samples'])} importance samples, "
        f"{span(rows['data_points'])} data points, seed {given.seed}, {given.checkpoint} "
        f"checkpoint{', averaged weights' * (given.weights == 'average')}"
    )
    if given.data_points and (fewest := rows["data_points"].min()) < given.data_points:
        print(f"--data-points {given.data_points:,} is more than the {fewest:,} images there are")
    print_doubts(runs, rows)
    print(f"{rows['there'].sum()} of {len(rows)} were in evaluation.json already; it has all now")


def span(values: "pd.Series[int]") -> str:
    """A number that all share, or the least and the largest."""
    return " to ".join(f"{each:,}" for each in sorted({values.min(), values.max()}))


def table(runs: Sequence[Run], keys: Sequence[str], rows: pd.DataFrame) -> pd.DataFrame:
    """A line for each evaluation, as texts."""
    shown = columns_of(runs, keys)
    shown.insert(0, "run", folder_names(runs))
    for name in ("samples", "data_points"):
        if rows[name].nunique() > 1:
            shown[name.replace("_", " ")] = rows[name].map("{:,}".format)
    shown["log p, nats"] = list(map(with_error, rows["log_likelihood"], rows["standard_error"]))
    shown["bits/dim"] = rows["bits_per_dimension"].map("{:.4f}".format)
    shown["ess"] = [f"{ess:.1f}" + f" {LOW}" * (ess < TRUSTED_ESS) for ess in rows["ess"]]
    if "log_p_star" in rows:
        for head, name in (("log p*, nats", "log_p_star"), ("log Z", "log_z")):
            shown[head] = list(map(with_error, rows[name], rows[f"{name}_standard_error"]))
    return shown


def print_doubts(runs: Sequence[Run], rows: pd.DataFrame) -> None:
    """Print which figures cannot be trusted, and why."""
    low = rows["ess"][rows["ess"] < TRUSTED_ESS]
    if len(low):
        few = f"the effective sample size is below {TRUSTED_ESS:g} in {len(low)} of {len(rows)}"
        what = "so their log p is likely too low, beyond the errors shown; take more with --samples"
        print(f"{LOW}: {few} rows, {what}")
    records = zip(runs, rows.to_dict("records"), strict=True)
    for path, row in {run.path: row for run, row in records}.items():  # log Z is that of any K
        if row["z_samples"] and not resolves(row["log_z"], row["z_samples"]):
            what = f"log Z is too small for {row['z_samples']} dreams, so it is likely too low and"
            way = "log p* too high, beyond the errors shown; take more with --z-samples"
            print(f"{path}: {what} {way}")
