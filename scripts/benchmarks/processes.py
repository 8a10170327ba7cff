"""What a step of several processes costs: measured, and by the model of docs/distributed.md.

Symbols: W processes, B data points, K samples, n = B K rows, P parameters, d parents with the bias
and m units of a layer.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.solvers import Row
from nws import distributed
from nws.errors import UserError
from nws.learning import Rule, WakeSleep
from nws.models import BeliefNetwork, HelmholtzMachine

ITERATIONS = 3  # of the exact metric's solver
RANK = 15  # of the Kronecker metric
REFRESH = 20  # steps between its covariances
KERNELS = {None: 276, "fisher": 1200, "kronecker": 400}  # launches of a step
MIB = 2**20


@dataclass(frozen=True)
class Rates:
    """What a device does in a second: the assumptions of the model."""

    flops: float = 30e12  # of products in float32
    memory: float = 2.5e12  # bytes
    link: float = 200e9  # bytes that each process sends
    latency: float = 20e-6  # seconds of a collective operation
    launch: float = 5e-6  # seconds of a kernel


NODE = Rates()  # 8 devices of one host
NODES = Rates(link=25e9, latency=60e-6)  # 8 hosts with 8 devices each


def payload(
    machine: HelmholtzMachine, rule: Rule, metric: str | None, batch: int,
    max_rows: int | None = None,
) -> list[float]:  # fmt: skip
    """Bytes of the summed buffers of a step, and of the joined ones, in one process.

    `max_rows` is that of the metric.
    """
    layers = sum(len(network.layers) for network in machine.networks)
    summed = sum(each.numel() for each in machine.parameters()) + layers + 4 + 1.0
    joined = 0.0
    for network in machine.networks:
        if metric == "kronecker":
            summed += sum(machine.sizes) + sum(network.widths) + 2
        if metric == "fisher":  # the directions
            joined += sum(each.numel() for each in network.parameters())
        for rows, parents, units in shapes(network, rule, batch):
            numbers = {"kronecker": (parents + 1) / REFRESH, "fisher": parents + units}
            joined += spaced(rows, max_rows) * numbers.get(metric or "", 0)
    size = next(machine.parameters()).element_size()
    return [size * summed, size * joined]


def shapes(network: BeliefNetwork, rule: Rule, batch: int) -> list[tuple[int, int, int]]:
    """Rows, parents and units of the layers that have parents."""
    dreams = rule.samples if rule.dreams is None else rule.dreams
    each = rule.samples if network.upward else dreams
    edges = [edge for edge in network.edges if edge.parent is not None]
    sizes = [(edge.parent, *edge.layer.weight.shape) for edge in edges]
    return [(batch if at == 0 else batch * each, parents, units) for at, units, parents in sizes]


def spaced(rows: int, max_rows: int | None) -> int:
    """How many evenly spaced rows there are."""
    return rows if max_rows is None else -(-rows // -(-rows // max_rows))


def flops(machine: HelmholtzMachine, rule: Rule, metric: str | None, batch: int) -> list[float]:
    """Multiplications and additions of a step that the processes share, and that each one does."""
    shared = own = 0.0
    for network in machine.networks:
        for edge in network.edges:
            size = edge.layer.weight.numel()
            for phase in ("wake", "dream") if rule.recognition_dream else ("wake",):
                few = edge.parent == 0 and phase == "wake"
                rows = batch if few else batch * rule.samples
                products = 1 + bool(getattr(rule, f"{network.name}_{phase}", 0))
                shared += 2 * products * rows * size
            rows = batch if edge.parent == 0 else batch * rule.samples
            shared += (metric == "fisher") * 4 * ITERATIONS * (rows + RANK + 1) * size
            own += (metric == "kronecker") * 4 * (RANK + 1) * size
    return [shared, own]


def predict(
    machine: HelmholtzMachine, rule: Rule, metric: str | None, batch: int, processes: int,
    rates: Rates, streams: bool,
) -> Row:  # fmt: skip
    """The step of several devices by the model, in milliseconds."""
    shared, own = flops(machine, rule, metric, batch)
    max_rows = 64 if metric == "kronecker" else None  # as in conf/metric/
    summed, joined = payload(machine, rule, metric, batch, max_rows)
    states = 2 * batch * rule.samples * sum(machine.sizes)  # of both phases
    parameters = sum(each.numel() for each in machine.parameters())
    noise = 4 * states / (processes if streams else 1)
    passes = 20 * 4 * states / processes + 5 * 4 * parameters + noise  # bytes of elementwise work
    work = (shared / processes + own) / rates.flops + passes / rates.memory
    launches = KERNELS[metric] * rates.launch
    calls = {None: 1, "fisher": 7, "kronecker": 3}[metric] * (processes > 1)
    wire = (2 * summed + joined) * (processes - 1) / processes
    talk = calls * rates.latency + wire / rates.link
    return {
        "metric": metric or "Euclidean", "processes": processes, "batch": batch,
        "work_ms": 1e3 * work, "launches_ms": 1e3 * launches, "talk_ms": 1e3 * talk,
        "step_ms": 1e3 * (max(work, launches) + talk), "sent_mib": wire / MIB,
    }  # fmt: skip


@dataclass
class Tally:
    """Counts what `nws.distributed` sends."""

    calls: int = 0
    bytes: dict[str, float] = field(default_factory=lambda: {"summed": 0.0, "joined": 0.0})
    seconds: float = 0.0

    def __enter__(self) -> "Tally":
        self._original = distributed._try

        def counted(operation: Any, *arguments: Any) -> None:
            began = time.perf_counter()
            self._original(operation, *arguments)
            self.seconds += time.perf_counter() - began
            self.calls += 1
            kind = "joined" if operation.__name__ == "all_gather_into_tensor" else "summed"
            self.bytes[kind] += arguments[0].numel() * arguments[0].element_size()

        distributed._try = counted
        return self

    def __exit__(self, *exception: object) -> None:
        distributed._try = self._original


def link(device: torch.device) -> tuple[float, float]:
    """Seconds of the shortest sum, and bytes a second that a process sends in a long one."""
    times = []
    for count in (1, 2**22):
        buffer, each = torch.zeros(count, device=device), []
        for _ in range(15):
            distributed.any_(False)  # all are here
            began = time.perf_counter()
            distributed.sum_([buffer])
            each.append(time.perf_counter() - began)
        times.append(statistics.median(each))
    sent = 2 * 4 * 2**22 * (distributed.size() - 1) / distributed.size()
    return times[0], sent / max(times[1] - times[0], 1e-9)


def benchmark_processes(
    arguments: argparse.Namespace,
    make: Callable[..., tuple[WakeSleep, Tensor]],
    full_step: Callable[..., Callable[[], None]],
) -> list[Row]:
    """Steps of the processes that torchrun started, beside a share of the batch by itself."""
    distributed.start()
    if distributed.size() == 1 and not arguments.predict:
        raise UserError(
            "processes needs several: torchrun --nproc-per-node=2 scripts/benchmark.py processes;"
            " or --predict 1,8,64 for the model alone"
        )
    cases = [("rws", None), ("nrws", "kronecker"), ("nrws", "fisher")]
    if arguments.predict:
        rows = []
        for name, metric in cases:
            machine, rule = HelmholtzMachine(arguments.layers), Rule(name, 10)
            for count in arguments.predict:
                rates = NODE if count <= 8 else NODES
                rows.append(predict(machine, rule, metric, arguments.batch, count, rates, True))
        return rows
    latency, bandwidth = link(torch.device(arguments.device))
    rows = []
    for name, metric in cases:
        learner, x = make(arguments, name, metric)
        here, row = distributed._here, measure(learner, x, arguments, full_step)
        distributed._here = distributed.Processes()  # a share of the batch by itself
        alone = measure(learner, x[: -(-len(x) // here.size)], arguments, full_step)["ms"]
        distributed._here = here
        summed, joined = payload(learner.machine, learner.rule, metric, len(x), arguments.max_rows)
        wire = (2 * summed + joined) * (here.size - 1) / here.size
        model = alone + 1e3 * (row["calls"] * latency + wire / bandwidth)
        rows.append({
            "metric": metric or "Euclidean", "processes": here.size, **row,
            "model_summed_mib": summed / MIB, "model_joined_mib": joined / MIB,
            "share_alone_ms": alone, "model_ms": model,
            "latency_us": 1e6 * latency, "mib_a_second": bandwidth / MIB,
        })  # fmt: skip
    return rows


def measure(
    learner: WakeSleep, x: Tensor, arguments: argparse.Namespace, full_step: Callable[..., Any]
) -> Row:
    """Medians of some steps, and what they sent."""
    run, times = full_step(learner, x, arguments.optimizer), []
    for _ in range(REFRESH):
        run()
    count = -(-arguments.repeats // REFRESH) * REFRESH  # whole periods of refreshes
    with Tally() as tally:
        for _ in range(count):
            began = time.perf_counter()
            run()
            if x.device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
    return {
        "ms": 1e3 * statistics.median(times), "talk_ms": 1e3 * tally.seconds / count,
        "calls": tally.calls / count, "summed_mib": tally.bytes["summed"] / count / MIB,
        "joined_mib": tally.bytes["joined"] / count / MIB,
    }  # fmt: skip
