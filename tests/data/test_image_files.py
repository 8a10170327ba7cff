"""Images from files, by way of the data sets: read pixel by pixel, and what a user reads when one is not what it should be."""

from __future__ import annotations

import gzip
import hashlib
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
from cases import seeded
from scipy.io import savemat

from nws.data import datasets, image_files
from nws.data.datasets import Split, load_dataset
from nws.errors import UserError

TRAIN_FILE, TEST_FILE = "train-images-idx3-ubyte", "t10k-images-idx3-ubyte"


# --- idx files -----------------------------------------------------------------------------------------------------


def idx_bytes(images: np.ndarray, magic: int = 2051) -> bytes:
    return struct.pack(">4I", magic, *images.shape) + images.astype(np.uint8).tobytes()


def marked(count: int, low: int, high: int, size: tuple[int, int] = (4, 3)) -> np.ndarray:
    """Images of noise in [low, high): each part's pixels tell where they come from."""
    return np.random.default_rng(low).integers(low, high, (count, *size), dtype=np.uint8)


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder MNIST/raw with .gz files alone: 30 training images (the last 10 for validation), 7 test images."""
    monkeypatch.setattr(datasets, "MNIST_VALID_IMAGES", 10)
    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", no_network)
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    official = np.concatenate([marked(20, 0, 80), marked(10, 80, 160)])
    (folder / f"{TRAIN_FILE}.gz").write_bytes(gzip.compress(idx_bytes(official)))
    (folder / f"{TEST_FILE}.gz").write_bytes(gzip.compress(idx_bytes(marked(7, 160, 240))))
    return folder


def no_network(*_args: object, **_options: object) -> None:
    raise URLError("no route to host")


def test_packed_files_in_a_read_only_folder(tmp_path: Path, raw: Path) -> None:
    before = sorted(raw.iterdir())
    raw.chmod(0o555)
    try:
        data = load_dataset("mnist", root=tmp_path, binarize="none")
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
    (raw / TEST_FILE).write_bytes(idx_bytes(marked(3, 240, 250)))
    assert load_dataset("mnist", root=tmp_path, binarize="none").test.bytes.min() >= 240


def pack(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


GOOD = idx_bytes(marked(7, 160, 240))
WHOLE = "7 images of 4x3, 100 bytes once unpacked"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (TEST_FILE, GOOD[:-13], f"{WHOLE}; it holds 87 bytes, 5 whole images; delete it"),
        (TEST_FILE, GOOD + b"x", f"{WHOLE}; it holds 101 bytes"),
        (TEST_FILE, GOOD[:10], "expected a header of 16 bytes, the file holds 10"),
        (TEST_FILE, b"", "expected a header of 16 bytes, the file holds 0"),
        (
            TEST_FILE,
            idx_bytes(marked(7, 0, 9), magic=2049),
            "expected magic number 2051 .*, got 2049",
        ),
        (TEST_FILE, idx_bytes(marked(0, 0, 9)), "0 images of 4x3, 16 bytes"),
        (
            f"{TEST_FILE}.gz",
            pack(GOOD)[:-30],
            f"{WHOLE}; it holds .*, and the packed file ends too early; delete it",
        ),
        (
            f"{TEST_FILE}.gz",
            pack(GOOD)[:-4],
            f"{WHOLE}; it holds 100 bytes, 7 whole.* ends too early",
        ),
        (
            f"{TEST_FILE}.gz",
            pack(GOOD[:-12]),
            f"{WHOLE}; it holds 88 bytes, 6 whole images; delete it",
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
            pack(idx_bytes(marked(7, 0, 9, (5, 5)))),
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
        load_dataset("mnist", root=tmp_path)
    assert str(raw) in str(caught.value) and "fetch it anew" in str(caught.value)


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
        load_dataset("mnist", root=tmp_path)
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
    data = load_dataset("fashion_mnist", root=tmp_path / "new")
    assert asked == [(str(tmp_path / "new"), True)] and len(data.train) == 20 and data.train.redraw


@pytest.mark.skipif(
    "NWS_DATA_ROOT" not in os.environ, reason="NWS_DATA_ROOT does not say where Fashion-MNIST is"
)
def test_real_fashion_mnist() -> None:
    root = Path(os.environ["NWS_DATA_ROOT"])
    data = load_dataset("fashion_mnist", root=root, binarize="none")
    assert (len(data.train), len(data.valid), len(data.test)) == (
        50_000,
        10_000,
        10_000,
    ) and data.shape == (28, 28)
    packed = root / "FashionMNIST" / "raw" / f"{TRAIN_FILE}.gz"
    content = (
        gzip.decompress(packed.read_bytes())
        if packed.is_file()
        else packed.with_suffix("").read_bytes()
    )
    official = np.frombuffer(content, dtype=np.uint8, offset=16).reshape(60_000, 784)
    assert np.array_equal(data.train.bytes[0].numpy(), official[0])
    assert np.array_equal(data.valid.bytes[0].numpy(), official[50_000])


# --- tfd -----------------------------------------------------------------------------------------------------------


# In fold 0 these are 0 and 5 unlabelled, 1 and 6 train, 2 valid, 3 and 4 test; the labelled ones move on from fold to fold.
KINDS = [0, 1, 2, 3, 3, 0, 1]


def tfd_arrays(side: int = 48, **changed: np.ndarray | None) -> dict[str, np.ndarray]:
    """Seven faces in TFD's layout, face k of grey 30 k + 10 with a white eye at row 5, column 11 + k."""
    images = np.zeros((7, side, side), dtype=np.uint8)
    for k in range(7):
        images[k] = 30 * k + 10
        images[k, 5, 11 + k] = 255
    folds = np.array(
        [[kind and (kind - 1 + fold) % 3 + 1 for fold in range(5)] for kind in KINDS],
        dtype=np.uint8,
    )
    labels = np.full((7, 1), -1, dtype=np.int16)
    arrays = {"images": images, "folds": folds, "labs_ex": labels, "labs_id": labels, **changed}
    return {key: array for key, array in arrays.items() if array is not None}


