"""From the images of a source to a data set: how grey becomes binary, and where bytes are held."""

import inspect
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nws.data.dataset import CHUNK, Dataset, RawImages, Split
from nws.errors import UserError, one_of

BINARIZATIONS = ("resample", "static", "threshold", "none")
SHARE = 0.5  # of a device's memory, that the bytes of a data set take at most with `auto`
# Seeds of the draw that makes a part binary, constants: every run sees the same images.
DRAW_SEEDS = {"train": 101, "valid": 202, "test": 303, "unlabeled": 404}


def load_dataset(
    source: Callable[..., RawImages], *, name: str | None = None, binarize: str = "resample",
    where: str = "auto", device: torch.device | str = "cpu", **options: Any,
) -> Dataset:  # fmt: skip
    """Return the data set of the images from a source.

    Args:
        source: A function that returns `RawImages`, such as `load_digits` or your own.
        name: What to call the data set; None for the name of the function.
        binarize: How grey images become binary, one of `BINARIZATIONS`. Binary images stay.
        where: Where bytes are held: on the `device`; in memory of the `host`, or in the file that a
            source maps; `auto` is the device, unless they would fill half its free memory. The
            images of all batches are the same.
        device: Where images are used.
        options: The source's own options. `root` is left out where the source does not take it.

    Raises:
        UserError: An option is unknown, missing or wrong, or a file is missing or damaged.

    Examples:
        >>> from nws.data import load_digits
        >>> data = load_dataset(load_digits, binarize="threshold")
        >>> data.name, len(data.train), data.valid.batch().shape
        ('digits', 1297, torch.Size([250, 64]))
    """
    name = name or getattr(source, "__name__", "data").removeprefix("load_")
    one_of("data.binarize", binarize, BINARIZATIONS)
    one_of("data.where", where, ("device", "host", "auto"))
    device = torch.device(device)
    raw = _call(source, name, options)
    size = sum(map(torch.numel, raw.parts().values()))
    host = where == "host" or (where == "auto" and size > SHARE * memory(device))
    parts: dict[str, Any] = {}
    for part, images in raw.parts().items():
        parts[part] = _hold(_binarize(part, images, raw, binarize), device, host)
    if raw.unlabeled is raw.train:
        parts["unlabeled"] = parts["train"]
    labels = raw.labels
    if labels and raw.order is not None and "train" in labels:
        labels = {**labels, "train": labels["train"][raw.order]}
    exact = raw.distribution and (raw.distribution[0].to(device), raw.distribution[1].to(device))
    return Dataset(name, raw.shape, distribution=exact, labels=labels, **parts)


def _call(source: Callable[..., RawImages], name: str, options: dict[str, Any]) -> RawImages:
    """Call a source with the options that it takes, after a check that they fit."""
    known = ["binarize", "where"]
    try:
        signature = inspect.signature(source)
        known += signature.parameters
        if "root" not in known:
            options.pop("root", None)
        signature.bind(**options)
    except (TypeError, ValueError) as error:  # the latter of builtins
        taken = f"its options are {', '.join(known)}"
        raise UserError(f"data: the options of {name} do not fit: {error}; {taken}") from error
    if not isinstance(raw := source(**options), RawImages):
        expected = "data._target_ must be a function that returns nws.data.RawImages"
        raise UserError(f"{expected}, {name} returned {type(raw).__name__}")
    return raw


def memory(device: torch.device) -> int:
    """Return the bytes that are free on a GPU; those of the whole machine for the CPU."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _binarize(part: str, images: Tensor, raw: RawImages, how: str) -> Split:
    """Return one part's images, (N, D) uint8 on the CPU, as `data.binarize` says."""
    fresh = how == "resample" and part in ("train", "unlabeled")
    grey = Split(images, raw.maximum, False, order=raw.order if part == "train" else None)
    if raw.maximum == 1 or how == "none" or fresh:
        return replace(grey, redraw=fresh and raw.maximum > 1)
    # Drawn on the CPU by a generator of its own: the same images on every device.
    rng, drawn = torch.Generator().manual_seed(DRAW_SEEDS[part]), replace(grey, redraw=True)
    bits = torch.empty(len(grey), images.shape[1], dtype=torch.uint8)
    for chunk in torch.arange(len(grey)).split(CHUNK):
        white = grey.rows(chunk) > raw.maximum / 2
        bits[chunk] = (white if how == "threshold" else drawn.batch(chunk, rng)).to(torch.uint8)
    return Split(bits, 1, redraw=False, source=grey if part in ("valid", "test") else None)


def _hold(split: Split, device: torch.device, host: bool) -> Split:
    """Return a part with its bytes where they are to be held; on the device they are a copy."""
    if host:
        return replace(split, onto=device)
    source = None if split.source is None else _hold(split.source, torch.device("cpu"), False)
    rows = split.rows()
    moved = rows.to(device, copy=rows is split.bytes)
    return replace(split, bytes=moved, source=source, order=None)
