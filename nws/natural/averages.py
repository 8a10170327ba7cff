"""Running means over steps, which are right from the first step on."""


def share_of_newest(memory: float, count: int) -> float:
    """The weight of the newest of `count` terms in a running mean: (1 - beta) / (1 - beta^count).

    beta = 1 - 1 / memory. So the mean is sum_t beta^t x_t / sum_t beta^t, with the bias of a start
    at zero corrected (Kingma & Ba 2015, section 3).

    Args:
        memory: In terms; 1 for the newest alone.
        count: Of the terms so far, the newest included.
    """
    beta = 1 - 1 / memory
    return (1 - beta) / (1 - beta**count)
