"""`benchmark.py scale`: time and memory of one step, each case in a process of its own.

Symbols: B data points, K samples of each, n = B K rows; N units in all, n_0 of them visible; P
parameters; d parents with the bias and m units of a layer.
"""

import argparse
import math
import multiprocessing
import resource
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch

from benchmarks.solvers import Row, interleaved
from benchmarks.steps import cases, make_learner
from nws.experiment.boundary import MEMORY, explain
from nws.learning.step import parts_of
from nws.natural.operators import FEW

TOP = 100  # units of the deepest layer
PROC = Path("/proc/self")


def benchmark_scale(arguments: argparse.Namespace) -> list[Row]:
    """A row for each size, rule and metric; a case that does not end has neither time nor peak."""
    rows, double = [], arguments.dtype == "float64"
    for visible, hidden, case in product(arguments.visible, arguments.hidden, cases(arguments)):
        sizes = [visible, hidden, TOP]
        row: Row = {
            "visible": visible, "hidden": hidden, "algorithm": case[0], "metric": case[1],
            "ms": None, "peak_bytes": None, "model_bytes": model_bytes(arguments, sizes, *case),
            # the blocks (d, d) of all units in the first layer of both networks, were they made
            "dense_bytes": (hidden * (visible + 1) ** 2 + visible * (hidden + 1) ** 2)
            * (8 if double else 4),
        }  # fmt: skip
        if arguments.most_bytes is None or row["model_bytes"] <= arguments.most_bytes:
            row |= in_child(measure, arguments, sizes, case) or {}
        rows.append(row)
    return rows


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in a new process; None for want of memory, or killed."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except Exception as error:
            if isinstance(error, BrokenProcessPool) or explain(error) == MEMORY:
                return None
            raise


def measure(arguments: argparse.Namespace, sizes: list[int], case: tuple[str, str | None]) -> Row:
    """Time and peak memory of the steps of one case, in this process."""
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    device, arguments.layers = torch.device(arguments.device), [8, 4, 2]
    tiny, x = make_learner(arguments, *case)
    tiny.step(x)  # what torch loads for it is no memory of the case
    before, arguments.layers = resident("VmRSS"), sizes
    learner, x = make_learner(arguments, *case)
    learner.step(x)  # what stays from step to step is there now
    reset_peak(device)
    times = interleaved({"": partial(learner.step, x)}, arguments.repeats, device)[""]
    peak = resident("VmHWM") - before
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
    return {"ms": statistics.median(times), "peak_bytes": peak}


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
    with suppress(OSError):
        (PROC / "clear_refs").write_text("5")


def model_bytes(
    arguments: argparse.Namespace, sizes: Sequence[int], rule: str, metric: str | None
) -> int:
    """What a step should take at its peak, in bytes of the numbers' type.

    - 2 P for parameters and gradients.
    - T = n (5 N - 2 n_0) for a phase: states, and logits and means of both networks. With 3 n N at
      work. A metric needs the wake and the dream phase, 2 T. On a CPU rows come in parts: those of
      one part are at work, and of the plain rule no others are kept.
    - A metric takes in n 2 N: parents and curvature.
    - The exact one, by pcg, has those of the last step too. It has 2 P, gradients with their biases
      and directions. At work are 5 m d in its largest layer, or 3 m d where that is solved in the
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
    count = 2 * parameters + (2 if metric else 1) * phase + 3 * part * total
    rows = min(rows, arguments.max_rows or rows)  # of the metric
    if metric is not None:
        count += 2 * rows * total
    if metric == "fisher":
        count += (
            2 * rows * total + 2 * parameters + _at_work(min(arguments.batch, rows), rows, sizes)
        )
    return count * (8 if arguments.dtype == "float64" else 4)


def _at_work(batch: int, rows: int, sizes: Sequence[int]) -> int:
    """The numbers at work in the layer that takes the most; K rows share x in the first one."""
    layers = [(below, above, rows) for below, above in pairwise(sizes)]
    layers += [(above, below, rows) for below, above in pairwise(sizes)][1:]
    layers.append((sizes[1], sizes[0], batch))
    return max((3 if FEW * n <= d + 1 else 5) * m * (d + 1) for m, d, n in layers)
