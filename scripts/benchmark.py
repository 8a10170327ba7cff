"""Time nws on this machine: a training step, the solvers, or one large layer.

Every figure is a median over repeats in one process. What is compared takes turns: a busy machine
slows all of it alike, so the ratios are what to read. Needs only torch, rich and nws.
"""

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nws.analysis.tables import print_table
from nws.errors import UserError
from nws.experiment.hardware import device_name
from nws.learning import NaturalMetric, Rule, WakeSleep, uniform
from nws.models import BeliefNetwork, HelmholtzMachine
from nws.natural import Damping, UnitFisher, solvers
from nws.natural.metrics import Fisher
from nws.natural.solvers import Cholesky, Solver, Woodbury

LAYERS = [784, 300, 200, 100, 75, 50, 35, 30, 25, 20, 15, 10, 10]
RULES = {"ws": Rule("ws", 1, uniform, 1.0, 0.0, 1.0, baseline=False), "rws": Rule("rws", 10)}
SOLVERS: dict[str, Callable[..., Solver]] = {
    "pcg": solvers.ConjugateGradient,
    "cholesky": Cholesky,
    "woodbury": Woodbury,
    "sherman_morrison": solvers.sherman_morrison,
    "auto": solvers.AutoSolver,
}
SHAPES = [(320, 301, 784), (320, 785, 300), (320, 201, 300)]  # n, d, m
Row = dict[str, Any]


