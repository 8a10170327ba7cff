"""Time nws on this machine: a step, the solvers, one large layer, its peers, several processes.
Or count the launches of a step.

Every figure is a median over repeats in one process. What is compared takes turns: a busy machine
slows all of it alike, so the ratios are what to read. Needs only torch, rich and nws;
`peers` times Pyro too where it is installed.
"""

import argparse
import copy
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.launches import count_steps
from benchmarks.peers import pyro_step, torch_step
from benchmarks.processes import benchmark_processes
from benchmarks.products import step_products
from benchmarks.scale import add_scale, benchmark_scale
from benchmarks.solvers import SOLVERS, Row, benchmark_solvers, interleaved, reference

from nws import distributed
from nws.analysis.tables import print_table
from nws.errors import UserError, number, positive_int
from nws.experiment.boundary import errors_for_people
from nws.experiment.hardware import device_name
from nws.learning import NaturalMetric, RowOptions, Rule, WakeSleep, tempered, uniform
from nws.learning.vimco import vimco
from nws.models import BeliefNetwork, HelmholtzMachine
from nws.natural import Damping, Rows, UnitFisher
from nws.natural.metrics import Diagonal, Empirical, Fisher, Kronecker, Mean, Metric

LAYERS = [784, 300, 200, 100, 75, 50, 35, 30, 25, 20, 15, 10, 10]
RULES = {
    "ws": Rule("ws", 1, uniform, 1.0, 0.0, 1.0, baseline=False),
    "rws": Rule("rws", 10),
    "bihm": Rule("bihm", 10, partial(tempered, exponent=0.5), 1.0, 1.0, 0.0),
    "vimco": Rule("vimco", 10, vimco, 1.0, 1.0, 0.0, baseline=False),
}
METRICS: dict[str, Callable[..., Any]] = {
    "fisher": Fisher,
    "kronecker": lambda solver: Kronecker(),
    "diagonal": lambda solver: Diagonal(),
    "mean": lambda solver: Mean(),
    "empirical": Empirical,
}
DEFAULT = ["ws", "rws", "nws", "nrws"]
RATE = 1e-9  # of the optimizers: what is timed hardly moves


def make_learner(
    arguments: argparse.Namespace, name: str, metric: str | None = None
) -> tuple[WakeSleep, Tensor]:
    """A learner on a machine that has seen some steps, and a batch of images with structure."""
    device, dtype = torch.device(arguments.device), getattr(torch, arguments.dtype)
    rng = torch.Generator().manual_seed(0)
    machine = HelmholtzMachine(arguments.layers, rng=rng).to(device, dtype)
    patterns = torch.randn(8, arguments.layers[0], generator=rng)

    def images() -> Tensor:
        logits = torch.randn(arguments.batch, 8, generator=rng) @ patterns - 1.5
        return (torch.rand(logits.shape, generator=rng) < torch.sigmoid(logits)).to(device, dtype)

    rule, draws = RULES[name.removeprefix("n")], torch.Generator(device).manual_seed(0)
    optimizer = make_optimizer("adam", machine, 3e-3)
    teacher = WakeSleep(machine, rule, draws)
    for _ in range(arguments.steps_before):
        teacher.step(images())
        optimizer.step()
    metrics = []
    if metric is not None:
        make = partial(METRICS[metric], partial(SOLVERS[arguments.solver], **arguments.options))
        rows = RowOptions(max_rows=arguments.max_rows)
        damping = arguments.damping
        metrics = [NaturalMetric(n, make(), Damping(damping), rows) for n in machine.networks]
    return WakeSleep(machine, rule, draws, metrics), images()


def make_optimizer(name: str, machine: HelmholtzMachine, rate: float = RATE) -> Optimizer:
    """An optimizer as in conf/optimizer/."""
    parameters = [parameter for parameter in machine.parameters() if parameter.numel()]
    if name == "adam":
        return torch.optim.Adam(parameters, lr=rate, fused=True)
    return torch.optim.SGD(parameters, lr=rate)


def full_step(learner: WakeSleep, x: Tensor, optimizer: str) -> Callable[[], None]:
    """A whole training step on one batch."""
    follower = make_optimizer(optimizer, learner.machine)

    def run() -> None:
        learner.step(x)
        follower.step()

    return run


