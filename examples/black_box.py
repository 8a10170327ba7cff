"""Black boxes: stochastic relaxation beside CMA-ES, by evaluations until a goal.

A method sees the values of f alone. Of a Gaussian it lowers E[f] by natural steps in theta
(nws.geometry.relax), or in (mu, Sigma) as CMA-ES does (`moments`). `chain` keeps the precisions of
neighbours alone. CMA-ES is that of the package cma, with its own defaults; where it stops by
itself, it starts again with twice the population (Auger & Hansen 2005). On functions all start from
N(m, I / 4), m uniform in [-1, 1]^d. The spin glass is an open lattice of 8 x 8 spins with normal
couplings; its lowest energy is found exactly, row after row. It takes three minutes.
"""

import argparse
import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from small_worlds import drawing
from torch import Tensor

from nws.errors import UserError, positive_int
from nws.experiment.boundary import errors_for_people
from nws.files import check_folder, write_atomically
from nws.geometry import (
    ExponentialFamily,
    IndependentUnits,
    Interactions,
    Moments,
    MultivariateGaussian,
    ranked,
    relax,
)

Objective = Callable[[Tensor], Tensor]
GOAL, MOST = 1e-8, 20_000  # of f; evaluations with values and of spins, ten times as many otherwise
SIDE = 8


def sphere(x: Tensor) -> Tensor:
    return x.square().sum(-1)


def ellipsoid(x: Tensor) -> Tensor:
    """With curvatures from 1 to 1e6."""
    return (x.square() * torch.logspace(0, 6, x.shape[-1], dtype=x.dtype)).sum(-1)


def rosenbrock(x: Tensor) -> Tensor:
    bends = 100 * (x[..., 1:] - x[..., :-1].square()).square()
    return (bends + (1 - x[..., :-1]).square()).sum(-1)


FUNCTIONS: dict[str, Objective] = {
    "sphere": sphere, "ellipsoid": ellipsoid, "Rosenbrock": rosenbrock,
}  # fmt: skip
DIMENSIONS = (2, 5, 10, 20)

# --- the spin glass -------------------------------------------------------------------------------

ACROSS = [(SIDE * r + c, SIDE * r + c + 1) for r in range(SIDE) for c in range(SIDE - 1)]
DOWN = [(SIDE * r + c, SIDE * (r + 1) + c) for r in range(SIDE - 1) for c in range(SIDE)]
PAIRS = ACROSS + DOWN


