"""Data sets of images, held on the device as bytes and, where they are grey, made binary there.

Symbols: N images of D = H * W pixels; B images in a batch; S images in an enumerated distribution.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from nws.data.image_files import FETCH_ANEW, PARTS, TFD_MD5, read_idx, read_npz, read_tfd
from nws.errors import UserError, positive_int

BINARIZATIONS = ("resample", "static", "threshold", "none")
# Seeds of the one draw that makes a part binary for good: constants, so that every run is judged on the same images.
DRAW_SEEDS = {"train": 101, "valid": 202, "test": 303, "unlabeled": 404}
MNIST_VALID_IMAGES = 10_000  # taken from the end of the official training file
DIGITS_TRAIN, DIGITS_VALID = 1_297, 250  # of 1,797; the rest is the test part


@dataclass(frozen=True)
class Split:
    """Images held on the device as bytes; intensity = bytes / maximum."""

    bytes: Tensor  # (N, D) uint8
    maximum: int  # the byte that means intensity 1
    redraw: bool  # each use is a fresh Bernoulli draw from the intensities

    def __len__(self) -> int:
        return self.bytes.shape[0]

    def batch(self, indices: Tensor | None = None, rng: torch.Generator | None = None) -> Tensor:
        """Return the images at indices (None: all), (B, D) float32 in [0, 1]; all three are on one device."""
        rows = self.bytes if indices is None else self.bytes.index_select(0, indices)
        if self.redraw:
            # A uniform number below 1 times maximum stays below maximum: intensity 1 always gives 1, 0 always gives 0.
            uniform = torch.rand(rows.shape, generator=rng, device=rows.device, dtype=torch.float32)
            return uniform.mul_(self.maximum).lt_(rows)
        images = rows.to(torch.float32)
        return images if self.maximum == 1 else images.div_(self.maximum)

    def to(self, device: torch.device | str) -> Split:
        """Return the same split on device."""
        return Split(self.bytes.to(device), self.maximum, self.redraw)


@dataclass(frozen=True)
class Dataset:
    """The three parts of a data set, never pooled, and its exact distribution p_D where that is known."""

    name: str
    shape: tuple[int, int]  # (H, W)
    train: Split
    valid: Split
    test: Split
    distribution: tuple[Tensor, Tensor] | None = (
        None  # (S, D) float32 images of 0 / 1 and (S,) float64 probabilities
    )
    unlabeled: Split | None = (
        None  # for metrics alone (metric.batch=unlabeled); None where a data set has none
    )

    def to(self, device: torch.device | str) -> Dataset:
        """Return the same data set on device."""
        exact = self.distribution and (
            self.distribution[0].to(device),
            self.distribution[1].to(device),
        )
        train, valid, test = (split.to(device) for split in (self.train, self.valid, self.test))
        moved = Dataset(self.name, self.shape, train, valid, test, exact)
        if self.unlabeled is None:
            return moved
        # The images are on the device once where they are the training part itself.
        return replace(
            moved, unlabeled=train if self.unlabeled is self.train else self.unlabeled.to(device)
        )


class Raw(NamedTuple):
    """What a loader returns: the parts as they are in the source, before any binarisation."""

    parts: tuple[Tensor, Tensor, Tensor]  # train, valid, test: (N, D) uint8
    maximum: int  # 1: binary already
    shape: tuple[int, int]
    distribution: tuple[Tensor, Tensor] | None = None
    unlabeled: Tensor | None = None  # (N, D) uint8; may be the train part itself


def load_dataset(
    name: str,
    *,
    root: str | Path,
    binarize: str = "resample",
    device: torch.device | str = "cpu",
    **options: Any,
) -> Dataset:
    """Load a data set by name; UserError for an unknown name, binarisation or option, and for missing or damaged files.

    root is the folder of downloads; binarize is one of BINARIZATIONS, and data that is binary already is left alone.
    """
    if name not in LOADERS:
        raise UserError(f"data.name must be one of {', '.join(LOADERS)}, got {name!r}")
    if binarize not in BINARIZATIONS:
        raise UserError(
            f"data.binarize must be one of {', '.join(BINARIZATIONS)}, got {binarize!r}"
        )
    loader = LOADERS[name]
    known = [option for option in inspect.signature(loader).parameters if option != "root"]
    unknown = sorted(set(options) - set(known))
    if unknown:
        choices = ", ".join(["root", "binarize", *known])
        raise UserError(
            f"data: {name} has no option {', '.join(unknown)}; its options are {choices}"
        )
    raw = loader(Path(root).expanduser(), **options)
    train, valid, test = (
        _binarize(part, raw.parts[i], raw.maximum, binarize) for i, part in enumerate(PARTS)
    )
    unlabeled = None
    if raw.unlabeled is not None:
        same = raw.unlabeled is raw.parts[0]
        unlabeled = train if same else _binarize("unlabeled", raw.unlabeled, raw.maximum, binarize)
    return Dataset(name, raw.shape, train, valid, test, raw.distribution, unlabeled).to(device)


def _binarize(part: str, images: Tensor, maximum: int, how: str) -> Split:
    """Make one part's bytes, (N, D) uint8 on the CPU, the split that `binarize` asks for."""
    if maximum == 1 or how == "none":
        return Split(images, maximum, redraw=False)
    if how == "threshold":
        return Split((images > maximum / 2).to(torch.uint8), 1, redraw=False)
    fresh = Split(images, maximum, redraw=True)
    if how == "resample" and part in ("train", "unlabeled"):
        return fresh
    # Drawn on the CPU by a generator of its own: the same images on every device and under every seed of a run.
    drawn = fresh.batch(None, torch.Generator().manual_seed(DRAW_SEEDS[part]))
    return Split(drawn.to(torch.uint8), 1, redraw=False)