def interleaved(
    tasks: dict[str, Callable[[], object]], repeats: int, device: torch.device
) -> dict[str, list[float]]:
    """Milliseconds of `repeats` calls of each task, taking turns, after a warm-up of each."""
    times: dict[str, list[float]] = {name: [] for name in tasks}
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda device: None
    for turn in range(-max(1, repeats // 10), repeats):
        for name, task in tasks.items():
            wait(device)
            start = time.perf_counter()
            task()
            wait(device)
            if turn >= 0:
                times[name].append(1e3 * (time.perf_counter() - start))
    return times


def step_products(machine: HelmholtzMachine, rule: Rule, batch: int) -> Callable[[], None]:
    """The matrix products of one plain step, on tensors of the shapes that the step gives them.

    Wake: logits of q and p, gradients of p (and of q). Dream: logits of p and q, gradients of q.
    The first recognition layer sees each data point once in the wake phase, not once a sample.
    """
    like = next(machine.parameters())
    products = []
    for network in machine.networks:
        for edge in network.edges:
            units, parents = edge.layer.weight.shape
            for phase in ("wake", "dream"):
                rows = batch if edge.parent == 0 and phase == "wake" else batch * rule.samples
                inputs, targets = (torch.rand(rows, width).to(like) for width in (parents, units))
                weight = edge.layer.weight.detach()
                products.append((inputs, weight.T, torch.empty_like(targets)))
                if getattr(rule, f"{network.name}_{phase}", 0):
                    products.append((targets.T, inputs, torch.empty_like(weight)))

    def run() -> None:
        for left, right, out in products:
            torch.mm(left, right, out=out)

    return run


def make_learner(arguments: argparse.Namespace, name: str) -> tuple[WakeSleep, Tensor]:
    """A learner on a machine that has seen some steps, and a batch of images with structure."""
    device, dtype = torch.device(arguments.device), getattr(torch, arguments.dtype)
    rng = torch.Generator().manual_seed(0)
    machine = HelmholtzMachine(arguments.layers, rng=rng).to(device, dtype)
    patterns = torch.randn(8, arguments.layers[0], generator=rng)

    def images() -> Tensor:
        logits = torch.randn(arguments.batch, 8, generator=rng) @ patterns - 1.5
        return (torch.rand(logits.shape, generator=rng) < torch.sigmoid(logits)).to(device, dtype)

    rule, draws = RULES[name.removeprefix("n")], torch.Generator(device).manual_seed(0)
    optimizer = torch.optim.Adam([p for p in machine.parameters() if p.numel()], lr=3e-3)
    teacher = WakeSleep(machine, rule, draws)
    for _ in range(100):
        teacher.step(images())
        optimizer.step()
    metrics = []
    if name not in RULES:
        solver = partial(SOLVERS[arguments.solver], **arguments.options)
        damping = arguments.damping
        metrics = [NaturalMetric(n, Fisher(solver), Damping(damping)) for n in machine.networks]
    return WakeSleep(machine, rule, draws, metrics), images()


def direction_error(learner: WakeSleep, x: Tensor) -> float:
    """Relative error of a whole natural direction against float64 Cholesky on the same rows."""
    state = learner.rng.get_state()
    learner.step(x)
    found = [(metric, gradients(metric.network)) for metric in learner.metrics]
    learner.rng.set_state(state)  # the plain gradient comes from the same draws
    WakeSleep(learner.machine, learner.rule, learner.rng).step(x)
    wrong = right = 0.0
    for metric, directions in found:
        plain = gradients(metric.network)
        for fisher, direction, gradient in zip(metric.fishers, directions, plain, strict=True):
            alpha = metric.damping.alpha.double()
            expected = (1 + alpha) * reference(fisher, alpha, gradient)
            wrong += float((direction - expected).square().sum())
            right += float(expected.square().sum())
    return (wrong / right) ** 0.5


def gradients(network: BeliefNetwork) -> list[Tensor]:
    """`.grad` of each layer, (m, d) with the bias last."""
    found = {name: torch.as_tensor(each.grad) for name, each in network.layers.named_parameters()}
    numbers = range(len(network.layers))
    return [torch.cat([found[f"{i}.weight"], found[f"{i}.bias"][:, None]], 1) for i in numbers]


def reference(fisher: UnitFisher, alpha: Tensor, gradient: Tensor) -> Tensor:
    """The exact solution in float64 on the same rows, by the smaller of both factorings."""
    n, d = fisher.inputs.shape
    exact = (Cholesky if d <= n else Woodbury)(max_bytes=2**29)
    double = UnitFisher(fisher.inputs.double(), fisher.weights.double(), fisher.name)
    return solve(exact, double, alpha.double(), gradient.double())


def benchmark_step(arguments: argparse.Namespace) -> list[Row]:
    device = torch.device(arguments.device)
    learners = {name: make_learner(arguments, name) for name in arguments.algorithms}
    tasks: dict[str, Callable[[], object]] = {}
    for name, (learner, x) in learners.items():
        tasks[name] = partial(learner.step, x)
        products = step_products(learner.machine, learner.rule, arguments.batch)
        tasks[f"{name} products"] = torch.no_grad()(products)
    times = interleaved(tasks, arguments.repeats, device)
    median = {name: statistics.median(values) for name, values in times.items()}
    rows = []
    for name, (learner, x) in learners.items():
        rows.append({
            "algorithm": name,
            "ms": median[name],
            "ms_quartiles": statistics.quantiles(times[name], n=4)[::2],
            "matmul_ms": median[f"{name} products"],
            "ratio_to_matmul": median[name] / median[f"{name} products"],
            "ratio_to_rws": median[name] / median["rws"] if "rws" in median else None,
            "direction_error": direction_error(learner, x) if learner.metrics else None,
        })  # fmt: skip
    return rows


def make_system(
    n: int, d: int, m: int, device: torch.device, dtype: torch.dtype
) -> tuple[UnitFisher, Tensor]:
    """A layer's Fisher matrix and gradient: binary parents, curvature spread over 3 decades."""
    rng = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=rng)

    logits = normal(n, 8) @ normal(8, d - 1) + normal(d - 1)
    parents = (torch.rand(n, d - 1, generator=rng) < torch.sigmoid(logits)).float()
    inputs = torch.cat([parents, torch.ones(n, 1)], dim=1)
    biases = torch.linspace(-9, 0, m)
    means = torch.sigmoid(inputs @ normal(m, d).T / d**0.5 + biases)
    chance = 0.5 * (means + torch.rand(m, generator=rng))
    values = (torch.rand(n, m, generator=rng) < chance).float()
    weights = means * (1 - means) / n
    gradient = (values - means).T @ inputs / n
    fisher = UnitFisher(inputs.to(device, dtype), weights.to(device, dtype))
    return fisher, gradient.to(device, dtype)


def benchmark_solvers(arguments: argparse.Namespace) -> list[Row]:
    device, dtype = torch.device(arguments.device), getattr(torch, arguments.dtype)
    rank = arguments.rank
    options: list[tuple[str, dict[str, Any]]] = [
        *(("pcg", {"iterations": k, "rank": rank}) for k in (1, 2, 3, 4, 5, 6, 8)),
        *(("pcg", {"accuracy": error, "rank": rank}) for error in (1e-2, 1e-3)),
        ("cholesky", {}), ("woodbury", {}), ("sherman_morrison", {"block": 32}),
    ]  # fmt: skip
    turns = max(5, arguments.repeats // 20)  # the direct solvers take seconds on a CPU
    rows = []
    for (n, d, m), damping in product(SHAPES, (0.2, 0.05)):
        fisher, gradient = make_system(n, d, m, device, dtype)
        alpha = torch.tensor(damping, device=device, dtype=dtype)
        expected = reference(fisher, alpha, gradient)
        made = [SOLVERS[name](**chosen) for name, chosen in options]
        tasks: dict[str, Callable[[], object]] = {
            str(i): partial(solve, each, fisher, alpha, gradient) for i, each in enumerate(made)
        }
        times = interleaved(tasks, turns, device)
        for i, ((name, chosen), solver) in enumerate(zip(options, made, strict=True)):
            wrong = solve(solver, fisher, alpha, gradient).double() - expected
            units = wrong.norm(dim=1) / expected.norm(dim=1).clamp_min(1e-300)
            rows.append({
                "solver": name, "n": n, "d": d, "m": m, "damping": damping,
                "iterations": solver.report().get("iterations"),
                "accuracy": chosen.get("accuracy"), "ms": statistics.median(times[str(i)]),
                "relative_error": float(wrong.norm() / expected.norm()),
                "worst_unit_error": float(units.max()),
            })  # fmt: skip
    return rows


def solve(solver: Solver, fisher: UnitFisher, alpha: Tensor, gradient: Tensor) -> Tensor:
    """One fresh solve of a layer, the factoring included."""
    solver.factor(fisher, alpha)
    return solver.solve(gradient)


def benchmark_scale(arguments: argparse.Namespace) -> list[Row]:
    """Time and peak memory of one natural step, for growing numbers of visible units."""
    device = torch.device(arguments.device)
    rows = []
    for visible in arguments.visible:
        arguments.layers = [visible, 300, 100]
        learner, x = make_learner(arguments, "nrws")
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        times = interleaved({"": partial(learner.step, x)}, 15, device)[""]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # of the process so far
        if device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(device)
        # float32 blocks of the first layer of both networks
        dense = 4 * (300 * (visible + 1) ** 2 + visible * 301**2)
        row = {"visible": visible, "ms": statistics.median(times), "peak_bytes": peak}
        rows.append(row | {"dense_bytes": dense})
    return rows


def cell(value: object) -> str:
    if isinstance(value, list):
        return " .. ".join(cell(each) for each in value)
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 0.01 else f"{value:.2f}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time nws on this machine.")
    add = parser.add_argument
    add("what", choices=["step", "solvers", "scale"])
    add("--device", default="cpu", help="cpu or cuda (default cpu)")
    add("--dtype", default="float32", choices=["float32", "float64"])
    add("--threads", type=int, help="CPU threads (default: torch's)")
    add("--repeats", type=int, default=200, help="of what is timed (default 200)")
    add("--layers", type=numbers, default=LAYERS, help="sizes, the visible layer first")
    add("--batch", type=int, default=32, help="data points B (default 32)")
    add("--algorithms", type=lambda text: text.split(","), default=["ws", "rws", "nws", "nrws"])
    add("--damping", type=float, default=0.2, help="of the natural rules (default 0.2)")
    add("--solver", choices=list(SOLVERS), default="pcg", help="of the natural rules (default pcg)")
    add("--iterations", type=int, help="of pcg (default: its own)")
    aim = "that pcg aims at without --iterations (default 0.01)"
    add("--accuracy", type=float, default=1e-2, help=aim)
    add("--rank", type=int, default=15, help="of pcg's preconditioner (default 15)")
    add("--visible", type=numbers, default=[784, 2304, 4096, 9216], help="sizes for scale")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    arguments = parser.parse_args()
    options = {"rank": arguments.rank, "accuracy": arguments.accuracy}
    arguments.options = options if arguments.solver == "pcg" else {}
    if arguments.iterations and arguments.solver in ("pcg", "auto"):
        arguments.options["iterations"] = arguments.iterations
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("--device cuda, but torch sees no CUDA device; use --device cpu")
    unknown = [name for name in arguments.algorithms if name.removeprefix("n") not in RULES]
    if unknown:
        raise UserError(f"--algorithms takes ws, rws, nws, nrws, got {', '.join(unknown)}")
    return arguments


def main() -> None:
    arguments = read_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    benchmarks = {"step": benchmark_step, "solvers": benchmark_solvers, "scale": benchmark_scale}
    rows = benchmarks[arguments.what](arguments)
    device, threads = device_name(arguments.device), torch.get_num_threads()
    if arguments.json:
        report = {"device": device, "dtype": arguments.dtype, "threads": threads, "rows": rows}
        print(json.dumps(report))
        return
    print(f"{device}, {arguments.dtype}, {threads} CPU threads, torch {torch.__version__}")
    heads = [name.replace("_", " ") for name in rows[0]]
    print_table(heads, [[cell(value) for value in row.values()] for row in rows])


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
