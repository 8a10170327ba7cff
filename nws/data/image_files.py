"""Readers of image files, idx, npz and TFD's mat, that say exactly what is wrong with a file. Nothing is ever written.

Symbols: N images of H x W pixels, or of D pixels each.
"""

from __future__ import annotations

import hashlib
import logging
import zipfile
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nws.errors import UserError

log = logging.getLogger(__name__)

PARTS = ("train", "valid", "test")
IDX_IMAGES_MAGIC = 2051  # unsigned bytes (0x08) in three dimensions (0x03)
IDX_HEADER_BYTES = 16  # magic, images, rows, columns: four big-endian 32-bit integers
FETCH_ANEW = "delete it and run again to download it, or fetch it anew"
# Of TFD_48x48.mat; no sum of TFD_96x96.mat is known, so that file is not checked.
TFD_MD5 = "9d113650c197719b750ecc6864faf87c"


def read_idx(path: Path) -> Tensor:
    """Read an idx file of images (.gz or unpacked), (N, H, W) uint8; UserError names the file where it is damaged."""
    content, whole = _unpack(path)
    if len(content) < IDX_HEADER_BYTES:
        raise UserError(
            f"{path}: expected a header of {IDX_HEADER_BYTES} bytes, the file holds {len(content)}; {FETCH_ANEW}"
        )
    magic, count, height, width = np.frombuffer(content, dtype=">u4", count=4).tolist()
    if magic != IDX_IMAGES_MAGIC:
        raise UserError(
            f"{path}: expected magic number {IDX_IMAGES_MAGIC} (images, idx), got {magic}; {FETCH_ANEW}"
        )
    pixels = height * width
    if not whole or count * pixels == 0 or len(content) != IDX_HEADER_BYTES + count * pixels:
        images = (len(content) - IDX_HEADER_BYTES) // max(pixels, 1)
        raise UserError(
            f"{path} is damaged: its header promises {count} images of {height}x{width},"
            f" {IDX_HEADER_BYTES + count * pixels} bytes once unpacked; it holds {len(content)} bytes,"
            f" {images} whole images{'' if whole else ', and the packed file ends too early'}; {FETCH_ANEW}"
        )
    data = np.frombuffer(content, dtype=np.uint8, offset=IDX_HEADER_BYTES).reshape(
        count, height, width
    )
    return torch.from_numpy(data.copy())  # the buffer itself is read-only


def _unpack(path: Path) -> tuple[bytes, bool]:
    """Return a file's unpacked content, as far as it goes, and whether it is whole (a torn .gz is not)."""
    try:
        content = path.read_bytes()
        if path.suffix != ".gz":
            return content, True
        unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)  # 16: a gzip header and checksum
        return unpacker.decompress(content), unpacker.eof
    except zlib.error as error:
        raise UserError(
            f"{path}: expected a gzip file, but its bytes do not unpack ({error}); {FETCH_ANEW}"
        ) from error
    except OSError as error:
        raise UserError(
            f"{path}: could not be read ({error}); check the file and its permissions"
        ) from error


def read_npz(file: Path) -> tuple[tuple[Tensor, ...], int]:
    """Read train, valid and test, each (N, D) or (N, H, W) uint8, and the maximum: 1 if binary, 255 if grey bytes.

    UserError where the file or a part is missing, or the three parts are not images of one size and kind.
    """
    arrays = _load_arrays(file)
    binary = {part: _is_binary(f"{file}: {part}", array) for part, array in arrays.items()}
    sizes = {part: array.shape[1:] for part, array in arrays.items()}
    if len(set(sizes.values())) > 1:
        raise UserError(
            f"{file}: expected images of one size in all parts, got {sizes} (after the first dimension)"
        )
    if len(set(binary.values())) > 1:
        # Bytes of 0 and 1 beside grey ones would pass for almost black images.
        grey = ", ".join(part for part in PARTS if not binary[part])
        raise UserError(
            f"{file}: expected all parts to be 0 and 1, or all grey bytes, got grey bytes only in {grey}"
        )
    return tuple(
        torch.from_numpy(array.astype(np.uint8)) for array in arrays.values()
    ), 1 if binary["train"] else 255


def _load_arrays(file: Path) -> dict[str, np.ndarray]:
    """Return the arrays of the three parts as they are; UserError where the file or a part cannot be had."""
    if not file.is_file():
        raise UserError(f"data.path: expected a .npz file, found none at {file}")
    if not zipfile.is_zipfile(file):
        raise UserError(
            f"{file}: expected a .npz file, got something else; write it with numpy.savez_compressed"
        )
    try:
        with np.load(file, allow_pickle=False) as archive:  # a pickle could run code
            arrays = {part: archive[part] for part in PARTS if part in archive}
            came = ", ".join(archive.files) or "nothing"
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(
            f"{file}: expected plain arrays of numbers, but reading failed: {error}"
        ) from error
    missing = [part for part in PARTS if part not in arrays]
    if missing:
        raise UserError(
            f"{file}: expected arrays named {', '.join(PARTS)}; missing {', '.join(missing)}, got {came}"
        )
    return arrays


