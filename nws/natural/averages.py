"""Running means over steps, which are right from the first step on."""

from collections.abc import Sequence
from math import expm1, inf, log1p

import torch
from torch import Tensor


def share_of_newest(memory: float, count: int, every: int = 1) -> float:
    """The weight of the newest of `count` terms in a running mean.

    With beta = 1 - 1 / memory the mean is sum_t beta^(every t) x_t / sum_t beta^(every t), t = 0
    for the newest. So the bias of a start at zero is corrected (Kingma & Ba 2015, section 3):

        (1 - beta^every) / (1 - beta^(every count))

    Args:
        memory: In steps; 1 for the newest term alone.
        count: Of the terms so far, the newest included.
        every: Steps from one term to the next.
    """
    if memory == 1:
        return 1.0
    rate = log1p(-1 / memory)  # log beta
    return expm1(every * rate) / expm1(every * count * rate)


class Shares:
    """`share_of_newest` of several memories, counted on a device: a CUDA graph can do it.

    Args:
        memories: In steps.
        like: Of whose device and dtype they are.
        count: Of the terms so far.
    """

    def __init__(self, memories: Sequence[float], like: Tensor, count: Tensor | int = 0) -> None:
        rates = (log1p(-1 / memory) if memory > 1 else -inf for memory in memories)
        self._rates = torch.stack([like.new_full((), rate) for rate in rates])
        self._newest = self._rates.expm1()
        self.count = like.new_zeros(()).add_(count)

    def next(self) -> Tensor:
        """Count a term, and return its shares, one for each memory."""
        return self._newest / torch.expm1(self._rates * self.count.add_(1))
