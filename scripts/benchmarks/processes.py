"""What a step of several processes costs, and what it sends by the model of docs/distributed.md.

Symbols: W processes, B data points, K samples, n = B K rows, P parameters, d parents with the bias
and m units of a layer.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from benchmarks.solvers import Row
from benchmarks.steps import RULES, full_step, make_learner
from nws import distributed
from nws.errors import UserError
from nws.learning import Rule
from nws.models import HelmholtzMachine

CASES = [("rws", None), ("nrws", "kronecker"), ("nrws", "fisher")]
REFRESH = 20  # steps between its covariances
MIB = 2**20


def payload(
    machine: HelmholtzMachine, rule: Rule, metric: str | None, batch: int, max_rows: int | None,
    processes: int,
) -> tuple[float, float]:  # fmt: skip
    """Bytes that a step sums over processes, and bytes that it joins; `max_rows` of the metric."""
    kronecker, fisher = metric == "kronecker", metric == "fisher"
    summed, joined = 5.0, 0.0
    for network in machine.networks:
        parameters = sum(each.numel() for each in network.parameters())
        summed += parameters + len(network.layers)
        # of Kronecker one row of sums from each process
        joined += processes * kronecker * (sum(machine.sizes) + sum(network.widths) + 2)
        for edge in (edge for edge in network.edges if edge.parents):
            units, parents = edge.layer.weight.shape
            rows = batch * (1 if edge.parents == (0,) else rule.samples)
            if max_rows is not None:  # evenly spaced ones
                rows = -(-rows // -(-rows // max_rows))
            joined += rows * (kronecker * (parents + 1) / REFRESH + fisher * (parents + units))
    size = next(machine.parameters()).element_size()
    return size * summed, size * joined


def sent(summed: float, joined: float, processes: int) -> float:
    """Bytes that each process sends in a ring."""
    return (2 * summed + joined) * (processes - 1) / processes


@contextmanager
def tally() -> Iterator[dict[str, float]]:
    """Count what torch's sums and gathers over processes send meanwhile: calls, bytes, seconds."""
    found: dict[str, float] = defaultdict(float)
    kinds = {"all_reduce": "summed", "all_gather_into_tensor": "joined"}
    originals = {name: getattr(torch.distributed, name) for name in kinds}

    def counted(name: str, buffer: torch.Tensor, *more: Any, **options: Any) -> Any:
        began = time.perf_counter()
        result = originals[name](buffer, *more, **options)
        found["seconds"] += time.perf_counter() - began
        found["calls"] += 1
        if buffer.is_floating_point():  # the counts of rows are few
            found[kinds[name]] += buffer.numel() * buffer.element_size()
        return result

    try:
        for name in kinds:
            setattr(torch.distributed, name, partial(counted, name))
        yield found
    finally:
        for name, original in originals.items():
            setattr(torch.distributed, name, original)


def link(device: torch.device) -> tuple[float, float]:
    """Seconds of the shortest sum, and bytes a second that a process sends in a long one."""
    times = []
    for count in (1, 2**22):
        buffer, each = torch.zeros(count, device=device), []
        for _ in range(15):
            began = time.perf_counter()
            distributed.sum_([buffer])
            each.append(time.perf_counter() - began)
        times.append(statistics.median(each))
    size = distributed.size()
    return times[0], 2 * 4 * 2**22 * (size - 1) / size / max(times[1] - times[0], 1e-9)


def measure(arguments: argparse.Namespace, case: tuple[str, str | None]) -> Row:
    """Medians of some steps, and what they sent."""
    learner, x = make_learner(arguments, *case)
    run, times = full_step(learner, x, "sgd"), []
    for _ in range(REFRESH):
        run()
    count = -(-arguments.repeats // REFRESH) * REFRESH  # whole periods of refreshes
    with tally() as found:
        for _ in range(count):
            began = time.perf_counter()
            run()
            if x.device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
    return {
        "ms": 1e3 * statistics.median(times), "talk_ms": 1e3 * found["seconds"] / count,
        "calls": found["calls"] / count, "summed_mib": found["summed"] / count / MIB,
        "joined_mib": found["joined"] / count / MIB,
    }  # fmt: skip


def benchmark_processes(arguments: argparse.Namespace) -> list[Row]:
    """Steps of the processes that torchrun started, beside a share of the batch by itself."""
    machine, rule, batch = HelmholtzMachine(arguments.layers), RULES["rws"], arguments.batch
    machine.to(dtype=getattr(torch, arguments.dtype))
    distributed.start()
    size, first = distributed.size(), distributed.rank() == 0
    if size == 1:
        raise UserError(
            "processes needs several: torchrun --nproc-per-node=2 scripts/benchmark.py processes"
        )
    latency, bandwidth = link(torch.device(arguments.device))
    together = [measure(arguments, case) for case in CASES]
    distributed.stop()  # what follows is of one process: its share of the batch
    arguments.batch, rows = -(-batch // size), []
    for case, row in zip(CASES, together, strict=True):
        summed, joined = payload(machine, rule, case[1], batch, arguments.max_rows, size)
        alone = measure(arguments, case)["ms"]
        talk = row["calls"] * latency + sent(summed, joined, size) / bandwidth
        rows.append({
            "metric": case[1] or "Euclidean", "processes": size, **row,
            "model_summed_mib": summed / MIB, "model_joined_mib": joined / MIB,
            "share_alone_ms": alone, "model_ms": alone + 1e3 * talk,
            "latency_us": 1e6 * latency, "mib_a_second": bandwidth / MIB,
        })  # fmt: skip
    return rows if first else []