def couplings(seed: int) -> Tensor:
    """J, normal, one for each of `PAIRS`."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(len(PAIRS), dtype=torch.float64, generator=rng)


def glass(j: Tensor) -> Objective:
    """-sum J_ij x_i x_j of spins, (..., 64)."""
    left, right = torch.tensor(PAIRS).T
    return lambda x: -(x[..., left] * x[..., right]) @ j


def lowest_energy(j: Tensor) -> float:
    """The least energy, exactly: row after row, for each of the 2^8 states of the last row."""
    rows = torch.tensor([*itertools.product((-1.0, 1.0), repeat=SIDE)]).double()
    across = j[: len(ACROSS)].reshape(SIDE, SIDE - 1)
    within = -(rows[:, 1:] * rows[:, :-1]) @ across.T  # (states, rows of the lattice)
    energy = within[:, 0]
    for k, down in enumerate(j[len(ACROSS) :].reshape(SIDE - 1, SIDE)):
        energy = (energy[:, None] - (rows * down) @ rows.T).min(0).values + within[:, k + 1]
    return float(energy.min())


# --- methods --------------------------------------------------------------------------------------


def by_relaxation(
    f: Objective, family: ExponentialFamily, start: Tensor, goal: float, most: int,
    **options: object,
) -> int | None:  # fmt: skip
    """Evaluations until a value is at most the goal, or None."""
    evaluations, steps = 0, relax(f, family, start, **options)  # type: ignore[arg-type]
    with suppress(UserError):  # a Gaussian that became a point elsewhere
        for _, values, _ in steps:
            evaluations += len(values)
            if values.min() <= goal:
                return evaluations
            if evaluations >= most:
                return None
    return None


def by_cma(
    f: Objective, mean: Tensor, step: float, goal: float, most: int, seed: int
) -> int | None:
    """The same of CMA-ES, which starts again with twice the population where it stops by itself."""
    import cma  # of the extra dev

    options = {"seed": seed + 1, "verbose": -9, "ftarget": goal}
    evaluations = 0
    while evaluations < most:
        options["maxfevals"] = most - evaluations
        search = cma.CMAEvolutionStrategy(mean.numpy(), step, options)
        while not search.stop():
            x = search.ask()
            search.tell(x, f(torch.from_numpy(np.stack(x))).tolist())
        evaluations += search.result.evaluations
        if search.result.fbest <= goal:
            return evaluations
        options |= {"popsize": 2 * search.popsize, "seed": options["seed"] + 1000}
    return None


def continuous(name: str, method: str, size: int, seed: int) -> int | None:
    """A run of a method on a function of so many variables."""
    f, most, rng = FUNCTIONS[name], 10 * MOST, torch.Generator().manual_seed(seed)
    mean = 2 * torch.rand(size, dtype=torch.float64, generator=rng) - 1
    if method == "CMA-ES":
        return by_cma(f, mean, 0.5, GOAL, most, seed)
    chain = [(i, i + 1) for i in range(size - 1)] if "chain" in method else None
    family = MultivariateGaussian(size, chain)
    start = family.from_moments(Moments(mean, torch.eye(size, dtype=torch.float64) / 4))
    options: dict[str, object] = {"samples": 2 * family.dimension + 10, "rng": rng}
    options |= {"rate": 0.3, "weigh": ranked} if "ranks" in method else {"rate": 1e10}
    options |= {"coordinates": "moments"} if "moments" in method else {}
    return by_relaxation(f, family, start, GOAL, most if "ranks" in method else MOST, **options)


def spins(method: str, seed: int) -> int | None:
    """A run of a method on the spin glass of a seed."""
    j, rng = couplings(seed), torch.Generator().manual_seed(seed)
    f, goal, most = glass(j), lowest_energy(j) + 1e-9, MOST
    zeros = torch.zeros(SIDE * SIDE, dtype=torch.float64)
    if method == "CMA-ES":  # the signs of 64 numbers
        return by_cma(
            lambda x: f(torch.where(x > 0, 1.0, -1.0).double()), zeros, 1.0, goal, most, seed
        )
    options: dict[str, object] = {"samples": 200, "rng": rng}
    options |= {"rate": 0.1, "weigh": ranked} if "ranks" in method else {"rate": 0.2}
    if "bits" in method:
        bits = IndependentUnits("bipolar", SIDE * SIDE)
        return by_relaxation(lambda x: f(2 * x - 1), bits, zeros, goal, most, **options)
    family = Interactions(SIDE * SIDE, PAIRS, sweeps=20)
    return by_relaxation(f, family, zeros.new_zeros(len(PAIRS)), goal, most, **options)


METHODS = {
    "CMA-ES": drawing.PLAIN,
    "ranks": drawing.THIRD,
    "ranks, chain": drawing.NATURAL,
    "ranks, moments": drawing.FOURTH,
    "values": {"color": drawing.ORANGE, "linestyle": "--", "linewidth": 1.3},
}
OF_SPINS = ("CMA-ES", "bits, ranks", "bits, values", "interactions, values")


def compare(seeds: int) -> pd.DataFrame:
    """A row for each run: function, size, method, seed, evaluations (nan: the goal was missed)."""
    runs: list[tuple[object, ...]] = []
    for name, size, method, seed in itertools.product(FUNCTIONS, DIMENSIONS, METHODS, range(seeds)):
        runs.append((name, size, method, seed, continuous(name, method, size, seed)))
    for method, seed in itertools.product(OF_SPINS, range(seeds)):
        runs.append(("spin glass", SIDE * SIDE, method, seed, spins(method, seed)))
    return pd.DataFrame(runs, columns=["function", "size", "method", "seed", "evaluations"])


def summary(runs: pd.DataFrame) -> pd.DataFrame:
    """The median of the evaluations of runs that reached the goal, and their number."""
    groups = runs.groupby(["function", "size", "method"], sort=False)["evaluations"]
    return groups.agg(median="median", reached="count").reset_index()


def draw(runs: pd.DataFrame) -> Figure:
    """Evaluations by dimension, a panel for each function; the best and worst seed as a band.

    A run that misses the goal counts as one of infinitely many.
    """
    figure = drawing.new_figure(6.8, 2.8)
    panels = figure.subplots(1, 3, sharey=True)
    for axes, name in zip(panels, FUNCTIONS, strict=True):
        for method, style in METHODS.items():
            of = runs[(runs["function"] == name) & (runs["method"] == method)]
            by = of.fillna({"evaluations": np.inf}).groupby("size")["evaluations"]
            axes.loglog(by.median(), marker="o", markersize=3, **style)
            axes.fill_between(by.min().index, by.min(), by.max(), color=style["color"], alpha=0.15)
        axes.set(title=name, xlabel="dimension", xticks=DIMENSIONS, xticklabels=DIMENSIONS)
        axes.minorticks_off()
    panels[0].set(ylabel="evaluations to 1e-8")
    drawing.legend(figure, METHODS)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--seeds", type=int, default=10, help="runs of each method (default: 10)")
    add("--output", type=Path, default=Path("worlds"), metavar="DIR", help="default: worlds")
    arguments = parser.parse_args()
    check_folder(arguments.output)
    began = time.process_time()
    runs = compare(positive_int("--seeds", arguments.seeds))
    print(summary(runs).to_string(index=False))
    print(f"{time.process_time() - began:.0f} seconds")
    write_atomically(arguments.output / "black_box.csv", runs.to_csv(index=False).encode())
    with drawing.styled():
        image = drawing.as_png(draw(runs))
    write_atomically(arguments.output / "black_box.png", image)


if __name__ == "__main__":
    with errors_for_people():
        main()
