"""Data sets of images, held on the device as bytes, and how grey images become binary.

Symbols: N images of D = H * W pixels; B images in a batch; S images of an enumerated distribution.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nws.errors import UserError

BINARIZATIONS = ("resample", "static", "threshold", "none")
# Seeds of the draw that makes a part binary, constants: every run sees the same images.
DRAW_SEEDS = {"train": 101, "valid": 202, "test": 303, "unlabeled": 404}


@dataclass(frozen=True)
class RawImages:
    """What a source of images returns: its parts before any binarisation, on the CPU.

    Args:
        train: The images to train on, (N, D) uint8.
        valid: The images that choose a checkpoint, likewise.
        test: The images to report, likewise.
        shape: Height and width (H, W) of an image, with H * W = D.
        maximum: The byte that means intensity 1: 255 for grey bytes, 1 for binary images.
        distribution: p_D where it is known: images (S, D) float32 of 0 and 1, and their
            probabilities (S,) float64.
        unlabeled: Images for `metric.batch=unlabeled`, (N, D) uint8; may be `train` itself.

    Raises `UserError` where a part has another type or shape.
    """

    train: Tensor
    valid: Tensor
    test: Tensor
    shape: tuple[int, int]
    maximum: int = 255
    distribution: tuple[Tensor, Tensor] | None = None
    unlabeled: Tensor | None = None

    def __post_init__(self) -> None:
        pixels = self.shape[0] * self.shape[1]
        for part in DRAW_SEEDS:
            images = self.train if getattr(self, part) is None else getattr(self, part)
            shape = (max(len(images), 1), pixels)
            if images.dtype != torch.uint8 or images.shape != shape:
                raise UserError(
                    f"RawImages: {part} must be bytes (torch.uint8) of shape (N, {pixels}) for "
                    f"images of {self.shape}, got {images.dtype} of shape {tuple(images.shape)}"
                )


@dataclass(frozen=True)
class Split:
    """One part of a data set, held on the device as bytes; intensity = bytes / maximum."""

    bytes: Tensor  # (N, D) uint8
    maximum: int  # the byte that means intensity 1
    redraw: bool  # whether each use is a fresh Bernoulli draw from the intensities
    source: Split | None = None  # the grey images, on the CPU, of which these are the binary draw

    def __len__(self) -> int:
        return self.bytes.shape[0]

    def batch(
        self, indices: Tensor | None = None, rng: torch.Generator | None = None,
        out: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the images at `indices` (B,), or all of them, as (B, D) float32 in [0, 1].

        `rng` makes fresh draws; it, the indices and the split are on one device. The images are
        written to `out` where it is given.
        """
        rows = self.bytes if indices is None else self.bytes.index_select(0, indices)
        if self.redraw:
            # A uniform number is below 1: intensity 1 always gives 1, intensity 0 always gives 0.
            uniform = torch.rand(rows.shape, generator=rng, device=rows.device, out=out)
            return uniform.mul_(self.maximum).lt_(rows)
        images = rows.to(torch.float32) if out is None else out.copy_(rows)
        return images if self.maximum == 1 else images.div_(self.maximum)


@dataclass(frozen=True)
class Dataset:
    """The three parts of a data set, never pooled, on one device."""

    name: str  # what messages and runs call it
    shape: tuple[int, int]  # (H, W) of an image
    train: Split
    valid: Split
    test: Split
    distribution: tuple[Tensor, Tensor] | None = None  # as in `RawImages`
    unlabeled: Split | None = None  # for `metric.batch=unlabeled`


def load_dataset(
    source: Callable[..., RawImages],
    *,
    name: str | None = None,
    binarize: str = "resample",
    device: torch.device | str = "cpu",
    **options: Any,
) -> Dataset:
    """Return the data set of the images from a source.

    Args:
        source: A function that returns `RawImages`, such as `load_digits` or your own.
        name: What to call the data set; None for the name of the function.
        binarize: How grey images become binary, one of `BINARIZATIONS`. Binary images stay.
        device: Where the images are held.
        options: The source's own options. `root` is left out where the source does not take it.

    Raises:
        UserError: An option is unknown, missing or wrong, or a file is missing or damaged.
    """
    name = source.__name__.removeprefix("load_") if name is None else name
    if binarize not in BINARIZATIONS:
        choices = ", ".join(BINARIZATIONS)
        raise UserError(f"data.binarize must be one of {choices}, got {binarize!r}")
    raw = _read(source, name, options)
    parts: dict[str, Any] = {part: getattr(raw, part) for part in DRAW_SEEDS}
    for part, images in parts.items():
        if images is not None:
            once = part == "unlabeled" and images is raw.train
            split = parts["train"] if once else _binarize(part, images, raw.maximum, binarize)
            parts[part] = split if once else replace(split, bytes=split.bytes.to(device))
    exact = raw.distribution and (raw.distribution[0].to(device), raw.distribution[1].to(device))
    return Dataset(name, raw.shape, distribution=exact, **parts)


def _read(source: Callable[..., RawImages], name: str, options: dict[str, Any]) -> RawImages:
    """Call a source with the options that it takes, after a check that they fit."""
    try:
        signature = inspect.signature(source)
    except ValueError:  # of a builtin
        raise UserError(f"data._target_ must be a function in Python, got {source!r}") from None
    known = dict.fromkeys(["root", "binarize", *signature.parameters])
    unknown = ", ".join(sorted(options.keys() - known))
    if unknown:
        raise UserError(f"data: {name} has no option {unknown}; its options are {', '.join(known)}")
    if "root" not in signature.parameters:
        options = {key: value for key, value in options.items() if key != "root"}
    try:
        signature.bind(**options)
    except TypeError as error:
        raise UserError(f"data: the options of {name} do not fit: {error}") from error
    raw = source(**options)
    if not isinstance(raw, RawImages):
        raise UserError(
            "data._target_ must be a function that returns nws.data.RawImages,"
            f" {source.__module__}.{source.__name__} returned {type(raw).__name__}"
        )
    return raw


def _binarize(part: str, images: Tensor, maximum: int, how: str) -> Split:
    """Return one part's images, (N, D) uint8 on the CPU, as `data.binarize` says."""
    fresh = how == "resample" and part in ("train", "unlabeled")
    if maximum == 1 or how == "none" or fresh:
        return Split(images, maximum, redraw=fresh and maximum > 1)
    if how == "threshold":
        bits = images > maximum / 2
    else:  # drawn on the CPU by a generator of its own: the same images on every device
        rng = torch.Generator().manual_seed(DRAW_SEEDS[part])
        bits = Split(images, maximum, redraw=True).batch(None, rng)
    grey = Split(images, maximum, redraw=False) if part in ("valid", "test") else None
    return Split(bits.to(torch.uint8), 1, redraw=False, source=grey)
