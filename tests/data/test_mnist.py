"""MNIST and Fashion-MNIST: read pixel by pixel, downloads, and what a user reads when a file is
damaged.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
from conftest import idx

from nws.data import load_dataset, load_fashion_mnist, load_mnist, mnist
from nws.errors import UserError

TRAIN_FILE, TEST_FILE = "train-images-idx3-ubyte", "t10k-images-idx3-ubyte"


def marked(count: int, low: int, high: int, size: tuple[int, int] = (4, 3)) -> np.ndarray:
    """Images of noise in [low, high): each part's pixels tell where they come from."""
    return np.random.default_rng(low).integers(low, high, (count, *size), dtype=np.uint8)


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder MNIST/raw with .gz files alone: 30 training images (the last 10 for validation), 7
    test images.
    """
    monkeypatch.setattr(mnist, "VALID_IMAGES", 10)
    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", no_network)
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    official = np.concatenate([marked(20, 0, 80), marked(10, 80, 160)])
    (folder / f"{TRAIN_FILE}.gz").write_bytes(gzip.compress(idx(official)))
    (folder / f"{TEST_FILE}.gz").write_bytes(gzip.compress(idx(marked(7, 160, 240))))
    return folder


def no_network(*_args: object, **_options: object) -> None:
    raise URLError("no route to host")


def test_packed_files_in_a_read_only_folder(tmp_path: Path, raw: Path) -> None:
    before = sorted(raw.iterdir())
    raw.chmod(0o555)
    try:
        data = load_dataset(load_mnist, root=tmp_path, binarize="none")
    finally:
        raw.chmod(0o755)
    assert sorted(raw.iterdir()) == before  # for root, whom the mode does not stop
    assert data.shape == (4, 3) and (len(data.train), len(data.valid), len(data.test)) == (
        20,
        10,
        7,
    )
    for split, low in (
        (data.train, 0),
        (data.valid, 80),
        (data.test, 160),
    ):  # no part holds another's pixels
        assert np.array_equal(
            split.bytes.numpy(), marked(len(split), low, low + 80).reshape(-1, 12)
        )


def test_unpacked_files_are_read_first(tmp_path: Path, raw: Path) -> None:
    (raw / TEST_FILE).write_bytes(idx(marked(3, 240, 250)))
    assert load_dataset(load_mnist, root=tmp_path, binarize="none").test.bytes.min() >= 240


def pack(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


GOOD = idx(marked(7, 160, 240))
WHOLE = "7 images of 4x3, 100 bytes once unpacked"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (TEST_FILE, GOOD[:-13], f"{WHOLE}; it holds 87 bytes, 5 complete images; delete it"),
        (TEST_FILE, GOOD + b"x", f"{WHOLE}; it holds 101 bytes"),
        (TEST_FILE, GOOD[:10], "expected a header of 16 bytes, the file holds 10"),
        (TEST_FILE, b"", "expected a header of 16 bytes, the file holds 0"),
        (TEST_FILE, idx(marked(7, 0, 9), magic=2049), "expected magic number 2051 .*, got 2049"),
        (TEST_FILE, idx(marked(0, 0, 9)), "0 images of 4x3, 16 bytes"),
        (
            f"{TEST_FILE}.gz",
            pack(GOOD)[:-30],
            f"{WHOLE}; it holds .*, and the packed file ends too early; delete it",
        ),
        (
            f"{TEST_FILE}.gz",
            pack(GOOD)[:-4],
            f"{WHOLE}; it holds 100 bytes, 7 complete.* ends too early",
        ),
        (
            f"{TEST_FILE}.gz",
            pack(GOOD[:-12]),
            f"{WHOLE}; it holds 88 bytes, 6 complete images; delete it",
        ),
        (
            f"{TEST_FILE}.gz",
            pack(GOOD)[:-8] + bytes(8),
            "expected a gzip file, but its bytes do not unpack",
        ),
        (
            f"{TEST_FILE}.gz",
            b"<html>not found</html>",
            "expected a gzip file, but its bytes do not unpack",
        ),
        (
            f"{TEST_FILE}.gz",
            pack(idx(marked(7, 0, 9, (5, 5)))),
            r"one size, got \(4, 3\) and \(5, 5\)",
        ),
        (f"{TRAIN_FILE}.gz", pack(GOOD), "expected more than 10 images, found 7"),
    ],
)
def test_damaged_idx_files(
    tmp_path: Path, raw: Path, name: str, content: bytes, message: str
) -> None:
    (raw / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        load_dataset(load_mnist, root=tmp_path)
    assert str(raw) in str(caught.value) and "delete" in str(caught.value)


@pytest.mark.parametrize(
    "failure", [URLError("no route to host"), PermissionError("read-only folder")]
)
def test_failed_download_says_what_is_missing_and_where(
    tmp_path: Path, raw: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise failure

    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", fail)
    (raw / f"{TEST_FILE}.gz").unlink()
    with pytest.raises(UserError) as caught:
        load_dataset(load_mnist, root=tmp_path)
    reason = str(failure.args[0])
    for piece in (
        TEST_FILE,
        str(raw),
        f"found {TRAIN_FILE}.gz",
        reason,
        "data.root",
        "NWS_DATA_ROOT",
    ):
        assert piece in str(caught.value)


def test_first_use_downloads_into_root(
    tmp_path: Path, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fetch(_self: object, root: str, download: bool) -> None:
        asked.append((root, download))
        raw_folder = Path(root) / "FashionMNIST" / "raw"
        raw_folder.mkdir(parents=True)
        for file in raw.iterdir():
            (raw_folder / file.name).write_bytes(file.read_bytes())

    monkeypatch.setattr("torchvision.datasets.FashionMNIST.__init__", fetch)
    data = load_dataset(load_fashion_mnist, root=tmp_path / "new")
    assert asked == [(str(tmp_path / "new"), True)] and len(data.train) == 20 and data.train.redraw


REAL = Path(os.environ.get("NWS_DATA_ROOT", "nowhere"))
FILES = [REAL / "FashionMNIST" / "raw" / name for name in (TRAIN_FILE, TEST_FILE)]


@pytest.mark.skipif(
    not all(file.is_file() or Path(f"{file}.gz").is_file() for file in FILES),
    reason="NWS_DATA_ROOT names no folder with Fashion-MNIST",
)
def test_real_fashion_mnist() -> None:
    data = load_dataset(load_fashion_mnist, root=REAL, binarize="none")
    parts = (data.train, data.valid, data.test)
    assert [len(part) for part in parts] == [50_000, 10_000, 10_000] and data.shape == (28, 28)
    file, packed = FILES[0], Path(f"{FILES[0]}.gz")
    content = file.read_bytes() if file.is_file() else gzip.decompress(packed.read_bytes())
    official = np.frombuffer(content, dtype=np.uint8, offset=16).reshape(60_000, 784)
    assert np.array_equal(data.train.bytes[0].numpy(), official[0])
    assert np.array_equal(data.valid.bytes[0].numpy(), official[50_000])
