"""Small worlds of information geometry: each is a file with its numbers and its figure."""

from torch import Tensor


def first(found: Tensor) -> int:
    """The first place at which a condition holds, or -1; (T,) booleans."""
    places = found.nonzero()
    return int(places[0]) if len(places) else -1
