"""A small copy of a run, to share and to sample from: `nws export RUN FOLDER`."""

import argparse
from pathlib import Path

from nws.experiment.boundary import errors_for_people
from nws.experiment.invocation import command_line
from nws.experiment.trained.export import export_run
from nws.experiment.trained.loading import load_run


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Write a small copy of a run: its configuration, and its machine in half "
        "precision. Sampling and evaluating take the folder as they take a run; no training goes "
        "on from it."
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="a run directory, as training prints it")
    add("folder", metavar="FOLDER", type=Path, help="a new folder")
    add("--checkpoint", choices=["best", "last"], default="best", help="default: best")
    averaged = "average: those that a run with average=exponential or tail averaged (default plain)"
    add("--weights", choices=["plain", "average"], default="plain", help=averaged)
    add("--device", default="auto", help="auto, cpu or cuda (default auto)")
    return parser.parse_args()


def main() -> None:
    given = read_arguments()
    run = load_run(given.run, given.checkpoint, given.weights, given.device)
    made = export_run(run, given.folder)
    print(f"{made.size:,} bytes; the machine is in half precision")
    print(f"validation log-likelihood {made.before:.4f} nats before, {made.after:.4f} after")
    print(f"look at it with\n  {command_line('sample', made.directory.path)}")
    print(made.directory.path)


def run() -> None:
    """The program: one message for a user's error."""
    with errors_for_people():
        main()
