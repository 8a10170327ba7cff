"""Small worlds of information geometry: each is a file with its numbers and its figure."""

import math

from torch import Tensor


def first(found: Tensor) -> float:
    """The first place at which a condition holds, or nan; (T,) booleans."""
    places = found.nonzero()
    return int(places[0]) if len(places) else math.nan
