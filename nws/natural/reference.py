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
    if mask is not None:
        found = torch.zeros_like(gradient)
        for j, seen in enumerate(mask.bool()):  # by the unit's own parents
            one = inputs[:, seen], curvature[:, j, None], gradient[None, j, seen]
            found[j, seen] = natural_direction(*one, damping)[0]
        return found
    identity = torch.eye(inputs.shape[1], dtype=inputs.dtype, device=inputs.device)
    directions = []
    for weights, g in zip(curvature.T, gradient, strict=True):  # one unit after the other
        fisher = inputs.T @ (weights[:, None] * inputs)  # F_j = sum_k s_kj h_k h_k^T
        directions.append(torch.linalg.solve(fisher + damping * identity, g))
    return (1 + damping) * torch.stack(directions)
