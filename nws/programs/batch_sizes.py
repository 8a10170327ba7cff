"""Steps and images until runs reach a likelihood, against the batch size."""

import argparse
import math
from pathlib import Path

from nws.analysis.batch_sizes import Reached, draw, reach
from nws.analysis.figures import save
from nws.analysis.runs import read_runs, value_text
from nws.analysis.tables import print_table
from nws.errors import UserError
from nws.experiment.boundary import errors_for_people
from nws.files import check_writable


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Steps and images until runs reach a target, against the batch size. Of the "
        "runs of a method and batch size, such as those of several rates, the fastest counts."
    )
    add = parser.add_argument
    add("runs", metavar="RUN", nargs="+", help="a run directory, or a folder with runs below it")
    add(
        "--target", type=float, action="append", required=True, metavar="NATS",
        help="a value of the column to be reached, as --target=-255; several give a line each",
    )  # fmt: skip
    add("--column", default="valid/log_likelihood", help="(default valid/log_likelihood)")
    add(
        "--group", default="algorithm.name", metavar="KEY[,KEY]",
        help="configuration keys whose values name a method (default algorithm.name)",
    )  # fmt: skip
    written = "the PNG or SVG file to write (default: both, batch_sizes.png and .svg)"
    add("--output", type=Path, help=written)
    return parser.parse_args()


def main() -> None:
    arguments = read_arguments()
    output = arguments.output or Path("batch_sizes.png")
    check_writable(output)
    if not all(map(math.isfinite, arguments.target)):
        raise UserError(f"--target must be a number of nats, got {arguments.target}")
    found = reach(read_runs(arguments.runs), arguments.group, arguments.column, arguments.target)
    heads = ["method", "target", "batch", "steps", "images", "rate", "runs tried"]
    print_table(heads, [cells(each) for each in found])
    for path in save(draw(found), output, alone=arguments.output is not None):
        print(path)


def cells(row: Reached) -> list[str]:
    """A line of the table."""
    rate = value_text("optimizer.lr", row.run.config.get("optimizer.lr"))
    numbers = [f"{row.batch_size}", f"{row.steps:.0f}", f"{row.images:.0f}", rate]
    return [row.method, f"{row.target:g}", *numbers, f"{row.tried}"]


def run() -> None:
    """The program: one message for a user's error."""
    with errors_for_people():
        main()
