"""What a user reads where an option is wrong, or a file is missing, damaged or misshapen."""

import gzip
import io
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
from conftest import idx
from data_files import FOLDS, GREY, PARTS, TEST_FILE, faces, marked, write_mnist, write_picture
from data_files import write_tfd as write_mat
from PIL import Image

import nws.data as nd
from nws.errors import UserError

BITS = GREY // 128
TEST_GZ = f"MNIST/raw/{TEST_FILE}.gz"


def refused(source: Callable[..., nd.RawImages], message: str, **options: Any) -> None:
    """Loading ends in one line for a person."""
    with pytest.raises(UserError, match=message) as caught:
        nd.load_dataset(source, **options)
    assert "\n" not in str(caught.value)


def no_images() -> Any:
    return {}


OPTIONS: list[tuple[Any, dict[str, Any], str]] = [
    ("digits", {"binarize": "round"}, "data.binarize must be one of resample, .*'round'"),
    ("digits", {"where": "disk"}, "data.where must be one of device, host, auto, got 'disk'"),
    ("digits", {"path": "x"}, "digits do not fit: .*'path'; its options are binarize, where$"),
    ("npz", {"size": 3}, "npz do not fit: .*'size'; its options .*, path, shape$"),
    ("npz", {}, "data.path must name a file or folder, got null: add data.path=PATH"),
    ("npz", {"path": "~nosuch/x.npz"}, "nosuch/x.npz cannot be read: No such file"),
    ("folder", {"path": "nosuch"}, "nosuch: expected images ending in .*, found none"),
    ("mnist", {"root": None}, "data.root must name a file or folder, got null"),
    ("torchvision", {"dataset": "Nosuch"}, "data.dataset: torchvision's Nosuch cannot be had"),
    ("tfd", {"fold": 5}, "data.fold must be one of 0, 1, 2, 3, 4, got 5"),
    ("tfd", {}, "expected the file .*TFD_48x48.mat, found none.* requested from.*data.root"),
    ("silhouettes", {}, "silhouettes_28_split1.mat is missing: take it from https.* put it there"),
    ("libsvm", {"path": "x", "attributes": 9}, r"data.path must have a \* for train, .*/x$"),
    ("libsvm", {"path": "*.x"}, "data.attributes must be a whole number of at least 1, got None"),
    ("libsvm", {"path": "*.x", "attributes": 9}, "train.x cannot be read: No such file"),
    ("arrays", {"train": BITS[:2]}, "data: expected at least 3 images to split, got 2"),
    ("arrays", {"train": BITS, "test": BITS}, r"train alone, got \['train', 'test'\]"),
    ("arrays", {"train": BITS, "shape": [5, 5]}, r"train must be .* of \(5, 5\), got"),
    ("arrays", {"train": BITS, "shape": "34"}, r"data.shape must be \[H, W\] or null, got '34'"),
    (no_images, {}, "a function that returns nws.data.RawImages, .*no_images returned dict"),
    (lambda count: None, {"name": "mine"}, "options of mine do not fit: missing .* 'count'"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "options", "message"), OPTIONS)
def test_options(tmp_path: Path, source: Any, options: dict[str, Any], message: str) -> None:
    source = getattr(nd, f"load_{source}") if isinstance(source, str) else source
    refused(source, message, **({"root": tmp_path} | options))


