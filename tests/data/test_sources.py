"""What each source reads: which images are in which part, in which order, byte for byte."""

import gzip
import itertools
import shutil
from pathlib import Path
from typing import Any

import data_files
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import idx
from data_files import GREY, PARTS, REAL, faces, marked, write_mnist, write_picture, write_tfd
from PIL import Image

import nws.data as nd
from nws.data import Dataset, RawImages, load_dataset
from nws.errors import UserError

BITS = np.random.default_rng(0).integers(0, 2, (5, 12))


def load(source: Any, **options: Any) -> Dataset:
    return load_dataset(source, binarize="none", **options)


def rows(data: Dataset) -> np.ndarray:
    """The bytes of all three parts, in their order."""
    return torch.cat([data.train.bytes, data.valid.bytes, data.test.bytes]).numpy()


def counts(data: Dataset) -> list[int]:
    return [len(data.train), len(data.valid), len(data.test)]


def test_three_by_three_is_kirbys_distribution() -> None:
    data = load(nd.load_three_by_three)
    assert data.shape == (3, 3) and data.distribution is not None
    images, probabilities = data.distribution
    assert images.shape == (12, 9) and images.dtype == torch.float32
    assert probabilities.dtype == torch.float64
    assert len({tuple(image) for image in images.tolist()}) == 12
    grid = images.reshape(12, 3, 3)
    columns, bars = (grid == grid[:, :1]).all(dim=(1, 2)), (grid == grid[:, :, :1]).all(dim=(1, 2))
    assert (columns ^ bars).all() and columns.sum() == bars.sum() == 6
    assert (probabilities[columns] == 2 / 18).all() and (probabilities[bars] == 1 / 18).all()
    assert counts(data) == [18_000, 18, 18]
    for split in (data.train, data.valid, data.test):  # hold the exact proportions
        seen = (split.batch()[:, None] == images).all(dim=2).sum(dim=0)
        torch.testing.assert_close(seen.double() / len(split), probabilities, rtol=1e-12, atol=0)


def test_digits_are_split_in_their_own_order() -> None:
    from sklearn.datasets import load_digits as originals

    data = load(nd.load_digits)
    assert counts(data) == [1_297, 250, 250] and data.shape == (8, 8) and data.distribution is None
    assert np.array_equal(rows(data), originals().data) and data.train.maximum == 16


# --- MNIST and Fashion-MNIST ----------------------------------------------------------------------


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_without_writing(tmp_path: Path, packed: bool) -> None:
    raw = write_mnist(tmp_path, packed)
    before = sorted(raw.iterdir())
    data = load(nd.load_mnist, root=tmp_path)
    assert sorted(raw.iterdir()) == before
    assert data.shape == (4, 3) and counts(data) == [20, 10_000, 7]
    for split, low in ((data.train, 0), (data.valid, 80), (data.test, 160)):
        own = marked(len(split), low, low + 80)  # no part holds another's pixels
        assert np.array_equal(split.bytes.numpy(), own.reshape(-1, 12))
    assert data.labels is not None and [*data.labels] == ["train", "valid", "test"]
    for part, labels in data.labels.items():
        assert torch.equal(labels, getattr(data, part).bytes[:, 0].long() % 10)
    unpacked = raw / data_files.TEST_FILE  # which is read first
    unpacked.write_bytes(idx(marked(7, 240, 250)))
    assert load(nd.load_mnist, root=tmp_path).test.bytes.min() >= 240


def test_first_use_downloads_into_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(_self: object, root: str, download: bool) -> None:
        assert download and (Path(root) / ".lock").exists()  # for one process at a time
        write_mnist(Path(root), packed=True, kind="FashionMNIST")

    monkeypatch.setattr("torchvision.datasets.FashionMNIST.__init__", fetch)
    assert counts(load(nd.load_fashion_mnist, root=tmp_path / "new")) == [20, 10_000, 7]


@pytest.mark.parametrize("kind", ["MNIST", "FashionMNIST"])
def test_the_real_files(kind: str) -> None:
    names = (data_files.TRAIN_FILE, data_files.TEST_FILE)
    files = [REAL / kind / "raw" / f"{name}.gz" for name in names]
    if not all(file.is_file() for file in files):
        pytest.skip(f"NWS_DATA_ROOT names no folder with packed files of {kind}")
    data = load({"MNIST": nd.load_mnist, "FashionMNIST": nd.load_fashion_mnist}[kind], root=REAL)
    assert counts(data) == [50_000, 10_000, 10_000] and data.shape == (28, 28)
    official = b"".join(gzip.decompress(file.read_bytes())[16:] for file in files)
    assert rows(data).tobytes() == official


