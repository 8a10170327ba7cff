"""What the readers of a user's own images share: an automatic split, and another size.

Symbols: N images of H x W pixels.
"""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from nws.errors import UserError, number, positive_int

log = logging.getLogger(__name__)

SPLIT_SEED = 505  # a constant: every run splits the same images in the same way


def split_places(count: int, held_out: float, where: object) -> tuple[Tensor, Tensor, Tensor]:
    """Return which images are the training, validation and test part: a fixed random split.

    The log tells of it.

    Args:
        count: How many images there are.
        held_out: The share of images that become the validation part; as many become the test part.
        where: What the images are from, for messages.

    Raises:
        UserError: For less than three images, or a share that is not above 0 and below 0.5.

    Example:
        >>> train, valid, test = split_places(50, 0.1, "mine.npy")
        >>> len(train), len(valid), len(test)
        (40, 5, 5)
    """
    expected = "above 0 and below 0.5, a share of the images"
    held_out = number("data.held_out", held_out, expected, lambda value: 0 < value < 0.5)
    if count < 3:
        raise UserError(
            f"{where}: expected at least 3 images, one each to train on, to validate and to test,"
            f" got {count}"
        )
    rng = torch.Generator().manual_seed(SPLIT_SEED)
    mixed = torch.randperm(count, generator=rng)
    held = min(max(1, round(held_out * count)), (count - 1) // 2)
    valid, test, train = mixed.split([held, held, count - 2 * held])
    log.info(
        "%s: %d images, split at random, the same for all runs: %d to train on, %d to validate,"
        " %d to test (data.held_out=%g)",
        where, count, len(train), len(valid), len(test), held_out,
    )  # fmt: skip
    return train, valid, test


def resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Bring images (N, H, W) uint8 to another size: bicubic, antialiased, rounded to bytes."""
    chunks = []
    for chunk in images.split(4096):  # as floats the images take four times their memory
        grey = interpolate(chunk[:, None].float(), size, mode="bicubic", antialias=True)
        chunks.append(grey[:, 0].round_().clamp_(0, 255).to(torch.uint8))
    return torch.cat(chunks)


def height_and_width(name: str, value: Sequence[int]) -> tuple[int, int]:
    """Return an option [H, W] as two whole numbers; `UserError` where it is none."""
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise UserError(f"{name} must be [H, W] or null, got {value!r}")
    height, width = (positive_int(name, side) for side in value)
    return height, width
