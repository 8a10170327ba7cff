"""How the K samples of a data point are weighed: functions of log p and log q.

A weighting takes log p(x, h_k) and log q(h_k | x), (B, K) each, and returns the weights of the
generator's gradients and of recognition's, (B, K) each. `algorithm.weighting` names one.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from nws.errors import number

Weights = tuple[Tensor, Tensor]  # of the generator's gradients and of recognition's, (B, K) each
Weighting = Callable[[Tensor, Tensor], Weights]


def tempered(log_p: Tensor, log_q: Tensor, exponent: float = 1.0) -> Weights:
    """softmax_k(exponent (log p - log q)), for both networks.

    The exponent is at least 0: 1 makes importance weights (Bornschein & Bengio 2015), 0 weighs all
    samples by 1 / K (wake-sleep, Hinton et al. 1995), and 1/2 is importance sampling from the
    geometric mean of p and q (Bornschein et al. 2016).

    Examples:
        >>> tempered(torch.zeros(1, 2), torch.zeros(1, 2))[0]
        tensor([[0.5000, 0.5000]])
    """
    exponent = number("algorithm.weighting.exponent", exponent, least=0)
    weights = torch.log_softmax(exponent * (log_p - log_q), dim=1).exp()
    return weights, weights
