"""A small copy of a run, to share and to sample from: `nws export RUN FOLDER`."""

import argparse
from pathlib import Path

from nws.experiment.invocation import command_line
from nws.programs.options import machine_options, open_machine


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Write a small copy of a run: its configuration, and its machine in half "
        "precision. Sampling and evaluating take the folder as they take a run; no training goes "
        "on from it.",
        parents=[machine_options()],
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="a run directory, as training prints it")
    add("folder", metavar="FOLDER", type=Path, help="a new folder")
    return parser.parse_args()


def run() -> None:
    given = read_arguments()
    from nws.analysis.export import export_run

    made = export_run(open_machine(given.run, given), given.folder)
    print(f"{made.best.stat().st_size:,} bytes; the machine is in half precision")
    print(f"look at it with\n  {command_line('sample', made.path)}")
    print(made.path)