class Euclidean(Metric):
    """The metric that leaves gradients as they are, and remembers what it saw."""

    def update(self, rows: Sequence[Rows], alpha: Tensor) -> None:
        self.fishers = [UnitFisher(each.inputs, each.curvature, each.name) for each in rows]

    def direction(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        return list(gradients)


def direction_error(learner: WakeSleep, x: Tensor) -> float:
    """Relative error of a whole natural direction against float64 Cholesky on the same rows."""
    state = learner.rng.get_state()
    learner.step(x)
    found = [(metric, gradients(metric.network)) for metric in learner.metrics]
    learner.rng.set_state(state)  # (1 + alpha) times the plain gradient, from the same draws
    seen = [Euclidean() for _ in found]
    plain_metrics = [
        NaturalMetric(
            metric.network, euclidean, Damping(float(metric.damping.alpha)), metric.options
        )
        for metric, euclidean in zip(learner.metrics, seen, strict=True)
    ]
    WakeSleep(learner.machine, learner.rule, learner.rng, plain_metrics).step(x)
    wrong = right = 0.0
    for (metric, directions), euclidean in zip(found, seen, strict=True):
        plain = gradients(metric.network)
        for fisher, direction, gradient in zip(euclidean.fishers, directions, plain, strict=True):
            expected = reference(fisher, metric.damping.alpha.double(), gradient)
            wrong += float((direction - expected).square().sum())
            right += float(expected.square().sum())
    return (wrong / right) ** 0.5


def gradients(network: BeliefNetwork) -> list[Tensor]:
    """`.grad` of each layer, (m, d) with the bias last."""
    found = {name: torch.as_tensor(each.grad) for name, each in network.layers.named_parameters()}
    numbers = range(len(network.layers))
    return [torch.cat([found[f"{i}.weight"], found[f"{i}.bias"][:, None]], 1) for i in numbers]


def rules_and_metrics(arguments: argparse.Namespace) -> list[tuple[str, str | None]]:
    """Each rule that is asked for, the natural ones with each metric."""
    pairs: list[tuple[str, str | None]] = []
    for name in arguments.algorithms:
        pairs += [(name, each) for each in ([None] if name in RULES else arguments.metrics)]
    return pairs


def benchmark_launches(arguments: argparse.Namespace) -> list[Row]:
    """Operations that a step dispatches, from a batch to the gradients: without the optimizer."""
    rows = []
    for algorithm, metric in rules_and_metrics(arguments):
        learner, x = make_learner(arguments, algorithm, metric)
        counts = count_steps(partial(learner.step, x))
        rows.append({"algorithm": algorithm, "metric": metric} | counts)
    return rows


def benchmark_step(arguments: argparse.Namespace) -> list[Row]:
    device = torch.device(arguments.device)
    cases = arguments.cases
    learners = {" ".join(filter(None, case)): make_learner(arguments, *case) for case in cases}
    tasks: dict[str, Callable[[], object]] = {}
    for name, (learner, x) in learners.items():
        tasks[name] = full_step(learner, x, arguments.optimizer)
        products = step_products(learner.machine, learner.rule, arguments.batch)
        tasks[f"{name} products"] = torch.no_grad()(products)
    times = interleaved(tasks, arguments.repeats, device)
    median = {name: statistics.median(values) for name, values in times.items()}
    rows = []
    for (algorithm, metric), (name, (learner, x)) in zip(cases, learners.items(), strict=True):
        rows.append({
            "algorithm": algorithm,
            "metric": metric,
            "ms": median[name],
            "ms_quartiles": statistics.quantiles(times[name], n=4)[::2],
            "matmul_ms": median[f"{name} products"],
            "ratio_to_matmul": median[name] / median[f"{name} products"],
            "ratio_to_rws": median[name] / median["rws"] if "rws" in median else None,
            "direction_error": direction_error(learner, x) if metric == "fisher" else None,
        })  # fmt: skip
    return rows


def benchmark_peers(arguments: argparse.Namespace) -> list[Row]:
    """Steps with Adam of nws, plain torch and Pyro, with dreams (rws) and without (wake)."""
    learner, x = make_learner(arguments, "rws")
    machine, samples = learner.machine, learner.rule.samples
    wake = Rule("wake", samples, recognition_wake=1.0, recognition_dream=0.0)
    copies = {rule.name: (copy.deepcopy(machine), rule) for rule in (learner.rule, wake)}
    tasks: dict[str, Callable[[], object]] = {}
    for name, (machine, rule) in copies.items():
        tasks[f"nws {name}"] = full_step(WakeSleep(machine, rule, learner.rng), x, "adam")
        tasks[f"torch {name}"] = torch_step(machine, x, samples, rule.recognition_dream, RATE)
    pyro = pyro_step(machine, x, samples, RATE)
    if pyro is not None:
        tasks["pyro rws"] = pyro
    times = interleaved(tasks, arguments.repeats, torch.device(arguments.device))
    median = {name: statistics.median(values) for name, values in times.items()}
    rows = []
    for task, values in times.items():
        peer, update = task.split()
        rows.append({
            "peer": peer, "update": update, "ms": median[task],
            "ms_quartiles": statistics.quantiles(values, n=4)[::2],
            "ratio_to_nws": median[task] / median[f"nws {update}"],
        })  # fmt: skip
    return rows


def cell(value: object) -> str:
    if isinstance(value, list):
        return " .. ".join(cell(each) for each in value)
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 0.01 else f"{value:.2f}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def words(text: str) -> list[str]:
    return text.split(",")


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Time nws on this machine.")
    add = parser.add_argument
    add("what", choices=["step", "peers", "solvers", "scale", "launches", "processes"])
    add("--device", default="cpu", help="cpu or cuda (default cpu)")
    add("--dtype", default="float32", choices=["float32", "float64"])
    add("--threads", type=int, help="CPU threads (default: torch's)")
    add("--repeats", type=int, help="of what is timed (default 200; of scale 15)")
    add("--layers", type=numbers, default=LAYERS, help="sizes, the visible layer first")
    add("--batch", type=int, default=32, help="data points B (default 32)")
    add("--algorithms", type=words, help="default ws,rws,nws,nrws; of scale nrws")
    add("--metrics", type=words, default=["fisher"], help="of the natural rules (default fisher)")
    add("--max-rows", type=int, help="that a metric takes in, a layer (default: all)")
    add("--optimizer", choices=["sgd", "adam"], default="sgd", help="of step (default sgd)")
    add("--damping", type=float, default=0.2, help="of the natural rules (default 0.2)")
    add("--solver", choices=list(SOLVERS), default="pcg", help="of the natural rules (default pcg)")
    add("--iterations", type=int, help="of pcg (default: its own)")
    aim = "that pcg aims at without --iterations (default 0.01)"
    add("--accuracy", type=float, default=1e-2, help=aim)
    add("--rank", type=int, default=15, help="of pcg's preconditioner (default 15)")
    add("--streams", type=int, default=1, help="of processes (default 1)")
    add("--predict", type=numbers, help="numbers of GPUs, for the model of processes alone")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    add_scale(parser, numbers)
    return parser


def read_arguments() -> argparse.Namespace:
    arguments = make_parser().parse_args()
    repeats, rules = (15, ["nrws"]) if arguments.what == "scale" else (200, [*DEFAULT])
    arguments.repeats = repeats if arguments.repeats is None else arguments.repeats
    arguments.algorithms = arguments.algorithms or rules
    check_numbers(arguments)
    options = {"rank": arguments.rank, "accuracy": arguments.accuracy}
    arguments.options = options if arguments.solver == "pcg" else {}
    if arguments.iterations and arguments.solver in ("pcg", "auto"):
        arguments.options["iterations"] = arguments.iterations
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("--device cuda, but torch sees no CUDA device; use --device cpu")
    check_names("--algorithms", arguments.algorithms, [*RULES, *(f"n{name}" for name in RULES)])
    check_names("--metrics", arguments.metrics, [*METRICS])
    arguments.cases = rules_and_metrics(arguments)
    return arguments


def check_numbers(arguments: argparse.Namespace) -> None:
    least_of = {"repeats": 2, "batch": 1, "threads": 1, "max_rows": 1, "rank": 0, "steps_before": 0}
    for name, least in least_of.items():
        value = getattr(arguments, name)
        if value is not None:
            positive_int(f"--{name.replace('_', '-')}", value, least)
    if arguments.iterations is not None:
        positive_int("--iterations", arguments.iterations)
    for name in ("layers", "visible", "hidden"):
        for size in getattr(arguments, name):
            positive_int(f"--{name}", size)
    if len(arguments.layers) < 2:
        raise UserError(f"--layers needs two sizes or more, got {arguments.layers}")
    damping, accuracy = arguments.damping, arguments.accuracy
    number("--damping", damping, "above 0 and at most 1e+07", lambda value: 0 < value <= 1e7)
    number("--accuracy", accuracy, "above 0 and at most 1", lambda value: 0 < value <= 1)
    if arguments.device.partition(":")[0] not in ("cpu", "cuda"):
        raise UserError(f"--device must be cpu or cuda, got {arguments.device}")


def check_names(option: str, found: list[str], names: list[str]) -> None:
    unknown = [name for name in found if name not in names]
    if unknown:
        raise UserError(f"{option} takes {', '.join(names)}, got {', '.join(unknown)}")


def main() -> None:
    arguments = read_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    benchmarks: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
        "step": benchmark_step, "peers": benchmark_peers, "solvers": benchmark_solvers,
        "scale": partial(benchmark_scale, script=Path(__file__).resolve(), make=make_learner),
        "launches": benchmark_launches,
        "processes": partial(benchmark_processes, make=make_learner, full_step=full_step),
    }  # fmt: skip
    rows = benchmarks[arguments.what](arguments)
    if not distributed.is_first():
        return
    device, threads = device_name(arguments.device), torch.get_num_threads()
    if arguments.json:
        report = {"device": device, "dtype": arguments.dtype, "threads": threads, "rows": rows}
        print(json.dumps(report))
        return
    print(f"{device}, {arguments.dtype}, {threads} CPU threads, torch {torch.__version__}")
    heads = [name.replace("_", " ") for name in rows[0]]
    print_table(heads, [[cell(value) for value in row.values()] for row in rows])


if __name__ == "__main__":
    with errors_for_people():
        main()
