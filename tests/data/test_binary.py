"""Binary data sets in published parts: the fixed binarised MNIST, silhouettes, and LIBSVM files."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
from data_files import BINARY, BINARY_LABELS, REAL, write_rows, write_silhouettes
from scipy.io import savemat
from test_bad_inputs import refused

import nws.data as nd
from nws.data import binary

TRAIN = "binarized_mnist_train.amat"


def check(images: nd.RawImages, expected: dict[str, np.ndarray], labels: Any = None) -> None:
    assert all(np.array_equal(bits, expected[part]) for part, bits in images.parts().items())
    found = images.labels and {part: each.tolist() for part, each in images.labels.items()}
    assert found == labels and images.maximum == 1


@pytest.fixture
def amat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of binarised MNIST with a few images, which pass for the published ones."""
    (folder := tmp_path / "BinarizedMNIST").mkdir()
    for part, bits in BINARY.items():
        np.savetxt(file := folder / TRAIN.replace("train", part), bits, "%d")
        monkeypatch.setitem(binary.MD5, part, hashlib.md5(file.read_bytes()).hexdigest())
    return folder


def test_binarized_mnist(amat: Path) -> None:
    """Texts are read as they are or packed, and their folder is left as it is."""
    (amat / f"{TRAIN}.gz").write_bytes(gzip.compress((amat / TRAIN).read_bytes()))
    (amat / TRAIN).unlink()
    texts = sorted(amat.iterdir())
    check(nd.load_binarized_mnist(amat.parent), BINARY)
    assert sorted(amat.iterdir()) == texts


@pytest.mark.parametrize(("change", "message"), [
    (lambda text: text.replace(b"0", b"1", 1), "its MD5 is .*, that of the published file is"),
    (lambda text: text[:1568] + b"2" + text[1569:], "line 2: .* 784 of .*'2'"),
    (lambda text: text[: 3 * 1568 - 2], "line 3: expected 784 values of 0 and 1, got 783"),
    (lambda text: text + b"<html>", "line 6: expected 784 values of 0 and 1, got 6 of"),
])  # fmt: skip
def test_another_text_than_the_published_one(amat: Path, change: Any, message: str) -> None:
    """It stays, and nothing is downloaded or kept."""
    text = change((amat / TRAIN).read_bytes())
    (amat / TRAIN).write_bytes(text)
    refused(nd.load_binarized_mnist, f"{TRAIN} cannot be read: {message}", root=amat.parent)
    (amat / TRAIN).rename(amat / f"{TRAIN}.gz").write_bytes(gzip.compress(text)[:-9])
    refused(nd.load_binarized_mnist, f"{TRAIN}.gz cannot be read: .* ended", root=amat.parent)
    assert len([*amat.iterdir()]) == 3


def test_a_missing_text_is_downloaded(amat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, or not at all."""
    contents = [(amat / TRAIN).read_bytes(), b"<html>"]
    (amat / TRAIN).unlink()

    def fetch(url: str, folder: str, md5: str) -> None:
        assert (url, md5) == (binary.URL + TRAIN, binary.MD5["train"])
        Path(folder, TRAIN).write_bytes(contents.pop())
        if contents:
            raise URLError("no route\nto host")

    monkeypatch.setattr("torchvision.datasets.utils.download_url", fetch)
    message = f"{TRAIN} is missing, and its download failed: .*no route to host.*; take it from"
    refused(nd.load_binarized_mnist, message, root=amat.parent)
    assert len([*amat.iterdir()]) == 2
    check(nd.load_binarized_mnist(amat.parent), BINARY)


def test_the_real_binarized_mnist() -> None:
    if not [*REAL.glob("BinarizedMNIST/*.amat*")]:
        pytest.skip("NWS_DATA_ROOT names no folder with texts of BinarizedMNIST")
    means = {"train": 0.130562, "valid": 0.131127, "test": 0.132512}
    for part, images in nd.load_binarized_mnist(REAL).parts().items():
        text = np.full((50_000 if part == "train" else 10_000, 2 * 784), ord(" "), np.uint8)
        text[:, ::2], text[:, -1] = images.numpy() + ord("0"), ord("\n")
        assert hashlib.md5(text.tobytes()).hexdigest() == binary.MD5[part]
        assert images.numpy().mean() == pytest.approx(means[part], abs=1e-6)


def test_silhouettes_stand_upright(tmp_path: Path) -> None:
    file = write_silhouettes(tmp_path)
    check(nd.load_silhouettes(tmp_path), BINARY, BINARY_LABELS)
    savemat(file, {"train_data": np.full((5, 784), 2), "train_labels": np.zeros(5)})
    refused(nd.load_silhouettes, "cannot be read: expected train_data of 0 and 1", root=tmp_path)


@pytest.mark.parametrize("ending", ["libsvm", "amat"])
def test_rows_of_attributes(tmp_path: Path, ending: str) -> None:
    """The last attribute may be 0 in all rows."""
    rows = {part: bits[:, :9] * (np.arange(9) < 8) for part, bits in BINARY.items()}
    images = nd.load_libsvm(path := write_rows(tmp_path, rows, ending), 9)
    check(images, rows, BINARY_LABELS)
    assert images.shape == (1, 9)
    for text, message in (
        ("1 2:1\n0 10:1", "n_features was set to 9, but input file contains 10"),
        ("1 0:1", "index 0"),
        ("1 3:2", "expected .* attributes of 0 and 1"),
        ("0.5 3:1", "expected a whole number as label"),
        ("0 1 1 0 3", "line 1: expected 9 values of 0 and 1, got 4"),
    ):
        (tmp_path / f"valid.{ending}").write_text(text)
        refused(nd.load_libsvm, f"valid.* be read: .*{message}", path=path, attributes=9)
