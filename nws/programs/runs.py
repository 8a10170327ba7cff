"""The runs below folders, as a table: `python scripts/runs.py [DIR...]`."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pandas as pd

from nws.analysis.keys import differing_keys, find_key, value_text
from nws.analysis.runs import Run, frame, read_run
from nws.analysis.summaries import runs_table
from nws.analysis.tables import show
from nws.errors import UserError
from nws.experiment.run import find_runs
from nws.programs.options import warn

FOLDERS = ("outputs", "multirun")  # where train.py writes
FIELDS = "run, state, best, error, last, epochs, steps, ms, seconds, started, host"


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="The runs below folders: in what they differ, their state, their best "
        "validation log-likelihood (± its standard error over the images), and what they cost."
    )
    add = parser.add_argument
    there = f"a run directory, or a folder with runs below it (default: {' and '.join(FOLDERS)})"
    add("folders", metavar="DIR", nargs="*", help=there)
    add(
        "--where", metavar="QUERY",
        help="only runs of which this is true, as pandas has it: 'algorithm == \"nrws\" and best > "
        f"-26', 'lr <= 0.1', '`damping.value` < 1'; names: {FIELDS}, and keys of the configuration",
    )  # fmt: skip
    add("--sort", metavar="KEY", help="best first for best and last (default: run)")
    return parser.parse_args()


def run() -> None:
    given = read_arguments()
    folders = given.folders or [name for name in FOLDERS if Path(name).is_dir()]
    if not folders:
        raise UserError(f"there is no folder {' or '.join(FOLDERS)} here; name one with runs in it")
    every, failures = [], []
    for path in dict.fromkeys(path for folder in folders for path in find_runs(folder)):
        try:
            every.append(read_run(path))
        except UserError as error:
            failures.append(str(error))
    if every:
        runs = in_order(every, given.where, given.sort)
        show(runs_table(runs, differing_keys(runs)))
        counts = frame(runs)["state"].value_counts(sort=False)
        states = ", ".join(f"{number} {state}" for state, number in counts.items())
        print(f"{len(runs)} run{'s' * (len(runs) > 1)}: {states}")
    for message in failures:
        warn(message)
    if not every:
        sys.exit(1)


def in_order(runs: Sequence[Run], where: str | None, sort: str | None) -> list[Run]:
    """The runs that a query of pandas chooses, sorted by a column; those without a value last."""
    table = with_short_names(frame(runs))
    if where:
        table = table[true_of(table, where)]
        if table.empty:
            raise UserError(f"none of {len(runs)} runs has {where}")
    if sort:
        column = table[find_key(sort, table)]
        column = column if pd.api.types.is_numeric_dtype(column) else column.astype(str)
        upward = column.name not in ("best", "last")
        table = table.loc[column.sort_values(ascending=upward, kind="stable").index]
    return [runs[place] for place in table.index]


def with_short_names(table: pd.DataFrame) -> pd.DataFrame:
    """A table with lists as texts, and with a column for each short name of one key alone."""
    table = table.map(lambda value: value_text("", value) if isinstance(value, list) else value)
    keys, short = list(table), {}
    for name in {part for key in keys for part in key.split(".")} - {*keys}:
        with suppress(UserError):  # of a name that several keys have
            short[name] = table[find_key(name, keys)]
    return table.assign(**short)


def true_of(table: pd.DataFrame, where: str) -> "pd.Series[bool]":
    """Of which lines a query of pandas is true."""
    try:
        found = table.eval(where, engine="python")
        if not pd.api.types.is_bool_dtype(found):
            raise ValueError("it is neither true nor false")
    except Exception as error:  # whatever is wrong with a text of Python
        raise UserError(
            f"--where takes a query of pandas, such as 'algorithm == \"nrws\" and lr < 0.1', got "
            f"{where!r}: {error}; names: {FIELDS}, and keys, with a dot in backticks"
        ) from error
    return found
