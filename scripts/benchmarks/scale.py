"""`benchmark.py scale`: time and memory of one step, each case in a process of its own.

Symbols: B data points, K samples of each, n = B K rows; N units in all, n_0 of them visible; P
parameters; d parents with the bias and m units of a layer.
"""

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch

from benchmarks.solvers import Row, interleaved
from nws.errors import UserError
from nws.learning.step import parts_of
from nws.natural.operators import FEW

TOP = 100  # units of the deepest layer
PROC = Path("/proc/self")


def add_scale(parser: argparse.ArgumentParser, numbers: Callable[[str], list[int]]) -> None:
    """The options of `scale` alone."""
    add = parser.add_argument
    add("--visible", type=numbers, default=[784, 2304, 4096, 9216], help="sizes for scale")
    add("--hidden", type=numbers, default=[300], help="sizes for scale (default 300)")
    add("--most-bytes", type=float, help="scale leaves out what should take more")
    before = "of Adam on the machine before what is timed (default 100)"
    add("--steps-before", type=int, default=100, help=before)
    add("--one", action="store_true", help="scale: one case, in this process")


def benchmark_scale(
    arguments: argparse.Namespace, script: Path, make: Callable[..., Any]
) -> list[Row]:
    """A row for each size, rule and metric; a case that does not end has neither time nor peak."""
    if arguments.one:
        return one_case(arguments, make)
    rows = []
    for visible, hidden, (rule, metric) in product(
        arguments.visible, arguments.hidden, arguments.cases
    ):
        row = {
            "visible": visible, "hidden": hidden, "algorithm": rule, "metric": metric,
            "ms": None, "peak_bytes": None,
            "model_bytes": model_bytes(arguments, [visible, hidden, TOP], rule, metric),
            "dense_bytes": dense_bytes(arguments, visible, hidden),
        }  # fmt: skip
        if arguments.most_bytes is None or row["model_bytes"] <= arguments.most_bytes:
            sizes = ["--visible", str(visible), "--hidden", str(hidden), "--algorithms", rule]
            case = [*sizes, "--metrics", metric] if metric else sizes
            row |= _in_child([str(script), *sys.argv[1:], *case, "--one", "--json"])
        rows.append(row)
    return rows


def _in_child(command: Sequence[str]) -> Row:
    """Time and peak of one case, from a process of its own."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    if done.returncode < 0:  # killed, as where there is no memory
        return {}
    if done.returncode:
        raise UserError(f"a case of scale failed: {done.stderr.strip()}")
    row: Row = json.loads(done.stdout)["rows"][0]
    return row


def one_case(arguments: argparse.Namespace, make: Callable[..., Any]) -> list[Row]:
    """Time and peak memory of the steps of one case, in this process."""
    device = torch.device(arguments.device)
    (visible,), (hidden,), ((rule, metric),) = arguments.visible, arguments.hidden, arguments.cases
    arguments.layers = [8, 4, 2]
    tiny, x = make(arguments, rule, metric)
    tiny.step(x)  # what torch loads for it is no memory of the case
    before = resident("VmRSS")
    arguments.layers = [visible, hidden, TOP]
    learner, x = make(arguments, rule, metric)
    learner.step(x)  # what stays from step to step is there now
    reset_peak(device)
    times = interleaved({"": partial(learner.step, x)}, arguments.repeats, device)[""]
    peak = resident("VmHWM") - before
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
    return [{"ms": statistics.median(times), "peak_bytes": peak}]


def resident(what: str) -> int:
    """Bytes of memory of this process: `VmRSS` now, `VmHWM` at most since `reset_peak`."""
    try:
        lines = (PROC / "status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(what))
    except (OSError, StopIteration):  # not on Linux: the most so far
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else 1024 * most


def reset_peak(device: torch.device) -> None:
    """Begin anew with the peak of memory, where the system lets us."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        (PROC / "clear_refs").write_text("5")
    except OSError:
        return


def model_bytes(
    arguments: argparse.Namespace, sizes: Sequence[int], rule: str, metric: str | None
) -> int:
    """What a step should take at its peak, in bytes of the numbers' type.

    - 2 P for parameters and gradients.
    - 2 T for the wake and the dream phase, T = n (5 N - 2 n_0): states, and logits and means of
      both networks. With 3 n N at work. On a CPU rows come in parts: those of one part are at work,
      and of the plain rule no others are kept.
    - A metric takes in n 2 N: parents and curvature.
    - The exact one has those of the last step too. It has 2 P, gradients with their biases and
      directions, and 5 m d at work in its largest layer, or 3 m d where that is solved in the
      space of its rows.
    """
    total, visible = sum(sizes), sizes[0]
    parameters = 2 * sum(a * b for a, b in pairwise(sizes)) + 2 * total - visible
    samples = 1 if rule in ("ws", "nws") else 10
    rows = arguments.batch * samples
    part = rows
    if arguments.device == "cpu":
        part = samples * math.ceil(arguments.batch / parts_of(rows * total, parameters))
    phase = (rows if metric else part) * (5 * total - 2 * visible)
    count = 2 * parameters + 2 * phase + 3 * part * total
    if metric is not None:
        count += 2 * rows * total
    if metric == "fisher":
        count += 2 * rows * total + 2 * parameters + _at_work(arguments.batch, rows, sizes)
    return count * (8 if arguments.dtype == "float64" else 4)


def _at_work(batch: int, rows: int, sizes: Sequence[int]) -> int:
    """The numbers at work in the layer that takes the most; K rows share x in the first one."""
    layers = [(below, above, rows) for below, above in pairwise(sizes)]
    layers += [(above, below, rows) for below, above in pairwise(sizes)][1:]
    layers.append((sizes[1], sizes[0], batch))
    return max((3 if FEW * n <= d + 1 else 5) * m * (d + 1) for m, d, n in layers)


def dense_bytes(arguments: argparse.Namespace, visible: int, hidden: int) -> int:
    """The blocks (d, d) of all units in the first layer of both networks, were they made."""
    size = 8 if arguments.dtype == "float64" else 4
    return size * (hidden * (visible + 1) ** 2 + visible * (hidden + 1) ** 2)
