"""Time nws on this machine: a step, the solvers, one large layer, its peers, several processes.
Or count the launches of a step.

Every figure is a median over repeats in one process. What is compared takes turns: a busy machine
slows all of it alike, so the ratios are what to read. `peers` times Pyro too where it is installed.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.peers import benchmark_peers
from benchmarks.processes import benchmark_processes
from benchmarks.scale import benchmark_scale
from benchmarks.solvers import SOLVERS, Row, benchmark_solvers
from benchmarks.steps import METRICS, RULES, benchmark_launches, benchmark_step

from nws.analysis.tables import show
from nws.errors import UserError, number, positive_int
from nws.experiment.boundary import errors_for_people
from nws.experiment.hardware import device_name
from nws.files import CONF

BENCHMARKS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "step": benchmark_step, "peers": benchmark_peers, "solvers": benchmark_solvers,
    "scale": benchmark_scale, "launches": benchmark_launches, "processes": benchmark_processes,
}  # fmt: skip
LAYERS = [784, 300, 200, 100, 75, 50, 35, 30, 25, 20, 15, 10, 10]
LEAST = {
    "repeats": 2, "batch": 1, "threads": 1, "max_rows": 1, "rank": 0, "steps_before": 0,
    "iterations": 1, "layers": 1, "visible": 1, "hidden": 1, "dreams": 1,
}  # fmt: skip
PCG = ("rank", "iterations", "accuracy")
PCG_OPTIONS = {"rank": 15, "accuracy": 1e-2}  # when none is given


def words(text: str) -> list[str]:
    return text.split(",")


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


OPTIONS: dict[str, dict[str, Any]] = {
    "device": {"default": "cpu", "help": "cpu or cuda (default cpu)"},
    "dtype": {"default": "float32", "choices": ["float32", "float64"]},
    "threads": {"type": int, "help": "CPU threads (default: torch's)"},
    "repeats": {"type": int, "help": "of what is timed (default 200; scale 15); solvers: 1 in 20"},
    "layers": {"type": numbers, "default": LAYERS, "help": "sizes, the visible layer first"},
    "batch": {"type": int, "default": 32, "help": "data points B (default 32)"},
    "dreams": {"type": int, "help": "of each data point (default: as many as samples)"},
    "algorithms": {"type": words, "help": "default ws,rws,nws,nrws; of scale nrws"},
    "metrics": {"type": words, "default": ["fisher"], "help": "of natural rules (default fisher)"},
    "precisions": {"type": words, "default": ["float32"], "help": "float32,bfloat16"},
    "lateral": {
        "default": "none",
        "choices": ["none", "visible", "hidden", "all"],
        "help": "layers that see themselves (default none)",
    },
    "no-graph": {"action": "store_true", "help": "cuda: take steps as they are, without a graph"},
    "max-rows": {"type": int, "help": "that a metric takes in, a layer (default: all)"},
    "optimizers": {"type": words, "default": ["sgd"], "help": "of plain rules (default sgd)"},
    "damping": {"type": float, "default": 0.2, "help": "of the natural rules (default 0.2)"},
    "solver": {"default": "pcg", "choices": list(SOLVERS), "help": "of natural rules (pcg)"},
    "iterations": {"type": int, "help": "of pcg (default: its own)"},
    "accuracy": {"type": float, "help": "of pcg, without iterations (0.01)"},
    "rank": {"type": int, "help": "of pcg's preconditioner (default 15)"},
    "visible": {"type": numbers, "default": [784, 2304, 4096, 9216], "help": "sizes"},
    "hidden": {"type": numbers, "default": [300], "help": "sizes (default 300)"},
    "most-bytes": {"type": float, "help": "leaves out what should take more"},
    "steps-before": {"type": int, "default": 100, "help": "of Adam on the machine (default 100)"},
    "json": {"action": "store_true", "help": "print one JSON object and nothing else"},
}
EACH = ["device", "threads", "repeats", "json"]
STEPS = ["dtype", "layers", "batch", "steps-before"]
NATURAL = ["algorithms", "metrics", "max-rows", "damping", "solver", "iterations", "accuracy",
           "rank"]  # fmt: skip
TAKES = {
    "step": [*STEPS, *NATURAL, "dreams", "precisions", "optimizers", "lateral", "no-graph"],
    "peers": [*STEPS, "precisions"],
    "solvers": ["dtype", "rank"],
    "scale": ["visible", "hidden", "most-bytes", "dtype", "batch", "steps-before", *NATURAL],
    "launches": [*STEPS, *NATURAL],
    "processes": [*STEPS, *NATURAL[2:]],
}


def make_parser() -> argparse.ArgumentParser:
    """The parser, in which each benchmark lists its own options and has defaults for the others."""
    parser = argparse.ArgumentParser(description="Time nws on this machine.")
    defaults = {name.replace("-", "_"): each.get("default") for name, each in OPTIONS.items()}
    benchmarks = parser.add_subparsers(dest="what", required=True, metavar="BENCHMARK")
    for name, function in BENCHMARKS.items():
        about = (function.__doc__ or "").strip().splitlines()[0]
        one = benchmarks.add_parser(name, help=about, description=about)
        one.set_defaults(**defaults)
        for option in [*TAKES[name], *EACH]:
            one.add_argument(f"--{option}", **OPTIONS[option])
    return parser


def read_arguments() -> argparse.Namespace:
    arguments = make_parser().parse_args()
    scale = arguments.what == "scale"
    if arguments.repeats is None:
        arguments.repeats = 15 if scale else 200
    arguments.algorithms = arguments.algorithms or words("nrws" if scale else "ws,rws,nws,nrws")
    check(arguments)
    check_device(arguments.device)
    given = {name: value for name in PCG if (value := getattr(arguments, name)) is not None}
    if given and arguments.solver != "pcg":
        options = ", ".join(f"--{name}" for name in given)
        raise UserError(f"{options}: of pcg alone, got --solver {arguments.solver}")
    arguments.options = PCG_OPTIONS | given if arguments.solver == "pcg" else {}
    return arguments


def check(arguments: argparse.Namespace) -> None:
    """Raise `UserError` for an option out of range."""
    for name, least in LEAST.items():
        value = getattr(arguments, name)
        for each in value if isinstance(value, list) else [value] if value is not None else []:
            positive_int(f"--{name.replace('_', '-')}", each, least)
    if len(arguments.layers) < 2:
        raise UserError(f"--layers needs two sizes or more, got {arguments.layers}")
    number("--damping", arguments.damping, above=0, most=1e7)
    if arguments.accuracy is not None:
        number("--accuracy", arguments.accuracy, above=0, most=1)
    known = {"algorithms": [*RULES, *(f"n{name}" for name in RULES)], "metrics": [*METRICS]}
    known["precisions"] = ["float32", "bfloat16"]
    known["optimizers"] = sorted(path.stem for path in (CONF / "optimizer").glob("*.yaml"))
    for option, names in known.items():
        unknown = [name for name in getattr(arguments, option) if name not in names]
        if unknown:
            raise UserError(f"--{option} takes {', '.join(names)}, got {', '.join(unknown)}")


def check_device(device: str) -> None:
    """Raise `UserError` for a device that is not there."""
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise UserError(f"--device must be cpu or cuda, got {device}")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("--device cuda, but torch sees no CUDA device; use --device cpu")


def cell(value: object) -> str:
    if isinstance(value, list):
        return " .. ".join(cell(each) for each in value)
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 0.01 else f"{value:.2f}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def main() -> None:
    arguments = read_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    rows = BENCHMARKS[arguments.what](arguments)
    device, threads = device_name(arguments.device), torch.get_num_threads()
    if not rows:  # of several processes the first one speaks
        return
    if arguments.json:
        report = {"device": device, "dtype": arguments.dtype, "threads": threads, "rows": rows}
        print(json.dumps(report))
        return
    print(f"{device}, {arguments.dtype}, {threads} CPU threads, torch {torch.__version__}")
    heads = [name.replace("_", " ") for name in rows[0]]
    show(pd.DataFrame([map(cell, row.values()) for row in rows], columns=heads))


if __name__ == "__main__":
    with errors_for_people():
        main()
