"""The runs below folders, as a table: `python scripts/runs.py [DIR...]`."""

import argparse
import math
import operator
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from nws.analysis.runs import LOG_LIKELIHOOD, Run, differing_keys, find_key, value_text
from nws.analysis.summaries import column_names, read_started, runs_table
from nws.analysis.tables import fits, print_table
from nws.errors import UserError
from nws.experiment.boundary import errors_for_people
from nws.experiment.storage.directory import find_runs

FOLDERS = ("outputs", "multirun")  # where train.py writes
MAX_KEYS = 5  # columns for what differs beside the seed, unless --keys asks for others

#: what a run can be sorted and chosen by, beside the keys of its configuration
FIELDS: dict[str, Callable[[Run], Any]] = {
    "run": lambda run: str(run.path),
    "state": lambda run: run.state,
    "best": lambda run: run.best.get(LOG_LIKELIHOOD, math.nan),
    "last": lambda run: run.last.get(LOG_LIKELIHOOD, math.nan),
    "epochs": lambda run: run.last.get("epoch", 0.0),
    "steps": lambda run: run.steps,
    "ms": lambda run: run.ms_per_step,
    "seconds": lambda run: run.last.get("seconds", math.nan),
    "started": lambda run: str(run.provenance.get("started", "")),
    "host": lambda run: str(run.provenance.get("host", "")),
}
OPERATORS = {
    "!=": operator.ne, "<=": operator.le, ">=": operator.ge, "=": operator.eq,
    "<": operator.lt, ">": operator.gt,
}  # fmt: skip


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="The runs below folders: in what they differ, their state, their best "
        "validation log-likelihood (± its standard error over the images), and what they cost."
    )
    add = parser.add_argument
    fields = ", ".join(FIELDS)
    add(
        "folders", metavar="DIR", nargs="*",
        help=f"a run directory, or a folder with runs below it (default: {' and '.join(FOLDERS)})",
    )  # fmt: skip
    add(
        "--where", action="append", default=[], metavar="KEY=VALUE",
        help="only runs of which this is true, as algorithm=nrws, lr<=0.1, state!=finished or "
        f"'best>-26'; may be given again; KEY: {fields}, or a key of the configuration",
    )  # fmt: skip
    add("--sort", default="run", metavar="KEY", help="best first for best and last (default: run)")
    add("--reverse", action="store_true", help="the other way round")
    add(
        "--keys", metavar="KEY[,KEY]",
        help=f"columns of the configuration (default: {MAX_KEYS} that differ, and the seed)",
    )  # fmt: skip
    return parser.parse_args()


def main() -> None:
    options = read_arguments()
    folders = options.folders or [name for name in FOLDERS if Path(name).is_dir()]
    if not folders:
        raise UserError(f"there is no folder {' or '.join(FOLDERS)} here; name one with runs in it")
    every, failures = read_all(folders)
    runs = [run for run in every if all(is_true(text, run, every) for text in options.where)]
    if every and not runs:
        raise UserError(f"none of {len(every)} runs has {' and '.join(options.where)}")
    if runs:
        runs = in_order(runs, options.sort, options.reverse)
        show(runs, options.keys)
    for message in failures:
        print(f"warning: {message}", file=sys.stderr)
    if not runs:
        sys.exit(1)


def read_all(folders: Sequence[str]) -> tuple[list[Run], list[str]]:
    """All runs below folders, each once, and a message for each that cannot be read."""
    runs, failures = [], []
    paths = dict.fromkeys(path for folder in folders for path in find_runs(folder))
    for path in paths:
        try:
            runs += read_started([path])
        except (UserError, OmegaConfBaseException) as error:
            failures.append(str(error))
    return runs, failures


def value_of(name: str, run: Run, runs: Sequence[Run]) -> Any:
    """A run's value of a field, or of a key of the configuration; `UserError` if none has it."""
    return FIELDS[name](run) if name in FIELDS else run.config.get(find_key(name, runs, FIELDS))


def is_true(text: str, run: Run, runs: Sequence[Run]) -> bool:
    """Whether a condition such as lr<=0.1 is true of a run; numbers are compared as numbers."""
    match = re.fullmatch(r"([\w.]+)\s*(!=|<=|>=|=|<|>)\s*(.*)", text)
    if match is None:
        raise UserError(f"--where takes KEY=VALUE, or another of {', '.join(OPERATORS)}: {text!r}")
    name, sign, wanted = match.groups()
    value = value_of(name, run, runs)
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return bool(OPERATORS[sign](float(value), float(wanted)))
        except ValueError:  # a word in place of the number: null, auto
            return sign == "!="
    key = name if name in FIELDS else find_key(name, runs)
    texts = [str(value), value_text(key, value), "null" if value is None else str(value).lower()]
    if sign in ("=", "!="):
        return (wanted in texts) == (sign == "=")
    return value is not None and bool(OPERATORS[sign](str(value), wanted))


def in_order(runs: list[Run], name: str, reverse: bool) -> list[Run]:
    """The runs by a field or key, those without a value last; the best likelihood first."""
    if name == "run" and not reverse:
        return runs
    values = [value_of(name, run, runs) for run in runs]
    numeric = all(isinstance(each, int | float) or each is None for each in values)
    pairs = [pair for pair in zip(values, runs, strict=True) if not is_missing(pair[0])]
    rest = [run for value, run in zip(values, runs, strict=True) if is_missing(value)]
    downwards = reverse != (name in ("best", "last"))
    pairs.sort(key=lambda pair: pair[0] if numeric else str(pair[0]), reverse=downwards)
    return [run for _, run in pairs] + rest


def is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def show(runs: list[Run], asked: str | None) -> None:
    """Print the table, what it leaves out, and what it means."""
    differing = differing_keys(runs)
    if asked is not None:
        keys = [find_key(name, runs) for name in asked.split(",")]
    else:
        keys = fitting(runs, differing)
    heads, lines = runs_table(runs, keys)
    while asked is None and heads[-1] in ("seconds", "epochs") and not fits(heads, lines):
        heads, lines = heads[:-1], [line[:-1] for line in lines]
    print_table(heads, lines)
    counts = [f"{sum(run.state == state for run in runs)} {state}" for state in states(runs)]
    print(f"{len(runs)} run{'s' * (len(runs) > 1)}: {', '.join(counts)}")
    if left := [key for key in differing if key not in keys]:
        print(f"they differ in {', '.join(column_names(left))} too; --keys shows them")


def fitting(runs: Sequence[Run], differing: Sequence[str]) -> list[str]:
    """The first keys in which runs differ, as many as the width has room for, and the seed."""
    others = [key for key in differing if key != "seed"]
    seed = [key for key in differing if key == "seed"]
    for count in range(min(MAX_KEYS, len(others)), 1, -1):
        if fits(*runs_table(runs, [*others[:count], *seed])):
            return [*others[:count], *seed]
    return [*others[:1], *seed]


def states(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run.state for run in runs))


def run() -> None:
    """The program: one message for a user's error."""
    with errors_for_people():
        main()