@pytest.mark.parametrize(("changed", "message"), [
    ({"test": np.zeros(12)}, r"test: expected images \(N, D\) or .*, got shape \(12,\)"),
    ({"valid": BITS[:, :3]}, r"images of one size .*valid \(60, 3, 3\)"),
    ({"valid": BITS[:0]}, r"valid: expected images .*, got shape \(0, 4, 3\)"),
    ({"valid": BITS * 2.5}, "valid: expected 0 and 1, or .*, got float64 from 0.0 to 2.5"),
    ({"test": np.full((2, 4, 3), np.nan)}, "test: expected .*, got float64 from nan to nan"),
    ({"train": BITS.astype(str)}, "train: expected booleans, integers or floats, .* <U"),
    ({"train": BITS.astype(object)}, "expected booleans, .*dtype object|allow_pickle=False"),
    ({"train": GREY}, r"and kind .*, got train \(60, 4, 3\) of bytes 0..255; .* of 0 and 1"),
])  # fmt: skip
def test_arrays(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    """In memory and in a file, which the message names."""
    arrays = {"train": BITS, "valid": BITS, "test": BITS} | changed
    refused(nd.load_arrays, message, **arrays)
    np.savez(tmp_path / "my.npz", **arrays)
    refused(nd.load_npz, f"{tmp_path}/my.npz: .*({message})", path=tmp_path / "my.npz")


GOOD = torch.zeros(4, 12, dtype=torch.uint8)


@pytest.mark.parametrize(("part", "images", "message"), [
    ("train", GOOD.float(), r"train must be bytes .* of shape \(N, 12\) .*got torch.float32"),
    ("unlabeled", GOOD[:0], r"unlabeled must be bytes .* of shape \(0, 12\)"),
    ("valid", GOOD + 2, "valid must be bytes .*got a byte of 2, where 1 means intensity 1"),
    ("labels", {"test": torch.zeros(3)}, r"labels of test must be one for each of its 4 im"),
])  # fmt: skip
def test_raw_images(part: str, images: Any, message: str) -> None:
    arrays: Any = {"train": GOOD, "valid": GOOD, "test": GOOD, "labels": {"test": torch.zeros(4)}}
    nd.RawImages(**arrays, shape=(3, 4), maximum=1)  # the control
    with pytest.raises(UserError, match=message):
        nd.RawImages(**{**arrays, part: images}, shape=(3, 4), maximum=1)


def header(shape: str, dtype: str = "'|u1'") -> bytes:
    """The header of a .npy file."""
    text = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text = text.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def npz(member: bytes | None = None, names: tuple[str, ...] = (*PARTS,), **options: Any) -> bytes:
    """A .npz file whose arrays are the same, or are these bytes."""
    np.save(array := io.BytesIO(), BITS)
    with zipfile.ZipFile(buffer := io.BytesIO(), "w", **options) as archive:
        for name in names:
            archive.writestr(f"{name}.npy", array.getvalue() if member is None else member)
    return buffer.getvalue()


def pack(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


TEN = idx(marked(10, 160, 240))
TERABYTES = struct.pack(">4I", 2051, *[2**32 - 1] * 3) + bytes(45)
V73 = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(384) + b"\x89HDF\r\n\x1a\n"
NPY, IDX = "reading|expected one array, or the arrays", "is damaged, or no idx .* delete it"
ZEROS = {"compression": zipfile.ZIP_DEFLATED}
FILES: list[tuple[str, bytes | None, str]] = [  # None: a named pipe, which is never opened
    ("my.npy", None, "my.npy is no regular file"),
    ("my.npy", header("(10000000000000, 1000)") + bytes(90), NPY),
    ("my.npy", header("(10, 9)", "'|O'") + bytes(90), f"({NPY}).*Python objects"),
    ("my.npy", header("()") + bytes(1), r"got shape \(\)"),
    ("my.npz", npz(names=("train",)), f"({NPY}).*valid is not a file in the archive"),
    ("my.npz", npz()[:200] + bytes(60) + npz()[260:], NPY),
    ("my.npz", npz(header("(1000000, 1000)") + bytes(100), **ZEROS), NPY),
    (TEST_GZ, None, "ubyte.gz is no regular file"),
    (TEST_GZ, pack(TEN[:-13]), IDX), (TEST_GZ, pack(TEN)[:-8] + bytes(8), IDX),
    (TEST_GZ, pack(TERABYTES), IDX), (TEST_GZ, b"<html>not found</html>", IDX),
    (TEST_GZ[:-3], TEN[:-13], IDX), (TEST_GZ[:-3], TERABYTES, IDX),
    ("MNIST/raw/t10k-labels-idx1-ubyte", b"no file of labels", IDX),
    ("MNIST/raw/train-images-idx3-ubyte", TEN, r"train must be .*shape \(0, 12\)"),
    ("TFD/TFD_48x48.mat", None, "expected the file .*TFD_48x48.mat, found none"),
    ("TFD/TFD_48x48.mat", b"<html>not found</html>" * 20, "expected a MATLAB file"),
    ("TFD/TFD_48x48.mat", V73, "expected a MATLAB file of version 7 .*HDF"),
]  # fmt: skip


def write(file: Path, content: bytes | None) -> None:
    """Write a file, or a named pipe."""
    file.parent.mkdir(exist_ok=True, parents=True)
    os.mkfifo(file) if content is None else file.write_bytes(content)


@pytest.mark.parametrize(("name", "content", "message"), FILES)
def test_files(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    file = tmp_path / name
    if "MNIST" in name:
        write_mnist(tmp_path)
    if name == TEST_GZ:
        file.with_suffix("").unlink()
    write(file, content)
    if name.startswith("my."):
        refused(nd.load_npz, message, path=file)
    else:
        refused(nd.load_mnist if "MNIST" in name else nd.load_tfd, message, root=tmp_path)


@pytest.mark.parametrize(("changed", "message"), [
    ({"folds": None}, "'folds'"),
    ({"images": faces(96)}, r"images are uint8 of shape \(7, 96, 96\)"),
    ({"folds": FOLDS[:, :3]}, r"folds are uint8 of shape \(7, 3\)"),
    ({"folds": FOLDS + 1}, r"folds are uint8 of shape \(7, 5\)"),
    ({"labs_ex": np.arange(6)}, "labs_ex are 6 for 7 images"),
])  # fmt: skip
def test_arrays_of_tfd(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    file = write_mat(tmp_path, **changed)
    refused(nd.load_tfd, f"{file}: .*{message}", root=tmp_path)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    refused(nd.load_tfd, f"{file}: expected a MATLAB file", root=tmp_path)


def png(promised: tuple[int, int] = (3, 4)) -> bytes:
    Image.fromarray(GREY[0]).save(buffer := io.BytesIO(), "PNG")
    return buffer.getvalue()[:16] + struct.pack(">2I", *promised) + buffer.getvalue()[24:]


UNLIKE = {"a.png": GREY[0], "b.png": GREY[0][:3]}
FOLDERS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"a.gif": b""}, {}, r"expected images ending in \.png, \.jpg, \.jpeg, found none"),
    (UNLIKE, {}, r"expected images of one size, got 3x3, 4x3; data\.size=\[H,W\] brings"),
    ({"b.png": png()[:40]}, {}, r"b\.png cannot be read as an image: .*; give a PNG"),
    ({"a.png": png((2**30, 2**30))}, {}, r"a\.png cannot be read as an image: .*; give a PNG"),
    ({"a.png": None}, {}, "a.png is no regular file"),
    ({"train/a.png": GREY[0], "test/a.png": GREY[0]}, {}, "or none of them .*, got train, test"),
    (UNLIKE, {"size": 0}, "data.size must be a whole number of at least 1, got 0"),
]


@pytest.mark.parametrize(("files", "options", "message"), FOLDERS)
def test_folders(tmp_path: Path, files: Any, options: dict[str, Any], message: str) -> None:
    for name, content in files.items():
        if isinstance(content, np.ndarray):
            write_picture(tmp_path / name, content)
        else:
            write(tmp_path / name, content)
    refused(nd.load_folder, message, path=tmp_path, **options)


def test_a_failed_download_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise URLError("no route\nto host")

    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", fail)
    raw = write_mnist(tmp_path)
    (raw / TEST_FILE).unlink()
    found = f"in {raw}, and the download failed.*no route to host"
    refused(nd.load_mnist, f"{TEST_FILE} .*{found}.*data.root .*NWS_DATA_ROOT", root=tmp_path)
    refused(nd.load_torchvision, "QMNIST cannot be had.*no route", dataset="QMNIST", root=tmp_path)
