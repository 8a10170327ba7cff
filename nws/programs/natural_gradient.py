"""NaturalGradient beside SGD and Adam on supervised tasks.

Each method gets its own search for rate and damping on validation data, then several seeds. Runs
are kept in files, so that the same command goes on where it was stopped.
"""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

from nws.analysis.supervised.methods import METHODS
from nws.analysis.supervised.report import as_csv, as_json, figure, search_table, table
from nws.analysis.supervised.search import Runs, compare
from nws.analysis.supervised.tasks import TASKS, load_task
from nws.analysis.tables import print_table
from nws.errors import UserError, positive_int
from nws.experiment.process.boundary import errors_for_people
from nws.files import check_folder, write_atomically


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[1])
    add = parser.add_argument
    add("task", choices=TASKS, metavar="TASK", help=" or ".join(TASKS))
    add(
        "--methods", default=",".join(METHODS), metavar="NAME[,NAME]",
        help=f"of {', '.join(METHODS)} (default: all)",
    )  # fmt: skip
    add("--seeds", type=int, default=3, help="of the results, from 0 (default 3)")
    add("--epochs", type=int, help="of each run (default: those of the task)")
    add("--limit", type=int, default=40, help="settings in a search, at most (default 40)")
    add("--quick", action="store_true", help="little data, one seed: does everything run?")
    add(
        "--root", type=Path, default=Path(os.environ.get("NWS_DATA_ROOT", "data")),
        help="folder of the data sets (default: NWS_DATA_ROOT, or data)",
    )  # fmt: skip
    add(
        "--output", type=Path, default=Path("natural_gradient"),
        help="folder of the runs and results (default: natural_gradient)",
    )  # fmt: skip
    return parser.parse_args()


def main() -> None:
    arguments = read_arguments()
    methods = arguments.methods.split(",")
    unknown = [each for each in methods if each not in METHODS]
    if unknown:
        raise UserError(f"--methods must be of {', '.join(METHODS)}; got {', '.join(unknown)}")
    seeds = 1 if arguments.quick else positive_int("--seeds", arguments.seeds)
    limit = 2 if arguments.quick else positive_int("--limit", arguments.limit)
    check_folder(arguments.output)
    torch.set_num_threads(1)  # CPU seconds are those of one thread
    task = load_task(arguments.task, arguments.root, arguments.quick)
    if arguments.epochs is not None:
        task = replace(task, epochs=positive_int("--epochs", arguments.epochs))
    folder: Path = arguments.output / (task.name + ("_quick" if arguments.quick else ""))
    runs = Runs(task, folder / "runs", lambda text: print(text, file=sys.stderr, flush=True))
    results, searches = compare(runs, methods, seeds, limit)
    files = {
        "results.csv": as_csv(results),
        "results.json": as_json(task, results, searches),
        "results.md": f"{markdown(*table(task, results))}\n".encode(),
        "search.md": f"{markdown(*search_table(searches))}\n".encode(),
        f"{task.name}.png": figure(task, results),
    }
    for name, content in files.items():
        write_atomically(folder / name, content)
    print_table(*table(task, results))
    print(folder)


def markdown(heads: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def run() -> None:
    """The program: one message for a user's error, and how to go on after Ctrl-C."""
    with errors_for_people():
        try:
            main()
        except KeyboardInterrupt:
            print("stopped; the same command goes on with the runs that are kept", file=sys.stderr)
            sys.exit(130)
