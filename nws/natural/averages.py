"""Running means over steps, which are right from the first step on."""

from math import expm1, log1p


def share_of_newest(memory: float, count: int, every: int = 1) -> float:
    """The weight of the newest of `count` terms in a running mean.

    With beta = 1 - 1 / memory the mean is sum_t beta^(every t) x_t / sum_t beta^(every t), t = 0
    for the newest. So the bias of a start at zero is corrected (Kingma & Ba 2015, section 3):

        (1 - beta^every) / (1 - beta^(every count))

    Args:
        memory: In steps; 1 for the newest term alone.
        count: Of the terms so far, the newest included.
        every: Steps from one term to the next.

    Examples:
        >>> round(share_of_newest(memory=2, count=3), 4)
        0.5714
    """
    if memory == 1:
        return 1.0
    rate = log1p(-1 / memory)  # log beta
    return expm1(every * rate) / expm1(every * count * rate)
