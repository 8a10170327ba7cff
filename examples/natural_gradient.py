"""NaturalGradient beside SGD and Adam on supervised tasks.

Each method gets its own search for rate and damping on validation data, then several seeds. Runs
are kept in files, so that the same command goes on where it was stopped.
"""

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from supervised.methods import METHODS
from supervised.report import epochs_of, figure, markdown, scores_of, table
from supervised.search import SEARCH_SEEDS, compare, search
from supervised.tasks import TASKS, add_folders

from nws.errors import UserError, number, positive_int
from nws.experiment.boundary import errors_for_people
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
    add("--search-seeds", type=int, default=3, help="of each of them, at most 3 (default 3)")
    add(
        "--start", type=float, nargs=2, metavar=("RATE", "DAMPING"),
        help="of the searches of natural methods (default: 0.5 0.03)",
    )  # fmt: skip
    add("--quick", action="store_true", help="little data, one seed: does everything run?")
    add_folders(parser, "natural_gradient")
    return parser.parse_args()


def main() -> None:
    arguments = read_arguments()
    methods = arguments.methods.split(",")
    unknown = [each for each in methods if each not in METHODS]
    if unknown:
        raise UserError(f"--methods must be of {', '.join(METHODS)}; got {', '.join(unknown)}")
    seeds = 1 if arguments.quick else positive_int("--seeds", arguments.seeds)
    limit = 2 if arguments.quick else positive_int("--limit", arguments.limit)
    for name, value in zip(("rate", "damping"), arguments.start or (), strict=False):
        number(f"--start {name}", value, above=0)
    if arguments.start and all(METHODS[each].damping is None for each in methods):
        raise UserError("--start is for methods with a damping; none of --methods has one")
    tries = positive_int("--search-seeds", arguments.search_seeds, maximum=len(SEARCH_SEEDS))
    epochs = arguments.epochs
    if epochs is not None:
        positive_int("--epochs", epochs)
    check_folder(arguments.output)
    torch.set_num_threads(1)  # CPU seconds are those of one thread
    task = TASKS[arguments.task](arguments.root)
    if arguments.quick:
        task = task.quick()
    if epochs is not None:
        task = replace(task, epochs=epochs, name=f"{task.name}_{epochs}_epochs")
    folder: Path = arguments.output / task.name
    look = partial(search, limit=limit, seeds=tries, start=arguments.start)
    results, searches = compare(task, folder / "runs", methods, seeds, look)
    found = table(task, results)
    files = {
        "results.csv": epochs_of(results).to_csv(index=False).encode(),
        "results.md": markdown(found).encode(),
        "search.csv": scores_of(searches).to_csv(index=False).encode(),
    }
    for name, content in files.items():
        write_atomically(folder / name, content)
    print(found.to_string(index=False))
    write_atomically(folder / f"{arguments.task}.png", figure(task, results))
    print(folder)


if __name__ == "__main__":
    with errors_for_people():
        try:
            main()
        except KeyboardInterrupt:
            print("stopped; the same command goes on with the runs that are kept", file=sys.stderr)
            sys.exit(130)