def save_mat(root: Path, arrays: dict[str, np.ndarray], side: int = 48) -> Path:
    (root / "TFD").mkdir(exist_ok=True)
    savemat(root / "TFD" / f"TFD_{side}x{side}.mat", arrays)
    return root / "TFD" / f"TFD_{side}x{side}.mat"


def faces(split: Split) -> list[int]:
    """Which of the faces of tfd_arrays a split holds, by the grey of a corner."""
    return [(int(corner) - 10) // 30 for corner in split.bytes[:, 0]]


def test_tfd_is_read_pixel_by_pixel(tmp_path: Path) -> None:
    save_mat(tmp_path, tfd_arrays())
    data = load_dataset("tfd", root=tmp_path, binarize="none", size=48, split="both")
    assert data.shape == (48, 48) and data.train.maximum == 255 and data.distribution is None
    pooled = torch.cat([data.train.bytes, data.valid.bytes, data.test.bytes])
    for k, image in zip([0, 5, 1, 6, 2, 3, 4], pooled.reshape(7, 48, 48), strict=True):
        assert torch.equal(
            image, torch.from_numpy(tfd_arrays()["images"][k])
        )  # rows stay rows: the eye is at (5, 11 + k)


@pytest.mark.parametrize(
    ("options", "train", "valid", "test"),
    [
        ({}, [0, 5], [2], [3, 4]),
        ({"split": "train"}, [1, 6], [2], [3, 4]),
        ({"split": "both"}, [0, 5, 1, 6], [2], [3, 4]),
        ({"split": "train", "fold": 1}, [3, 4], [1, 6], [2]),
        ({"split": "both", "fold": 2}, [0, 5, 2], [3, 4], [1, 6]),
        ({"split": "train", "fold": 4.0}, [3, 4], [1, 6], [2]),
    ],
)
def test_tfd_folds_and_splits(
    tmp_path: Path, options: dict[str, Any], train: list[int], valid: list[int], test: list[int]
) -> None:
    save_mat(tmp_path, tfd_arrays())
    data = load_dataset("tfd", root=tmp_path, binarize="none", **options)
    assert data.unlabeled is not None
    assert [faces(each) for each in (data.train, data.valid, data.test)] == [train, valid, test]
    assert faces(data.unlabeled) == [0, 5]
    assert (data.unlabeled is data.train) == (
        options.get("split", "unlabeled") == "unlabeled"
    )  # held once


def test_tfd_folds_may_be_matlabs_doubles(tmp_path: Path) -> None:
    save_mat(tmp_path, tfd_arrays(folds=tfd_arrays()["folds"].astype(np.float64)))
    assert faces(load_dataset("tfd", root=tmp_path, split="train", binarize="none").train) == [1, 6]


def test_tfd_sizes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (7, 48, 48), dtype=np.uint8)
    noise[0] = 255 * (np.arange(48) % 3 == 0)  # stripes too fine for 24 pixels, of mean 85
    noise[5] = np.arange(48)[:, None] * 5  # a slope from top to bottom
    save_mat(tmp_path, tfd_arrays(images=noise))
    save_mat(tmp_path, tfd_arrays(96), side=96)
    data = load_dataset("tfd", root=tmp_path, binarize="none")
    assert data.shape == (24, 24) and data.train.bytes.dtype == torch.uint8
    stripes, slope = data.train.bytes.reshape(2, 24, 24)[
        :, 3:-3, 3:-3
    ].float()  # away from the edges
    assert 70 < stripes.mean() < 100 and stripes.std() < 30  # 94 without antialiasing
    rows = torch.arange(3, 21) * 10 + 2.5
    assert (slope - rows[:, None]).abs().max() <= 0.5  # rounded, and neither shifted nor transposed
    reduced = data.test.bytes[0].reshape(24, 24).float()
    means = torch.from_numpy(noise[3]).float().reshape(24, 2, 24, 2).mean(dim=(1, 3))
    assert torch.corrcoef(torch.stack([reduced.flatten(), means.flatten()]))[0, 1] > 0.9
    large = load_dataset("tfd", root=tmp_path, binarize="none", size=96)
    assert large.shape == (96, 96) and large.train.bytes.reshape(2, 96, 96)[1, 5, 16] == 255


