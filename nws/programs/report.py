"""One page on runs and sweeps: `python scripts/report.py RUN_OR_SWEEP...`."""

import argparse
import sys
from pathlib import Path

from nws.analysis.report.page import IMAGES, write_page
from nws.errors import UserError, positive_int
from nws.experiment.boundary import errors_for_people
from nws.experiment.invocation import command_line
from nws.files import check_writable


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Write one HTML file on runs that opens in a browser without a network: what "
        "compares them in sentences, a table, curves, images, and where each run comes from."
    )
    add = parser.add_argument
    add("runs", metavar="RUN_OR_SWEEP", nargs="+", help="a run, or a folder with runs below it")
    add("--output", type=Path, default=Path("report.html"), help="file (default: report.html)")
    add("--title", help="the heading (default: the folders of the command line)")
    add(
        "--images", type=int, default=IMAGES, metavar="N",
        help=f"images of each kind and run, at most (default {IMAGES}; 0: none)",
    )  # fmt: skip
    arguments = parser.parse_args()
    positive_int("--images", arguments.images, 0)
    if arguments.output.suffix != ".html":
        raise UserError(f"--output must name an .html file, got {arguments.output}")
    return arguments


def main() -> None:
    given = read_arguments()
    check_writable(given.output)
    command = command_line("report", *sys.argv[1:])
    shown = write_page(
        given.runs, given.output, title=given.title, command=command, images=given.images
    )
    print(f"{shown}; open it in a browser:\n{given.output.resolve()}")


def run() -> None:
    """The program: one message for a user's error."""
    with errors_for_people():
        main()
