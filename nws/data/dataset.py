"""Data sets of images, held as bytes.

Symbols: N images of D = H * W pixels; B images in a batch; S images of an enumerated distribution.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from nws.errors import UserError

PARTS = ("train", "valid", "test")
CHUNK = 4096  # images that are worked on at once, where all of them could be too many


@dataclass(frozen=True)
class RawImages:
    """What a source of images returns: its parts before any binarisation, on the CPU.

    A part may be a map of a file (`numpy.memmap`), which `data.where=host` leaves there.

    Args:
        train: The images to train on, (N, D) uint8.
        valid: The images that choose a checkpoint, likewise.
        test: The images to report, likewise.
        shape: Height and width (H, W) of an image, with H * W = D.
        maximum: The byte that means intensity 1: 255 for grey bytes, 1 for binary images.
        distribution: p_D where it is known: images (S, D) float32 of 0 and 1, and their
            probabilities (S,) float64.
        unlabeled: Images for `metric.batch=unlabeled`, (N, D) uint8; may be `train` itself.
        order: The rows of `train` to train on, in this order; None for all. A file that is shuffled
            so need not be in memory.
        labels: The class of each image, (N,) of each part by its name, where they are known.

    Raises `UserError` for another type, shape or number of labels, or bytes above the maximum.
    """

    train: Tensor
    valid: Tensor
    test: Tensor
    shape: tuple[int, int]
    maximum: int = 255
    distribution: tuple[Tensor, Tensor] | None = None
    unlabeled: Tensor | None = None
    order: Tensor | None = None
    labels: dict[str, Tensor] | None = None

    def __post_init__(self) -> None:
        pixels = self.shape[0] * self.shape[1]
        expected = f"bytes (torch.uint8) of shape (N, {pixels}) for images of {tuple(self.shape)}"
        for part, images in self.parts().items():
            got = f"{images.dtype} of shape {tuple(images.shape)}"
            if images.dtype == torch.uint8 and images.shape == (max(1, len(images)), pixels):
                got = f"a byte of {int(images.max())}, where {self.maximum} means intensity 1"
                if images.max() <= self.maximum:
                    continue
            raise UserError(f"RawImages: {part} must be {expected}, got {got}")
        sizes = {part: len(images) for part, images in self.parts().items()}
        for part, labels in (self.labels or {}).items():
            if labels.shape != (count := sizes.get(part, 0),):
                expected = f"one for each of its {count} images"
                got = f"shape {tuple(labels.shape)}"
                raise UserError(f"RawImages: labels of {part} must be {expected}, got {got}")

    def parts(self) -> dict[str, Tensor]:
        """Return the parts by their names, `unlabeled` where it is a part of its own."""
        parts = {part: getattr(self, part) for part in PARTS}
        own = self.unlabeled is not None and self.unlabeled is not self.train
        return parts | ({"unlabeled": self.unlabeled} if own else {})


@dataclass(frozen=True)
class Split:
    """One part of a data set, held as bytes; intensity = bytes / maximum."""

    bytes: Tensor = field(repr=False)  # (N, D) uint8, on the device, the host or in a file
    maximum: int  # the byte that means intensity 1
    redraw: bool  # whether each use is a fresh Bernoulli draw from the intensities
    source: Split | None = None  # the grey images, on the CPU, of which these are the binary draw
    onto: torch.device | None = None  # where images go whose bytes stay in host memory
    order: Tensor | None = None  # the rows of `bytes` that are this part's; None: all

    def __len__(self) -> int:
        return len(self.bytes if self.order is None else self.order)

    @property
    def device(self) -> torch.device:
        """Where images are when they are used."""
        return self.bytes.device if self.onto is None else self.onto

    def rows(self, indices: Tensor | None = None) -> Tensor:
        """Return the bytes at `indices` (B,), or all of them, (B, D), where they are held."""
        if self.order is not None:
            indices = self.order if indices is None else self.order[indices]
        return self.bytes if indices is None else self.bytes.index_select(0, indices)

    def images(self, rows: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """Return bytes (B, D) as images, float32 in [0, 1]; `rng` makes fresh draws."""
        if self.redraw:
            # A uniform number is below 1: intensity 1 always gives 1, intensity 0 always gives 0.
            uniform = torch.rand(rows.shape, generator=rng, device=rows.device)
            return uniform.mul_(self.maximum).lt_(rows)
        images = rows.to(torch.float32)
        return images if self.maximum == 1 else images.div_(self.maximum)

    def batch(self, indices: Tensor | None = None, rng: torch.Generator | None = None) -> Tensor:
        """Return the images at `indices` (B,), or all of them, as (B, D) float32 in [0, 1].

        `rng` makes fresh draws; it is on the split's device. The indices are where its bytes are.
        """
        return self.images(self.rows(indices).to(self.device), rng)

    def first(self, count: int | None) -> Tensor:
        """Return the first images, at most so many, or all of them; as `batch` does."""
        return self.batch(torch.arange(len(self), device=self.bytes.device)[:count])

    def total(self) -> Tensor:
        """Return the sum of each byte over all images, (D,) float64; it is exact."""
        chunks = torch.arange(len(self), device=self.bytes.device).split(CHUNK)
        sums = [self.rows(chunk).sum(0, dtype=torch.int64) for chunk in chunks]
        return torch.stack(sums).sum(0).cpu().double()


@dataclass(frozen=True)
class Dataset:
    """The three parts of a data set, never pooled, for one device."""

    name: str  # what messages and runs call it
    shape: tuple[int, int]  # (H, W) of an image
    train: Split
    valid: Split
    test: Split
    distribution: tuple[Tensor, Tensor] | None = field(default=None, repr=False)  # of `RawImages`
    unlabeled: Split | None = None  # for `metric.batch=unlabeled`
    labels: dict[str, Tensor] | None = field(default=None, repr=False)  # training takes none
