"""VIMCO: weights of the K samples that are no softmax, by leave-one-out learning signals."""

import torch
from torch import Tensor

from nws.errors import UserError
from nws.learning.weighting import Weights


def vimco(log_p: Tensor, log_q: Tensor) -> Weights:
    """The gradient of E[log (1/K) sum_k w_k], w_k = p(x, h_k) / q(h_k | x) (Mnih & Rezende 2016).

    The generator follows the importance weights softmax_k(log w). Recognition follows

        log sum_j w_j - log (sum_{j != k} w_j + v_k) - softmax_k(log w),

    with v_k the geometric mean of the other w_j (their eq. 9 and 10): a learning signal minus the
    weight with which log q enters log w. These weights may be negative, and do not sum to 1. One
    sample has no others, so there must be two.
    """
    log_weights = log_p - log_q
    samples = log_weights.shape[1]
    if samples < 2:
        raise UserError(f"vimco needs algorithm.samples of at least 2, got {samples}")
    others = (log_weights.sum(1, keepdim=True) - log_weights) / (samples - 1)  # (B, K) log v_k
    replaced = log_weights[:, None].repeat(1, samples, 1)  # (B, K, K), row k without sample k
    replaced.diagonal(dim1=1, dim2=2).copy_(others)
    signal = log_weights.logsumexp(1, keepdim=True) - replaced.logsumexp(2)
    weights = torch.softmax(log_weights, dim=1)
    return weights, signal - weights
