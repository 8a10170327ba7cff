"""`benchmark.py step` and `launches`: training steps of each rule and metric."""

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.solvers import SOLVERS, Row, interleaved, reference
from nws.experiment.build import build_optimizer
from nws.files import CONF
from nws.learning import CapturedStep, NaturalMetric, RowOptions, Rule, WakeSleep, tempered
from nws.learning.vimco import vimco
from nws.models import HelmholtzMachine
from nws.natural import Damping, Rows, UnitFisher
from nws.natural.metrics import Adaptive, Diagonal, Empirical, Fisher, Kronecker, Mean

RULES = {
    "ws": Rule("ws", 1, partial(tempered, exponent=0.0), 1.0, 0.0, 1.0, baseline=False),
    "rws": Rule("rws", 10),
    "bihm": Rule("bihm", 10, partial(tempered, exponent=0.5), 1.0, 1.0, 0.0),
    "vimco": Rule("vimco", 10, vimco, 1.0, 1.0, 0.0, baseline=False),
}
METRICS: dict[str, Callable[..., Any]] = {
    "fisher": Fisher,
    "kronecker": lambda solver: Kronecker(),
    "adaptive": lambda solver: Adaptive(),
    "diagonal": lambda solver: Diagonal(),
    "mean": lambda solver: Mean(),
    "empirical": Empirical,
}
NO_KERNEL = {"_unsafe_view", "squeeze_", "_local_scalar_dense"}  # views, which torch says are none
RATE = 1e-9  # of the optimizers: what is timed hardly moves


def cases(arguments: argparse.Namespace) -> list[tuple[str, str | None]]:
    """Each rule that is asked for, the natural ones with each metric."""
    pairs: list[tuple[str, str | None]] = []
    for name in arguments.algorithms:
        pairs += [(name, each) for each in ([None] if name in RULES else arguments.metrics)]
    return pairs


def make_machine(arguments: argparse.Namespace, rng: torch.Generator) -> HelmholtzMachine:
    """A machine of the layers that are asked for; with --lateral some see themselves."""
    sees = {"none": "none", "visible": "none", "hidden": "hidden", "all": "hidden"}
    recognition = {"lateral": sees[arguments.lateral]}
    generator = {"lateral": arguments.lateral}
    return HelmholtzMachine(arguments.layers, generator=generator, recognition=recognition, rng=rng)


def make_learner(
    arguments: argparse.Namespace, name: str, metric: str | None = None, precision: str = "float32"
) -> tuple[WakeSleep, Tensor]:
    """A learner on a machine that has seen some steps, and a batch of images with structure."""
    device, dtype = torch.device(arguments.device), getattr(torch, arguments.dtype)
    rng = torch.Generator().manual_seed(0)
    machine = make_machine(arguments, rng).to(device, dtype)
    patterns = torch.randn(8, arguments.layers[0], generator=rng)

    def images() -> Tensor:
        logits = torch.randn(arguments.batch, 8, generator=rng) @ patterns - 1.5
        return (torch.rand(logits.shape, generator=rng) < torch.sigmoid(logits)).to(device, dtype)

    rule = replace(RULES[name.removeprefix("n")], dreams=arguments.dreams)
    draws = torch.Generator(device).manual_seed(0)
    optimizer = make_optimizer("adam", machine, 3e-3)
    teacher = WakeSleep(machine, rule, draws)
    for _ in range(arguments.steps_before):
        teacher.step(images())
        optimizer.step()
    metrics = []
    if metric is not None:
        make = partial(METRICS[metric], partial(SOLVERS[arguments.solver], **arguments.options))
        rows, damping = RowOptions(max_rows=arguments.max_rows), arguments.damping
        metrics = [NaturalMetric(n, make(), Damping(damping), rows) for n in machine.networks]
    products = torch.bfloat16 if precision == "bfloat16" else None
    return WakeSleep(machine, rule, draws, metrics, products), images()


def make_optimizer(name: str, machine: HelmholtzMachine, rate: float = RATE) -> Optimizer:
    """An optimizer of conf/optimizer/, where it takes steps."""
    options = OmegaConf.load(CONF / "optimizer" / f"{name}.yaml")
    config = OmegaConf.create({"optimizer": options})
    config.optimizer.lr = rate
    optimizer = build_optimizer(config, machine)
    if hasattr(optimizer, "train"):
        optimizer.train()  # without a schedule
    return optimizer


def full_step(
    learner: WakeSleep, x: Tensor, optimizer: str, graph: bool = True
) -> Callable[[], None]:
    """A whole training step on one batch; on CUDA with a graph, unless told otherwise."""
    follower = make_optimizer(optimizer, learner.machine)
    take = CapturedStep(learner) if graph else learner.step

    def run() -> None:
        take(x)
        follower.step()

    return run


