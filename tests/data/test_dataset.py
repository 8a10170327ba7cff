"""The data sets: their parts, their binarisation, and their options; the other modules have those
that come from files.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import seeded

from nws.data import (
    RawImages,
    Split,
    dataset,
    load_dataset,
    load_digits,
    load_npz,
    load_three_by_three,
)
from nws.errors import UserError

# --- three_by_three and digits --------------------------------------------------------------------


def test_three_by_three_is_kirbys_distribution() -> None:
    data = load_dataset(load_three_by_three)
    assert data.shape == (3, 3) and data.distribution is not None
    images, probabilities = data.distribution
    assert (
        images.shape == (12, 9)
        and images.dtype == torch.float32
        and probabilities.dtype == torch.float64
    )
    assert len({tuple(image) for image in images.tolist()}) == 12
    grid = images.reshape(12, 3, 3)
    columns, rows = (grid == grid[:, :1]).all(dim=(1, 2)), (grid == grid[:, :, :1]).all(dim=(1, 2))
    assert (columns ^ rows).all() and columns.sum() == rows.sum() == 6
    assert (probabilities[columns] == 2 / 18).all() and (probabilities[rows] == 1 / 18).all()
    entropy = -(probabilities * probabilities.log()).sum().item()
    assert entropy == pytest.approx(6 * 2 / 18 * math.log(9) + 6 / 18 * math.log(18), abs=1e-12)
    assert round(entropy, 3) == 2.428


def test_three_by_three_parts_hold_the_exact_proportions() -> None:
    data = load_dataset(load_three_by_three)
    assert (len(data.train), len(data.valid), len(data.test)) == (18_000, 18, 18)
    assert data.distribution is not None
    images, probabilities = data.distribution
    for split in (data.train, data.valid, data.test):
        counts = (split.batch()[:, None] == images).all(dim=2).sum(dim=0)
        torch.testing.assert_close(counts.double() / len(split), probabilities, rtol=1e-12, atol=0)


@pytest.mark.parametrize("binarize", dataset.BINARIZATIONS)
def test_binary_data_is_left_as_it_is(binarize: str) -> None:
    data = load_dataset(load_three_by_three, binarize=binarize)
    for split in (data.train, data.valid, data.test):
        assert not split.redraw and split.maximum == 1
        assert torch.equal(split.batch(), split.bytes.float())


def test_digits_are_split_in_their_own_order() -> None:
    from sklearn.datasets import load_digits as originals

    data = load_dataset(load_digits, binarize="none")
    assert (len(data.train), len(data.valid), len(data.test)) == (1_297, 250, 250)
    assert data.shape == (8, 8) and data.distribution is None
    pooled = torch.cat([data.train.batch(), data.valid.batch(), data.test.batch()])
    assert torch.equal(pooled, torch.from_numpy(originals().data).float() / 16)


# --- binarisation ---------------------------------------------------------------------------------


def test_resample_is_fresh_at_each_use_and_repeats_with_the_generators_state() -> None:
    train = load_dataset(load_digits).train
    rng = seeded()
    state = rng.get_state()
    first, second = train.batch(None, rng), train.batch(None, rng)
    assert first.dtype == torch.float32 and set(first.unique().tolist()) == {0.0, 1.0}
    assert not torch.equal(first, second)
    rng.set_state(state)
    assert torch.equal(first, train.batch(None, rng)) and torch.equal(
        second, train.batch(None, rng)
    )


@pytest.mark.parametrize("maximum", [16, 255])
def test_resample_has_the_intensity_as_its_mean(maximum: int) -> None:
    draws = 20_000
    grey = torch.arange(maximum + 1, dtype=torch.uint8).expand(draws, -1)
    mean = Split(grey, maximum, redraw=True).batch(None, seeded()).mean(dim=0)
    intensity = torch.arange(maximum + 1) / maximum
    assert mean[0] == 0 and mean[-1] == 1  # black and white are certain
    standard_error = (intensity * (1 - intensity) / draws).sqrt()[1:-1]
    # The largest of up to 254 standard normals passes 4.5 with a chance of 2e-3; the seed is fixed.
    assert ((mean - intensity)[1:-1].abs() / standard_error).max() < 4.5


@pytest.mark.parametrize("maximum", [16, 255])
@pytest.mark.parametrize(
    "uniform", [0.0, 1 - 2**-24]
)  # the least and the greatest number torch.rand can give
def test_black_and_white_are_certain(
    monkeypatch: pytest.MonkeyPatch, maximum: int, uniform: float
) -> None:
    monkeypatch.setattr(torch, "rand", lambda shape, **_options: torch.full(shape, uniform))
    edges = Split(torch.tensor([[0, maximum]], dtype=torch.uint8), maximum, redraw=True)
    assert edges.batch().tolist() == [[0.0, 1.0]]


def test_batch_takes_the_indexed_rows() -> None:
    split = Split(
        torch.tensor([[0, 255], [255, 0], [51, 102]], dtype=torch.uint8), 255, redraw=False
    )
    assert split.batch(torch.tensor([2, 0])).tolist() == [
        [pytest.approx(0.2), pytest.approx(0.4)],
        [0.0, 1.0],
    ]
    redrawn = Split(split.bytes, 255, redraw=True).batch(torch.tensor([1, 0, 1]), seeded())
    assert redrawn.tolist() == [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]


@pytest.mark.parametrize("binarize", ["resample", "static"])
def test_held_out_parts_are_the_same_in_every_run(binarize: str) -> None:
    torch.manual_seed(1)
    first = load_dataset(load_digits, binarize=binarize)
    torch.manual_seed(2)
    second = load_dataset(load_digits, binarize=binarize)
    for a, b in (
        (first.valid, second.valid),
        (first.test, second.test),
        (first.train, second.train),
    ):
        assert torch.equal(a.bytes, b.bytes)
    for split in (first.valid, first.test):
        assert not split.redraw and split.maximum == 1
        assert torch.equal(split.batch(None, seeded(1)), split.batch(None, seeded(2)))


def test_loading_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    load_dataset(load_digits, binarize="static")
    assert torch.equal(state, torch.get_rng_state())


def test_static_draws_every_part_once() -> None:
    static = load_dataset(load_digits, binarize="static")
    resampled = load_dataset(load_digits, binarize="resample")
    grey = load_dataset(load_digits, binarize="none").train.batch()
    assert torch.equal(static.train.batch(None, seeded(1)), static.train.batch(None, seeded(2)))
    assert torch.equal(static.valid.bytes, resampled.valid.bytes) and torch.equal(
        static.test.bytes, resampled.test.bytes
    )
    excess = (static.train.batch() - grey).sum() / (grey * (1 - grey)).sum().sqrt()
    assert excess.abs() < 4  # in standard errors of the number of white pixels
    # Each part has a seed of its own: the same grey rows would otherwise share their noise.
    assert len(set(dataset.DRAW_SEEDS.values())) == len(dataset.DRAW_SEEDS) == 4


def test_threshold_and_none() -> None:
    sharp = load_dataset(load_digits, binarize="threshold")
    grey = load_dataset(load_digits, binarize="none")
    for part in ("train", "valid", "test"):
        bits, intensities = getattr(sharp, part).batch(), getattr(grey, part).batch()
        assert torch.equal(bits, (intensities > 0.5).float())
        assert (
            intensities.min() == 0
            and intensities.max() == 1
            and ((intensities > 0) & (intensities < 1)).any()
        )
    assert 0.5 in grey.train.batch()  # exactly one half is on the black side


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
        ),
    ],
)
def test_to_device_keeps_images_and_draws_there(device: str) -> None:
    data, here = (load_dataset(load_digits, device=device), load_dataset(load_digits))
    assert torch.equal(data.test.bytes.cpu(), here.test.bytes)
    batch = data.train.batch(torch.arange(5, device=device), torch.Generator(device).manual_seed(0))
    assert batch.device.type == device and batch.shape == (5, 64)
    moved = load_dataset(load_three_by_three, device=device)
    assert moved.distribution is not None and moved.distribution[1].device.type == device


# --- sources, a user's own among them -------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (
            load_digits,
            {"binarize": "round"},
            "data.binarize must be one of resample, static, threshold, none, got 'round'",
        ),
        (
            load_digits,
            {"path": "x.npz"},
            "digits has no option path; its options are root, binarize, where$",
        ),
        (
            load_npz,
            {"size": 3},
            "npz has no option size; its options are root, binarize, where, path, shape, held_out$",
        ),
    ],
)
def test_unknown_choices_are_listed(
    source: Callable[..., RawImages], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        load_dataset(source, **options)


def stripes(count: int, period: int = 2) -> RawImages:
    images = (torch.arange(12) % period == 0).to(torch.uint8).mul(255).expand(count, 12)
    return RawImages(images, images[:2], images[:1], (3, 4))


def wrong() -> dict[str, int]:
    return {}


def test_a_source_of_the_users(tmp_path: Path) -> None:
    data = load_dataset(stripes, count=5, period=3, binarize="threshold")
    assert data.name == "stripes" and data.shape == (3, 4) and len(data.train) == 5
    assert data.train.batch()[0].tolist() == [1, 0, 0] * 4
    assert load_dataset(stripes, name="mine", count=5).name == "mine"
    with_root = load_dataset(stripes, count=5, root=tmp_path)  # it does not take this one
    assert len(with_root.test) == 1
    with pytest.raises(
        UserError, match="stripes has no option size; its options are root, bin.*, count, period$"
    ):
        load_dataset(stripes, count=5, size=3)
    with pytest.raises(UserError, match="options of stripes do not fit: missing .* 'count'"):
        load_dataset(stripes)
    with pytest.raises(
        UserError, match=r"a function that returns nws.data.RawImages, .*wrong returned dict"
    ):
        load_dataset(wrong, name="mine")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="must be a function in Python, got <class 'dict'>"):
        load_dataset(dict, name="mine")


GOOD = torch.zeros(4, 12, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("part", "images", "message"),
    [
        ("train", GOOD.float(), r"train must be bytes .* of shape \(N, 12\) .*got torch.float32"),
        ("valid", GOOD[:, :9], r"valid must be bytes .*got torch.uint8 of shape \(4, 9\)"),
        (
            "test",
            GOOD.reshape(4, 3, 4),
            r"test must be bytes .*got torch.uint8 of shape \(4, 3, 4\)",
        ),
        ("unlabeled", GOOD[0], r"unlabeled must be bytes .*got torch.uint8 of shape \(12,\)"),
        ("train", GOOD[:0], r"train must be bytes .*got torch.uint8 of shape \(0, 12\)"),
    ],
)
def test_raw_images_are_checked(part: str, images: torch.Tensor, message: str) -> None:
    arrays = {"train": GOOD, "valid": GOOD, "test": GOOD}
    RawImages(**arrays, shape=(3, 4))  # the control
    with pytest.raises(UserError, match=message):
        RawImages(**{**arrays, part: images}, shape=(3, 4))
