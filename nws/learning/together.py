"""The one place of learning where several processes meet; with one process it does nothing.

Each process samples and weighs its share of a batch. Gradients are summed. Before a metric the rows
of all processes are gathered, so that it sees the phase that one process has; what it makes of them
each process computes by itself.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from nws import distributed
from nws.distributed import gather, sum_
from nws.models import HelmholtzMachine, likelihood
from nws.models.noise import Rng, Share

__all__ = ["gather", "log_sums", "own_points", "results", "sum_"]


def own_points(x: Tensor, rng: torch.Generator | None) -> tuple[Tensor, Rng]:
    """This process's data points of x (B, n_0), of which there may be none, and who draws for them.

    Every process draws the noise of all data points, so that the draws are those of one process.
    """
    if distributed.size() == 1:
        return x, rng
    own = distributed.share(len(x))
    return x[own], Share(rng, own.start, own.stop, len(x))


def log_sums(
    machine: HelmholtzMachine, x: Tensor, samples: int, rng: torch.Generator | None,
    exponents: Sequence[float], max_rows: int,
) -> Tensor:  # fmt: skip
    """`nws.models.likelihood.log_sums` of data points that the processes share.

    With it `nws.models.log_likelihood` finds in all processes what it finds in one.
    """
    own, draws = own_points(x, rng)
    found = likelihood.log_sums(machine, own, samples, draws, exponents, max_rows)
    return gather([found.T])[0].T


def results(compute: Callable[[int], Tensor], numbers: range) -> Iterator[Tensor]:
    """compute(number) of each number in turn, on the CPU; each process computes one in W.

    Each is to depend on its number alone, as where a number has a generator of its own.
    """
    for first in numbers[:: distributed.size()]:
        own = first + distributed.rank()
        found = distributed.exchange(compute(own).cpu() if own in numbers else None)
        yield from (each for each in found if each is not None)
