"""Time nws on this machine: `benchmark.py step` (one training step). Needs only torch and nws.

Every figure is a median over many repeats of one process, and ratios come from one run: rounds of the things compared
take turns, so that a busy machine slows all of them alike.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nws import HelmholtzMachine, Rule, WakeSleep

LAYERS = [784, 300, 200, 100, 75, 50, 35, 30, 25, 20, 15, 10, 10]
RULES = {
    "ws": Rule("ws", 1, 0.0, 1.0, 0.0, 1.0, baseline=False),
    "rws": Rule("rws", 10, 1.0, 1.0, 0.5, 0.5, baseline=True),
}


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def interleaved(tasks: dict[str, Callable[[], object]], repeats: int, device: torch.device) -> dict[str, list[float]]:
    """Milliseconds of `repeats` calls of each task, taking turns, after a warm-up of each."""
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for round_ in range(-max(3, repeats // 10), repeats):
        for name, task in tasks.items():
            synchronize(device)
            start = time.perf_counter()
            task()
            synchronize(device)
            if round_ >= 0:
                times[name].append(1e3 * (time.perf_counter() - start))
    return times


def step_products(machine: HelmholtzMachine, rule: Rule, batch: int) -> Callable[[], None]:
    """The matrix products of one step alone, on tensors of the shapes that the step gives them.

    Wake: logits of q and p, gradients of p (and of q); dream: logits of p and q, gradients of q. The first recognition
    layer sees each data point once in the wake phase, not once a sample.
    """
    rows = batch * rule.samples
    like = next(machine.parameters())
    products = []
    for network in machine.networks:
        for edge in network.edges:
            units, parents = edge.layer.weight.shape
            gradients = {"wake": rule.recognition_wake, "dream": rule.recognition_dream}
            for phase in ("wake", "dream"):
                shared = network.upward and edge.parent == 0 and phase == "wake"
                n = batch if shared else rows
                inputs = torch.rand(n, parents).to(like)
                targets = torch.rand(n, units).to(like)
                products.append((inputs, edge.layer.weight.T, torch.empty_like(targets)))
                if (phase == "wake") if not network.upward else gradients[phase]:
                    products.append((targets.T, inputs, torch.empty_like(edge.layer.weight)))

    def run() -> None:
        for left, right, out in products:
            torch.mm(left, right, out=out)

    return run


def benchmark_step(arguments: argparse.Namespace) -> list[dict[str, object]]:
    device = torch.device(arguments.device)
    tasks: dict[str, Callable[[], object]] = {}
    for name in arguments.algorithms:
        rng = torch.Generator().manual_seed(0)
        machine = HelmholtzMachine(arguments.layers, rng=rng).to(device, getattr(torch, arguments.dtype))
        x = (torch.rand(arguments.batch, arguments.layers[0], generator=rng) < 0.3).float().to(device)
        learner = WakeSleep(machine, RULES[name], torch.Generator(device).manual_seed(0))
        tasks[name] = partial(learner.step, x)
        tasks[f"{name} products"] = torch.no_grad()(step_products(machine, RULES[name], arguments.batch))
    times = interleaved(tasks, arguments.repeats, device)
    median = {name: statistics.median(values) for name, values in times.items()}
    quartiles = {name: statistics.quantiles(values, n=4) for name, values in times.items()}
    return [
        {
            "algorithm": name,
            "ms": median[name],
            "ms_quartiles": [quartiles[name][0], quartiles[name][2]],
            "matmul_ms": median[f"{name} products"],
            "ratio_to_matmul": median[name] / median[f"{name} products"],
            "ratio_to_rws": median[name] / median["rws"] if "rws" in median else None,
        }
        for name in arguments.algorithms
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["step"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    parser.add_argument("--layers", type=lambda text: [int(size) for size in text.split(",")], default=LAYERS)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--algorithms", type=lambda text: text.split(","), default=list(RULES))
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--threads", type=int, default=None, help="CPU threads (default: torch's)")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    rows = benchmark_step(arguments)
    device = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else platform.processor() or "cpu"
    report = {"device": device, "dtype": arguments.dtype, "threads": torch.get_num_threads(), "rows": rows}
    if arguments.json:
        print(json.dumps(report))
        return
    print(report)


if __name__ == "__main__":
    main()
