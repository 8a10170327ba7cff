"""The data sets: their parts, their binarisation, and their options; test_image_files.py has those that come from files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from cases import seeded

from nws.data import datasets
from nws.data.datasets import Split, load_dataset
from nws.errors import UserError

# --- three_by_three and digits -------------------------------------------------------------------------------------


def test_three_by_three_is_kirbys_distribution(tmp_path: Path) -> None:
    data = load_dataset("three_by_three", root=tmp_path)
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


def test_three_by_three_parts_hold_the_exact_proportions(tmp_path: Path) -> None:
    data = load_dataset("three_by_three", root=tmp_path)
    assert (len(data.train), len(data.valid), len(data.test)) == (18_000, 18, 18)
    assert data.distribution is not None
    images, probabilities = data.distribution
    for split in (data.train, data.valid, data.test):
        counts = (split.batch()[:, None] == images).all(dim=2).sum(dim=0)
        torch.testing.assert_close(counts.double() / len(split), probabilities, rtol=1e-12, atol=0)


@pytest.mark.parametrize("binarize", datasets.BINARIZATIONS)
def test_binary_data_is_left_as_it_is(tmp_path: Path, binarize: str) -> None:
    data = load_dataset("three_by_three", root=tmp_path, binarize=binarize)
    for split in (data.train, data.valid, data.test):
        assert not split.redraw and split.maximum == 1
        assert torch.equal(split.batch(), split.bytes.float())


def test_digits_are_split_in_their_own_order(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    data = load_dataset("digits", root=tmp_path, binarize="none")
    assert (len(data.train), len(data.valid), len(data.test)) == (1_297, 250, 250)
    assert data.shape == (8, 8) and data.distribution is None
    pooled = torch.cat([data.train.batch(), data.valid.batch(), data.test.batch()])
    assert torch.equal(pooled, torch.from_numpy(load_digits().data).float() / 16)


# --- binarisation --------------------------------------------------------------------------------------------------


def test_resample_is_fresh_at_each_use_and_repeats_with_the_generators_state(
    tmp_path: Path,
) -> None:
    train = load_dataset("digits", root=tmp_path).train
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
def test_held_out_parts_are_the_same_in_every_run(tmp_path: Path, binarize: str) -> None:
    torch.manual_seed(1)
    first = load_dataset("digits", root=tmp_path, binarize=binarize)
    torch.manual_seed(2)
    second = load_dataset("digits", root=tmp_path, binarize=binarize)
    for a, b in (
        (first.valid, second.valid),
        (first.test, second.test),
        (first.train, second.train),
    ):
        assert torch.equal(a.bytes, b.bytes)
    for split in (first.valid, first.test):
        assert not split.redraw and split.maximum == 1
        assert torch.equal(split.batch(None, seeded(1)), split.batch(None, seeded(2)))


def test_loading_leaves_the_global_generator_alone(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    load_dataset("digits", root=tmp_path, binarize="static")
    assert torch.equal(state, torch.get_rng_state())


def test_static_draws_every_part_once(tmp_path: Path) -> None:
    static = load_dataset("digits", root=tmp_path, binarize="static")
    resampled = load_dataset("digits", root=tmp_path, binarize="resample")
    grey = load_dataset("digits", root=tmp_path, binarize="none").train.batch()
    assert torch.equal(static.train.batch(None, seeded(1)), static.train.batch(None, seeded(2)))
    assert torch.equal(static.valid.bytes, resampled.valid.bytes) and torch.equal(
        static.test.bytes, resampled.test.bytes
    )
    excess = (static.train.batch() - grey).sum() / (grey * (1 - grey)).sum().sqrt()
    assert excess.abs() < 4  # in standard errors of the number of white pixels
    # Each part has a seed of its own: the same grey rows would otherwise share their noise.
    assert len(set(datasets.DRAW_SEEDS.values())) == len(datasets.DRAW_SEEDS) == 4


def test_threshold_and_none(tmp_path: Path) -> None:
    sharp = load_dataset("digits", root=tmp_path, binarize="threshold")
    grey = load_dataset("digits", root=tmp_path, binarize="none")
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
def test_to_device_keeps_images_and_draws_there(tmp_path: Path, device: str) -> None:
    data, here = (
        load_dataset("digits", root=tmp_path, device=device),
        load_dataset("digits", root=tmp_path),
    )
    assert torch.equal(data.test.bytes.cpu(), here.test.bytes)
    batch = data.train.batch(torch.arange(5, device=device), torch.Generator(device).manual_seed(0))
    assert batch.device.type == device and batch.shape == (5, 64)
    moved = load_dataset("three_by_three", root=tmp_path).to(device)
    assert moved.distribution is not None and moved.distribution[1].device.type == device


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"name": "cifar"},
            "data.name must be one of three_by_three, digits, mnist, fashion_mnist, tfd, npz.*got 'cifar'",
        ),
        (
            {"binarize": "round"},
            "data.binarize must be one of resample, static, threshold, none, got 'round'",
        ),
        ({"path": "x.npz"}, "digits has no option path; its options are root, binarize$"),
        (
            {"name": "npz", "size": 3},
            "npz has no option size; its options are root, binarize, path, shape$",
        ),
    ],
)
def test_unknown_choices_are_listed(
    tmp_path: Path, arguments: dict[str, str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        load_dataset(**{"name": "digits", "root": str(tmp_path), **arguments})
