"""Binary data sets that papers compare on, N rows of D bits, in the parts of their makers."""

import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from nws.data.dataset import PARTS, RawImages
from nws.data.reading import find_files, find_path, read_unpacked
from nws.errors import UserError, explained, positive_int
from nws.files import check_file

URL = "http://www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist/"
MD5 = {  # of the texts, unpacked
    "train": "db28b1a6ae0fe70cbd3da91acf46e477",
    "valid": "bf37822a04e94123630de6a7dfd9c9ef",
    "test": "14e41ae11040adba6ab8cb291eda0dd8",
}
SILHOUETTES = "https://people.cs.umass.edu/~marlin/data/caltech101_silhouettes_28_split1.mat"
SHAPE, PIXELS = (28, 28), 784  # of the images of both
Reader = Callable[[str, bytes], tuple[np.ndarray, np.ndarray | None]]  # bits (N, D), labels (N,)


def load_binarized_mnist(root: str | Path = "data") -> RawImages:
    """Return MNIST as it was made binary once for all papers, from `root`/BinarizedMNIST.

    It has 50,000, 10,000 and 10,000 images of 28x28. Their texts, `binarized_mnist_*.amat` or .gz,
    are downloaded where they are missing (Salakhutdinov & Murray 2008; Larochelle & Murray 2011).
    Raises `UserError` where a text is not the published one, or cannot be downloaded.
    """
    folder = find_path("data.root", root) / "BinarizedMNIST"
    files = {part: _published(folder, part) for part in PARTS}
    return _load(files, lambda _, text: (_bits(text.splitlines(), PIXELS), None), SHAPE, True)


def load_silhouettes(root: str | Path = "data") -> RawImages:
    """Return the 28x28 silhouettes of Caltech 101 from `root`/Silhouettes, in Marlin's parts.

    They are 4,100, 2,264 and 2,307, with labels 1 to 101. The file has an image column by column,
    as MATLAB does; here they are upright. Source: Marlin, Swersky, Chen & de Freitas 2010.
    Raises `UserError` where the file is missing, or has other arrays.
    """
    file = find_path("data.root", root) / "Silhouettes" / SILHOUETTES.rpartition("/")[2]
    if not file.is_file():
        raise UserError(f"{file} is missing: take it from {SILHOUETTES} and put it there")
    return _load(dict.fromkeys(PARTS, file), _read_silhouettes, SHAPE, False)


def load_libsvm(path: str | Path | None = None, attributes: int | None = None) -> RawImages:
    """Return rows of binary attributes from three texts, or .gz, as images of one row of pixels.

    `path` names them, with a * in place of train, valid and test; each has D `attributes`. A line
    is a label and `index:1` for each 1, from index 1 on; or, without colons, all bits and a label.
    Raises `UserError` where a file is missing or damaged, or a value is not 0 or 1.
    """
    pattern, width = str(find_path("data.path", path)), positive_int("data.attributes", attributes)
    if "*" not in pattern:
        raise UserError(f"data.path must have a * for train, valid and test, got {pattern}")
    files = {part: Path(pattern.replace("*", part)) for part in PARTS}
    return _load(files, lambda _, text: _read_rows(text, width), (1, width), False)


def _load(files: dict[str, Path], read: Reader, shape: tuple[int, int], md5: bool) -> RawImages:
    """Return the parts that `read` finds by their names in files, with sums `MD5` if so asked."""
    images, labels = [], {}
    for part, file in files.items():
        check_file(file)
        with explained(f"{file} cannot be read", "replace it by a good copy"):
            bits, classes = read(part, text := read_unpacked(file))
            if md5 and (found := hashlib.md5(text, usedforsecurity=False).hexdigest()) != MD5[part]:
                raise ValueError(f"its MD5 is {found}, that of the published file is {MD5[part]}")
        images.append(torch.from_numpy(bits))
        if classes is not None:
            labels[part] = torch.from_numpy(classes.astype(np.int64))
    train, valid, test = images
    return RawImages(train, valid, test, shape, maximum=1, labels=labels or None)


def _published(folder: Path, part: str) -> Path:
    """Return the text of a part of binarised MNIST, downloaded where it is missing."""
    if files := find_files(folder, [name := f"binarized_mnist_{part}.amat"]):
        return files[0]
    from torchvision.datasets.utils import download_url  # late, as that takes seconds

    with explained(f"{folder / name} is missing, and its download failed", f"take it from {URL}"):
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder) as own:  # it appears whole, or not at all
            download_url(URL + name, own, md5=MD5[part])
            return Path(own, name).replace(folder / name)


def _read_silhouettes(part: str, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    from scipy.io import loadmat

    found, part = loadmat(io.BytesIO(content)), part.removesuffix("id")  # the file has val
    bits, labels = found[f"{part}_data"], found[f"{part}_labels"].ravel()
    if bits.shape != (len(labels), PIXELS) or not np.isin(bits, (0, 1)).all():
        raise ValueError(f"expected {part}_data of 0 and 1, (N, {PIXELS}), got {bits.shape}")
    return bits.reshape(-1, *SHAPE).transpose(0, 2, 1).reshape(-1, PIXELS).astype(np.uint8), labels


def _read_rows(text: bytes, width: int) -> tuple[np.ndarray, np.ndarray]:
    if b":" not in text:
        lines = [line.rstrip().rpartition(b" ") for line in text.replace(b"\t", b" ").splitlines()]
        return _bits([line[0] for line in lines], width), np.array([int(x[2]) for x in lines])
    from sklearn.datasets import load_svmlight_file  # late, as that takes more than a second

    rows, labels = load_svmlight_file(io.BytesIO(text), n_features=width, zero_based=False)
    if not np.isin(rows.data, (0, 1)).all() or (labels % 1).any():
        raise ValueError("expected a whole number as label, and attributes of 0 and 1")
    return rows.astype(np.uint8).toarray(), labels


def _bits(lines: list[bytes], width: int) -> np.ndarray:
    """Return the bits of lines of 0 and 1, separated by blanks, (N, D) uint8."""
    rows = [line.translate(None, b" \t") for line in lines]
    for number, row in enumerate(rows, 1):
        if len(row) != width or row.translate(None, b"01"):
            got = f"{len(row)} of {sorted({*row.decode('latin1')})}"
            raise ValueError(f"line {number}: expected {width} values of 0 and 1, got {got}")
    return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, width) - 48
