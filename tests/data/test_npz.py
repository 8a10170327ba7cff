"""A user's own .npz or .npy file: what is read, and the messages where something is wrong."""

from __future__ import annotations

import itertools
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


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_npz_of_floats(tmp_path: Path, dtype: type) -> None:
    """Intensities, kept to half a step of 255; a part of 0 and 1 alone is of intensities too."""
    shares = np.random.default_rng(0).random((5, 12)).astype(dtype)
    save(tmp_path / "my.npz", parts(train=shares))
    data = load_dataset(load_npz, path=tmp_path / "my.npz", binarize="none")
    kept = data.train.batch().numpy()
    assert np.abs(kept - shares).max() <= 0.5 / 255 + 1e-6 and len(np.unique(kept)) > 20
    assert np.array_equal(data.test.batch().numpy(), BITS[:2])
    drawn = load_dataset(load_npz, path=tmp_path / "my.npz")
    assert drawn.train.redraw and drawn.train.maximum == 255


# --- one array ------------------------------------------------------------------------------------


def test_npy_is_split_and_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each image is in one part, in a random order that is always the same."""
    images = np.arange(40, dtype=np.uint8)[:, None].repeat(9, 1)
    np.save(tmp_path / "my.npy", images)
    with caplog.at_level("INFO"):
        data = load_dataset(load_npz, path=tmp_path / "my.npy", binarize="none", held_out=0.2)
    assert data.shape == (3, 3)
    numbers = [split.bytes[:, 0].tolist() for split in (data.train, data.valid, data.test)]
    assert [len(part) for part in numbers] == [24, 8, 8]
    assert sorted(itertools.chain(*numbers)) == list(range(40)) and numbers[0] != sorted(numbers[0])
    assert "40 images, split at random" in caplog.text and "24 to train on, 8 to" in caplog.text
    again = load_dataset(load_npz, path=tmp_path / "my.npy", binarize="none", held_out=0.2)
    assert again.test.bytes.equal(data.test.bytes)


def test_npy_of_few_images(tmp_path: Path) -> None:
    for count, expected in {3: [1, 1, 1], 4: [2, 1, 1], 30: [24, 3, 3]}.items():
        np.save(tmp_path / "my.npy", GREY[:1].repeat(count, 0))
        data = load_dataset(load_npz, path=tmp_path / "my.npy")
        assert [len(split) for split in (data.train, data.valid, data.test)] == expected
    np.save(tmp_path / "my.npy", GREY[:2])
    with pytest.raises(UserError, match=r"my\.npy: expected at least 3 images, .* got 2"):
        load_dataset(load_npz, path=tmp_path / "my.npy")
    np.save(tmp_path / "my.npy", GREY)
    for wrong in (0, 0.5, -1, "0.1", True):
        with pytest.raises(UserError, match="data.held_out must be a number above 0 and below 0.5"):
            load_dataset(load_npz, path=tmp_path / "my.npy", held_out=wrong)


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
        (parts(valid=None, test=None), "missing valid, test, got train. One array"),
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
            parts(valid=BITS * 2.5),
            "valid: expected floats in .*, got values from 0.0 to 2.5: divide them by the value",
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
        (parts(train=GREY), "one kind .*, got bytes 0..255 in train, 0 and 1 in valid, 0 and 1"),
        (
            parts(train=GREY, test=BITS / 2),
            r"bytes 0..255 in train, .*, floats in \[0, 1\] in test",
        ),
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
        (lambda path: None, "expected a .npz or .npy file, found none at"),
        (lambda path: path.mkdir(), "expected a .npz or .npy file, found none at"),
        (lambda path: path.write_bytes(b""), "expected a .npz or .npy file, got something else"),
        (lambda path: path.write_text("train"), "expected a .npz or .npy file, got something else"),
        (lambda path: path.write_bytes(b"\x93NUMPY\x01"), "plain arrays .*, but reading failed"),
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
        UserError, match="data.path must name a .npz or .npy file .*, got null: add data.path=FILE"
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