def _is_binary(where: str, array: np.ndarray) -> bool:
    """Return whether an array is all 0 and 1 (else it is grey bytes); UserError if it is neither."""
    if array.ndim not in (2, 3):
        raise UserError(f"{where}: expected an array (N, D) or (N, H, W), got shape {array.shape}")
    if array.size == 0:
        raise UserError(
            f"{where}: expected at least one image of at least one pixel, got shape {array.shape}"
        )
    if array.dtype.kind not in "buif":
        raise UserError(f"{where}: expected booleans, integers or floats, got dtype {array.dtype}")
    if np.isnan(array).any():
        raise UserError(
            f"{where}: expected numbers, got NaN in {int(np.isnan(array).sum())} pixels"
        )
    low, high = array.min(), array.max()
    if low < 0 or high > 255:
        raise UserError(
            f"{where}: expected 0 and 1, or bytes 0..255, got values from {low} to {high}"
        )
    binary = bool(((array == 0) | (array == 1)).all())
    if array.dtype.kind == "f" and not binary:
        raise UserError(
            f"{where}: expected floats to be exactly 0 or 1, got values from {low} to {high} with others in between:"
            " give grey images as bytes 0..255 (numpy.uint8)"
        )
    return binary


def read_tfd(file: Path, side: int, folds: int) -> tuple[Tensor, Tensor]:
    """Read a .mat file of the Toronto Face Dataset: `images` (N, side, side) uint8 and `folds` (N, folds) uint8.

    In each fold 0 is unlabelled, 1 train, 2 valid, 3 test; the labels are left in the file. A 48x48 file that is not the
    official one is read with a warning. UserError where the file is damaged, or an array is missing or another.
    """
    arrays = _load_mat(file, ("images", "folds"))
    images, kinds = arrays["images"], arrays["folds"]
    if (
        images.dtype != np.uint8
        or images.ndim != 3
        or images.shape[1:] != (side, side)
        or len(images) == 0
    ):
        raise UserError(
            f"{file}: images: expected bytes (uint8) of shape (N, {side}, {side}), N above 0,"
            f" got {images.dtype} of shape {images.shape}"
        )
    if kinds.dtype.kind not in "uif" or kinds.shape != (len(images), folds):
        raise UserError(
            f"{file}: folds: expected numbers of shape ({len(images)}, {folds}), a row for each image,"
            f" got {kinds.dtype} of shape {kinds.shape}"
        )
    wrong = kinds[~np.isin(kinds, range(4))]
    if wrong.size:
        raise UserError(
            f"{file}: folds: expected 0 (unlabelled), 1 (train), 2 (valid) or 3 (test), got {wrong[0]} and the like"
            f" in {wrong.size} places"
        )
    if side == 48:
        _check_official(file.resolve())
    # MATLAB keeps the first index fastest, so the pixels of an image lie far apart in the file: [k, row, column] as is.
    return torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(
        kinds.astype(np.uint8, order="C")
    )


def _load_mat(file: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return the named arrays of a MATLAB file; UserError where the file or an array cannot be had."""
    from scipy.io import loadmat, whosmat

    again = "take a fresh copy of the file"
    try:
        found = loadmat(file, variable_names=names)
        came = ", ".join(name for name, *_ in whosmat(file)) or "nothing"
    except NotImplementedError as error:  # scipy's answer to HDF5
        raise UserError(
            f"{file}: expected a MATLAB file of version 7 or before, got version 7.3 (HDF5);"
            " load it in MATLAB and write it with save(..., '-v7')"
        ) from error
    except Exception as error:  # scipy promises no kind of error for a damaged file: zlib's, TypeError, IndexError, ...
        reason = str(error) or type(error).__name__
        raise UserError(
            f"{file}: expected a MATLAB file, but reading failed ({reason}); {again}"
        ) from error
    missing = [name for name in names if not isinstance(found.get(name), np.ndarray)]
    if missing:
        raise UserError(
            f"{file}: expected arrays named {', '.join(names)}; missing {', '.join(missing)}, got {came}; {again}"
        )
    return {name: found[name] for name in names}


@cache  # one reading of the file, and one warning, in a process
def _check_official(file: Path) -> None:
    with open(file, "rb") as content:
        md5 = hashlib.file_digest(content, "md5").hexdigest()
    if md5 != TFD_MD5:
        log.warning(
            "%s is not the official file of the Toronto Face Dataset (md5 %s, official %s): results from it are not TFD's",
            file, md5, TFD_MD5,
        )  # fmt: skip
