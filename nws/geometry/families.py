r"""Exponential families with their two dual coordinate systems.

    p(x; theta) = exp(theta . T(x) - A(theta)) base(x)

The natural parameters theta and the expectation parameters eta = E[T(x)] are two coordinate systems
of the same distributions. The log-partition A and its Legendre dual A* lead from one to the other:

    eta = dA/dtheta,   theta = dA*/deta,   A*(eta) = theta . eta - A(theta)

The Fisher matrix is the Hessian of A in theta and the Hessian of A* in eta; these are inverse to
one another. So the natural gradient in one system is the plain gradient in the other:
G(theta)^{-1} df/dtheta = df/deta (Amari 1998; Malagò, Matteucci & Pistone 2011).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jacfwd, vmap

from nws.errors import positive_int
from nws.models.units import Units, find_units


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


def _jacobian(function: Callable[[Tensor], Tensor], points: Tensor) -> Tensor:
    """That of a map of points, (..., n, n)."""
    found = vmap(jacfwd(function))(points.reshape(-1, points.shape[-1]))
    return found.reshape(*points.shape, -1)


class ExponentialFamily(ABC):
    """A family in minimal form; every method takes points (..., n) with any leading shape.

    Attributes:
        dimension: n, the number of parameters.
    """

    dimension: int

    @abstractmethod
    def log_partition(self, theta: Tensor) -> Tensor:
        """A(theta), in nats: (...)."""

    @abstractmethod
    def expectation(self, theta: Tensor) -> Tensor:
        """eta = dA/dtheta = E[T(x)], (..., n)."""

    @abstractmethod
    def natural(self, eta: Tensor) -> Tensor:
        """theta = dA*/deta, (..., n), the inverse of `expectation`."""

    @abstractmethod
    def log_prob(self, x: Tensor, theta: Tensor) -> Tensor:
        """log p(x; theta), in nats: (...); x is (..., d) and broadcasts against theta."""

    @abstractmethod
    def sample(self, theta: Tensor, count: int, rng: torch.Generator | None = None) -> Tensor:
        """Independent draws of one distribution, theta (n,): (count, d)."""

    def fisher(self, theta: Tensor) -> Tensor:
        """deta/dtheta, the Hessian of A and the covariance of T(x): (..., n, n); by autograd."""
        return _jacobian(self.expectation, theta)

    def dual_fisher(self, eta: Tensor) -> Tensor:
        """The Fisher matrix in eta, dtheta/deta, the Hessian of A*: (..., n, n)."""
        return _jacobian(self.natural, eta)

    def dual(self, eta: Tensor) -> Tensor:
        """A*(eta) = theta . eta - A(theta), the Legendre dual of A, in nats: (...)."""
        theta = self.natural(eta)
        return (theta * eta).sum(-1) - self.log_partition(theta)

    def kl(self, theta: Tensor, other: Tensor) -> Tensor:
        """KL(p_theta || p_other), the Bregman divergence B_A(other, theta), in nats: (...)."""
        return bregman(self.log_partition, self.expectation, other, theta)

    def dual_kl(self, eta: Tensor, other: Tensor) -> Tensor:
        """KL(p_eta || p_other) from expectations, the dual divergence B_A*(eta, other): (...)."""
        return bregman(self.dual, self.natural, eta, other)


class IndependentUnits(ExponentialFamily):
    """Independent units of nws: A(theta) = sum_i A(theta_i), with A, A' and A'' of the units.

    One binary unit is a Bernoulli variable, several are independent bits. Gaussian units have unit
    variance and an unknown mean; Poisson units are counts. A unit's natural parameter is its logit.

    Args:
        units: The one-parameter family, or its name: binary, bipolar (nws/models/units.py).
        count: n, the number of units.

    Raises:
        UserError: For units that do not exist, or a count below 1.

    Examples:
        >>> bits = IndependentUnits("binary", 2)
        >>> bits.expectation(torch.zeros(2))
        tensor([0.5000, 0.5000])
    """

    def __init__(self, units: Units | str = "binary", count: int = 1) -> None:
        self.units = find_units(units, "units")
        self.dimension = positive_int("count", count)

    def log_partition(self, theta: Tensor) -> Tensor:
        return self.units.log_partition(theta).sum(-1)

    def expectation(self, theta: Tensor) -> Tensor:
        return self.units.mean(theta)

    def natural(self, eta: Tensor) -> Tensor:
        """The logits with these means."""
        return self.units.link(eta)

    def fisher(self, theta: Tensor) -> Tensor:
        return torch.diag_embed(self.units.curvature(self.units.mean(theta)))

    def dual_fisher(self, eta: Tensor) -> Tensor:
        return torch.diag_embed(1 / self.units.curvature(eta))

    def log_prob(self, x: Tensor, theta: Tensor) -> Tensor:
        """sum_i log p(x_i; theta_i) of values x, (..., n)."""
        x, theta = torch.broadcast_tensors(x, theta)
        return self.units.log_prob(x, theta, self.units.mean(theta)).sum(-1)

    def sample(self, theta: Tensor, count: int, rng: torch.Generator | None = None) -> Tensor:
        """Values of the units, (count, n)."""
        noise = torch.empty(count, self.dimension, dtype=theta.dtype, device=theta.device)
        self.units.fill_noise(noise, rng)
        return self.units.sample_(noise, self.units.mean(theta).expand_as(noise))


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

    def log_partition(self, theta: Tensor) -> Tensor:
        """log(1 + sum_i e^{theta_i})."""
        return self._logits(theta).logsumexp(-1)

    def expectation(self, theta: Tensor) -> Tensor:
        """p_i, without p_0."""
        return self._logits(theta).softmax(-1)[..., 1:]

    def natural(self, eta: Tensor) -> Tensor:
        """log p_i - log p_0."""
        return eta.log() - (1 - eta.sum(-1, keepdim=True)).log()

    def fisher(self, theta: Tensor) -> Tensor:
        """diag(p) - p p^T."""
        p = self.expectation(theta)
        return torch.diag_embed(p) - p[..., :, None] * p[..., None, :]

    def dual_fisher(self, eta: Tensor) -> Tensor:
        """diag(1 / p) + 1 / p_0."""
        return torch.diag_embed(1 / eta) + 1 / (1 - eta.sum(-1))[..., None, None]

    def log_prob(self, x: Tensor, theta: Tensor) -> Tensor:
        """log p_x."""
        log_probs = self._logits(theta).log_softmax(-1)
        shape = torch.broadcast_shapes(x.shape[:-1], theta.shape[:-1])
        state = x.long().expand(*shape, 1)
        return log_probs.expand(*shape, self.states).gather(-1, state).squeeze(-1)

    def sample(self, theta: Tensor, count: int, rng: torch.Generator | None = None) -> Tensor:
        """States, (count, 1)."""
        p = self._logits(theta).softmax(-1)
        return torch.multinomial(p, count, replacement=True, generator=rng)[:, None].to(theta)
