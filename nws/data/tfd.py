"""The Toronto Face Database (TFD), which its maker gives on request.

Symbols: N images of H x W pixels. Source: Susskind, Anderson & Hinton 2010, UTML TR 2010-001.
"""

import hashlib
import logging
import math
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nws.data.arrays import RATIO, check_memory
from nws.data.dataset import RawImages
from nws.data.mnist import find_in
from nws.data.own import resize
from nws.errors import UserError, positive_int

log = logging.getLogger(__name__)

# Of TFD_48x48.mat. No sum of TFD_96x96.mat is known, so that file is not checked.
TFD_MD5 = "9d113650c197719b750ecc6864faf87c"
SPLITS = ("unlabeled", "train", "both")  # the folds number the first two 0 and 1
FILE_SIDES = {24: 48, 48: 48, 96: 96}  # the side asked for, and the side of the file's images
FOLDS = 5


def load_tfd(
    root: str | Path, fold: int = 0, split: str = "unlabeled", size: int = 24
) -> RawImages:
    """Return one of TFD's five official folds from `root`/TFD.

    Args:
        root: The folder of downloads.
        fold: Which fold, 0 to 4.
        split: The training images: `unlabeled`, `train` (the fold's labelled ones) or `both`.
        size: The side of an image: 24 (reduced from 48), 48 or 96.

    Raises:
        UserError: An option is out of range, or the file is missing or damaged.
    """
    if positive_int("data.fold", fold, minimum=0) >= FOLDS:
        raise UserError(f"data.fold must be one of the official folds, 0 to 4, got {fold!r}")
    size = positive_int("data.size", size)
    if split not in SPLITS:
        raise UserError(f"data.split must be one of {', '.join(SPLITS)}, got {split!r}")
    if size not in FILE_SIDES:
        raise UserError(f"data.size must be one of {', '.join(map(str, FILE_SIDES))}, got {size!r}")
    file = _file(Path(root).expanduser() / "TFD", FILE_SIDES[size])
    images, folds = _read(file, FILE_SIDES[size])
    if size != FILE_SIDES[size]:
        images = resize(images, (size, size))
    images, kind = images.flatten(1), folds[:, int(fold)]
    unlabeled, labeled, valid, test = by_kind = [images[kind == number] for number in range(4)]
    if not all(map(len, by_kind)):
        counts = ", ".join(f"{number}: {len(part)}" for number, part in enumerate(by_kind))
        raise UserError(
            f"{file}: expected images of each kind (0 unlabelled, 1 train, 2 valid, 3 test)"
            f" in fold {fold}, got {counts}"
        )
    train = torch.cat([unlabeled, labeled]) if split == "both" else by_kind[SPLITS.index(split)]
    return RawImages(train, valid, test, (size, size), unlabeled=unlabeled)


def _file(folder: Path, side: int) -> Path:
    file = folder / f"TFD_{side}x{side}.mat"
    if not file.is_file():
        raise UserError(
            f"TFD: expected the file {file.name} in {folder.resolve()}, found {find_in(folder)}."
            " It is not downloaded: the Toronto Face Dataset is to be requested from its maker,"
            " Josh Susskind (Josh Susskind, Adam Anderson, Geoffrey Hinton, The Toronto Face"
            " Database, technical report UTML TR 2010-001, University of Toronto)."
            f" The md5 of TFD_48x48.mat is {TFD_MD5}.\nPut the file there, or point data.root, or"
            f" the environment variable NWS_DATA_ROOT, at a folder that has TFD/{file.name}."
        )
    return file


def _read(file: Path, side: int) -> tuple[Tensor, Tensor]:
    """Return the images, (N, side, side) uint8, and their kinds in each fold, (N, 5) uint8."""
    arrays = _load_mat(file, ("images", "folds"))
    images, kinds = arrays["images"], arrays["folds"]
    count, problem = len(images), ""
    if images.dtype != np.uint8 or images.shape != (count, side, side) or count == 0:
        problem = (
            f"images: expected bytes (uint8) of shape (N, {side}, {side}),"
            f" got {images.dtype} of shape {images.shape}"
        )
    elif kinds.dtype.kind not in "uif" or kinds.shape != (count, FOLDS):
        problem = (
            f"folds: expected numbers of shape ({count}, {FOLDS}), a row for each image,"
            f" got {kinds.dtype} of shape {kinds.shape}"
        )
    elif not np.isin(kinds, range(4)).all():
        wrong = kinds[~np.isin(kinds, range(4))]
        problem = (
            "folds: expected 0 (unlabelled), 1 (train), 2 (valid) or 3 (test),"
            f" got {wrong[0]} and the like in {wrong.size} places"
        )
    if problem:
        raise UserError(f"{file}: {problem}")
    if side == 48:
        _check_official(file.resolve())
    # MATLAB keeps the first index fastest, so the arrays are in column order: copied to rows.
    pixels, numbers = np.ascontiguousarray(images), kinds.astype(np.uint8, order="C")
    return torch.from_numpy(pixels), torch.from_numpy(numbers)


def _load_mat(file: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    from scipy.io import loadmat, whosmat

    try:
        sizes = {name: math.prod(shape) for name, shape, _ in whosmat(file)}
        came, largest = ", ".join(sizes) or "nothing", max(sizes.values(), default=0)
        if largest > RATIO * file.stat().st_size:
            raise ValueError(f"its header promises an array of {largest:,} numbers")
        check_memory(file, largest)
        found = loadmat(file, variable_names=names)
    except (UserError, MemoryError):
        raise
    except NotImplementedError:  # scipy's answer to HDF5
        raise UserError(
            f"{file}: expected a MATLAB file of version 7 or before, got version 7.3 (HDF5);"
            " load it in MATLAB and write it with save(..., '-v7')"
        ) from None
    except Exception as error:  # for a damaged file scipy raises whatever it stumbles over
        problem = f"a MATLAB file, but reading failed ({str(error) or type(error).__name__})"
    else:
        missing = ", ".join(name for name in names if not isinstance(found.get(name), np.ndarray))
        if not missing:
            return found
        problem = f"arrays named {', '.join(names)}; missing {missing}, got {came}"
    raise UserError(f"{file}: expected {problem}; take a fresh copy of the file")


@cache  # one reading of the file, and one warning, in a process
def _check_official(file: Path) -> None:
    with open(file, "rb") as content:
        md5 = hashlib.file_digest(content, "md5").hexdigest()
    if md5 != TFD_MD5:
        log.warning(
            "%s is not the official file of the Toronto Face Dataset (md5 %s, official %s):"
            " results from it are not TFD's",
            file, md5, TFD_MD5,
        )  # fmt: skip
