"""Files of every source, made here, of a few images each."""

import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from conftest import idx
from PIL import Image
from scipy.io import savemat
from sklearn.datasets import dump_svmlight_file

import nws.data as nd

REAL = Path(os.environ.get("NWS_DATA_ROOT", "nowhere"))
Source = tuple[Callable[..., nd.RawImages], dict[str, Any]]
TRAIN_FILE, TEST_FILE = "train-images-idx3-ubyte", "t10k-images-idx3-ubyte"
GREY = np.random.default_rng(0).integers(0, 256, (60, 4, 3), dtype=np.uint8)
PARTS: dict[str, Any] = {"train": GREY[:40], "valid": GREY[40:50], "test": GREY[50:]}
# In fold 0 these are 0 and 5 unlabelled, 1 and 6 train, 2 valid, 3 and 4 test; the labelled ones
# move on from fold to fold.
KINDS = [0, 1, 2, 3, 3, 0, 1]
FOLDS = np.array([[k and (k - 1 + fold) % 3 + 1 for fold in range(5)] for k in KINDS], np.uint8)
NOISE = np.random.default_rng(0).integers(0, 2, (10, 784), np.uint8)
BINARY = {"train": NOISE[:5], "valid": NOISE[5:8], "test": NOISE[8:]}
BINARY_LABELS = {"train": [1, 2, 3, 4, 101], "valid": [7, 8, 9], "test": [5, 6]}


def marked(count: int, low: int, high: int, size: tuple[int, int] = (4, 3)) -> np.ndarray:
    """Images of noise in [low, high): each part's pixels tell where they come from."""
    return np.random.default_rng(low).integers(low, high, (count, *size), dtype=np.uint8)


def write_mnist(root: Path, packed: bool = False, kind: str = "MNIST") -> Path:
    """A folder of 10,020 training images (the last 10,000 for validation) and 7 test images.

    The label of an image is its first byte, modulo 10.
    """
    folder = root / kind / "raw"
    folder.mkdir(parents=True)
    official = np.concatenate([marked(20, 0, 80), marked(10_000, 80, 160)])
    for name, images in {TRAIN_FILE: official, TEST_FILE: marked(7, 160, 240)}.items():
        numbers = struct.pack(">2I", 2049, len(images)) + (images[:, 0, 0] % 10).tobytes()
        labels = name.replace("images-idx3", "labels-idx1")
        for file, content in {name: idx(images), labels: numbers}.items():
            packing = gzip.compress(content, 1) if packed else content
            (folder / f"{file}{'.gz' * packed}").write_bytes(packing)
    return folder


def faces(side: int = 48) -> np.ndarray:
    """Seven faces, of which number k has the grey 30 k + 10 and an eye at row 5, column 11 + k."""
    images = np.arange(10, 220, 30, np.uint8)[:, None, None].repeat(side, 1).repeat(side, 2)
    images[np.arange(7), 5, 11 + np.arange(7)] = 255
    return images


def write_tfd(root: Path, side: int = 48, **changed: np.ndarray | None) -> Path:
    """The faces in TFD's layout, with some arrays changed, or left out where they are None."""
    file = root / "TFD" / f"TFD_{side}x{side}.mat"
    file.parent.mkdir(parents=True, exist_ok=True)
    numbers = np.arange(7, dtype=np.int16)[:, None]  # the expression of face k is k
    arrays = {"images": faces(side), "folds": FOLDS, "labs_ex": numbers, **changed}
    savemat(file, {key: array for key, array in arrays.items() if array is not None})
    return file


def write_silhouettes(root: Path) -> Path:
    """A file of silhouettes: images as MATLAB has them, column by column."""
    (file := root / "Silhouettes" / "caltech101_silhouettes_28_split1.mat").parent.mkdir()
    arrays: dict[str, Any] = {}
    for part, name in {"train": "train", "valid": "val", "test": "test"}.items():
        columns = [image.reshape(28, 28).ravel(order="F") for image in BINARY[part]]
        arrays |= {f"{name}_data": np.array(columns), f"{name}_labels": BINARY_LABELS[part]}
    savemat(file, arrays)
    return file


def write_rows(root: Path, rows: dict[str, np.ndarray], ending: str = "libsvm") -> Path:
    """Texts of LIBSVM, or tables with the label last (.amat); their path with a *."""
    for part, labels in BINARY_LABELS.items():
        np.savetxt(file := root / f"{part}.{ending}", np.c_[rows[part], labels], "%d")
        if ending == "libsvm":
            dump_svmlight_file(rows[part].astype(float), labels, str(file), zero_based=False)
    return root / f"*.{ending}"


def write_picture(path: Path, grey: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(grey).save(path)


def write_sources(root: Path) -> dict[str, Source]:
    """A source and its options for each kind of file, and those that need none."""
    single = {"grey": GREY, "bits": GREY > 99, "columns": np.asfortranarray(GREY)}
    for name, array in {**single, "shares": GREY / 255}.items():
        np.save(root / f"{name}.npy", array)
    np.savez(root / "parts.npz", **PARTS)
    np.savez_compressed(root / "packed.npz", **PARTS)
    write_mnist(root)
    write_mnist(root / "packed", packed=True)
    write_tfd(root)
    write_silhouettes(root)
    for number, image in enumerate(GREY[:20]):
        write_picture(root / "pictures" / f"class_{number % 3}" / f"{number:02}.PNG", image)
    files = [*root.glob("*.np?")]
    return {file.name: (nd.load_npz, {"path": file}) for file in files} | {
        "arrays": (nd.load_arrays, PARTS),
        "idx": (nd.load_mnist, {"root": root}),
        "idx.gz": (nd.load_mnist, {"root": root / "packed"}),
        "tfd": (nd.load_tfd, {"root": root, "split": "train"}),
        "folder": (nd.load_folder, {"path": root / "pictures"}),
        "silhouettes": (nd.load_silhouettes, {"root": root}),
        "libsvm": (nd.load_libsvm, {"path": write_rows(root, BINARY), "attributes": 784}),
        "digits": (nd.load_digits, {}),
        "three_by_three": (nd.load_three_by_three, {}),
    }
