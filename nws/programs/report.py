"""One page on runs and sweeps: `python scripts/report.py RUN_OR_SWEEP...`."""

import argparse
import sys
from pathlib import Path

from nws.errors import UserError
from nws.experiment.invocation import command_line
from nws.files import check_writable
from nws.programs.options import warn


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Write one HTML file on runs that opens in a browser without a network: a "
        "table, curves, images, and where each run comes from."
    )
    add = parser.add_argument
    add("runs", metavar="RUN_OR_SWEEP", nargs="+", help="a run, or a folder with runs below it")
    add("--output", type=Path, default=Path("report.html"), help="file (default: report.html)")
    given = parser.parse_args()
    if given.output.suffix != ".html":
        raise UserError(f"--output must name an .html file, got {given.output}")
    check_writable(given.output)
    return given


def run() -> None:
    given = read_arguments()
    from nws.analysis.curves import with_column
    from nws.analysis.report import write_report
    from nws.analysis.runs import LOG_LIKELIHOOD, read_runs

    runs, wrong = read_runs(given.runs)
    with_column(runs, LOG_LIKELIHOOD)  # of one at least
    warn(*wrong)
    names = [Path(*Path(folder).resolve().parts[-2:]) for folder in given.runs]
    title = f"Report on {', '.join(map(str, names))}"
    command = command_line("report", *sys.argv[1:])
    damaged = write_report(runs, given.output, title=title, command=command)
    warn(*(f"left out: {text}" for text in damaged))
    size = f"{len(runs)} run{'s' * (len(runs) > 1)}, {given.output.stat().st_size / 1e6:.1f} MB"
    print(f"{size}; open it in a browser:\n{given.output.resolve()}")
