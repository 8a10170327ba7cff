r"""Stochastic relaxation on two bits (Malagò, Matteucci & Pistone 2011).

A function of two spins x_i in {-1, +1} is replaced by its mean under independent bits,

    F(eta) = E_p[f(x)],   f(x) = x1 + 2 x2 + 3 x1 x2,

which is minimised over the distributions. The plain gradient depends on the coordinates in which it
is taken, the natural one does not.
"""

from functools import cache

import torch
from torch import Tensor

from nws.worlds.descent import descend, flow
from nws.worlds.families import IndependentUnits
from nws.worlds.metrics import euclidean

BITS = IndependentUnits("bipolar", 2)
SADDLE = torch.tensor([1 / 6, 1 / 3], dtype=torch.float64)  # where the gradient vanishes, in eta


def f(x: Tensor) -> Tensor:
    """x1 + 2 x2 + 3 x1 x2 of spins (..., 2)."""
    return x[..., 0] + 2 * x[..., 1] + 3 * x[..., 0] * x[..., 1]


def mean_in_eta(eta: Tensor) -> Tensor:
    """E_p[f] in expectation parameters, the probabilities of +1.

    f has each spin at most once, so its mean under independent spins is f of their means.
    """
    return f(BITS.units.encode(eta))


def mean_in_theta(theta: Tensor) -> Tensor:
    """E_p[f] in natural parameters, the logits."""
    return mean_in_eta(BITS.expectation(theta))


def grid(side: int = 5) -> Tensor:
    """Starting distributions, in eta: a grid of side x side points within the square."""
    ends = torch.linspace(0, 1, 2 * side + 1, dtype=torch.float64)[1::2]
    return torch.cartesian_prod(ends, ends)


FLOWS = ("plain in eta", "plain in theta", "natural in eta", "natural in theta")


@cache
def distributions(kind: str, side: int = 5, end: float = 4.0, count: int = 401) -> Tensor:
    """A flow from the grid, as distributions in eta at equal times: (count, side^2, 2)."""
    starts, times = grid(side), torch.linspace(0, end, count, dtype=torch.float64)
    metrics = {
        "plain in eta": euclidean, "plain in theta": euclidean,
        "natural in eta": BITS.dual_fisher, "natural in theta": BITS.fisher,
    }  # fmt: skip
    if kind.endswith(" eta"):
        return flow(mean_in_eta, metrics[kind], starts, times)
    return BITS.expectation(flow(mean_in_theta, metrics[kind], BITS.natural(starts), times))


def projected(starts: Tensor, rate: float = 0.01, steps: int = 200) -> Tensor:
    """Plain descent in eta, with each step projected on the square [0, 1]^2."""
    return descend(mean_in_eta, euclidean, starts, rate, steps, project=lambda x: x.clamp(0, 1))


def share_at_optimum(kind: str, end: float = 1.0, side: int = 20) -> float:
    """The share of starts whose flow ends at the best spins, (+1, -1)."""
    if kind == "projected":
        ends = projected(grid(side), 0.05)[-1]
    else:
        ends = distributions(kind, side, end, 2)[-1]
    return float((ends[:, 0] > ends[:, 1]).double().mean())


def time_to_reach(kind: str, gap: float, end: float) -> float:
    """The time at which the flow from the uniform distribution has come so near to -4."""
    path = distributions(kind, 1, end, 4001)[:, 0]
    below = (mean_in_eta(path) + 4 < gap).nonzero()
    return float(below[0]) * end / 4000


@cache
def facts() -> dict[str, float]:
    """The numbers of docs/worlds/two_bits.md."""
    plain = distributions("plain in eta", 5, 1.0, 401)
    outside = ((plain[-1] < 0) | (plain[-1] > 1)).any(-1).double()
    apart = distributions("plain in theta") - distributions("natural in theta")
    return {
        "plain flows in eta outside of the square after time 1, share": float(outside.mean()),
        "largest distance of plain and natural flow in theta, in eta": float(apart.abs().max()),
        "starts that end at the minimum, natural": share_at_optimum("natural in theta", 4.0),
        "starts that end at the minimum, plain in theta": share_at_optimum("plain in theta", 100.0),
        "starts that end at the minimum, plain in eta, projected": share_at_optimum("projected"),
        "natural: time to a gap of 1e-2": time_to_reach("natural in theta", 1e-2, 4.0),
        "natural: time to a gap of 1e-3": time_to_reach("natural in theta", 1e-3, 4.0),
        "plain in theta: time to a gap of 1e-2": time_to_reach("plain in theta", 1e-2, 1000.0),
        "plain in theta: time to a gap of 1e-3": time_to_reach("plain in theta", 1e-3, 10000.0),
    }
