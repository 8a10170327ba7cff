"""Independent streams of random numbers from a run's one seed."""

import numpy as np

from nws.errors import UserError, positive_int

LARGEST = 2**63 - 1


def derive_seed(seed: int, *stream: int) -> int:
    """Return the seed of one stream: 0 parameters, 1 draws, 2 and 3 shuffles, each by epoch,
    4 dreams of evaluations, by step.
    """
    return int(np.random.SeedSequence([seed, *stream]).generate_state(1)[0])


def check_seed(name: str, seed: object) -> int:
    """Return a seed; `UserError` unless it is a whole number of 0 to 2^63 - 1."""
    value = positive_int(name, seed, minimum=0)
    if value > LARGEST:
        raise UserError(f"{name} must be a whole number below 2^63, got {seed}")
    return value
