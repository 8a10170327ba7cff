"""Geodesics of a metric, and its curvature, by autograd."""

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
