"""The configurations of runs, side by side: `python scripts/diff.py RUN RUN`."""

import argparse
from collections.abc import Sequence
from typing import Any

from nws.analysis.runs import Run, all_differences, all_keys, value_text
from nws.analysis.summaries import best_text, folder_names, milliseconds, read_started
from nws.analysis.tables import broken, fits, print_table
from nws.errors import UserError
from nws.experiment.options.configuration import flatten_config
from nws.experiment.boundary import errors_for_people
from nws.experiment.storage.directory import open_run

#: what provenance.json says of a run that is shown beside its configuration, where it differs
ORIGIN = ("version", "git", "torch", "device", "host", "layers", "parameters")


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="The configurations of runs side by side: the keys that differ, then what the "
        "runs were made with, then what came out."
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="a run directory; two or more")
    parser.add_argument("--all", action="store_true", help="also the keys that are the same")
    return parser.parse_args()


def main() -> None:
    arguments = read_arguments()
    if len(arguments.runs) < 2:
        raise UserError("diff takes two or more run directories, got one")
    runs = read_started([open_run(path)[0].path for path in arguments.runs])
    keys = all_keys(runs)
    shown = keys if arguments.all else all_differences(runs)
    lines = [[key, *(text(key, run) for run in runs)] for key in shown]
    lines += origin(runs) + outcome(runs)
    heads = ["", *folder_names(runs)]
    if not fits(heads, lines):  # paths break after slashes, and others between words
        heads = [
            broken(head, max(map(len, cells))) for head, *cells in zip(heads, *lines, strict=True)
        ]
    print_table(heads, lines)
    same = len(keys) - len(all_differences(runs))
    print(f"{same} of {len(keys)} keys of the configuration are the same")


def text(key: str, run: Run) -> str:
    """A run's value of a key; a dash where its configuration has no such key."""
    return value_text("", run.config[key]) if key in run.config else "-"


def origin(runs: Sequence[Run]) -> list[list[str]]:
    """What provenance.json says differently of the runs."""
    flat: list[dict[str, Any]] = []
    for run in runs:
        said = {name: run.provenance[name] for name in ORIGIN if name in run.provenance}
        flat.append(flatten_config(said) if said else {})
    names = dict.fromkeys(name for each in flat for name in each)
    lines = [[name, *(_short(each.get(name)) for each in flat)] for name in names]
    return [line for line in lines if len(set(line[1:])) > 1]


def outcome(runs: Sequence[Run]) -> list[list[str]]:
    """The state of each run, its best value and its costs."""
    times = [run.ms_per_step for run in runs]
    speeds = ["-" if each != each else milliseconds(each) for each in times]
    return [
        ["state", *(run.state for run in runs)],
        ["steps", *(f"{run.steps:,}" for run in runs)],
        ["ms a step", *speeds],
        ["best valid, nats", *(best_text(run) or "-" for run in runs)],
    ]


def _short(value: object) -> str:
    """A value on one line."""
    words = "-" if value is None else value_text("", value)
    return words if len(words) <= 60 else f"{words[:57]}..."


def run() -> None:
    """The program: one message for a user's error."""
    with errors_for_people():
        main()