def test_tfd_unlabelled_images_are_made_binary_as_the_training_part_is(tmp_path: Path) -> None:
    save_mat(tmp_path, tfd_arrays())
    fresh = load_dataset("tfd", root=tmp_path, split="train", binarize="resample")
    assert (
        fresh.unlabeled is not None
        and fresh.unlabeled.redraw
        and fresh.train.redraw
        and not fresh.valid.redraw
    )
    rng = seeded()
    assert not torch.equal(fresh.unlabeled.batch(None, rng), fresh.unlabeled.batch(None, rng))
    static = load_dataset("tfd", root=tmp_path, split="train", binarize="static").unlabeled
    again = load_dataset("tfd", root=tmp_path, split="train", fold=1, binarize="static").unlabeled
    assert (
        static is not None
        and again is not None
        and static.maximum == 1
        and torch.equal(static.bytes, again.bytes)
    )
    sharp = load_dataset("tfd", root=tmp_path, split="both", binarize="threshold").unlabeled
    assert sharp is not None and sharp.bytes.float().mean(dim=1).round().tolist() == [0, 1]


@pytest.mark.parametrize("split", ["unlabeled", "train"])
def test_tfd_unlabelled_images_move_to_the_device(tmp_path: Path, split: str) -> None:
    save_mat(tmp_path, tfd_arrays())
    data = load_dataset("tfd", root=tmp_path, split=split)
    moved = data.to("meta")
    assert (
        moved.unlabeled is not None
        and moved.unlabeled.bytes.device.type == "meta"
        and len(moved.unlabeled) == 2
    )
    assert (moved.unlabeled is moved.train) == (split == "unlabeled")
    assert load_dataset("digits", root=tmp_path).to("cpu").unlabeled is None


@pytest.mark.parametrize(("size", "side"), [(24, 48), (48, 48), (96, 96)])
def test_tfd_that_is_not_there(tmp_path: Path, size: int, side: int) -> None:
    (tmp_path / "TFD").mkdir()
    (tmp_path / "TFD" / "TFD_info.mat").touch()
    with pytest.raises(UserError) as caught:
        load_dataset("tfd", root=tmp_path, size=size)
    text = str(caught.value)
    for piece in (f"TFD_{side}x{side}.mat in {tmp_path / 'TFD'}, found TFD_info.mat", "requested from its maker",
                  "Josh Susskind, Adam Anderson, Geoffrey Hinton, The Toronto Face Database", "UTML TR 2010-001",
                  "9d113650c197719b750ecc6864faf87c", "data.root", "NWS_DATA_ROOT"):  # fmt: skip
        assert piece in text
    assert not list(tmp_path.glob("TFD/TFD_*x*"))