def products(learner: WakeSleep, batch: int) -> Callable[[], None]:
    """The matrix products of one plain step, which it cannot do without, on tensors of its shapes.

    Wake: logits of q and p, gradients of p (and of q). Dream, where the rule has one: logits of p
    and q, gradients of q.
    The first recognition layer sees each data point once in the wake phase, not once a sample.
    """
    machine, rule = learner.machine, learner.rule
    like = next(machine.parameters()).detach()
    if learner.precision == torch.bfloat16:
        like = like.to(learner.precision)
    found = []
    for network in machine.networks:
        for edge in network.edges:
            units, parents = edge.layer.weight.shape
            for phase in ("wake", "dream") if rule.recognition_dream else ("wake",):
                rows = batch * (learner.samples if phase == "wake" else learner.dreams)
                if edge.parents == (0,) and phase == "wake":
                    rows = batch
                inputs, targets = (torch.rand(rows, width).to(like) for width in (parents, units))
                weight = edge.layer.weight.detach().to(like)
                found.append((inputs, weight.T, torch.empty_like(targets)))
                if getattr(rule, f"{network.name}_{phase}", 0):
                    found.append((targets.T, inputs, torch.empty_like(weight)))

    def run() -> None:
        for left, right, out in found:
            torch.mm(left, right, out=out)

    return run


def direction_error(learner: WakeSleep, x: Tensor) -> float:
    """Relative error of a whole natural direction against float64's exact one on these rows."""
    squares = {"wrong": 0.0, "right": 0.0}
    for natural in learner.metrics:
        _compare(natural.metric, squares)
    learner.step(x)
    return (squares["wrong"] / squares["right"]) ** 0.5


def _compare(metric: Any, squares: dict[str, float]) -> None:
    """Let a metric add its squared errors, and the squares of what is right, in its next step."""
    update, direction = metric.update, metric.direction
    taken: list[Any] = []  # the matrices and alpha of the last update

    def updated(rows: Sequence[Rows], alpha: Tensor) -> None:
        fishers = [UnitFisher(each.inputs, each.curvature, each.name, each.mask) for each in rows]
        taken[:] = [fishers, alpha.clone()]
        update(rows, alpha)

    def compared(gradients: Sequence[Tensor]) -> list[Tensor]:
        (fishers, alpha), copies = taken, [*map(torch.clone, gradients)]
        found = direction(gradients)
        for fisher, gradient, each in zip(fishers, copies, found, strict=True):
            expected = reference(fisher, alpha, gradient)
            squares["wrong"] += float((each - expected).square().sum())
            squares["right"] += float(expected.square().sum())
        return found

    metric.update, metric.direction = updated, compared


def benchmark_step(arguments: argparse.Namespace) -> list[Row]:
    """Medians of whole steps, of their products and draws alone, and the error of the direction.

    Draws are those of h from q in the wake phase, and of (x, h) from p in the dream phase. Plain
    rules come with each optimizer, natural ones with SGD.
    """
    every = [
        (name, metric, optimizer, precision)
        for name, metric in cases(arguments)
        for optimizer in (arguments.optimizers if metric is None else ["sgd"])
        for precision in arguments.precisions
    ]
    learners = {case: make_learner(arguments, case[0], case[1], case[3]) for case in every}
    tasks: dict[tuple[str | None, ...], Callable[[], object]] = {}
    for case, (learner, x) in learners.items():
        tasks["step", *case] = full_step(learner, x, case[2], not arguments.no_graph)
        tasks["products", *case] = torch.no_grad()(products(learner, arguments.batch))
        wake = partial(learner.machine.wake, x, learner.samples, learner.rng)
        dream = partial(learner.machine.dream, len(x) * learner.dreams, learner.rng)
        tasks["wake", *case], tasks["dream", *case] = map(torch.no_grad(), (wake, dream))
    times = interleaved(tasks, arguments.repeats, torch.device(arguments.device))
    median = {name: statistics.median(values) for name, values in times.items()}
    rows = []
    for case, (learner, x) in learners.items():
        ms, matmul_ms = median["step", *case], median["products", *case]
        plain = median.get(("step", "rws", None, "sgd", case[3]))
        full = median.get(("step", *case[:3], "float32"))
        rows.append({
            "algorithm": case[0],
            "metric": case[1],
            "optimizer": case[2],
            "precision": case[3],
            "lateral": arguments.lateral,
            "ms": ms,
            "ms_quartiles": statistics.quantiles(times["step", *case], n=4)[::2],
            "mean_ms": statistics.mean(times["step", *case]),
            "matmul_ms": matmul_ms,
            "wake_ms": median["wake", *case],
            "dream_ms": median["dream", *case],
            "ratio_to_matmul": ms / matmul_ms,
            "ratio_to_rws": None if plain is None else ms / plain,
            "ratio_to_float32": None if full is None else ms / full,
            "direction_error": direction_error(learner, x) if case[1] == "fisher" else None,
        })  # fmt: skip
    return rows


class Launches(TorchDispatchMode):
    """Counts the operations that do work while it is entered: no views, and no allocations."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        self.count += not (func.is_view or "empty" in name or name in NO_KERNEL)
        return func(*args, **(kwargs or {}))


def count_launches(step: Callable[[], object]) -> int:
    """Return how many operations a call dispatches that do work."""
    with Launches() as found:
        step()
    return found.count


def benchmark_launches(arguments: argparse.Namespace) -> list[Row]:
    """Operations that a step dispatches, from a batch to the gradients: without the optimizer.

    On a GPU each is at least one kernel to launch. Counts are the same on every machine.
    """
    rows = []
    for algorithm, metric in cases(arguments):
        learner, x = make_learner(arguments, algorithm, metric)
        counts = [count_launches(partial(learner.step, x)) for _ in range(8)]
        rows.append({
            "algorithm": algorithm, "metric": metric, "first_step": counts[0],
            "ordinary_step": counts[-1],  # one of those that look at nothing
        })  # fmt: skip
    return rows
