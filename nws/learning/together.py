"""The one place of learning where several processes meet; with one process it does nothing.

Each process samples and weighs its share of a batch. Before a metric the rows of all processes are
gathered, so that it sees the phase that one process has. Layers that are solved one by one are
shared out, and their directions are summed.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from nws import distributed
from nws.distributed import exchange, gather, sum_
from nws.models import HelmholtzMachine, likelihood
from nws.models.noise import Part, Rng

__all__ = ["exchange", "gather", "log_sums", "own_layers", "own_points", "results", "sum_"]


def own_points(x: Tensor, rng: torch.Generator | None) -> tuple[Tensor, Rng]:
    """This process's data points of x (B, n_0), of which there may be none, and who draws for them.

    Every process draws the noise of all data points, so that the draws are those of one process.
    """
    if distributed.size() == 1:
        return x, rng
    own = distributed.share(len(x))
    return x[own], Part(rng, own.start, own.stop, len(x))


def log_sums(
    machine: HelmholtzMachine,
    x: Tensor,
    samples: int,
    rng: torch.Generator | None,
    exponents: Sequence[float],
    max_rows: int,
) -> Tensor:
    """`nws.models.likelihood.log_sums` of data points that the processes share.

    To be given to `nws.models.log_likelihood`, which then finds in all processes what it finds in
    one.
    """
    own, draws = own_points(x, rng)
    found = likelihood.log_sums(machine, own, samples, draws, exponents, max_rows)
    return gather([found.T])[0].T


def results(compute: Callable[[int], Tensor], numbers: range) -> Iterator[Tensor]:
    """compute(number) of each number in turn, on the CPU; each process computes one in W.

    Each is to depend on its number alone, as where a number has a generator of its own.
    """
    size = distributed.size()
    for first in numbers[::size]:
        own = first + distributed.rank()
        found = exchange(compute(own).cpu() if own in numbers else None)
        yield from (each for each in found if each is not None)


def own_layers(costs: Sequence[Sequence[float]]) -> list[list[int]]:
    """Which layers this process solves, so that all processes have about as much to do.

    Args:
        costs: Of each layer of each network.

    Returns:
        Positions of layers, for each network.
    """
    own: list[list[int]] = [[] for _ in costs]
    loads = [0.0] * distributed.size()
    places = [(-cost, *at) for at, cost in _numbered(costs)]
    for cost, network, position in sorted(places):
        process = loads.index(min(loads))
        loads[process] -= cost
        if process == distributed.rank():
            own[network].append(position)
    return [sorted(each) for each in own]


def _numbered(table: Sequence[Sequence[float]]) -> Iterator[tuple[tuple[int, int], float]]:
    for number, row in enumerate(table):
        for position, value in enumerate(row):
            yield (number, position), value
