"""MNIST and Fashion-MNIST in torchvision's folder layout, read without writing.

torchvision downloads them and checks their sums. Its reader wants unpacked files, the labels too,
in a folder that it may write to; so the files are read here.
"""

import gzip
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nws.data.dataset import RawImages
from nws.data.files import check_regular, find_path, one_line
from nws.errors import UserError

VALID_IMAGES = 10_000  # taken from the end of the official training file
MAX_BYTES = 2**30  # of a file, unpacked; only a broken one has more


def load_mnist(root: str | os.PathLike[str] = "data") -> RawImages:
    """Return MNIST from `root`/MNIST/raw, downloaded where it is missing.

    It has 50,000 training, 10,000 validation and 10,000 test images of 28x28 grey bytes. The
    validation part is the end of the official training file; the test part is the official one.
    Images of files that are not packed are mapped.
    Raises `UserError` where a file is damaged, or is missing and cannot be downloaded.
    """
    return _load(root, "MNIST")


def load_fashion_mnist(root: str | os.PathLike[str] = "data") -> RawImages:
    """Return Fashion-MNIST from `root`/FashionMNIST/raw; as `load_mnist` in all else."""
    return _load(root, "FashionMNIST")


def fashion_mnist_labels(root: str | os.PathLike[str]) -> tuple[Tensor, Tensor]:
    """The classes 0 to 9: (60000,) of the official training file, and (10000,) of the test file."""
    train, test = _read_official(root, "FashionMNIST", "labels-idx1-ubyte")
    return train.long(), test.long()


def _load(root: str | os.PathLike[str], kind: str) -> RawImages:
    official, test = _read_official(root, kind, "images-idx3-ubyte")
    if len(official) <= VALID_IMAGES or official.shape[1:] != test.shape[1:]:
        raise UserError(
            f"{find_path('data.root', root) / kind}: expected more than {VALID_IMAGES} training"
            f" images, and test images of their size, got {tuple(official.shape)} and"
            f" {tuple(test.shape)}; delete both files and run again to download them"
        )
    train, valid = official.flatten(1).tensor_split((len(official) - VALID_IMAGES,))
    return RawImages(train, valid, test.flatten(1), (test.shape[1], test.shape[2]))


def _read_official(root: object, kind: str, ending: str) -> list[Tensor]:
    """Return what the official training file and test file hold, after a download if need be."""
    folder = find_path("data.root", root) / kind / "raw"
    names = [f"{part}-{ending}" for part in ("train", "t10k")]
    if len(_find(folder, names)) < 2:
        import torchvision  # late, as that takes seconds

        try:
            getattr(torchvision.datasets, kind)(str(folder.parent.parent), download=True)
        except Exception as error:
            found = ", ".join(file.name for file in _find(folder, names)) or "none"
            raise UserError(
                f"{kind}: expected {names[0]} and {names[1]} (or both as .gz) in {folder}, found"
                f" {found}, and the download failed: {one_line(error)}. Put the files there, or"
                " point data.root, or the environment variable NWS_DATA_ROOT, at a folder that has"
                f" {kind}/raw"
            ) from error
    return [_read_idx(file, 3 if "idx3" in ending else 1) for file in _find(folder, names)]


def _find(folder: Path, names: list[str]) -> list[Path]:
    """Return the files of these names that are there, unpacked if there is one, else packed."""
    files = ([folder / name, folder / f"{name}.gz"] for name in names)
    found = (next(filter(os.path.lexists, each), None) for each in files)
    return [file for file in found if file is not None]


def _read_idx(file: Path, dimensions: int) -> Tensor:
    """Return the bytes of an idx file of so many dimensions; a map of it, if it is not packed.

    Its header is 0, 0, 8 (for bytes) and the dimensions; then the sizes, as big-endian 32 bits.
    """
    check_regular(file, "an idx file")
    try:
        if file.suffix == ".gz":
            with gzip.open(file) as content:
                array = np.frombuffer(bytearray(content.read(MAX_BYTES)), np.uint8)
        else:
            array = np.memmap(file, np.uint8, "c")
        header, data = array[: 4 + 4 * dimensions], array[4 + 4 * dimensions :]
        if header[:4].tolist() != [0, 0, 8, dimensions]:
            raise ValueError(f"its magic number is {header[:4].tolist()}")
        return torch.from_numpy(data.reshape(header[4:].view(">u4").tolist()))
    except Exception as error:  # gzip raises whatever it stumbles over
        raise UserError(
            f"{file} is damaged, or no idx file of {dimensions} dimensions: {one_line(error)};"
            " delete it and run again to download it, or replace it by a good copy"
        ) from error
