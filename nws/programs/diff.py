"""The configurations of runs, side by side: `python scripts/diff.py RUN RUN`."""

import argparse
from typing import Any

import pandas as pd

from nws.analysis.keys import value_text
from nws.analysis.runs import folder_names, frame, read_run
from nws.analysis.summaries import milliseconds
from nws.analysis.tables import show, with_error
from nws.errors import UserError
from nws.experiment.config import flatten

#: what provenance.json says of a run that is shown beside its configuration, where it differs
ORIGIN = ("version", "git", "torch", "device", "host", "layers", "parameters")
LONGEST = 60  # letters of a value


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="The configurations of runs side by side: the keys that differ, then what the "
        "runs were made with, then what came out."
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="a run directory; two or more")
    parser.add_argument("--all", action="store_true", help="also the keys that are the same")
    return parser.parse_args()


def run() -> None:
    given = read_arguments()
    if len(given.runs) < 2:
        raise UserError("diff takes two or more run directories, got one")
    runs = [read_run(path) for path in given.runs]
    config = texts([run.config for run in runs])
    origin = texts([
        flatten({name: run.provenance.get(name) for name in ORIGIN}) for run in runs
    ])  # fmt: skip
    outcome = frame(runs)[["state", "steps", "ms", "best", "error"]]
    best = list(map(with_error, outcome["best"], outcome["error"]))
    ends = pd.DataFrame({
        "state": outcome["state"], "steps": outcome["steps"].map("{:,}".format),
        "ms a step": outcome["ms"].map(milliseconds), "best valid, nats": best,
    }).T  # fmt: skip
    same = config.nunique(axis=1) == 1
    unlike = origin[origin.nunique(axis=1) > 1]
    table = pd.concat([config if given.all else config[~same], unlike, ends]).replace("", "-")
    table.columns = pd.Index(folder_names(runs))
    show(table.reset_index(names=""))
    print(f"{same.sum()} of {len(same)} keys of the configuration are the same")


def texts(values: list[dict[str, Any]]) -> pd.DataFrame:
    """Flat dictionaries side by side, a line for each key; a dash where one has no such key."""
    keys = dict.fromkeys(key for each in values for key in each)
    return pd.DataFrame(
        [[value_text("", each[key])[:LONGEST] if key in each else "-" for each in values]
         for key in keys], index=list(keys),
    )  # fmt: skip
