"""Log-likelihoods of runs on held-out images: `python scripts/evaluate.py RUN...`."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd
from omegaconf.errors import OmegaConfBaseException
from rich.progress import Progress

from nws.analysis.evaluation import Request, Row, evaluate
from nws.analysis.keys import columns_of, differing_keys, label
from nws.analysis.runs import Run, folder_names, read_run
from nws.analysis.summaries import means_table
from nws.analysis.tables import console, show, with_error
from nws.errors import UserError
from nws.experiment.launch import meet_others
from nws.experiment.run import find_runs
from nws.models.likelihood import TRUSTED_ESS, Z_SAMPLES, resolves
from nws.programs.options import machine_options, open_machine, warn

LOW = "(low)"  # beside an effective sample size that is


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Importance-sampled log-likelihoods of runs, in nats per data point; added to "
        "evaluation.json of each. What is there is not computed again.",
        parents=[machine_options()],
    )
    add = parser.add_argument
    add("runs", metavar="RUN", nargs="+", help="a run directory, or one with runs below it")
    several = "importance samples a data point (default 1000); several numbers give a row each"
    add("--samples", type=int, nargs="+", default=[1000], metavar="K", help=several)
    add("--split", choices=["test", "valid"], default="test")
    add("--data-points", type=int, help="only the first so many images (default: all)")
    add("--seed", type=int, default=0, help="of the samples, the same for every run (default 0)")
    star = "also log p* and log Z of the bidirectional machine (default: for runs of such rules)"
    add("--p-star", action=argparse.BooleanOptionalAction, help=star)
    add("--z-samples", type=int, default=Z_SAMPLES, help=f"dreams for log Z (default {Z_SAMPLES})")
    add("--again", action="store_true", help="also compute what evaluation.json has already")
    return parser.parse_args()


def run() -> None:
    meet_others()
    main(read_arguments())


def main(given: argparse.Namespace) -> None:
    options = ("split", "data_points", "seed", "checkpoint", "weights", "p_star", "z_samples")
    common = {name: getattr(given, name) for name in options}
    requests = [Request(samples=samples, **common) for samples in sorted({*given.samples})]
    runs, rows, failures = evaluate_all(given, requests)
    if runs:
        report(runs, pd.DataFrame(rows), given)
        print(runs[best_place(pd.DataFrame(rows))].path)
    elif len(failures) == 1:
        raise next(iter(failures.values()))
    if failures:
        counts = f"{len(failures)} of {len({run.path for run in runs}) + len(failures)}"
        lines = [f"  {path}: {error}" for path, error in failures.items()]
        raise UserError("\n".join([f"{counts} could not be evaluated", *lines]))


def evaluate_all(
    given: argparse.Namespace, requests: Sequence[Request]
) -> tuple[list[Run], list[Row], dict[Path, Exception]]:
    """A run and a row for each evaluation, and the errors of what could not be evaluated."""
    paths = dict.fromkeys(path for folder in given.runs for path in find_runs(folder))
    runs: list[Run] = []
    rows: list[Row] = []
    failures: dict[Path, Exception] = {}
    silent = not sys.stdout.isatty()
    with Progress(console=console(), transient=True, disable=silent) as bar:
        for number, path in enumerate(paths, 1):
            task = bar.add_task(f"{path.name}, {number} of {len(paths)}", total=None)
            try:
                loaded, run = open_machine(path, given), read_run(path)
                for request in requests:
                    row, there = evaluate(loaded, request, given.again, partial(bar.advance, task))
                    runs.append(run)
                    rows.append(row | {"there": there})
            except (UserError, OmegaConfBaseException) as error:
                failures[path] = error
            bar.remove_task(task)
    return runs, rows, failures


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
        "nats per data point, mean ± standard error over the data points, and its 95 % interval "
        f"by bootstrap\n{given.split}, {span(rows['samples'])} importance samples, "
        f"{span(rows['data_points'])} data points, seed {given.seed}, {given.checkpoint} "
        f"checkpoint{', averaged weights' * (given.weights == 'average')}"
    )
    if given.data_points and rows["data_points"].min() < given.data_points:
        few = f"{rows['data_points'].min():,} images"
        warn(f"--data-points is {given.data_points:,}, and the {given.split} part has {few}")
    print_doubts(runs, rows)
    if there := int(rows["there"].sum()):
        print(f"{there} of {len(rows)} were in evaluation.json already; --again computes them")
    if there < len(rows):
        print("written to evaluation.json of each run")
    if len({run.path for run in runs}) > 1:
        place = best_place(rows)
        name = label(runs[place], keys) or runs[place].path.name
        value = with_error(*rows.loc[place, ["log_likelihood", "standard_error"]])
        print(f"best: {name}: {value} nats")


def span(values: "pd.Series[int]") -> str:
    """A number that all share, or the least and the largest."""
    return " to ".join(f"{each:,}" for each in sorted({values.min(), values.max()}))


def best_place(rows: pd.DataFrame) -> int:
    """Where the best log-likelihood stands, of those of the most samples."""
    return int(rows["log_likelihood"][rows["samples"] == rows["samples"].max()].idxmax())


def table(runs: Sequence[Run], keys: Sequence[str], rows: pd.DataFrame) -> pd.DataFrame:
    """A line for each evaluation, as texts."""
    shown = columns_of(runs, keys)
    shown.insert(0, "run", folder_names(runs))
    for name in ("samples", "data_points"):
        if rows[name].nunique() > 1:
            shown[name.replace("_", " ")] = rows[name].map("{:,}".format)
    shown["log p, nats"] = list(map(with_error, rows["log_likelihood"], rows["standard_error"]))
    ends = [each if isinstance(each, list) else () for each in rows["interval_95"]]
    shown["95 %"] = [" to ".join(map("{:.3f}".format, each)) for each in ends]
    shown["bits/dim"] = rows["bits_per_dimension"].map("{:.4f}".format)
    shown["ess"] = [f"{ess:.1f}" + f" {LOW}" * (ess < TRUSTED_ESS) for ess in rows["ess"]]
    if "log_p_star" in rows:
        errors = rows["log_p_star_standard_error"], rows["log_z_standard_error"]
        shown["log p*, nats"] = list(map(with_error, rows["log_p_star"], errors[0]))
        shown["log Z"] = list(map(with_error, rows["log_z"], errors[1]))
    return shown


def print_doubts(runs: Sequence[Run], rows: pd.DataFrame) -> None:
    """Print which figures cannot be trusted, and why."""
    low = rows["ess"][rows["ess"] < TRUSTED_ESS]
    if len(low):
        print(
            f"{LOW}: the effective sample size is below {TRUSTED_ESS:g} in {len(low)} of "
            f"{len(rows)} rows, so their log p is likely too low, beyond the errors "
            "shown; take more with --samples"
        )
    for place, row in rows.iterrows() if "log_z" in rows else ():
        if row["log_z"] == row["log_z"] and not resolves(row["log_z"], int(row["z_samples"])):
            print(
                f"{runs[place].path}: log Z is too small for {row['z_samples']:.0f} dreams, so it "
                "is likely too low and log p* too high, beyond the errors shown; take more with "
                "--z-samples"
            )
