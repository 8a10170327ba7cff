"""The Toronto Face Database: folds, splits, sizes, and what a user reads when the file is not what
it should be.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import seeded
from scipy.io import savemat

from nws.data import Split, load_dataset, load_digits, load_tfd, tfd
from nws.errors import UserError

# In fold 0 these are 0 and 5 unlabelled, 1 and 6 train, 2 valid, 3 and 4 test; the labelled ones
# move on from fold to fold.
KINDS = [0, 1, 2, 3, 3, 0, 1]


def tfd_arrays(side: int = 48, **changed: np.ndarray | None) -> dict[str, np.ndarray]:
    """Seven faces in TFD's layout, face k of grey 30 k + 10 with a white eye at row 5, column 11 +
    k.
    """
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
    data = load_dataset(load_tfd, root=tmp_path, binarize="none", size=48, split="both")
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
    data = load_dataset(load_tfd, root=tmp_path, binarize="none", **options)
    assert data.unlabeled is not None
    assert [faces(each) for each in (data.train, data.valid, data.test)] == [train, valid, test]
    assert faces(data.unlabeled) == [0, 5]
    assert (data.unlabeled is data.train) == (
        options.get("split", "unlabeled") == "unlabeled"
    )  # held once


def test_tfd_folds_may_be_matlabs_doubles(tmp_path: Path) -> None:
    save_mat(tmp_path, tfd_arrays(folds=tfd_arrays()["folds"].astype(np.float64)))
    assert faces(load_dataset(load_tfd, root=tmp_path, split="train", binarize="none").train) == [
        1,
        6,
    ]


def test_tfd_sizes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (7, 48, 48), dtype=np.uint8)
    noise[0] = 255 * (np.arange(48) % 3 == 0)  # stripes too fine for 24 pixels, of mean 85
    noise[5] = np.arange(48)[:, None] * 5  # a slope from top to bottom
    save_mat(tmp_path, tfd_arrays(images=noise))
    save_mat(tmp_path, tfd_arrays(96), side=96)
    data = load_dataset(load_tfd, root=tmp_path, binarize="none")
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
    large = load_dataset(load_tfd, root=tmp_path, binarize="none", size=96)
    assert large.shape == (96, 96) and large.train.bytes.reshape(2, 96, 96)[1, 5, 16] == 255


def test_tfd_unlabelled_images_are_made_binary_as_the_training_part_is(tmp_path: Path) -> None:
    save_mat(tmp_path, tfd_arrays())
    fresh = load_dataset(load_tfd, root=tmp_path, split="train", binarize="resample")
    assert (
        fresh.unlabeled is not None
        and fresh.unlabeled.redraw
        and fresh.train.redraw
        and not fresh.valid.redraw
    )
    rng = seeded()
    assert not torch.equal(fresh.unlabeled.batch(None, rng), fresh.unlabeled.batch(None, rng))
    static = load_dataset(load_tfd, root=tmp_path, split="train", binarize="static").unlabeled
    again = load_dataset(
        load_tfd, root=tmp_path, split="train", fold=1, binarize="static"
    ).unlabeled
    assert (
        static is not None
        and again is not None
        and static.maximum == 1
        and torch.equal(static.bytes, again.bytes)
    )
    sharp = load_dataset(load_tfd, root=tmp_path, split="both", binarize="threshold").unlabeled
    assert sharp is not None and sharp.bytes.float().mean(dim=1).round().tolist() == [0, 1]


@pytest.mark.parametrize("split", ["unlabeled", "train"])
def test_tfd_unlabelled_images_move_to_the_device(tmp_path: Path, split: str) -> None:
    save_mat(tmp_path, tfd_arrays())
    moved = load_dataset(load_tfd, root=tmp_path, split=split, device="meta")
    assert (
        moved.unlabeled is not None
        and moved.unlabeled.bytes.device.type == "meta"
        and len(moved.unlabeled) == 2
    )
    assert (moved.unlabeled is moved.train) == (split == "unlabeled")
    assert load_dataset(load_digits, device="meta").unlabeled is None


@pytest.mark.parametrize(("size", "side"), [(24, 48), (48, 48), (96, 96)])
def test_tfd_that_is_not_there(tmp_path: Path, size: int, side: int) -> None:
    (tmp_path / "TFD").mkdir()
    (tmp_path / "TFD" / "TFD_info.mat").touch()
    with pytest.raises(UserError) as caught:
        load_dataset(load_tfd, root=tmp_path, size=size)
    text = str(caught.value)
    for piece in (
        f"TFD_{side}x{side}.mat in {tmp_path / 'TFD'}, found TFD_info.mat",
        "requested from its maker",
        "Josh Susskind, Adam Anderson, Geoffrey Hinton, The Toronto Face Database",
        "UTML TR 2010-001",
        "9d113650c197719b750ecc6864faf87c",
        "data.root",
        "NWS_DATA_ROOT",
    ):
        assert piece in text
    assert not list(tmp_path.glob("TFD/TFD_*x*"))


def test_another_48x48_file_is_read_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save_mat(tmp_path, tfd_arrays())
    save_mat(tmp_path, tfd_arrays(96), side=96)
    for options in ({"size": 48}, {"size": 24, "fold": 1}, {"size": 96}):
        load_dataset(load_tfd, root=tmp_path, **options)
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
    monkeypatch.setattr(tfd, "TFD_MD5", hashlib.md5(copy.read_bytes()).hexdigest())
    load_dataset(load_tfd, root=tmp_path / "copy")
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
            "tfd has no option path; its options are root, binarize, where, fold, split, size$",
        ),
    ],
)
def test_tfd_options(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_dataset(load_tfd, root=tmp_path, **options)


FOLDS = tfd_arrays()["folds"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (tfd_arrays(folds=None), "missing folds, got images, labs_ex, labs_id; take a fresh copy"),
        (tfd_arrays(images=None, folds=None), "missing images, folds, got labs_ex, labs_id"),
        (
            tfd_arrays(96),
            r"images: expected bytes .* of shape \(N, 48, 48\), .* uint8 of shape \(7, 96, 96\)",
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
        load_dataset(load_tfd, root=tmp_path)
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
        load_dataset(load_tfd, root=tmp_path)
    assert str(file) in str(caught.value)


@pytest.mark.skipif(
    not (Path(os.environ.get("NWS_DATA_ROOT", "")) / "TFD" / "TFD_48x48.mat").is_file(),
    reason="NWS_DATA_ROOT does not say where TFD_48x48.mat is",
)
def test_a_whole_tfd_file() -> None:
    root = Path(os.environ["NWS_DATA_ROOT"])
    data = [
        load_dataset(load_tfd, root=root, binarize="none", split="train", fold=fold)
        for fold in (0, 4)
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
