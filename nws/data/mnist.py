"""MNIST and Fashion-MNIST in torchvision's folder layout, read without writing.

Symbols: N images of H x W pixels.
"""

import math
from http.client import HTTPException
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nws.data.arrays import read_idx
from nws.data.dataset import RawImages
from nws.errors import UserError

VALID_IMAGES = 10_000  # taken from the end of the official training file
IMAGES_MAGIC = 2051  # unsigned bytes (0x08) in three dimensions (0x03)
HEADER_BYTES = 16  # magic, images, rows, columns: four big-endian 32-bit integers
MEND = "delete it and run again to download it, or replace it by a good copy"


def load_mnist(root: str | Path, mapped: bool = False) -> RawImages:
    """Return MNIST from `root`/MNIST/raw, downloaded where it is missing.

    It has 50,000 training, 10,000 validation and 10,000 test images of 28x28 grey bytes. The
    validation part is the end of the official training file; the test part is the official one.
    If `mapped`, images stay in their files, where these are not packed.
    Raises `UserError` where a file is damaged, or is missing and cannot be downloaded.
    """
    return _load(Path(root).expanduser(), "MNIST", mapped)


def load_fashion_mnist(root: str | Path, mapped: bool = False) -> RawImages:
    """Return Fashion-MNIST from `root`/FashionMNIST/raw; as `load_mnist` in all else."""
    return _load(Path(root).expanduser(), "FashionMNIST", mapped)


def _load(root: Path, kind: str, mapped: bool) -> RawImages:
    folder = root / kind / "raw"
    if any(_find(folder, part) is None for part in ("train", "t10k")):
        _download(root, kind, folder)
    train_file, test_file = _find(folder, "train"), _find(folder, "t10k")
    if train_file is None or test_file is None:
        raise UserError(
            f"{kind}: expected the two image files in {folder.resolve()} after the download,"
            f" found {find_in(folder)}"
        )
    official, test = _read_idx(train_file, mapped), _read_idx(test_file, mapped)
    if official.shape[1:] != test.shape[1:]:
        raise UserError(
            f"{folder.resolve()}: expected training and test images of one size, got"
            f" {(*official.shape[1:],)} and {(*test.shape[1:],)}; delete both and run again"
        )
    if len(official) <= VALID_IMAGES:
        found = f"found {len(official)}; {MEND}"
        raise UserError(f"{train_file}: expected more than {VALID_IMAGES} images, {found}")
    train, valid = official.flatten(1).tensor_split((len(official) - VALID_IMAGES,))
    return RawImages(train, valid, test.flatten(1), (test.shape[1], test.shape[2]))


def _find(folder: Path, part: str) -> Path | None:
    """Return the file of a part (train or t10k), unpacked if there is one, else packed."""
    files = [folder / f"{part}-images-idx3-ubyte{suffix}" for suffix in ("", ".gz")]
    return next(filter(Path.is_file, files), None)


def _download(root: Path, kind: str, folder: Path) -> None:
    import torchvision  # late, as that takes seconds

    try:
        getattr(torchvision.datasets, kind)(str(root), download=True)
    except (OSError, RuntimeError, HTTPException) as error:  # URLError is an OSError
        raise UserError(
            f"{kind}: expected train-images-idx3-ubyte and t10k-images-idx3-ubyte (or both as .gz)"
            f" in {folder.resolve()}, found {find_in(folder)}, and the download failed: {error}\n"
            "Put the files there, or point data.root, or the environment variable NWS_DATA_ROOT,"
            f" at a folder that has {kind}/raw."
        ) from error


def find_in(folder: Path) -> str:
    """Return the names of the files in a folder, for a message."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return ", ".join(names) or "nothing"


def _promised(head: bytes) -> int:
    """Return the size of a file of images, in bytes, by its header."""
    magic, *sizes = np.frombuffer(head, ">u4").tolist()
    return HEADER_BYTES + math.prod(sizes) * (magic == IMAGES_MAGIC)


def _read_idx(path: Path, mapped: bool) -> Tensor:
    """Return the images of an idx file (packed as .gz or not), (N, H, W) uint8; a map of it."""
    content, size, torn = read_idx(path, HEADER_BYTES, _promised, MEND)
    head = content[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0")
    magic, count, height, width = np.frombuffer(head, ">u4").tolist()
    pixels, expected = height * width, _promised(head)
    if size < HEADER_BYTES:
        problem = f": expected a header of {HEADER_BYTES} bytes, the file holds {size}"
    elif magic != IMAGES_MAGIC:
        problem = f": expected magic number {IMAGES_MAGIC} (images, idx), got {magic}"
    elif torn or count * pixels == 0 or size != expected:
        problem = (
            f" is damaged: its header promises {count} images of {height}x{width},"
            f" {expected} bytes once unpacked; it holds {size} bytes,"
            f" {(size - HEADER_BYTES) // max(pixels, 1)} complete images"
        ) + ", and the packed file ends too early" * torn
    elif mapped and path.suffix != ".gz":
        shape = (count, height, width)
        return torch.from_numpy(np.memmap(path, np.uint8, "c", HEADER_BYTES, shape))
    else:
        data = np.frombuffer(content, np.uint8, offset=HEADER_BYTES).reshape(count, height, width)
        return torch.from_numpy(data.copy())  # the buffer is read-only
    raise UserError(f"{path}{problem}; {MEND}")
