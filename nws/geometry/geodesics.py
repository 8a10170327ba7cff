"""Geodesics of a metric and its curvature by autograd, and geodesics of Gaussians by formula.

In (mu, log sigma) the Fisher metric of univariate Gaussians is diag(1 / sigma^2, 2). With
u = mu / sqrt(2) the length element is ds^2 = 2 (du^2 + dsigma^2) / sigma^2: a hyperbolic half-plane
of curvature -1/2. Its geodesics are half circles around points of the line sigma = 0.
"""

import math

import torch
from torch import Tensor
from torch.func import jacfwd, vmap

from nws.geometry.descent import integrate
from nws.geometry.metrics import Metric


def christoffel(metric: Metric, x: Tensor) -> Tensor:
    """Gamma^k_ij = G^{kl} (d_i G_lj + d_j G_li - d_l G_ij) / 2 at a point: (n, n, n), k first."""
    slope = jacfwd(metric)(x)  # (a, b, c): d_c G_ab
    lowered = (slope.permute(0, 2, 1) + slope - slope.permute(2, 0, 1)) / 2  # l, i, j
    return torch.linalg.solve(metric(x), lowered.flatten(1)).reshape(lowered.shape)


def geodesics(metric: Metric, starts: Tensor, velocities: Tensor, times: Tensor) -> Tensor:
    """Geodesics d2x^k/dt2 = -Gamma^k_ij dx^i/dt dx^j/dt.

    Args:
        metric: G.
        starts: First points, (B, n).
        velocities: First velocities, (B, n).
        times: (T,), rising from 0.

    Returns:
        Points at these times, (T, B, n).
    """
    size = starts.shape[-1]

    def field(state: Tensor) -> Tensor:
        x, v = state[:size], state[size:]
        return torch.cat([v, -torch.einsum("kij,i,j->k", christoffel(metric, x), v, v)])

    path = integrate(vmap(field), torch.cat([starts, velocities], dim=-1), times)
    return path[..., :size]


def gaussian_curvature(metric: Metric, x: Tensor) -> Tensor:
    """R_1212 / det G of a metric in two dimensions: 1 for the unit sphere, a number."""
    gamma = christoffel(metric, x)
    slope = jacfwd(lambda y: christoffel(metric, y))(x)  # (k, i, j, c): d_c Gamma^k_ij
    raised = slope[:, 1, 1, 0] - slope[:, 0, 1, 1]
    raised = raised + gamma[:, 0] @ gamma[:, 1, 1] - gamma[:, 1] @ gamma[:, 0, 1]
    matrix = metric(x)
    return (matrix[0] * raised).sum() / torch.linalg.det(matrix)


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
