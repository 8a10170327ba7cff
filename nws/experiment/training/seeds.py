"""Independent streams of random numbers from a run's one seed."""

import logging
from typing import Any

import numpy as np
import torch

from nws.errors import UserError, positive_int

log = logging.getLogger(__name__)

LARGEST = 2**63 - 1


def derive_seed(seed: int, *stream: int) -> int:
    """Return the seed of one stream: 0 parameters, 1 draws, 2 and 3 shuffles, each by epoch,
    4 dreams of evaluations, by step.
    """
    return int(np.random.SeedSequence([seed, *stream]).generate_state(1)[0])


def continue_draws(rng: torch.Generator, state: dict[str, Any], seed: int) -> None:
    """Let a generator go on from a checkpoint; from a `seed` where that is of another device."""
    if state["rng_device"] == rng.device.type:
        rng.set_state(state["rng"])
        return
    log.warning(
        f"the checkpoint is from {state['rng_device']}: on {rng.device} its draws cannot be"
        " continued"
    )
    rng.manual_seed(seed)


def check_seed(name: str, seed: object) -> int:
    """Return a seed; `UserError` unless it is a whole number of 0 to 2^63 - 1."""
    value = positive_int(name, seed, minimum=0)
    if value > LARGEST:
        raise UserError(f"{name} must be a whole number below 2^63, got {seed}")
    return value
