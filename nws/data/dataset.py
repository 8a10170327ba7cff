"""Data sets of images, held as bytes, and how grey images become binary.

Symbols: N images of D = H * W pixels; B images in a batch; S images of an enumerated distribution.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nws.data.where import WHERE, fills_memory
from nws.errors import UserError

BINARIZATIONS = ("resample", "static", "threshold", "none")
# Seeds of the draw that makes a part binary, constants: every run sees the same images.
DRAW_SEEDS = {"train": 101, "valid": 202, "test": 303, "unlabeled": 404}
CHUNK = 4096  # images that are worked on at once, where all of them could be too many


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
        order: The rows of `train` to train on, in this order; None for all. A file that is shuffled
            so need not be in memory.

    Raises `UserError` where a part has another type or shape.
    """

    train: Tensor
    valid: Tensor
    test: Tensor
    shape: tuple[int, int]
    maximum: int = 255
    distribution: tuple[Tensor, Tensor] | None = None
    unlabeled: Tensor | None = None
    order: Tensor | None = None

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
    """One part of a data set, held as bytes; intensity = bytes / maximum."""

    bytes: Tensor  # (N, D) uint8; on the device, or in host memory or a file of which it is a map
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

    def images(
        self, rows: Tensor, rng: torch.Generator | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Return bytes (B, D) as images, float32 in [0, 1], written to `out` where it is given.

        `rng` makes fresh draws.
        """
        if self.redraw:
            # A uniform number is below 1: intensity 1 always gives 1, intensity 0 always gives 0.
            uniform = torch.rand(rows.shape, generator=rng, device=rows.device, out=out)
            return uniform.mul_(self.maximum).lt_(rows)
        images = rows.to(torch.float32) if out is None else out.copy_(rows)
        return images if self.maximum == 1 else images.div_(self.maximum)

    def batch(self, indices: Tensor | None = None, rng: torch.Generator | None = None) -> Tensor:
        """Return the images at `indices` (B,), or all of them, as (B, D) float32 in [0, 1].

        `rng` makes fresh draws; it is on the split's device. The indices are where its bytes are.
        """
        return self.images(self.rows(indices).to(self.device), rng)

    def first(self, count: int | None) -> Tensor:
        """Return the first images, at most so many, or all of them; as `batch` does."""
        places = torch.arange(len(self), device=self.bytes.device)
        return self.batch(places[:count])

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
    distribution: tuple[Tensor, Tensor] | None = None  # as in `RawImages`
    unlabeled: Split | None = None  # for `metric.batch=unlabeled`


def load_dataset(
    source: Callable[..., RawImages],
    *,
    name: str | None = None,
    binarize: str = "resample",
    where: str = "auto",
    device: torch.device | str = "cpu",
    **options: Any,
) -> Dataset:
    """Return the data set of the images from a source.

    Args:
        source: A function that returns `RawImages`, such as `load_digits` or your own.
        name: What to call the data set; None for the name of the function.
        binarize: How grey images become binary, one of `BINARIZATIONS`. Binary images stay.
        where: Where bytes are held: on the `device`; in memory of the `host`, or in the file that a
            source can map; `auto` is the device, unless they would fill its memory. The images of
            all batches are the same.
        device: Where images are used.
        options: The source's own options. `root` is left out where the source does not take it.

    Raises:
        UserError: An option is unknown, missing or wrong, or a file is missing or damaged.
    """
    name = source.__name__.removeprefix("load_") if name is None else name
    _check_choice("binarize", binarize, BINARIZATIONS)
    _check_choice("where", where, WHERE)
    device = torch.device(device)
    raw = _read(source, name, options, mapped=where != "device")
    size = sum(map(torch.numel, _parts(raw).values()))
    host = where == "host" or (where == "auto" and fills_memory(size, device))
    if not host and (raw.order is not None or (where == "auto" and _maps(source))):
        raw = _in_memory(raw)
    parts: dict[str, Any] = {
        part: _held(_binarize(part, images, raw, binarize), device, host)
        for part, images in _parts(raw).items()
    }
    if raw.unlabeled is raw.train:
        parts["unlabeled"] = parts["train"]
    exact = raw.distribution and (raw.distribution[0].to(device), raw.distribution[1].to(device))
    return Dataset(name, raw.shape, distribution=exact, **parts)


def _check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(f"data.{option} must be one of {', '.join(choices)}, got {value!r}")


def _parts(raw: RawImages) -> dict[str, Tensor]:
    """Return the parts by their names, without one that is another one too."""
    parts = {"train": raw.train, "valid": raw.valid, "test": raw.test}
    if raw.unlabeled is not None and raw.unlabeled is not raw.train:
        parts["unlabeled"] = raw.unlabeled
    return parts


def _maps(source: Callable[..., RawImages]) -> bool:
    """Return whether a source can leave bytes in their file."""
    return "mapped" in inspect.signature(source).parameters


def _in_memory(raw: RawImages) -> RawImages:
    """Return images of which nothing is in a file any more, the training part in its order."""
    copies: dict[str, Any] = {part: images.clone() for part, images in _parts(raw).items()}
    if raw.order is not None:
        copies["train"] = raw.train.index_select(0, raw.order)
    if raw.unlabeled is raw.train:
        copies["unlabeled"] = copies["train"]
    return replace(raw, order=None, **copies)


def _held(split: Split, device: torch.device, host: bool) -> Split:
    """Return a part with its bytes where they are to be held."""
    return replace(split, onto=device) if host else replace(split, bytes=split.bytes.to(device))


def _read(
    source: Callable[..., RawImages], name: str, options: dict[str, Any], mapped: bool
) -> RawImages:
    """Call a source with the options that it takes, after a check that they fit.

    One with an argument `mapped` learns whether bytes may stay in their file.
    """
    try:
        signature = inspect.signature(source)
    except ValueError:  # of a builtin
        raise UserError(f"data._target_ must be a function in Python, got {source!r}") from None
    known = dict.fromkeys(["root", "binarize", "where", *signature.parameters])
    known.pop("mapped", None)  # for `where` to say
    unknown = ", ".join(sorted(options.keys() - known))
    if unknown:
        raise UserError(f"data: {name} has no option {unknown}; its options are {', '.join(known)}")
    if "root" not in signature.parameters:
        options = {key: value for key, value in options.items() if key != "root"}
    if _maps(source):
        options = {"mapped": mapped} | options
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


def _binarize(part: str, images: Tensor, raw: RawImages, how: str) -> Split:
    """Return one part's images, (N, D) uint8 on the CPU, as `data.binarize` says."""
    fresh = how == "resample" and part in ("train", "unlabeled")
    grey = Split(images, raw.maximum, False, order=raw.order if part == "train" else None)
    if raw.maximum == 1 or how == "none" or fresh:
        return replace(grey, redraw=fresh and raw.maximum > 1)
    # Drawn on the CPU by a generator of its own: the same images on every device.
    rng = torch.Generator().manual_seed(DRAW_SEEDS[part])
    drawn = replace(grey, redraw=True)
    bits = torch.empty(len(grey), images.shape[1], dtype=torch.uint8)
    for chunk in torch.arange(len(grey)).split(CHUNK):
        if how == "threshold":
            bits[chunk] = (grey.rows(chunk) > raw.maximum / 2).to(torch.uint8)
        else:
            bits[chunk] = drawn.batch(chunk, rng).to(torch.uint8)
    source = grey if part in ("valid", "test") else None
    return Split(bits, 1, redraw=False, source=source)
