"""The natural step in its plain form: read this first.

`metrics/fisher.py` computes the same, faster; the other metrics approximate it.

Unit j of a layer has parents h (n rows of them, the bias as a parent that is always 1) and logit
a_j = w_j . h + b_j. Its block of the Fisher matrix is F_j = E[A''(a_j) h h^T] (Amari 1998; Ay
2002). Its natural direction, damped by alpha (Tikhonov), is (1 + alpha) (F_j + alpha I)^{-1} g_j.
"""

import torch
from torch import Tensor


def natural_direction(
    inputs: Tensor, curvature: Tensor, gradient: Tensor, damping: float, mask: Tensor | None = None
) -> Tensor:
    """(1 + alpha) (F_j + alpha I)^{-1} g_j for every unit j of a layer, by dense blocks.

    Args:
        inputs: H, the parents' states with a last column of ones, (n, d).
        curvature: S, s_kj = w_k A''(a_kj), (n, m); sigma'(a) / n for n plain samples.
        gradient: g_j in row j, (m, d).
        damping: alpha, above 0.
        mask: (m, d), 0 where a unit does not see a parent, else 1; None where units see all.

    Returns:
        The directions, (m, d), 0 where the mask is. A large alpha gives back the gradient.

    Examples:
        >>> g = torch.tensor([[1.0, 2.0]])
        >>> natural_direction(torch.ones(3, 2), torch.zeros(3, 1), g, damping=1.0)
        tensor([[2., 4.]])
    """
    masks = torch.ones_like(gradient) if mask is None else mask
    directions = torch.zeros_like(gradient)
    for j, (weights, seen) in enumerate(zip(curvature.T, masks.bool(), strict=True)):  # each unit
        h = inputs[:, seen]  # its own parents
        fisher = h.T @ (weights[:, None] * h)  # F_j = sum_k s_kj h_k h_k^T
        identity = torch.eye(h.shape[1], dtype=h.dtype, device=h.device)
        directions[j, seen] = torch.linalg.solve(fisher + damping * identity, gradient[j, seen])
    return (1 + damping) * directions