# --- arrays ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", ["bool", "u1", "i8", "f2", "f8", "grey u1", "grey i4", "grey >u2"]
)
def test_arrays_of_bits_and_of_bytes(tmp_path: Path, dtype: str) -> None:
    images, maximum = (GREY, 255) if "grey" in dtype else (GREY // 128, 1)
    parts = {name: images[: len(part)].astype(dtype.split()[-1]) for name, part in PARTS.items()}
    np.savez(tmp_path / "my.npz", **parts)
    for data in (load(nd.load_npz, path=f"{tmp_path}/my.npz"), load(nd.load_arrays, **parts)):
        assert data.shape == (4, 3) and data.train.maximum == maximum
        assert np.array_equal(data.train.bytes, images[:40].reshape(40, 12))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_arrays_of_floats(dtype: type) -> None:
    """Intensities, kept to half a step of 255; a part of 0 and 1 alone is of intensities too."""
    shares = np.random.default_rng(0).random((5, 12)).astype(dtype)
    data = load(nd.load_arrays, train=shares, valid=BITS, test=BITS[:2])
    kept = data.train.batch().numpy()
    assert np.abs(kept - shares).max() <= 0.5 / 255 + 1e-6 and len(np.unique(kept)) > 20
    assert np.array_equal(data.test.batch().numpy(), BITS[:2])
    own = torch.tensor(shares, dtype=torch.bfloat16, requires_grad=True)
    assert load(nd.load_arrays, train=own[:, :9]).train.maximum == 255


def test_one_array_is_split_as_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each image is in one part, in a random order that is always the same, of all containers."""
    images = np.arange(40, dtype=np.uint8)[:, None].repeat(9, 1)
    np.save(tmp_path / "my.npy", images)
    with caplog.at_level("INFO"):
        data = load(nd.load_npz, path=tmp_path / "my.npy")
    assert data.shape == (3, 3) and counts(data) == [32, 4, 4]
    numbers = [split.bytes[:, 0].tolist() for split in (data.train, data.valid, data.test)]
    assert sorted(itertools.chain(*numbers)) == list(range(40)) and numbers[0] != sorted(numbers[0])
    assert numbers[2] == [15, 24, 5, 33], "the split of all runs, ever"
    assert "my.npy: 40 images, split at random" in caplog.text
    assert "my.npy: no pixel is above 39 of 255" in caplog.text
    for own in (images, torch.from_numpy(images), pd.DataFrame(images), images.tolist()):
        assert np.array_equal(rows(load(nd.load_arrays, train=own)), rows(data))


@pytest.mark.parametrize(
    ("pixels", "option", "shape"),
    [(9, None, (3, 3)), (12, None, (1, 12)), (12, [2, 6], (2, 6)), (9, (1, 9.0), (1, 9))],
)
def test_shape_of_flat_images(pixels: int, option: Any, shape: tuple[int, int]) -> None:
    assert load(nd.load_arrays, train=BITS[:, :pixels], shape=option).shape == shape


# --- pictures -------------------------------------------------------------------------------------


def test_a_folder_with_parts(tmp_path: Path) -> None:
    """Hidden files, and those that are no images, are left out."""
    (tmp_path / "train").mkdir()
    for name in ("notes.txt", ".hidden.png"):
        (tmp_path / "train" / name).write_text("no image")
    for number, image in enumerate(GREY):
        part = ("train", "valid", "test")[(number >= 40) + (number >= 50)]
        write_picture(tmp_path / part / f"{number:02}.png", image)
    data = load(nd.load_folder, path=str(tmp_path))
    assert np.array_equal(rows(data), GREY.reshape(60, 12)) and counts(data) == [40, 10, 10]


@pytest.mark.parametrize(("size", "shape"), [(8, (8, 8)), ([3, 4], (3, 4))])
def test_images_of_several_sizes(tmp_path: Path, size: object, shape: tuple[int, int]) -> None:
    """A constant image stays so, and an image of that size stays as it is, bit for bit."""
    same = marked(1, 90, 150, shape)[0]
    write_picture(tmp_path / "0.png", same)
    write_picture(tmp_path / "1.png", np.full((20, 30), 77, np.uint8))
    write_picture(tmp_path / "2.png", np.full((7, 3), 200, np.uint8))
    data = load(nd.load_folder, path=tmp_path, size=size)
    low, middle, high = sorted(rows(data), key=np.mean)
    assert data.shape == shape and {*low} == {77} and {*high} == {200}
    assert np.array_equal(middle, same.flatten())


def test_colours_jpeg_and_sixteen_bits(tmp_path: Path) -> None:
    write_picture(tmp_path / "a.png", np.full((4, 4, 3), 90, np.uint8))
    write_picture(tmp_path / "b.jpg", np.full((4, 4), 90, np.uint8))
    Image.new("I;16", (4, 4), 90 * 257).save(tmp_path / "c.png")
    Image.new("LA", (4, 4), (90, 255)).save(tmp_path / "d.png")
    (tmp_path / ".aside").mkdir()  # as notebooks keep copies
    shutil.copy(tmp_path / "a.png", tmp_path / ".aside" / "a.png")
    found = rows(load(nd.load_folder, path=tmp_path)).astype(int)
    assert len(found) == 4 and np.abs(found - 90).max() <= 1
    Image.new("LA", (4, 4), (90, 128)).save(tmp_path / "d.png")
    with pytest.raises(UserError, match=r"d.png cannot be read .* transparent in places"):
        load(nd.load_folder, path=tmp_path)


def test_any_data_set_of_torchvision(tmp_path: Path) -> None:
    """With official parts its test images stay the test part; without, all are split."""
    write_mnist(tmp_path, kind="KMNIST")
    data = load(nd.load_torchvision, dataset="KMNIST", root=tmp_path)
    assert counts(data) == [9_018, 1_002, 7] and data.shape == (4, 3)
    assert np.array_equal(data.test.bytes, marked(7, 160, 240).reshape(7, 12))
    assert data.train.bytes.max() < 160 and data.valid.bytes.max() < 160
    options = {"size": 20, "image_size": (3, 8, 6)}
    data = load(nd.load_torchvision, dataset="FakeData", options=options, size=5)
    assert counts(data) == [16, 2, 2] and data.shape == (5, 5)


# --- the Toronto Face Dataset ---------------------------------------------------------------------


@pytest.mark.parametrize(("options", "expected"), [
    ({}, [[0, 5], [2], [3, 4]]), ({"split": "train"}, [[1, 6], [2], [3, 4]]),
    ({"split": "train", "fold": 1}, [[3, 4], [1, 6], [2]]),
    ({"split": "both", "fold": 2}, [[0, 5, 2], [3, 4], [1, 6]]),
])  # fmt: skip
def test_tfd_folds_and_splits(tmp_path: Path, options: dict[str, Any], expected: Any) -> None:
    write_tfd(tmp_path)
    data = load(nd.load_tfd, root=tmp_path, **options)
    assert data.unlabeled is not None
    assert (data.unlabeled is data.train) == ("split" not in options)  # held once
    parts = (data.train, data.valid, data.test, data.unlabeled)
    found = [((part.bytes[:, 0].int() - 10) // 30).tolist() for part in parts]  # by their corners
    assert found == [*expected, [0, 5]] and data.labels is not None
    assert [data.labels[part].tolist() for part in ("train", "valid", "test")] == expected


def test_tfd_may_be_dealt_out_anew(tmp_path: Path) -> None:
    """A third of all faces is the test, whatever the folds; the fold is the seed."""
    write_tfd(tmp_path)
    found = []
    for fold in (0, 1):
        data = load(nd.load_tfd, root=tmp_path, split="pooled", fold=fold)
        images = (data.train, data.valid, data.test)
        parts = [((each.bytes[:, 0].int() - 10) // 30).tolist() for each in images]
        assert [len(part) for part in parts] == [4, 1, 2]
        assert {face for part in parts for face in part} == {*range(7)}
        assert data.labels is not None
        assert [data.labels[part].tolist() for part in ("train", "valid", "test")] == parts
        found.append(parts)
    assert found[0] != found[1]


def test_tfd_is_read_pixel_by_pixel(tmp_path: Path) -> None:
    """Rows stay rows, also where the images are reduced."""
    write_tfd(tmp_path, folds=data_files.FOLDS.astype(np.float64))  # may be MATLAB's doubles
    write_tfd(tmp_path, 96)
    for size in (48, 96):
        data = load(nd.load_tfd, root=tmp_path, size=size, split="both")
        expected = faces(size)[[0, 5, 1, 6, 2, 3, 4]]
        assert data.shape == (size, size) and data.train.maximum == 255
        assert np.array_equal(rows(data).reshape(7, size, size), expected)
    reduced = rows(load(nd.load_tfd, root=tmp_path, split="both")).reshape(7, 24, 24)
    eyes = [np.unravel_index(face.argmax(), face.shape) for face in reduced]
    assert eyes == [(2, (11 + k) // 2) for k in (0, 5, 1, 6, 2, 3, 4)]


def test_a_source_of_the_users(tmp_path: Path) -> None:
    def load_stripes(count: int, period: int = 2) -> RawImages:
        images = (torch.arange(12) % period == 0).to(torch.uint8).mul(255).expand(count, 12)
        return RawImages(images, images[:2], images[:1], (3, 4))

    data = load_dataset(load_stripes, count=5, period=3, binarize="threshold")
    assert data.name == "stripes" and data.shape == (3, 4) and counts(data) == [5, 2, 1]
    assert data.train.batch()[0].tolist() == [1, 0, 0] * 4
    own = load_dataset(load_stripes, name="mine", count=5, root=tmp_path)  # it takes no `root`
    assert own.name == "mine" and len(own.test) == 1
