"""A user's own images from arrays: in memory, or in a .npz or .npy file."""

import logging
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike

from nws.data.dataset import PARTS, RawImages
from nws.data.loading import memory
from nws.data.reading import find_path, height_and_width, in_parts
from nws.errors import UserError, explained
from nws.files import check_file

log = logging.getLogger(__name__)
DARK = 64  # bytes that are all below this were perhaps meant as other numbers
BITS, BYTES, SHARES = "0 and 1", "bytes 0..255", "floats in [0, 1]"  # what an array may hold


def load_npz(path: str | Path | None = None, shape: Sequence[int] | None = None) -> RawImages:
    """Return images from a user's .npz or .npy file, of which no code is run.

    Args:
        path: A .npz file with arrays `train`, `valid` and `test`; or a .npy file, one array, which
            is split at random. They hold what `load_arrays` takes. A .npy file of bytes is mapped.
        shape: (H, W) of an image; None: as the arrays say, else a square, else one row.

    Raises:
        UserError: The file is missing or damaged, or as `load_arrays`.
    """
    file = find_path("data.path", path)
    check_file(file)
    problem = f"{file}: expected one array, or the arrays train, valid and test, of plain numbers"
    with explained(problem, "write it again by numpy.save or numpy.savez, or take a good copy"):
        loaded = np.load(file, mmap_mode="c", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            arrays = {"the array": loaded}
        else:
            size = sum(each.file_size for each in loaded.zip.infolist())
            if size > memory(torch.device("cpu")):
                raise ValueError(f"unpacked they would take {size:,} bytes, more than the memory")
            arrays = {part: np.asarray(loaded[part]) for part in PARTS}
    return _images(file, arrays, shape)


def load_arrays(
    train: ArrayLike, valid: ArrayLike | None = None, test: ArrayLike | None = None,
    shape: Sequence[int] | None = None,
) -> RawImages:  # fmt: skip
    """Return images from arrays, tensors or data frames in memory.

    All of them hold 0 and 1, grey bytes 0 to 255, or intensities. These are floats in [0, 1], kept
    to the nearest of 255 steps.

    Args:
        train: The images to train on, (N, D) or (N, H, W). Alone they are split at random, the same
            for all runs.
        valid: The images that choose a checkpoint, likewise; None to split `train`.
        test: The images to report, likewise; None to split `train`.
        shape: (H, W) of an image; None: as the arrays say, else a square, else one row.

    Raises:
        UserError: One part is missing, or they are not images of one size and kind.

    Examples:
        >>> from nws.data import load_dataset
        >>> data = load_dataset(load_arrays, name="mine", train=np.eye(20, 9))
        >>> data.shape, len(data.train), len(data.valid), len(data.test)
        ((3, 3), 16, 2, 2)
    """
    given = {"train": train, "valid": valid, "test": test}
    arrays = {part: _array(each) for part, each in given.items() if each is not None}
    if [*arrays] not in (["train"], [*PARTS]):
        raise UserError(f"data: expected train, valid and test, or train alone, got {[*arrays]}")
    return _images("data", arrays, shape)


def _array(data: ArrayLike | torch.Tensor) -> np.ndarray:
    """Return an array; a tensor may be on a GPU, or of a type that numpy lacks."""
    if isinstance(data, torch.Tensor):
        data = data.detach().to("cpu", torch.float32 if data.is_floating_point() else None)
    return np.asarray(data)


def _images(where: object, arrays: dict[str, np.ndarray], shape: Sequence[int] | None) -> RawImages:
    """Return the images of one array or three, after a check that they go together."""
    kinds = {part: _kind(f"{where}: {part}", array) for part, array in arrays.items()}
    if {*kinds.values()} == {BITS, SHARES}:  # 0 and 1 are intensities too
        kinds = dict.fromkeys(kinds, SHARES)
    sizes = {array.shape[1:] for array in arrays.values()}
    if len(sizes) > 1 or len({*kinds.values()}) > 1:  # bytes of 0 and 1 would pass for black
        got = "; ".join(f"{part} {arrays[part].shape} of {kinds[part]}" for part in arrays)
        raise UserError(f"{where}: expected images of one size and kind in all parts, got {got}")
    (size,), kind = sizes, kinds.popitem()[1]
    if kind == BYTES and (most := max(each.max() for each in arrays.values())) < DARK:
        log.warning("%s: no pixel is above %d of 255; give floats in [0, 1]?", where, most)
    if shape is not None:
        size = height_and_width("data.shape", shape)
    elif len(size) == 1:
        side = math.isqrt(size[0])
        size = (side, side) if side * side == size[0] else (1, size[0])
    images = [_as_bytes(array, kind) for array in arrays.values()]
    return in_parts(images, size, where, 1 if kind == BITS else 255)


def _kind(where: str, array: np.ndarray) -> str:
    """Return what an array holds: `BITS`, `BYTES` or `SHARES`; `UserError` if none of these."""
    if array.ndim not in (2, 3) or array.size == 0:
        raise UserError(f"{where}: expected images (N, D) or (N, H, W), got shape {array.shape}")
    if array.dtype.kind not in "buif":
        raise UserError(f"{where}: expected booleans, integers or floats, got dtype {array.dtype}")
    low, high, floats = array.min(), array.max(), array.dtype.kind == "f"
    if low >= 0 and high <= (1 if floats else 255):
        if high <= 1 and (not floats or np.isin(array, (0, 1)).all()):
            return BITS
        return SHARES if floats else BYTES
    expected = "0 and 1, or integers 0..255 (astype('uint8')), or floats in [0, 1]"
    raise UserError(f"{where}: expected {expected}, got {array.dtype} from {low} to {high}")


def _as_bytes(array: np.ndarray, kind: str) -> torch.Tensor:
    """Return an array as bytes, of its shape: bytes and booleans themselves, without a copy."""
    if kind == SHARES:
        array = np.rint(array.astype(np.float32) * 255)
    array = array.view(np.uint8) if array.dtype == np.bool_ else array.astype(np.uint8, copy=False)
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))