def test_another_48x48_file_is_read_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save_mat(tmp_path, tfd_arrays())
    save_mat(tmp_path, tfd_arrays(96), side=96)
    for options in ({"size": 48}, {"size": 24, "fold": 1}, {"size": 96}):
        load_dataset("tfd", root=tmp_path, **options)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    md5 = hashlib.md5(file.read_bytes()).hexdigest()
    for piece in (
        str(file),
        "is not the official file",
        md5,
        "9d113650c197719b750ecc6864faf87c",
        "not TFD's",
    ):
        assert piece in caplog.text
    caplog.clear()  # the control: a file with the official sum is read in silence
    (tmp_path / "copy").mkdir()
    copy = save_mat(tmp_path / "copy", tfd_arrays())
    monkeypatch.setattr(image_files, "TFD_MD5", hashlib.md5(copy.read_bytes()).hexdigest())
    load_dataset("tfd", root=tmp_path / "copy")
    assert caplog.records == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fold": 5}, "data.fold must be one of the official folds, 0 to 4, got 5"),
        ({"fold": -1}, "data.fold must be a whole number of at least 0, got -1"),
        ({"fold": "all"}, "data.fold must be a whole number of at least 0, got 'all'"),
        ({"split": "valid"}, "data.split must be one of unlabeled, train, both, got 'valid'"),
        ({"split": None}, "data.split must be one of unlabeled, train, both, got None"),
        ({"size": 28}, "data.size must be one of 24, 48, 96, got 28"),
        ({"size": "48x48"}, "data.size must be a whole number of at least 1, got '48x48'"),
        (
            {"path": "x"},
            "tfd has no option path; its options are root, binarize, fold, split, size$",
        ),
    ],
)
def test_tfd_options(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_dataset("tfd", root=tmp_path, **options)


FOLDS = tfd_arrays()["folds"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (tfd_arrays(folds=None), "missing folds, got images, labs_ex, labs_id; take a fresh copy"),
        (tfd_arrays(images=None, folds=None), "missing images, folds, got labs_ex, labs_id"),
        (
            tfd_arrays(96),
            r"images: expected bytes \(uint8\) of shape \(N, 48, 48\), .* got uint8 of shape \(7, 96, 96\)",
        ),
        (
            tfd_arrays(images=np.zeros((48, 48), np.uint8)),
            r"images: .* got uint8 of shape \(48, 48\)",
        ),
        (
            tfd_arrays(images=np.zeros((7, 48, 48))),
            r"images: .* got float64 of shape \(7, 48, 48\)",
        ),
        (
            tfd_arrays(images=np.zeros((0, 48, 48), np.uint8)),
            r"images: .* got uint8 of shape \(0, 48, 48\)",
        ),
        (
            tfd_arrays(folds=FOLDS[:, :3]),
            r"folds: expected numbers of shape \(7, 5\), .* got uint8 of shape \(7, 3\)",
        ),
        (tfd_arrays(folds=FOLDS[:6]), r"folds: .* got uint8 of shape \(6, 5\)"),
        (tfd_arrays(folds=np.array(["a"] * 7)), "folds: expected numbers .* got <U"),
        (
            tfd_arrays(folds=FOLDS + 1),
            r"folds: expected 0 \(unlabelled\), .* got 4 and the like in 8 places",
        ),
        (tfd_arrays(folds=FOLDS / 2), "folds: expected 0 .* got 0.5 and the like"),
        (
            tfd_arrays(folds=np.full((7, 5), np.nan)),
            "folds: expected 0 .* got nan and the like in 35 places",
        ),
        (
            tfd_arrays(folds=np.minimum(FOLDS, 2)),
            "expected images of each kind .* in fold 0, got 0: 2, 1: 2, 2: 3, 3: 0",
        ),
    ],
)
def test_tfd_mistakes_in_arrays(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    file = save_mat(tmp_path, arrays)
    with pytest.raises(UserError, match=message) as caught:
        load_dataset("tfd", root=tmp_path)
    assert str(file) in str(caught.value)


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def noise(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[140:400] = np.random.default_rng(0).bytes(260)
    path.write_bytes(content)


V73 = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(384) + b"\x89HDF\r\n\x1a\n"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (half, "expected a MATLAB file, but reading failed .*; take a fresh copy of the file"),
        (noise, "expected a MATLAB file, but reading failed"),
        (lambda path: path.write_bytes(b""), "expected a MATLAB file, but reading failed"),
        (
            lambda path: path.write_bytes(b"<html>not found</html>" * 20),
            "expected a MATLAB file, but reading failed",
        ),
        (
            lambda path: path.write_bytes(V73),
            "version 7 or before, got version 7.3 .*write it with save",
        ),
    ],
)
def test_tfd_mistakes_in_the_file(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    file = save_mat(tmp_path, tfd_arrays())
    damage(file)
    with pytest.raises(UserError, match=message) as caught:
        load_dataset("tfd", root=tmp_path)
    assert str(file) in str(caught.value)


@pytest.mark.skipif(
    not (Path(os.environ.get("NWS_DATA_ROOT", "")) / "TFD" / "TFD_48x48.mat").is_file(),
    reason="NWS_DATA_ROOT does not say where TFD_48x48.mat is",
)
def test_a_whole_tfd_file() -> None:
    root = Path(os.environ["NWS_DATA_ROOT"])
    data = [
        load_dataset("tfd", root=root, binarize="none", split="train", fold=fold) for fold in (0, 4)
    ]
    pools = []
    for each in data:
        assert (
            each.shape == (24, 24) and each.unlabeled is not None and len(each.unlabeled) > 10_000
        )
        pools.append(torch.cat([each.train.bytes, each.valid.bytes, each.test.bytes]))
        assert 60 < each.unlabeled.bytes.float().mean() < 200
    # The folds share out the same labelled images, each in its own way.
    assert sorted(map(bytes, pools[0].numpy())) == sorted(map(bytes, pools[1].numpy()))
    assert not torch.equal(data[0].test.bytes[:100], data[1].test.bytes[:100])


# --- npz -----------------------------------------------------------------------------------------------------------

BITS = np.random.default_rng(0).integers(0, 2, (5, 12))
GREY = np.random.default_rng(0).integers(0, 256, (5, 12), dtype=np.uint8)


def parts(**changed: np.ndarray | None) -> dict[str, np.ndarray]:
    """The arrays of a good file of bits, with some changed, or left out where they are None."""
    arrays = {"train": BITS, "valid": BITS[:3], "test": BITS[:2], **changed}
    return {key: array for key, array in arrays.items() if array is not None}


def save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(path, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the arrays for its one option


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float16, np.float64])
def test_npz_of_bits(tmp_path: Path, dtype: type) -> None:
    save(tmp_path / "my.npz", {key: array.astype(dtype) for key, array in parts().items()})
    data = load_dataset("npz", root=tmp_path, path=tmp_path / "my.npz")
    assert (
        not data.train.redraw
        and np.array_equal(data.train.batch().numpy(), BITS)
        and len(data.test) == 2
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
def test_npz_of_grey_bytes(tmp_path: Path, dtype: type) -> None:
    grey: np.ndarray = GREY.astype(dtype).reshape(5, 3, 4)
    np.savez_compressed(tmp_path / "my.npz", train=grey, valid=grey[:3], test=grey[:2])
    data = load_dataset("npz", root=tmp_path, path=str(tmp_path / "my.npz"))
    assert data.shape == (3, 4) and data.train.redraw and data.train.maximum == 255
    assert np.array_equal(data.train.bytes.numpy(), GREY) and data.test.maximum == 1


@pytest.mark.parametrize(
    ("pixels", "option", "shape"),
    [(9, None, (3, 3)), (12, None, (1, 12)), (12, [2, 6], (2, 6)), (9, (1, 9.0), (1, 9))],
)
def test_npz_shape_of_flat_images(
    tmp_path: Path, pixels: int, option: list[int] | None, shape: tuple[int, int]
) -> None:
    save(tmp_path / "my.npz", {key: array[:, :pixels] for key, array in parts().items()})
    assert load_dataset("npz", root=tmp_path, path=tmp_path / "my.npz", shape=option).shape == shape


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (parts(valid=None, test=None), "missing valid, test, got train$"),
        (
            parts(test=np.zeros(12)),
            r"test: expected an array \(N, D\) or \(N, H, W\), got shape \(12,\)",
        ),
        (
            parts(train=np.zeros((2, 3, 4, 1))),
            r"train: expected an array .*, got shape \(2, 3, 4, 1\)",
        ),
        (parts(valid=BITS[:, :9]), r"images of one size .*'valid': \(9,\)"),
        (parts(valid=BITS.reshape(5, 3, 4)), r"images of one size .*'valid': \(3, 4\)"),
        (
            parts(valid=BITS / 2),
            "valid: expected floats to be exactly 0 or 1, .*: give grey images as bytes 0..255",
        ),
        (parts(test=np.full((2, 12), np.nan)), "test: expected numbers, got NaN in 24 pixels"),
        (parts(train=-BITS), "train: expected 0 and 1, or bytes 0..255, got values from -1 to 0"),
        (parts(train=BITS * 256), "train: expected .*, got values from 0 to 256"),
        (parts(train=np.full((2, 12), np.inf)), "train: expected .*, got values from inf to inf"),
        (parts(valid=BITS[:0]), r"valid: expected at least one image .*, got shape \(0, 12\)"),
        (parts(valid=BITS[:, :0]), r"valid: expected at least one image .*, got shape \(5, 0\)"),
        (parts(train=BITS.astype(object)), "expected plain arrays of numbers, but reading failed"),
        (
            parts(train=BITS.astype(str)),
            "train: expected booleans, integers or floats, got dtype <U",
        ),
        (parts(train=GREY), "all grey bytes, got grey bytes only in train$"),
    ],
)
def test_npz_mistakes_in_arrays(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    save(tmp_path / "my.npz", arrays)
    with pytest.raises(UserError, match=message) as caught:
        load_dataset("npz", root=tmp_path, path=tmp_path / "my.npz")
    assert str(tmp_path / "my.npz") in str(caught.value)


def torn(path: Path) -> None:
    save(path, parts())
    content = bytearray(path.read_bytes())
    content[200:260] = bytes(60)  # inside the first array: the directory at the end stays whole
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: None, "expected a .npz file, found none at"),
        (lambda path: path.mkdir(), "expected a .npz file, found none at"),
        (lambda path: path.write_bytes(b""), "expected a .npz file, got something else"),
        (lambda path: path.write_text("train"), "expected a .npz file, got something else"),
        (lambda path: np.save(path.open("wb"), BITS), "expected a .npz file, got something else"),
        (torn, "expected plain arrays of numbers, but reading failed"),
    ],
)
def test_npz_mistakes_in_the_file(
    tmp_path: Path, write: Callable[[Path], object], message: str
) -> None:
    write(tmp_path / "my.npz")
    with pytest.raises(UserError, match=message) as caught:
        load_dataset("npz", root=tmp_path, path=tmp_path / "my.npz")
    assert str(tmp_path / "my.npz") in str(caught.value)


def test_npz_without_a_path(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="data.path must name a .npz file .*, got null: add data.path=FILE"
    ):
        load_dataset("npz", root=tmp_path, path=None)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([5, 5], r"data.shape must have H \* W = 12, .*, got \[5, 5\]"),
        ([12], r"data.shape must be \[H, W\] or null, got \[12\]"),
        ("34", r"data.shape must be \[H, W\] or null, got '34'"),
        (12, r"data.shape must be \[H, W\] or null, got 12"),
        ([-3, -4], "data.shape must be a whole number of at least 1, got -3"),
    ],
)
def test_npz_mistakes_in_the_shape(tmp_path: Path, shape: object, message: str) -> None:
    save(tmp_path / "my.npz", parts())
    with pytest.raises(UserError, match=message):
        load_dataset("npz", root=tmp_path, path=tmp_path / "my.npz", shape=shape)
