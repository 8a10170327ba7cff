"""The Toronto Face Database (TFD), which its maker gives on request.

Symbols: N images of H x W pixels. Source: Susskind, Anderson & Hinton 2010, UTML TR 2010-001.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nws.data.dataset import RawImages
from nws.data.reading import find_path, resize
from nws.errors import UserError, explained, one_of

SPLITS = ("unlabeled", "train", "both")  # the folds number the first two 0 and 1
FILE_SIDES = {24: 48, 48: 48, 96: 96}  # the side asked for, and the side of the file's images
FOLDS = 5


def load_tfd(
    root: str | Path = "data", fold: int = 0, split: str = "unlabeled", size: int = 24
) -> RawImages:
    """Return one of TFD's five official folds from `root`/TFD.

    Args:
        root: The folder of downloads.
        fold: Which fold, 0 to 4.
        split: The training images: `unlabeled`, `train` (the fold's labelled ones) or `both`. With
            `pooled` all faces are dealt out anew, whatever their folds: a third at random is the
            test, a tenth of the others validation. `fold` is then the seed of this draw.
        size: The side of an image: 24 (reduced from 48), 48 or 96.

    Raises:
        UserError: An option is out of range, or the file is missing or damaged.
    """
    splits = (*SPLITS, "pooled")
    options = {"fold": (fold, range(FOLDS)), "split": (split, splits), "size": (size, FILE_SIDES)}
    for option, (value, choices) in options.items():
        one_of(f"data.{option}", value, choices)
    side, size = FILE_SIDES[size], int(size)
    file = find_path("data.root", root) / "TFD" / f"TFD_{side}x{side}.mat"
    images, folds, faces = _read(file, side)
    images, kind = resize(images, (size, size)).flatten(1), folds[:, int(fold)]
    if split == "pooled":
        dealt = torch.randperm(len(images), generator=torch.Generator().manual_seed(int(fold)))
        test, others = dealt.tensor_split([len(dealt) // 3])
        valid, train = others.tensor_split([1 + len(others) // 10])
        labels = {"train": faces[train], "valid": faces[valid], "test": faces[test]}
        return RawImages(images[train], images[valid], images[test], (size, size), labels=labels)
    unlabeled, labeled, valid, test = by_kind = [images[kind == number] for number in range(4)]
    train = torch.cat([unlabeled, labeled]) if split == "both" else by_kind[SPLITS.index(split)]
    kinds = [faces[kind == number] for number in range(4)]
    first = torch.cat(kinds[:2]) if split == "both" else kinds[SPLITS.index(split)]
    labels = {"train": first, "valid": kinds[2], "test": kinds[3]}
    return RawImages(train, valid, test, (size, size), unlabeled=unlabeled, labels=labels)


def _read(file: Path, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return images, (N, side, side), kinds in each fold, (N, 5), expressions or -1, (N,)."""
    from scipy.io import loadmat

    if not file.is_file():
        raise UserError(
            f"TFD: expected the file {file}, found none. It is to be requested from its maker, Josh"
            " Susskind (technical report UTML TR 2010-001, University of Toronto). Put it there, or"
            f" point data.root or NWS_DATA_ROOT at a folder that has TFD/{file.name}"
        )
    problem = f"{file}: expected a MATLAB file of version 7 with arrays images, (N, {side}, {side})"
    problem += f" uint8, and folds, (N, {FOLDS}) of 0 (unlabelled), 1 (train), 2 (valid), 3 (test)"
    with explained(problem, "take a fresh copy of the file"):
        found = loadmat(file, variable_names=["images", "folds", "labs_ex"])
        images, kinds = found["images"], found["folds"]
        if images.dtype != np.uint8 or images.shape[1:] != (side, side):
            raise ValueError(f"images are {images.dtype} of shape {images.shape}")
        if kinds.shape != (len(images), FOLDS) or not np.isin(kinds, range(4)).all():
            raise ValueError(f"folds are {kinds.dtype} of shape {kinds.shape}")
        faces = found.get("labs_ex", np.full(len(images), -1)).astype(int).ravel()
        if len(faces) != len(images):
            raise ValueError(f"labs_ex are {len(faces)} for {len(images)} images")
    # MATLAB keeps the first index fastest, so the arrays are in column order: copied to rows.
    pixels, numbers = np.ascontiguousarray(images), kinds.astype(np.uint8, order="C")
    return torch.from_numpy(pixels), torch.from_numpy(numbers), torch.from_numpy(faces)
