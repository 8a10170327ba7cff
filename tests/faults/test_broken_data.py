"""Data files that are broken: each ends in a `UserError`, or loads where it is harmless.

The files are made here from good ones; with `--faults-long` thousands, from a seed that is printed.
"""

import gzip
from pathlib import Path

import numpy as np
import pytest
from conftest import idx
from faults.trial import Trial
from PIL import Image
from scipy.io import savemat

from nws.data import load_dataset, load_folder, load_mnist, load_npz, mnist, tfd

GREY = np.random.default_rng(0).integers(0, 256, (12, 9), dtype=np.uint8)
pytestmark = pytest.mark.usefixtures("quick_disk")


def test_npz_and_npy(trial: Trial, tmp_path: Path) -> None:
    parts = {"train": GREY, "valid": GREY[:3], "test": GREY[3:6]}
    for save, name in ((np.savez, "a.npz"), (np.savez_compressed, "b.npz")):
        save(tmp_path / name, **parts)
        file = tmp_path / name
        trial.read_bytes(file, 40, lambda file=file: load_dataset(load_npz, path=file))
    np.save(tmp_path / "c.npy", GREY)
    file = tmp_path / "c.npy"
    trial.read_bytes(file, 40, lambda: load_dataset(load_npz, path=file))


def test_idx(trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist, "VALID_IMAGES", 4)
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    images = GREY.reshape(12, 3, 3)
    (folder / "train-images-idx3-ubyte").write_bytes(idx(images))
    test = folder / "t10k-images-idx3-ubyte"
    test.write_bytes(idx(images[:5]))

    def load() -> object:
        return load_dataset(load_mnist, root=tmp_path)

    trial.read_bytes(test, 40, load)
    test.unlink()
    packed = folder / "t10k-images-idx3-ubyte.gz"
    packed.write_bytes(gzip.compress(idx(images[:5]) + bytes(10**7)))
    assert not trial.read("a bomb", load)
    packed.write_bytes(gzip.compress(idx(images[:5])))
    trial.read_bytes(packed, 40, load)


def test_mat(trial: Trial, tmp_path: Path) -> None:
    (tmp_path / "TFD").mkdir()
    file = tmp_path / "TFD" / "TFD_48x48.mat"
    rng = np.random.default_rng(0)
    faces = rng.integers(0, 256, (8, 48, 48), dtype=np.uint8)
    folds = np.repeat(np.arange(8, dtype=np.uint8)[:, None] % 4, 5, axis=1)
    for packed in (False, True):
        savemat(file, {"images": faces, "folds": folds}, do_compression=packed)
        trial.read_bytes(file, 30, lambda: tfd.load_tfd(tmp_path))


def test_images_in_folders(trial: Trial, tmp_path: Path) -> None:
    for number in range(4):
        Image.fromarray(GREY[number].reshape(3, 3)).save(tmp_path / f"{number}.png")
    Image.fromarray(GREY[5].reshape(3, 3)).save(tmp_path / "5.jpg")
    for name in ("0.png", "5.jpg"):
        trial.read_bytes(tmp_path / name, 40, lambda: load_dataset(load_folder, path=tmp_path))
