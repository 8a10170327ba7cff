"""Univariate Gaussians as a half-plane: distance, geodesics and exponential map by formula.

In (mu, log sigma) the Fisher metric is diag(1 / sigma^2, 2). With u = mu / sqrt(2) the length
element is ds^2 = 2 (du^2 + dsigma^2) / sigma^2: a hyperbolic half-plane of curvature -1/2. Its
geodesics are half circles around points of the line sigma = 0.
"""

import math

import torch
from torch import Tensor

from nws.geometry import Moments


def to_moments(point: Tensor) -> Moments:
    """Those of points (mu, sigma), (..., 2)."""
    return Moments(point[..., :1], point[..., 1:, None].square())


def from_moments(moments: Moments) -> Tensor:
    """The points (mu, sigma) of moments, (..., 2)."""
    return torch.cat([moments.mean, moments.covariance[..., 0].sqrt()], dim=-1)


def fisher_rao_distance(p: Tensor, q: Tensor) -> Tensor:
    """The length of the geodesic between univariate Gaussians (mu, sigma), (..., 2): (...).

    Examples:
        >>> bell = torch.tensor([0.0, 1.0])
        >>> fisher_rao_distance(bell, torch.tensor([0.0, torch.e])) / 2**0.5
        tensor(1.)
    """
    gap = (p[..., 0] - q[..., 0]).square() / 2 + (p[..., 1] - q[..., 1]).square()
    return math.sqrt(2) * torch.acosh(1 + gap / (2 * p[..., 1] * q[..., 1]))


def fisher_rao_geodesic(p: Tensor, q: Tensor, count: int = 101) -> Tensor:
    """The geodesic between univariate Gaussians (mu, sigma) of different mu.

    With u = c + r tanh(s) and sigma = r / cosh(s) its length is sqrt(2) s.

    Args:
        p: One end, (2,).
        q: The other, (2,).
        count: Points, at equal lengths.

    Returns:
        The points (mu, sigma), (count, 2).
    """
    u, v = p[0] / math.sqrt(2), q[0] / math.sqrt(2)
    centre = (v.square() + q[1].square() - u.square() - p[1].square()) / (2 * (v - u))
    radius = ((u - centre).square() + p[1].square()).sqrt()
    ends = [float(torch.atanh((each - centre) / radius)) for each in (u, v)]
    s = torch.linspace(ends[0], ends[1], count, dtype=p.dtype)
    return torch.stack([math.sqrt(2) * (centre + radius * s.tanh()), radius / s.cosh()], dim=-1)


def exponential(p: Tensor, velocity: Tensor) -> Tensor:
    """Where the geodesic from p ends that has this velocity at p, after the time 1.

    Args:
        p: Points (mu, sigma), (..., 2).
        velocity: (dmu, dsigma), (..., 2).

    Returns:
        Points (mu, sigma), (..., 2); sigma stays above 0, as far as the numbers reach.
    """
    move = torch.stack([velocity[..., 0] / math.sqrt(2), velocity[..., 1]], dim=-1)
    size = move.norm(dim=-1)
    way, (across, up) = size / p[..., 1], (move / size.clamp_min(1e-300)[..., None]).unbind(-1)
    small = (-2 * way).exp()  # cosh and sinh over e^way, so that nothing overflows
    sigma = p[..., 1] / ((1 - up) + (1 + up) * small)
    mu = p[..., 0] + math.sqrt(2) * across * (1 - small) * sigma
    return torch.stack([mu, 2 * (-way).exp() * sigma], dim=-1)
