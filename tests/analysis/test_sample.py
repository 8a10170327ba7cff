"""scripts/sample.py: reconstructions, inpainting, chains, walks, Weights & Biases."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from conftest import Command, Outcome
from PIL import Image

from nws.data import load_dataset, load_digits
from nws.experiment.training.images import GAP, NARROWEST, PADDING

SAMPLE = "scripts/sample.py"
SCALE = 19  # a 4x6 image is enlarged so many times, to 76 x 114, and framed by 2 pixels
CELL, ROW = 6 * SCALE + 2, 4 * SCALE + 2


@pytest.fixture
def run(train: Command, tmp_path: Path) -> Path:
    """A run on 4x6 images: bars that a machine can tell apart."""
    rng = np.random.default_rng(0)
    images = {
        part: np.zeros((n, 4, 6), np.uint8)
        for part, n in {"train": 60, "valid": 15, "test": 12}.items()
    }
    for part in images.values():
        part[np.arange(len(part)), rng.integers(0, 4, len(part))] = 1
    np.savez(tmp_path / "mine.npz", **images)
    outcome = train("data=npz", "data.path=mine.npz", "trainer.batch_size=20", "algorithm=rws")
    assert outcome.code == 0, outcome.err
    return outcome.run


def pixels(path: Path) -> np.ndarray:
    """A grid's pixels, (height, width) of 0..255."""
    with Image.open(path) as image:
        return np.asarray(image.convert("L"))


def cell(grid: np.ndarray, row: int, column: int, group: int = 0) -> np.ndarray:
    """One 4x6 image of a grid, in a row that lies below that many gaps."""
    top, left = 2 + row * ROW + group * (PADDING + GAP), 2 + column * CELL
    return grid[top : top + 4 * SCALE : SCALE, left : left + 6 * SCALE : SCALE]


def drawn(outcome: Outcome, name: str) -> Path:
    assert outcome.code == 0 and outcome.err == "", outcome.err
    path = outcome.run / "images" / name
    assert str(path) in outcome.out and path.is_file()
    return path


def test_reconstructions_stand_below_their_originals(command: Command, run: Path) -> None:
    grid = pixels(
        drawn(
            command(SAMPLE, str(run), "reconstruct", "--count", "5", "--columns", "3"),
            "reconstruct_5_images_seed_0.png",
        )
    )
    assert grid.shape[0] > 2 + 4 * ROW and grid.shape[1] == NARROWEST  # with a caption
    for row, column in ((0, 0), (0, 1), (0, 2), (2, 0), (2, 1)):
        group = row // 2
        assert set(cell(grid, row, column, group).ravel()) == {0, 255}  # the original
        assert len(set(cell(grid, row + 1, column, group).ravel())) > 2  # probabilities
    nothing = [cell(grid, row, 2, group=1) for row in (2, 3)]
    assert (nothing[0] == nothing[1]).all() and len(set(nothing[0].ravel())) == 1
    gap = grid[2 * ROW + PADDING :][:GAP, : 3 * CELL]
    assert (gap == 255).all() and not (grid[: 2 * ROW, : 3 * CELL] == 255).all(axis=1).any()


@pytest.mark.parametrize("chain", ["gibbs", "resampling"])
def test_inpainting_leaves_the_rest_of_the_image_alone(
    command: Command, run: Path, chain: str
) -> None:
    outcome = command(
        SAMPLE,
        str(run),
        "inpaint",
        "--mask",
        "left",
        "--count",
        "3",
        "--steps",
        "4",
        "--chain",
        chain,
    )
    assert {"gibbs": "Gibbs sampling", "resampling": "importance resampling"}[chain] in outcome.out
    grid = pixels(drawn(outcome, f"inpaint_left_3_images_4_steps_{chain}_seed_0.png"))
    for column in range(3):
        original, left, filled = (cell(grid, row, column) for row in range(3))
        assert (original[:, 3:] == left[:, 3:]).all() and (original[:, 3:] == filled[:, 3:]).all()
        assert set(left[:, :3].ravel()) == {64} and len(set(filled[:, :3].ravel())) > 2


def test_a_mask_from_a_png(command: Command, run: Path, tmp_path: Path) -> None:
    mask = np.zeros((4, 6), np.uint8)
    mask[1:3, 2:4] = 255
    Image.fromarray(mask).save(tmp_path / "mask.png")
    outcome = command(
        SAMPLE, str(run), "inpaint", "--mask", "mask.png", "--count", "2", "--steps", "2"
    )
    grid = pixels(drawn(outcome, "inpaint_mask_2_images_2_steps_seed_0.png"))
    assert ((cell(grid, 1, 0) == 64) == (mask > 0)).all()
    Image.fromarray(mask[:3]).save(tmp_path / "small.png")
    Image.fromarray(0 * mask).save(tmp_path / "black.png")
    (tmp_path / "text.png").write_text("no image")
    for name, words in {
        "small.png": "must have the images' size (4, 6) (height, width), got (3, 6)",
        "black.png": "has no white pixel",
        "text.png": "cannot be read as a PNG",
        "none.png": "cannot be read as a PNG",
        "middle": "left, right, top, bottom or a PNG file, got 'middle'",
    }.items():
        assert words in command(SAMPLE, str(run), "inpaint", "--mask", name).message()


