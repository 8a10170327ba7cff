"""A user's own .npz file: what is read, and what a user reads when it is not what it should be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nws.data import load_dataset, load_npz
from nws.errors import UserError

BITS = np.random.default_rng(0).integers(0, 2, (5, 12))
GREY = np.random.default_rng(0).integers(0, 256, (5, 12), dtype=np.uint8)


def parts(**changed: np.ndarray | None) -> dict[str, np.ndarray]:
    """The arrays of a good file of bits, with some changed, or left out where they are None."""
    arrays = {"train": BITS, "valid": BITS[:3], "test": BITS[:2], **changed}
    return {key: array for key, array in arrays.items() if array is not None}


def save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(path, **arrays)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float16, np.float64])
def test_npz_of_bits(tmp_path: Path, dtype: type) -> None:
    save(tmp_path / "my.npz", {key: array.astype(dtype) for key, array in parts().items()})
    data = load_dataset(load_npz, path=tmp_path / "my.npz")
    assert (
        not data.train.redraw
        and np.array_equal(data.train.batch().numpy(), BITS)
        and len(data.test) == 2
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
def test_npz_of_grey_bytes(tmp_path: Path, dtype: type) -> None:
    grey: np.ndarray = GREY.astype(dtype).reshape(5, 3, 4)
    np.savez_compressed(tmp_path / "my.npz", train=grey, valid=grey[:3], test=grey[:2])
    data = load_dataset(load_npz, path=str(tmp_path / "my.npz"))
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
    assert load_dataset(load_npz, path=tmp_path / "my.npz", shape=option).shape == shape


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
        load_dataset(load_npz, path=tmp_path / "my.npz")
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
        load_dataset(load_npz, path=tmp_path / "my.npz")
    assert str(tmp_path / "my.npz") in str(caught.value)


def test_npz_without_a_path(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="data.path must name a .npz file .*, got null: add data.path=FILE"
    ):
        load_dataset(load_npz, path=None)


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
        load_dataset(load_npz, path=tmp_path / "my.npz", shape=shape)
