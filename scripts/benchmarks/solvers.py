"""`benchmark.py solvers`: fresh solves of a layer by four solvers, and the timing of tasks."""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from nws.natural import UnitFisher, solvers
from nws.natural.solvers import Cholesky, Solver, Woodbury

SOLVERS: dict[str, Callable[..., Solver]] = {
    "pcg": solvers.ConjugateGradient,
    "cholesky": Cholesky,
    "woodbury": Woodbury,
    "sherman_morrison": solvers.ShermanMorrison,
}
SHAPES = [(320, 301, 784), (320, 785, 300), (320, 201, 300)]  # n, d, m
Row = dict[str, Any]


def interleaved(
    tasks: Mapping[Any, Callable[[], object]], repeats: int, device: torch.device
) -> dict[Any, list[float]]:
    """Milliseconds of `repeats` calls of each task, taking turns, after a warm-up of each."""
    times: dict[Any, list[float]] = {name: [] for name in tasks}
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


def reference(fisher: UnitFisher, alpha: Tensor, gradient: Tensor) -> Tensor:
    """The exact solution in float64 on the same rows, by Woodbury or, with a mask, Cholesky."""
    mask = None if fisher.mask is None else fisher.mask.double()
    exact = (Woodbury if mask is None else Cholesky)(max_bytes=2**29)
    double = UnitFisher(fisher.inputs.double(), fisher.curvature.double(), fisher.name, mask)
    return solve(exact, double, alpha.double(), gradient.double())


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
    """Times and errors of pcg and the direct solvers, on layers of a real machine's sizes."""
    device, dtype = torch.device(arguments.device), getattr(torch, arguments.dtype)
    rank = arguments.options["rank"]
    options: list[tuple[str, dict[str, Any]]] = [
        *(("pcg", {"iterations": k, "rank": rank}) for k in (1, 2, 3, 4, 5, 6, 8)),
        *(("pcg", {"accuracy": error, "rank": rank}) for error in (1e-2, 1e-3)),
        ("cholesky", {}), ("woodbury", {}), ("sherman_morrison", {}),
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
