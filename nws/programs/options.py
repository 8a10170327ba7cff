"""What the command lines of several programs share.

A program imports what takes torch or pandas when its arguments are read: `--help` is there at once.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nws.experiment.loading import LoadedRun


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


def open_machine(path: str | Path, given: argparse.Namespace) -> "LoadedRun":
    """The run at a path, as `machine_options` say."""
    from nws.experiment.loading import load_run

    return load_run(path, given.checkpoint, given.weights, given.device, given.trust)


def warn(*texts: str) -> None:
    """Print warnings to standard error."""
    for text in texts:
        print(f"warning: {text}", file=sys.stderr)