# --- three_by_three and digits: nothing to download ---------------------------------------------------------------


def _three_by_three(root: Path) -> Raw:
    """Kirby's (2006) twelve 3x3 images: whole columns (probability 2/18 each) or whole rows (1/18 each)."""
    bars = torch.tensor(
        [[k >> 2 & 1, k >> 1 & 1, k & 1] for k in range(1, 7)], dtype=torch.uint8
    )  # not empty, not full
    columns = bars[:, None, :].expand(6, 3, 3).reshape(6, 9)
    rows = bars[:, :, None].expand(6, 3, 3).reshape(6, 9)
    images = torch.cat([columns, rows])
    counts = torch.tensor([2] * 6 + [1] * 6)
    exact = images.repeat_interleave(counts, dim=0)  # 18 images whose mean is the exact expectation
    distribution = (images.float(), counts.double() / counts.sum())
    return Raw((exact.repeat(1_000, 1), exact, exact), 1, (3, 3), distribution)


def _digits(root: Path) -> Raw:
    """scikit-learn's 1,797 8x8 digits of 0..16, in their own order: train, then valid, then test."""
    from sklearn.datasets import load_digits

    images = torch.from_numpy(load_digits().data.astype(np.uint8))
    train, valid, test = images.tensor_split((DIGITS_TRAIN, DIGITS_TRAIN + DIGITS_VALID))
    return Raw((train, valid, test), 16, (8, 8))


# --- mnist and fashion_mnist: torchvision's folder layout, read without writing ------------------------------------


def _mnist(root: Path) -> Raw:
    return _idx_dataset(root, "MNIST")


def _fashion_mnist(root: Path) -> Raw:
    return _idx_dataset(root, "FashionMNIST")


def _idx_dataset(root: Path, kind: str) -> Raw:
    """Read root/kind/raw, downloading it first where files are missing; the official test file is the test part."""
    folder = root / kind / "raw"
    if _find_idx(folder, "train") is None or _find_idx(folder, "t10k") is None:
        _download(root, kind, folder)
    paths = [_find_idx(folder, "train"), _find_idx(folder, "t10k")]
    if paths[0] is None or paths[1] is None:
        raise UserError(
            f"{kind}: expected the two image files in {folder.resolve()} after the download, found {paths}"
        )
    official, test = read_idx(paths[0]), read_idx(paths[1])
    if official.shape[1:] != test.shape[1:]:
        sizes = f"{tuple(official.shape[1:])} and {tuple(test.shape[1:])}"
        raise UserError(
            f"{folder.resolve()}: expected training and test images of one size, got {sizes}; fetch it anew"
        )
    if len(official) <= MNIST_VALID_IMAGES:
        found = f"expected more than {MNIST_VALID_IMAGES} images, found {len(official)}"
        raise UserError(f"{paths[0]}: {found}, so none is left to train on; {FETCH_ANEW}")
    height, width = official.shape[1:]
    train, valid = official.flatten(1).tensor_split((len(official) - MNIST_VALID_IMAGES,))
    return Raw((train, valid, test.flatten(1)), 255, (height, width))


def _find_idx(folder: Path, part: str) -> Path | None:
    """Return the images file of part (train, t10k), unpacked if there is one, else packed, else None."""
    name = f"{part}-images-idx3-ubyte"
    return next((folder / file for file in (name, f"{name}.gz") if (folder / file).is_file()), None)


def _download(root: Path, kind: str, folder: Path) -> None:
    """Let torchvision fetch kind into root; UserError where the network or the folder does not allow it."""
    import torchvision

    try:
        getattr(torchvision.datasets, kind)(str(root), download=True)
    except (
        OSError,
        RuntimeError,
        HTTPException,
    ) as error:  # URLError and PermissionError are OSErrors
        raise UserError(
            f"{kind}: expected train-images-idx3-ubyte and t10k-images-idx3-ubyte (or both as .gz) in"
            f" {folder.resolve()}, found {_listing(folder)}, and the download failed: {error}\n"
            f"Put the files there, or point data.root, or the environment variable NWS_DATA_ROOT, at a folder that has"
            f" {kind}/raw."
        ) from error


