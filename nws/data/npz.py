"""A user's own images from a .npz or a .npy file.

Symbols: N images of D pixels, or of H x W pixels.
"""

import math
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from nws.data.arrays import read_npy, read_npz
from nws.data.dataset import RawImages
from nws.data.own import height_and_width, split_places
from nws.errors import UserError

PARTS = ("train", "valid", "test")
ALONE = "the file"  # the name of the array of a .npy file, in messages
#: What an array may hold.
BITS, BYTES, SHARES = "0 and 1", "bytes 0..255", "floats in [0, 1]"


def load_npz(
    path: str | Path | None = None,
    shape: Sequence[int] | None = None,
    held_out: float = 0.1,
    mapped: bool = False,
) -> RawImages:
    """Return images from a user's .npz or .npy file.

    Arrays are (N, D) or (N, H, W). All of them hold 0 and 1, grey bytes 0 to 255, or intensities:
    floats in [0, 1], which are kept to the nearest of 255 steps.

    Args:
        path: A .npz file with arrays `train`, `valid` and `test`; or a .npy file, one array, which
            is split at random, the same for all runs.
        shape: (H, W) of an image; None: as the arrays say, else a square, else one row.
        held_out: Of a .npy file, the share of images that become the validation part; as many
            become the test part.
        mapped: Whether arrays of bytes stay in the file, where they are not packed.

    Raises `UserError` where the parts are missing, or are not images of one size and kind.
    """
    if path is None:
        raise UserError(
            "data.path must name a .npz or .npy file of images, got null: add data.path=FILE"
        )
    file = Path(path).expanduser().resolve()
    arrays = _load_arrays(file, mapped)
    kinds = {part: _kind(f"{file}: {part}", array) for part, array in arrays.items()}
    sizes = {part: array.shape[1:] for part, array in arrays.items()}
    if len(set(sizes.values())) > 1:
        raise UserError(f"{file}: expected images of one size in all parts, got {sizes}")
    kind = _one_kind(file, kinds)
    images = {part: _as_bytes(array, kind) for part, array in arrays.items()}
    size, maximum = _image_shape(next(iter(sizes.values())), shape), 1 if kind == BITS else 255
    if ALONE in images:
        every = images[ALONE]
        order, valid, test = split_places(len(every), held_out, file)
        return RawImages(every, every[valid], every[test], size, maximum, order=order)
    train, valid, test = (images[part] for part in PARTS)
    return RawImages(train, valid, test, size, maximum)


def _as_bytes(array: np.ndarray, kind: str) -> torch.Tensor:
    """Return an array as bytes (N, D): bytes themselves, without a copy."""
    if array.dtype == np.bool_:
        array = array.view(np.uint8)
    if kind == SHARES or array.dtype != np.uint8:
        made = np.empty(array.shape, np.uint8)
        for part, chunk in zip(_chunks(made), _chunks(array), strict=True):
            part[:] = np.rint(chunk.astype(np.float32) * 255) if kind == SHARES else chunk
        array = made
    return torch.from_numpy(array).flatten(1)


def _chunks(array: np.ndarray) -> Iterator[np.ndarray]:
    """Return images in parts of a few MiB: what is made of them takes more memory than they do."""
    at_once = max(1, 2**22 // max(1, math.prod(array.shape[1:])))
    return (array[first : first + at_once] for first in range(0, len(array), at_once))


def _one_kind(file: Path, kinds: dict[str, str]) -> str:
    """Return what all arrays hold; `UserError` where they do not go together."""
    found = set(kinds.values())
    if found <= {BITS, SHARES}:  # 0 and 1 are intensities too
        return SHARES if SHARES in found else BITS
    if found == {BYTES}:
        return BYTES
    # Bytes of 0 and 1 would pass for almost black images.
    got = ", ".join(f"{kind} in {part}" for part, kind in kinds.items())
    raise UserError(f"{file}: expected one kind of numbers in all parts, got {got}")


def _load_arrays(file: Path, mapped: bool) -> dict[str, np.ndarray]:
    """Return the three arrays of a .npz file, or the one of a .npy file under the name `ALONE`."""
    if not file.is_file():
        raise UserError(f"data.path: expected a .npz or .npy file, found none at {file}")
    try:
        with open(file, "rb") as content:
            if content.read(6) == b"\x93NUMPY":
                return {ALONE: read_npy(file, mapped)}
        if not zipfile.is_zipfile(file):
            raise UserError(
                f"{file}: expected a .npz or .npy file, got something else; use numpy.savez, or"
                " numpy.save"
            )
        arrays, names = read_npz(file, PARTS, mapped)
    except (UserError, MemoryError):
        raise
    except Exception as error:  # zipfile and numpy raise whatever they stumble over
        reason = str(error) or type(error).__name__
        raise UserError(
            f"{file}: expected plain arrays of numbers, but reading failed: {reason};"
            " write it again by numpy.savez or numpy.save, or take a good copy"
        ) from error
    came = ", ".join(names) or "nothing"
    missing = ", ".join(part for part in PARTS if part not in arrays)
    if missing:
        raise UserError(
            f"{file}: expected the arrays {PARTS}; missing {missing}, got {came}. One array alone"
            " goes into a .npy file (numpy.save), which is split automatically"
        )
    return arrays


def _kind(where: str, array: np.ndarray) -> str:
    """Return what an array holds: `BITS`, `BYTES` or `SHARES`; `UserError` if none of these."""
    kind = array.dtype.kind
    if array.ndim not in (2, 3):
        problem = f"an array (N, D) or (N, H, W), got shape {array.shape}"
    elif array.size == 0:
        problem = f"at least one image of at least one pixel, got shape {array.shape}"
    elif kind not in "buif":
        problem = f"booleans, integers or floats, got dtype {array.dtype}"
    elif nans := _count_nans(array):
        problem = f"numbers, got NaN in {nans} pixels"
    else:
        low, high = array.min(), array.max()
        if _is_binary(array):
            return BITS
        if low >= 0 and high <= (1 if kind == "f" else 255):
            return SHARES if kind == "f" else BYTES
        problem = f"0 and 1, or bytes 0..255, got values from {low} to {high}"
        if kind == "f":
            problem = (
                f"floats in [0, 1], got values from {low} to {high}: divide them by the value that"
                " means white, or give bytes 0..255 as integers (astype('uint8'))"
            )
    raise UserError(f"{where}: expected {problem}")


def _is_binary(array: np.ndarray) -> bool:
    return all(((chunk == 0) | (chunk == 1)).all() for chunk in _chunks(array))


def _count_nans(array: np.ndarray) -> int:
    return sum(int(np.isnan(chunk).sum()) for chunk in _chunks(array))


def _image_shape(size: tuple[int, ...], shape: Sequence[int] | None) -> tuple[int, int]:
    """Return (H, W) of images of size (D,) or (H, W): as given, as the array says, or a square."""
    pixels = math.prod(size)
    if shape is not None:
        height, width = height_and_width("data.shape", shape)
        if height * width != pixels:
            raise UserError(f"data.shape must have H * W = {pixels}, of an image, got {[*shape]}")
        return height, width
    if len(size) == 2:
        return size[0], size[1]
    side = math.isqrt(pixels)
    return (side, side) if side * side == pixels else (1, pixels)
