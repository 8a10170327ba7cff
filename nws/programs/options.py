"""What the command lines of several programs share."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nws.experiment.loading import LoadedRun, load_run


def machine_options() -> argparse.ArgumentParser:
    """The options of programs that open a trained machine, for argparse's `parents`."""
    parser = argparse.ArgumentParser(add_help=False)
    add = parser.add_argument
    add("--checkpoint", choices=["best", "last"], default="best", help="default: best")
    averaged = "average: those that a run with average=exponential or tail averaged (default plain)"
    add("--weights", choices=["plain", "average"], default="plain", help=averaged)
    add("--device", default="auto", help="auto, cpu or cuda (default auto)")
    trusted = "a module of your own that the run may call, as my_ideas; may be given again"
    add("--trust", action="append", default=[], metavar="MODULE", help=trusted)
    return parser


def open_machine(path: str | Path, given: argparse.Namespace) -> LoadedRun:
    """The run at a path, as `machine_options` say."""
    return load_run(path, given.checkpoint, given.weights, given.device, given.trust)


def curve_options(group: str, file: str) -> argparse.ArgumentParser:
    """The options of programs that draw a column of metrics.csv, for argparse's `parents`."""
    parser = argparse.ArgumentParser(add_help=False)
    add = parser.add_argument
    add("runs", metavar="RUN", nargs="+", help="a run directory, or a folder with runs below it")
    column = "of metrics.csv (default valid/log_likelihood)"
    add("--column", default="valid/log_likelihood", help=column)
    keys = "runs with the same values of these configuration keys, such as algorithm,lr, make one"
    keys += f" line; auto: of all keys in which they differ, but for the seed (default {group})"
    keys += "; run: each run by itself; argument: those of one RUN of this command line"
    add("--group", default=group, metavar="KEY[,KEY]", help=keys)
    written = f"the PNG or SVG file to write (default: both, {file}.png and .svg)"
    add("--output", type=Path, help=written)
    return parser


def say_replaced(paths: Sequence[Path]) -> None:
    """Say which files are there already, before they are written again."""
    for path in paths:
        if path.exists():
            print(f"note: {path} was there and is replaced", file=sys.stderr)


def warn(text: str) -> None:
    """Print a warning to standard error."""
    print(f"warning: {text}", file=sys.stderr)