def _listing(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return ", ".join(names) or "nothing"


# --- tfd: the Toronto Face Dataset, on request ----------------------------------------------------------------------

TFD_SPLITS = ("unlabeled", "train", "both")  # the first two as the folds number them, 0 and 1
TFD_FILES = {
    24: 48,
    48: 48,
    96: 96,
}  # side of the images asked for, and of those in the file that they come from
TFD_FOLDS = 5


def _tfd(root: Path, fold: int = 0, split: str = "unlabeled", size: int = 24) -> Raw:
    """Read one of TFD's five official folds (Susskind, Anderson & Hinton 2010) from root/TFD.

    split: the training images, one of TFD_SPLITS; size: the side of an image, 24 (reduced here), 48 or 96.
    """
    if positive_int("data.fold", fold, minimum=0) >= TFD_FOLDS:
        raise UserError(
            f"data.fold must be one of the official folds, 0 to {TFD_FOLDS - 1}, got {fold!r}"
        )
    if split not in TFD_SPLITS:
        raise UserError(f"data.split must be one of {', '.join(TFD_SPLITS)}, got {split!r}")
    size = positive_int("data.size", size)
    if size not in TFD_FILES:
        raise UserError(f"data.size must be one of {', '.join(map(str, TFD_FILES))}, got {size!r}")
    side = TFD_FILES[size]
    file = root / "TFD" / f"TFD_{side}x{side}.mat"
    if not file.is_file():
        raise UserError(
            f"TFD: expected the file {file.name} in {file.parent.resolve()}, found {_listing(file.parent)}. It is not"
            " downloaded: the Toronto Face Dataset is to be requested from its maker, Josh Susskind (Josh Susskind, Adam"
            " Anderson, Geoffrey Hinton, The Toronto Face Database, technical report UTML TR 2010-001, University of"
            f" Toronto). The md5 of TFD_48x48.mat is {TFD_MD5}.\nPut the file there, or point data.root, or the"
            f" environment variable NWS_DATA_ROOT, at a folder that has TFD/{file.name}."
        )
    images, folds = read_tfd(file, side, TFD_FOLDS)
    if size != side:
        images = _reduce(images, size)
    images, kind = images.flatten(1), folds[:, int(fold)]
    unlabeled, labeled, valid, test = by_kind = [images[kind == number] for number in range(4)]
    if min(map(len, by_kind)) == 0:
        counts = ", ".join(f"{number}: {len(part)}" for number, part in enumerate(by_kind))
        raise UserError(
            f"{file}: expected images of each kind (0 unlabelled, 1 train, 2 valid, 3 test) in fold {fold}, got {counts}"
        )
    train = torch.cat([unlabeled, labeled]) if split == "both" else by_kind[TFD_SPLITS.index(split)]
    return Raw((train, valid, test), 255, (size, size), unlabeled=unlabeled)


def _reduce(images: Tensor, size: int) -> Tensor:
    """Reduce images (N, H, W) uint8 to (N, size, size): bicubic with antialiasing, rounded to bytes."""
    chunks = []
    for chunk in images.split(4096):  # as floats the images take four times their memory
        grey = interpolate(chunk[:, None].float(), (size, size), mode="bicubic", antialias=True)
        chunks.append(grey[:, 0].round_().clamp_(0, 255).to(torch.uint8))
    return torch.cat(chunks)


# --- npz: a user's own images --------------------------------------------------------------------------------------


def _npz(root: Path, path: str | Path | None = None, shape: Sequence[int] | None = None) -> Raw:
    """Read a user's .npz of `train`, `valid` and `test`, (N, D) or (N, H, W): all binary, or all grey bytes."""
    if path is None:
        raise UserError(
            "data.path must name a .npz file with train, valid and test, got null: add data.path=FILE"
        )
    file = Path(path).expanduser().resolve()
    parts, maximum = read_npz(file)
    train, valid, test = (images.flatten(1) for images in parts)
    return Raw((train, valid, test), maximum, _image_shape(tuple(parts[0].shape[1:]), shape))


def _image_shape(size: tuple[int, ...], shape: Sequence[int] | None) -> tuple[int, int]:
    """Return (H, W) for images of size (D,) or (H, W): what the user says, else what the array says, else a square."""
    pixels = math.prod(size)
    if shape is not None:
        if isinstance(shape, str) or not isinstance(shape, Sequence) or len(shape) != 2:
            raise UserError(f"data.shape must be [H, W] or null, got {shape!r}")
        height, width = (positive_int("data.shape", side) for side in shape)
        if height * width != pixels:
            raise UserError(
                f"data.shape must have H * W = {pixels}, the pixels of an image, got [{height}, {width}]"
            )
        return height, width
    if len(size) == 2:
        return size[0], size[1]
    side = math.isqrt(pixels)
    return (side, side) if side * side == pixels else (1, pixels)


# The options of a data set are its loader's own parameters.
LOADERS: dict[str, Callable[..., Raw]] = {
    "three_by_three": _three_by_three,
    "digits": _digits,
    "mnist": _mnist,
    "fashion_mnist": _fashion_mnist,
    "tfd": _tfd,
    "npz": _npz,
}
