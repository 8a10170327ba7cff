"""The runs below folders, as a table: `python scripts/runs.py [DIR...]`."""

import argparse
from pathlib import Path

from nws.errors import UserError
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
    every = "side by side, a column for each: all that differs, and what they were made with"
    add("--all", action="store_true", help=every)
    add("--sort", metavar="KEY", help="best first for best and last (default: run)")
    return parser.parse_args()


def run() -> None:
    given = read_arguments()
    from nws.analysis.keys import differing_keys
    from nws.analysis.runs import frame, read_runs
    from nws.analysis.summaries import in_order, runs_table, side_by_side
    from nws.analysis.tables import show
    from nws.experiment.run import is_run

    folders = given.folders or [n for n in FOLDERS if any(map(is_run, Path(n).rglob("*")))]
    if not folders:
        raise UserError(f"there is no folder {' or '.join(FOLDERS)} here with runs in it; name one")
    every, wrong = read_runs(folders)
    runs = in_order(every, given.where, given.sort)
    show(side_by_side(runs) if given.all else runs_table(runs, differing_keys(runs)))
    counts = frame(runs)["state"].value_counts(sort=False)
    states = ", ".join(f"{number} {state}" for state, number in counts.items())
    print(f"{len(runs)} run{'s' * (len(runs) > 1)}: {states}")
    warn(*wrong)