def test_a_chain_is_an_animation_with_a_frame_for_each_step(command: Command, run: Path) -> None:
    path = drawn(
        command(SAMPLE, str(run), "chain", "--count", "4", "--steps", "6", "--columns", "2"),
        "chain_4_images_6_steps_seed_0.gif",
    )
    with Image.open(path) as image:
        assert (
            image.format == "GIF"
            and image.n_frames == 6
            and image.width == NARROWEST
            and image.height > 2 + 2 * ROW
        )
        assert image.info["loop"] == 0
        frames = []
        for frame in range(6):
            image.seek(frame)
            frames.append(image.convert("L").tobytes())
    assert len(set(frames)) > 1
    assert (
        "must name a .gif file for chain"
        in command(SAMPLE, str(run), "chain", "--output", "a.png").message()
    )


def test_refined_samples_and_walks(command: Command, run: Path) -> None:
    plain = drawn(
        command(SAMPLE, str(run), "--count", "4"), "samples_4_images_seed_0.png"
    ).read_bytes()
    refined = command(
        SAMPLE, str(run), "generate", "--count", "4", "--steps", "3", "--chain", "gibbs"
    )
    assert "3 steps of Gibbs sampling" in refined.out
    assert drawn(refined, "samples_4_images_3_steps_gibbs_seed_0.png").read_bytes() != plain
    grid = pixels(
        drawn(
            command(SAMPLE, str(run), "walk", "--count", "2", "--steps", "5"),
            "walk_2_walks_5_steps_seed_0.png",
        )
    )
    assert grid.shape[0] > 2 + 2 * ROW and grid.shape[1] == 2 + 5 * CELL
    assert (
        "--steps must be a whole number of at least 1"
        in command(SAMPLE, str(run), "walk", "--steps", "0").message()
    )


def test_bidirectional_runs_are_sampled_by_gibbs_of_themselves(
    command: Command, train: Command
) -> None:
    bihm = train("data=three_by_three", "algorithm=bihm", "model=toy", "trainer.epochs=0.1")
    assert bihm.code == 0, bihm.err
    arguments = (SAMPLE, str(bihm.run), "generate", "--count", "4", "--steps", "2")
    assert "2 steps of Gibbs sampling" in command(*arguments).out
    assert "2 steps of importance resampling" in command(*arguments, "--chain", "resampling").out


def test_draws_of_grey_pixels_are_no_binary_ones(command: Command, train: Command) -> None:
    grey = train("data=three_by_three", "model=toy", "model/visible=gaussian", "trainer.epochs=0.1")
    assert grey.code == 0, grey.err
    assert (
        "--binary needs units that are binary"
        in command(SAMPLE, str(grey.run), "--binary").message()
    )
    outcome = command(SAMPLE, str(grey.run), "reconstruct", "--count", "2")
    assert "2 images of test, seed 0" in outcome.out


@pytest.mark.parametrize(
    ("what", "option"),
    [
        ("generate", "--mask=left"),
        ("reconstruct", "--steps=3"),
        ("walk", "--split=valid"),
        ("reconstruct", "--chain=gibbs"),
        ("walk", "--samples=7"),
        ("reconstruct", "--samples=7"),
    ],
)
def test_an_option_without_effect_is_refused(
    command: Command, run: Path, what: str, option: str
) -> None:
    message = command(SAMPLE, str(run), what, option).message()
    assert f"{option.split('=')[0]} is for " in message and f"{what} does not take it" in message
    assert not list((run / "images").glob("*seed*"))


@pytest.mark.parametrize("option", ["--chain=gibbs", "--samples=7"])
def test_options_of_a_chain_need_one(command: Command, run: Path, option: str) -> None:
    message = command(SAMPLE, str(run), option).message()
    assert "generate runs none without --steps; leave it out, or give --steps N too" in message


def test_another_count_has_a_file_of_its_own(command: Command, run: Path) -> None:
    whole = drawn(command(SAMPLE, str(run), "--count", "64"), "samples_seed_0.png")
    before = whole.read_bytes()
    drawn(command(SAMPLE, str(run), "--count", "4"), "samples_4_images_seed_0.png")
    assert whole.read_bytes() == before


def test_too_few_effective_samples_are_said(command: Command, run: Path) -> None:
    steps = [SAMPLE, str(run), "generate", "--count", "4", "--steps", "2"]
    few = command(*steps, "--chain", "resampling", "--samples", "2")
    size = re.search(r"effective sample size (\d\.\d) of 2: too few for the chain", few.out)
    assert size is not None and 1 <= float(size[1]) <= 2
    assert "effective sample size" not in command(*steps, "--chain", "gibbs").out  # the control
    assert "effective sample size" not in command(*steps, "--samples", "200").out


def test_grey_sources_stand_above_the_draws_of_them(command: Command, train: Command) -> None:
    digits = train("trainer.epochs=1")  # grey digits, made binary once for test
    assert digits.code == 0, digits.err
    outcome = command(SAMPLE, str(digits.run), "reconstruct", "--count", "2", "--columns", "2")
    grid = pixels(drawn(outcome, "reconstruct_2_images_seed_0.png"))
    side, levels = 8 * 14 + 2, load_dataset(load_digits, binarize="none")
    for column in range(2):
        grey, draw, _ = (
            grid[2 + row * side :, 2 + column * side :][: side - 2 : 14, : side - 2 : 14]
            for row in range(3)
        )
        source = levels.test.batch()[column].reshape(8, 8).numpy()
        assert np.abs(grey / 255 - source).max() < 1 / 255
        assert set(draw.ravel()) <= {0, 255} and (draw[source == 0] == 0).all()
        assert (draw[source == 1] == 255).all() and (draw != grey).any()


def test_images_go_to_the_runs_weights_and_biases_run_too(command: Command, run: Path) -> None:
    outcome = command(SAMPLE, str(run), "--count", "4", "--wandb", "offline")
    drawn(outcome, "samples_4_images_seed_0.png")
    assert list((run / "wandb").glob("offline-run-*/files/media/images/samples/samples_*.png"))
