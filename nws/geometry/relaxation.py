"""Stochastic relaxation: min E_p[f] over an exponential family, with samples alone.

The natural gradient of E_p[f] is Cov(T, T)^{-1} Cov(f, T) in theta, and Cov(f, T) in eta (Malagò,
Matteucci & Pistone 2011). Both are estimated from values of f at a sample. That in theta is the
least-squares regression of f on T: if T spans f, n + 1 points that differ enough give it exactly.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from nws.errors import UserError, number, one_of, positive_int
from nws.geometry.families import ExponentialFamily

HALVINGS = 60  # of a step that would leave the family


def sampled_gradient(
    statistics: Tensor, values: Tensor, damping: float = 0.0, coordinates: str = "theta"
) -> Tensor:
    """(1 + alpha) (C + alpha I)^{-1} g in theta, or g in eta: (n,).

    C = Cov(T, T) and g = Cov(f, T) are of T (N, n) and f (N,) at a sample. Where C is singular,
    alpha = 0 gives the shortest solution.
    """
    one_of("coordinates", coordinates, ("theta", "eta"))
    t, f, weight = statistics - statistics.mean(0), values - values.mean(), len(values) - 1
    if coordinates == "eta":
        return f @ t / weight
    root = (damping * weight) ** 0.5 * torch.eye(t.shape[1], dtype=t.dtype)
    rows, right = torch.cat([t, root]), torch.cat([f, torch.zeros_like(t[0])])
    found = torch.linalg.lstsq(rows, right[:, None], driver="gelsd").solution
    return (1 + damping) * found[:, 0]


def ranked(values: Tensor) -> Tensor:
    """-N w_k for f_k: w_k ~ max(0, log((N + 1) / 2) - log(rank of f_k)), which sum to 1.

    The least value has the rank 1; equal values share their weights. These are the weights of
    CMA-ES (Hansen 2016, *The CMA evolution strategy: a tutorial*, equation 49).
    """
    ranks = torch.arange(1, len(values) + 1, dtype=values.dtype)
    weights = (-(2 * ranks / (len(values) + 1)).log()).clamp_min(0)
    levels, where, ties = values.unique(return_inverse=True, return_counts=True)
    shared = weights.new_zeros(len(levels)).index_add(0, where.sort().values, weights) / ties
    return -len(values) * shared[where] / weights.sum()


def relax(
    objective: Callable[[Tensor], Tensor], family: ExponentialFamily, start: Tensor, rate: float,
    samples: int, damping: float = 0.0, coordinates: str = "theta",
    weigh: Callable[[Tensor], Tensor] = torch.clone, rng: torch.Generator | None = None,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:  # fmt: skip
    """Steps against `sampled_gradient`, without end; one that leaves the family is halved.

    Args:
        objective: f, from a sample (N, d) to its values (N,).
        family: Of the distributions.
        start: The first theta, (n,).
        rate: The learning rate, above 0.
        samples: N, drawn anew for each step, at least 2.
        damping: alpha, at least 0; 0 but in theta, as elsewhere no matrix is inverted.
        coordinates: In which a step is straight: theta, eta, or moments, a Gaussian's (mu, Sigma).
        weigh: What stands for the values (N,), such as `ranked`; by default they do.
        rng: Of the draws.

    Yields:
        For each step the sample, (N, d), its values, (N,), and theta after the step.

    Raises:
        UserError: For an option out of range, values that are not N finite numbers, or no way on.
    """
    number("rate", rate, above=0)
    number("damping", damping, least=0)
    one_of("coordinates", coordinates, family.coordinates)
    if coordinates != "theta" and damping:
        raise UserError(f"steps in {coordinates} invert no matrix; leave out damping")
    count = positive_int("samples", samples, 2)
    if start.shape != (family.dimension,) or not family.contains(start):
        raise UserError(f"start must be a theta of the family, ({family.dimension},), got {start}")
    gradient = "theta" if coordinates == "theta" else "eta"

    def steps(theta: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        while True:
            x = family.sample(theta, count, rng)
            values = torch.as_tensor(objective(x)).detach().to(theta)
            if values.shape != (count,) or not values.isfinite().all():
                raise UserError(f"the objective must give {count} finite numbers, got {values}")
            t = family.statistics(x)
            move = -rate * sampled_gradient(t, weigh(values), damping, gradient)
            parts = (family.moved(theta, move / 2**k, coordinates) for k in range(HALVINGS))
            ahead = next((part for part in parts if family.contains(part)), None)
            if ahead is None:
                raise UserError(f"no part of a step from {theta} is in the family; more samples?")
            yield x, values, (theta := ahead)

    return steps(start)
