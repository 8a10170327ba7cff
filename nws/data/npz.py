"""A user's own images from a .npz file.

Symbols: N images of D pixels, or of H x W pixels.
"""

import math
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from nws.data.dataset import RawImages
from nws.errors import UserError, positive_int

PARTS = ("train", "valid", "test")


def load_npz(path: str | Path | None = None, shape: Sequence[int] | None = None) -> RawImages:
    """Return images from a user's .npz file.

    Args:
        path: A file with arrays `train`, `valid` and `test`, each (N, D) or (N, H, W): all of
            them 0 and 1, or all of them grey bytes 0 to 255.
        shape: (H, W) of an image; None: as the arrays say, else a square, else one row.

    Raises `UserError` where the parts are missing, or are not images of one size and kind.
    """
    if path is None:
        raise UserError("data.path must name a .npz file of images, got null: add data.path=FILE")
    file = Path(path).expanduser().resolve()
    arrays = _load_arrays(file)
    binary = {part: _is_binary(f"{file}: {part}", array) for part, array in arrays.items()}
    sizes = {part: array.shape[1:] for part, array in arrays.items()}
    if len(set(sizes.values())) > 1:
        raise UserError(f"{file}: expected images of one size in all parts, got {sizes}")
    if len(set(binary.values())) > 1:  # bytes of 0 and 1 would pass for almost black images
        grey = ", ".join(part for part in PARTS if not binary[part])
        raise UserError(f"{file}: expected bits, or all grey bytes, got grey bytes only in {grey}")
    train, valid, test = (torch.from_numpy(arrays[part].astype(np.uint8)) for part in PARTS)
    size, maximum = _image_shape(sizes["train"], shape), 1 if binary["train"] else 255
    return RawImages(train.flatten(1), valid.flatten(1), test.flatten(1), size, maximum)


def _load_arrays(file: Path) -> dict[str, np.ndarray]:
    if not file.is_file():
        raise UserError(f"data.path: expected a .npz file, found none at {file}")
    if not zipfile.is_zipfile(file):
        raise UserError(f"{file}: expected a .npz file, got something else; use numpy.savez")
    try:
        with np.load(file, allow_pickle=False) as archive:  # a pickle could run code
            arrays = {part: archive[part] for part in PARTS if part in archive}
            came = ", ".join(archive.files) or "nothing"
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(
            f"{file}: expected plain arrays of numbers, but reading failed: {error}"
        ) from error
    missing = ", ".join(part for part in PARTS if part not in arrays)
    if missing:
        raise UserError(f"{file}: expected the arrays {PARTS}; missing {missing}, got {came}")
    return arrays


def _is_binary(where: str, array: np.ndarray) -> bool:
    """Return whether an array is all 0 and 1 (else grey bytes); `UserError` if it is neither."""
    kind = array.dtype.kind
    if array.ndim not in (2, 3):
        problem = f"an array (N, D) or (N, H, W), got shape {array.shape}"
    elif array.size == 0:
        problem = f"at least one image of at least one pixel, got shape {array.shape}"
    elif kind not in "buif":
        problem = f"booleans, integers or floats, got dtype {array.dtype}"
    elif np.isnan(array).any():
        problem = f"numbers, got NaN in {int(np.isnan(array).sum())} pixels"
    else:
        found = f"got values from {array.min()} to {array.max()}"
        binary = bool(((array == 0) | (array == 1)).all())
        if array.min() < 0 or array.max() > 255:
            problem = f"0 and 1, or bytes 0..255, {found}"
        elif binary or kind != "f":
            return binary
        else:
            problem = f"floats to be exactly 0 or 1, {found}: give grey images as bytes 0..255"
    raise UserError(f"{where}: expected {problem}")


def _image_shape(size: tuple[int, ...], shape: Sequence[int] | None) -> tuple[int, int]:
    """Return (H, W) of images of size (D,) or (H, W): as given, as the array says, or a square."""
    pixels = math.prod(size)
    if shape is not None:
        if isinstance(shape, str) or not isinstance(shape, Sequence) or len(shape) != 2:
            raise UserError(f"data.shape must be [H, W] or null, got {shape!r}")
        height, width = (positive_int("data.shape", side) for side in shape)
        if height * width != pixels:
            raise UserError(f"data.shape must have H * W = {pixels}, of an image, got {[*shape]}")
        return height, width
    if len(size) == 2:
        return size[0], size[1]
    side = math.isqrt(pixels)
    return (side, side) if side * side == pixels else (1, pixels)
