"""Data sets that need no download: Kirby's 3x3 images, and scikit-learn's digits."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from nws.data.dataset import PARTS, RawImages

DIGITS_TRAIN, DIGITS_VALID = 1_297, 250  # of 1,797; the others are the test part


def load_three_by_three() -> RawImages:
    """Return Kirby's (2006) twelve 3x3 images of whole columns or whole rows, with their p_D.

    Each of the 6 images of columns has probability 2/18, each of the 6 images of rows 1/18. Every
    part holds the images in exactly these proportions.
    """
    # The three bits of 1 to 6: neither an empty image nor a full one.
    bars = torch.tensor([[k >> 2 & 1, k >> 1 & 1, k & 1] for k in range(1, 7)], dtype=torch.uint8)
    columns = bars[:, None, :].expand(6, 3, 3).reshape(6, 9)
    rows = bars[:, :, None].expand(6, 3, 3).reshape(6, 9)
    images = torch.cat([columns, rows])
    counts = torch.tensor([2] * 6 + [1] * 6)
    exact = images.repeat_interleave(counts, dim=0)  # 18 images, whose mean is the expectation
    distribution = (images.float(), counts.double() / counts.sum())
    return RawImages(exact.repeat(1_000, 1), exact, exact, (3, 3), 1, distribution)


def load_digits() -> RawImages:
    """Return scikit-learn's 1,797 8x8 digits of 0 to 16 in their own order: train, valid, test."""
    package = find_spec("sklearn")  # its file alone: the package takes more than a second to import
    assert package is not None and package.origin is not None, "a requirement of nws"
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = torch.from_numpy(np.loadtxt(file, np.uint8, delimiter=","))  # the label comes last
    ends = (DIGITS_TRAIN, DIGITS_TRAIN + DIGITS_VALID)
    train, valid, test = table[:, :-1].contiguous().tensor_split(ends)
    labels = dict(zip(PARTS, table[:, -1].long().tensor_split(ends), strict=True))
    return RawImages(train, valid, test, (8, 8), maximum=16, labels=labels)
