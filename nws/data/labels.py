"""The classes of labelled data sets, which belief networks do without."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nws.data.arrays import read_idx
from nws.errors import UserError

LABELS_MAGIC = 2049  # unsigned bytes (0x08) in one dimension (0x01)
HEADER_BYTES = 8  # magic, labels: two big-endian 32-bit integers


def digits_labels() -> Tensor:
    """The classes 0 to 9 of scikit-learn's digits, (1797,), in the order of `load_digits`."""
    from sklearn.datasets import load_digits as read_digits

    return torch.from_numpy(read_digits().target.astype(np.int64))


def fashion_mnist_labels(root: str | Path) -> tuple[Tensor, Tensor]:
    """The classes 0 to 9 of Fashion-MNIST: (60000,) of the official training file, (10000,) test.

    Args:
        root: The folder of FashionMNIST/raw.

    Raises:
        UserError: Where a file is missing or damaged.
    """
    folder = Path(root).expanduser() / "FashionMNIST" / "raw"
    return _read(folder, "train"), _read(folder, "t10k")


def _read(folder: Path, part: str) -> Tensor:
    files = [folder / f"{part}-labels-idx1-ubyte{suffix}" for suffix in ("", ".gz")]
    path = next(filter(Path.is_file, files), None)
    if path is None:
        raise UserError(
            f"expected {files[0].name} (or the same as .gz) in {folder.resolve()}; put it there, or"
            " point the environment variable NWS_DATA_ROOT at a folder that has FashionMNIST/raw"
        )
    mend = "replace it by a good copy"
    content, size, torn = read_idx(path, HEADER_BYTES, _promised, mend)
    head = content[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0")
    magic, _ = np.frombuffer(head, ">u4").tolist()
    if magic != LABELS_MAGIC or torn or size != _promised(head):
        raise UserError(f"{path} is no file of labels, or is damaged; {mend}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=HEADER_BYTES).astype(np.int64))


def _promised(head: bytes) -> int:
    """Return the size of a file of labels, in bytes, by its header."""
    magic, count = np.frombuffer(head, ">u4").tolist()
    return HEADER_BYTES + count * (magic == LABELS_MAGIC)
