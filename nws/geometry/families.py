r"""Exponential families with their two dual coordinate systems.

    p(x; theta) = exp(theta . T(x) - A(theta)) base(x)

The natural parameters theta and the expectation parameters eta = E[T(x)] are two coordinate systems
of the same distributions. The log-partition A and its Legendre dual A* lead from one to the other:

    eta = dA/dtheta,   theta = dA*/deta,   A*(eta) = theta . eta - A(theta)

The Fisher matrix is the Hessian of A in theta and the Hessian of A* in eta; these are inverse to
one another. So the natural gradient in one system is the plain gradient in the other:
G(theta)^{-1} df/dtheta = df/deta (Amari 1998; Malagò, Matteucci & Pistone 2011).
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.func import jacfwd, vmap

from nws.errors import UserError, one_of, positive_int
from nws.models.units import Units, find_units

STEPS = 60  # of Newton's method
ENUMERATED = 16  # spins, at most, of which every state is looked at


def bregman(
    potential: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor], x: Tensor, y: Tensor
) -> Tensor:
    """The Bregman divergence B(x, y) = phi(x) - phi(y) - dphi(y) . (x - y) of a convex phi.

    Args:
        potential: phi, from (..., n) to (...).
        slope: Its gradient, from (..., n) to (..., n).
        x: First point, (..., n).
        y: Second point, (..., n).

    Returns:
        The divergence, (...), at least 0.
    """
    return potential(x) - potential(y) - (slope(y) * (x - y)).sum(-1)


def newton(family: "ExponentialFamily", eta: Tensor, start: Tensor) -> Tensor:
    """theta of eta where there is no formula, (..., n); nan where it is not found.

    Newton's steps, each shortened to a Fisher length below 1 / sqrt(2): P stays positive definite.
    """
    theta = start
    for _ in range(STEPS):
        gap = (eta - family.expectation(theta))[..., None]
        step = torch.linalg.solve_ex(family.fisher(theta), gap)[0]
        square = (gap * step).sum((-2, -1))[..., None]
        theta = theta + step[..., 0] / (1 + 2 * square).sqrt()
    return theta.where(square < 1e-12, torch.nan)


class ExponentialFamily(ABC):
    """A family in minimal form; every method takes points (..., n) with any leading shape.

    Attributes:
        dimension: n, the number of parameters.
        coordinates: Names of coordinate systems in which `moved` can go straight.
    """

    dimension: int
    coordinates: tuple[str, ...] = ("theta", "eta")

    @abstractmethod
    def statistics(self, x: Tensor) -> Tensor:
        """T(x) of data x, (..., d): (..., n)."""

    @abstractmethod
    def log_partition(self, theta: Tensor) -> Tensor:
        """A(theta), in nats: (...)."""

    @abstractmethod
    def expectation(self, theta: Tensor) -> Tensor:
        """eta = dA/dtheta = E[T(x)], (..., n)."""

    @abstractmethod
    def natural(self, eta: Tensor) -> Tensor:
        """theta = dA*/deta, (..., n), the inverse of `expectation`."""

    def moved(self, theta: Tensor, move: Tensor, coordinates: str = "theta") -> Tensor:
        """theta after a step that is straight in some coordinates; `move` is of theta or of eta."""
        one_of("coordinates", coordinates, self.coordinates)
        if coordinates == "theta":
            return theta + move
        return self.natural(self.expectation(theta) + move)

    def log_prob(self, x: Tensor, theta: Tensor) -> Tensor:
        """log p(x; theta), in nats: (...); x is (..., d) and broadcasts against theta."""
        return (self.statistics(x) * theta).sum(-1) - self.log_partition(theta)

    @abstractmethod
    def sample(self, theta: Tensor, count: int, rng: torch.Generator | None = None) -> Tensor:
        """Independent draws of one distribution, theta (n,): (count, d)."""

    def contains(self, theta: Tensor) -> Tensor:
        """Whether theta is of the family, (...)."""
        return theta.isfinite().all(-1)

    def fisher(self, theta: Tensor) -> Tensor:
        """deta/dtheta, the Hessian of A and the covariance of T(x): (..., n, n); by autograd."""
        found = vmap(jacfwd(self.expectation))(theta.reshape(-1, theta.shape[-1]))
        return found.reshape(*theta.shape, -1)

    def dual_fisher(self, eta: Tensor) -> Tensor:
        """The Fisher matrix in eta, dtheta/deta, the Hessian of A*: (..., n, n)."""
        return torch.linalg.inv(self.fisher(self.natural(eta)))

    def dual(self, eta: Tensor) -> Tensor:
        """A*(eta) = theta . eta - A(theta), the Legendre dual of A, in nats: (...)."""
        theta = self.natural(eta)
        return (theta * eta).sum(-1) - self.log_partition(theta)

    def kl(self, theta: Tensor, other: Tensor) -> Tensor:
        """KL(p_theta || p_other), the Bregman divergence B_A(other, theta), in nats: (...)."""
        return bregman(self.log_partition, self.expectation, other, theta)


class IndependentUnits(ExponentialFamily):
    """Independent units of nws: A(theta) = sum_i A(theta_i), with A, A' and A'' of the units.

    Binary units are independent bits. Gaussian units have unit variance and an unknown mean;
    Poisson units are counts. Data x of bipolar units are 0 and 1 too: their spins are 2 x - 1.

    Args:
        units: The one-parameter family, or its name: binary, bipolar (nws/models/units.py).
        count: n, the number of units.

    Examples:
        >>> bits = IndependentUnits("binary", 2)
        >>> bits.expectation(torch.zeros(2))
        tensor([0.5000, 0.5000])
    """

    def __init__(self, units: Units | str = "binary", count: int = 1) -> None:
        self.units = find_units(units, "units")
        self.dimension = positive_int("count", count)

    def statistics(self, x: Tensor) -> Tensor:
        return self.units.from_data(x)

    def log_partition(self, theta: Tensor) -> Tensor:
        return self.units.log_partition(theta).sum(-1)

    def expectation(self, theta: Tensor) -> Tensor:
        return self.units.mean(theta)

    def natural(self, eta: Tensor) -> Tensor:
        return self.units.link(eta)

    def dual_fisher(self, eta: Tensor) -> Tensor:
        return torch.diag_embed(1 / self.units.curvature(eta))

    def log_prob(self, x: Tensor, theta: Tensor) -> Tensor:
        x, theta = torch.broadcast_tensors(self.statistics(x), theta)
        return self.units.log_prob(x, theta, self.units.mean(theta)).sum(-1)

    def sample(self, theta: Tensor, count: int, rng: torch.Generator | None = None) -> Tensor:
        noise = torch.empty(count, self.dimension, dtype=theta.dtype, device=theta.device)
        self.units.fill_noise(noise, rng)
        values = self.units.sample_(noise, self.units.mean(theta).expand_as(noise))
        return self.units.to_data(values)


class Categorical(ExponentialFamily):
    """One of k states: theta_i = log p_i / p_0 and eta_i = p_i for the states i = 1, ..., k - 1.

    T(x) says which of these states x is; all of it is 0 in the state 0. With k = 2 this is the
    Bernoulli family. Data x are one number, the state: (..., 1).

    Args:
        states: k, at least 2.
    """

    def __init__(self, states: int) -> None:
        self.states = positive_int("states", states, 2)
        self.dimension = self.states - 1

    def _logits(self, theta: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(theta[..., :1]), theta], dim=-1)

    def statistics(self, x: Tensor) -> Tensor:
        return (x == torch.arange(1, self.states)).to(x)

    def log_partition(self, theta: Tensor) -> Tensor:
        return self._logits(theta).logsumexp(-1)

    def expectation(self, theta: Tensor) -> Tensor:
        return self._logits(theta).softmax(-1)[..., 1:]

    def natural(self, eta: Tensor) -> Tensor:
        return eta.log() - (1 - eta.sum(-1, keepdim=True)).log()

    def sample(self, theta: Tensor, count: int, rng: torch.Generator | None = None) -> Tensor:
        p = self._logits(theta).softmax(-1)
        return torch.multinomial(p, count, replacement=True, generator=rng)[:, None].to(theta)


class Interactions(ExponentialFamily):
    r"""Spins x_i in {-1, +1} with T_g(x) = \prod_{i in g} x_i for each group g of a list.

    Up to 16 spins all is exact, over every state, in float64. More have Gibbs sampling alone.

    Args:
        size: d, the number of spins.
        groups: Of spins, counted from 0; each group once.
        sweeps: Of Gibbs sampling over all spins, from random ones.
    """

    def __init__(self, size: int, groups: Sequence[Sequence[int]], sweeps: int = 100) -> None:
        self.size = size = positive_int("size", size)
        self.sweeps = positive_int("sweeps", sweeps)
        self.dimension, width = len(groups), max(map(len, groups), default=0)
        sets = {frozenset(g) for g in groups if 0 < len(g) == len({*g} & {*range(size)})}
        if len(sets) < len(groups) or not groups:
            raise UserError(f"groups must be distinct sets of spins below {size}, got {[*groups]}")
        self.where = torch.tensor([[*group, *[size] * (width - len(group))] for group in groups])

    @cached_property
    def states(self) -> Tensor:
        """Every state, (2^d, d); `UserError` above 16 spins."""
        positive_int("size, for exact sums,", self.size, 1, ENUMERATED)
        return torch.tensor([*itertools.product((-1.0, 1.0), repeat=self.size)]).double()

    def statistics(self, x: Tensor) -> Tensor:
        return torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)[..., self.where].prod(-1)

    def log_partition(self, theta: Tensor) -> Tensor:
        return (theta @ self.statistics(self.states.to(theta)).mT).logsumexp(-1)

    def expectation(self, theta: Tensor) -> Tensor:
        t = self.statistics(self.states.to(theta))
        return (theta @ t.mT).softmax(-1) @ t

    def natural(self, eta: Tensor) -> Tensor:
        return newton(self, eta, torch.zeros_like(eta))

    def sample(self, theta: Tensor, count: int, rng: torch.Generator | None = None) -> Tensor:
        """Spins, (count, d); above 16 spins the ends of as many chains."""
        if self.size <= ENUMERATED:
            states = self.states.to(theta)
            p = (self.statistics(states) @ theta).softmax(-1)
            return states[torch.multinomial(p, count, replacement=True, generator=rng)]
        x = torch.randint(2, (self.size, count), generator=rng).to(theta) * 2 - 1
        t, its = self.statistics(x.mT).mT, [(self.where == i).any(-1) for i in range(self.size)]
        for i in [*range(self.size)] * self.sweeps:
            field = theta[its[i]] @ t[its[i]] * x[i]  # of its neighbours
            draws = torch.rand(count, dtype=x.dtype, generator=rng)
            turned = torch.where(draws < (2 * field).sigmoid(), x[i], -x[i])
            t[its[i]] *= turned
            x[i] *= turned
        return x.mT
