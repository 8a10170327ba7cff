"""MNIST and Fashion-MNIST in torchvision's folder layout, read without writing.

torchvision downloads them and checks their sums. Its reader wants unpacked files, the labels too,
in a folder that it may write to; so the files are read here.
"""

from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from nws.data.dataset import PARTS, RawImages
from nws.data.reading import find_files, find_path, read_unpacked
from nws.errors import explained
from nws.files import check_file

FILES = ("train-images-idx3-ubyte", "t10k-images-idx3-ubyte")
LABELS = ("train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte")
VALID_IMAGES = 10_000  # taken from the end of the official training file


def load_mnist(root: str | Path = "data") -> RawImages:
    """Return MNIST from `root`/MNIST/raw, downloaded where it is missing.

    It has 50,000 training, 10,000 validation and 10,000 test images of 28x28 grey bytes. The
    validation part is the end of the official training file; the test part is the official one.
    Images of files that are not packed are mapped.
    Raises `UserError` where a file is damaged, or is missing and cannot be downloaded.
    """
    return _load(root, "MNIST")


def load_fashion_mnist(root: str | Path = "data") -> RawImages:
    """Return Fashion-MNIST from `root`/FashionMNIST/raw; as `load_mnist` in all else."""
    return _load(root, "FashionMNIST")


def _load(root: object, kind: str) -> RawImages:
    folder = find_path("data.root", root) / kind / "raw"
    if len(files := find_files(folder, FILES)) < 2:
        import torchvision  # late, as that takes seconds

        problem = f"{kind}: expected {FILES[0]} and {FILES[1]} (or both as .gz) in {folder}"
        advice = f"put them there, or point data.root or NWS_DATA_ROOT at a folder with {kind}/raw"
        lock = FileLock(folder.parent.parent / ".lock")  # for one process at a time
        with explained(f"{problem}, and the download failed", advice), lock:
            getattr(torchvision.datasets, kind)(str(folder.parent.parent), download=True)
        files = find_files(folder, FILES)
    official, test = map(_read, files)
    end = (len(official) - VALID_IMAGES,)
    train, valid = official.flatten(1).tensor_split(end)
    images, labels = (train, valid, test.flatten(1)), None
    if len(files := find_files(folder, LABELS)) == 2:
        first, last = (_read(file, 1).long() for file in files)
        labels = dict(zip(PARTS, (*first.tensor_split(end), last), strict=True))
    return RawImages(*images, (test.shape[1], test.shape[2]), labels=labels)


def _read(file: Path, dimensions: int = 3) -> Tensor:
    """Return bytes (N, H, W), or labels (N,), of an idx file; a map of it, if it is not packed."""
    check_file(file)
    advice = "delete it and run again to download it, or replace it by a good copy"
    with explained(f"{file} is damaged, or no idx file of images", advice):
        if file.suffix == ".gz":
            array = np.frombuffer(bytearray(read_unpacked(file)), np.uint8)
        else:
            array = np.memmap(file, np.uint8, "c")
        if array[:4].tolist() != [0, 0, 8, dimensions]:  # of bytes; their sizes come next
            raise ValueError(f"its magic number is {array[:4].tolist()}")
        start = 4 + 4 * dimensions
        return torch.from_numpy(array[start:].reshape(array[4:start].view(">u4").tolist()))
