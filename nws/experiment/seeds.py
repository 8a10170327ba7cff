"""Independent streams of random numbers from a run's one seed."""

import numpy as np


def derive_seed(seed: int, *stream: int) -> int:
    """Return the seed of one stream: 0 parameters, 1 draws, 2 and 3 shuffles, each by epoch,
    4 dreams of evaluations, by step.
    """
    return int(np.random.SeedSequence([seed, *stream]).generate_state(1)[0])
