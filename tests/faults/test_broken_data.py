"""Broken data files, made from good ones: each ends in a `UserError`, or loads where harmless."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from data.data_files import FOLDS, GREY, PARTS, TEST_FILE, write_mnist, write_picture, write_tfd
from faults.trial import Trial
from scipy.io import savemat

from nws.data import load_dataset, load_folder, load_mnist, load_npz, tfd

pytestmark = pytest.mark.usefixtures("quick_disk")


def test_npz_and_npy(trial: Trial, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **PARTS)
    np.savez_compressed(tmp_path / "b.npz", **PARTS)
    np.save(tmp_path / "c.npy", GREY)
    for file in sorted(tmp_path.iterdir()):
        trial.read_bytes(file, 40, lambda file=file: load_dataset(load_npz, path=file))


def test_idx(trial: Trial, tmp_path: Path) -> None:
    test = write_mnist(tmp_path) / TEST_FILE
    good, packed = test.read_bytes(), test.with_name(f"{TEST_FILE}.gz")

    def load() -> object:
        return load_dataset(load_mnist, root=tmp_path)

    trial.read_bytes(test, 40, load)
    test.unlink()
    packed.write_bytes(gzip.compress(good + bytes(10**7)))
    assert not trial.read("a bomb", load)
    packed.write_bytes(gzip.compress(good))
    trial.read_bytes(packed, 40, load)


def test_mat(trial: Trial, tmp_path: Path) -> None:
    rng, file = np.random.default_rng(0), write_tfd(tmp_path)
    faces = rng.integers(0, 256, (7, 48, 48), dtype=np.uint8)
    for packed in (False, True):
        savemat(file, {"images": faces, "folds": FOLDS}, do_compression=packed)
        trial.read_bytes(file, 30, lambda: tfd.load_tfd(tmp_path))


def test_images_in_folders(trial: Trial, tmp_path: Path) -> None:
    for number in range(4):
        write_picture(tmp_path / f"{number}.png", GREY[number])
    write_picture(tmp_path / "5.jpg", GREY[5])
    for name in ("0.png", "5.jpg"):
        trial.read_bytes(tmp_path / name, 40, lambda: load_dataset(load_folder, path=tmp_path))
