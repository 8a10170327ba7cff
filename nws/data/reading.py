"""What the readers share: paths, broken files, an automatic split, and another size."""

import gzip
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from nws.data.dataset import CHUNK, RawImages
from nws.errors import UserError, positive_int

log = logging.getLogger(__name__)

HELD_OUT = 0.1  # of images without parts, the share that becomes valid; as many become test
SPLIT_SEED = 505  # a constant: every run splits the same images in the same way
MAX_BYTES = 2**30  # of a file, unpacked; only a broken one has more


def find_path(option: str, value: object) -> Path:
    """Return the absolute path that an option names; `UserError` where it is no path."""
    if not isinstance(value, str | os.PathLike) or not str(value):
        got = "null" if value is None else repr(value)
        raise UserError(f"{option} must name a file or folder, got {got}: add {option}=PATH")
    return Path(os.path.abspath(os.path.expanduser(value)))


def find_files(folder: Path, names: Iterable[str]) -> list[Path]:
    """Return those files of a folder that are there: unpacked, or else packed as .gz."""
    files = ([folder / name, folder / f"{name}.gz"] for name in names)
    found = (next(filter(os.path.lexists, each), None) for each in files)
    return [file for file in found if file is not None]


def read_unpacked(file: Path) -> bytes:
    """Return what a file holds, unpacked if it is a .gz."""
    with gzip.open(file) if file.suffix == ".gz" else open(file, "rb") as content:
        if len(found := content.read(MAX_BYTES + 1)) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
        return found


def in_parts(
    images: Sequence[Tensor], shape: tuple[int, ...], where: object, maximum: int = 255
) -> RawImages:
    """Return images, (N, H, W) or (N, D) uint8, as parts; messages name `where` they are from.

    They are train, valid and test; or train and test; or one. What is missing is split off the
    first at random, a share `HELD_OUT` for each part.
    """
    first, *others = (part.flatten(1) for part in images)
    held, count, order = 3 - len(images), len(first), None
    if held:
        if count <= held:
            raise UserError(f"{where}: expected at least {held + 1} images to split, got {count}")
        size = min(max(1, round(HELD_OUT * count)), (count - 1) // held)
        mixed = torch.randperm(count, generator=torch.Generator().manual_seed(SPLIT_SEED))
        *places, order = mixed.split([size] * held + [count - held * size])
        others = [*(first[each] for each in places), *others]
        parts = f"{len(order)} to train on, {size} to validate" + f", {size} to test" * (held - 1)
        log.info("%s: %d images, split at random, the same for all runs: %s", where, count, parts)
    valid, test = others
    height, width = shape
    return RawImages(first, valid, test, (height, width), maximum, order=order)


def resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Bring images (N, H, W) uint8 to another size: bicubic, antialiased, rounded to bytes."""
    if images.shape[1:] == size:
        return images
    chunks = []
    for chunk in images.split(CHUNK):  # as floats the images take four times their memory
        grey = interpolate(chunk[:, None].float(), size, mode="bicubic", antialias=True)
        chunks.append(grey[:, 0].round_().clamp_(0, 255).to(torch.uint8))
    return torch.cat(chunks)


def height_and_width(name: str, value: object) -> tuple[int, int]:
    """Return an option [H, W] as two whole numbers; `UserError` where it is none."""
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise UserError(f"{name} must be [H, W] or null, got {value!r}")
    return positive_int(name, value[0]), positive_int(name, value[1])
