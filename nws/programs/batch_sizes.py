"""Steps and images until runs reach a likelihood, against the batch size."""

import argparse
import math

from nws.analysis.batch_sizes import draw, reach
from nws.analysis.figures import figure_paths, save
from nws.analysis.keys import value_text
from nws.analysis.runs import read_runs
from nws.analysis.summaries import show
from nws.errors import UserError
from nws.programs.options import curve_options, say_replaced


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Steps and images until runs reach a target, against the batch size. Of the "
        "runs of a method and batch size, such as those of several rates, the fastest counts.",
        parents=[curve_options("algorithm.name", "batch_sizes")],
    )
    target = "a value of the column to be reached, as --target=-255; several give a line each"
    parser.add_argument(
        "--target", type=float, action="append", required=True, metavar="NATS", help=target
    )
    return parser.parse_args()


def run() -> None:
    given = read_arguments()
    paths = figure_paths(given.output, "batch_sizes")
    if not all(map(math.isfinite, given.target)):
        raise UserError(f"--target must be a number of nats, got {given.target}")
    found = reach(read_runs(given.runs), given.group, given.column, given.target)
    shown = found[["method", "target", "batch", "steps", "images", "rate", "tried"]].assign(
        target=found["target"].map("{:g}".format),
        steps=found["steps"].map("{:.0f}".format),
        images=found["images"].map("{:.0f}".format),
        rate=[value_text("optimizer.lr", rate) for rate in found["rate"]],
    )
    show(shown.rename(columns={"tried": "runs tried"}))
    say_replaced(paths)
    save(draw(found), paths)
