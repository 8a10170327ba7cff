"""scripts/sample.py: what it draws from a run, and from images of the user's own."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TWO_STEPS, Command, Outcome
from PIL import Image

from nws.analysis.drawing import read_image
from nws.data import load_dataset, load_digits
from nws.experiment.loading import load_run
from nws.experiment.pictures import captioned

SAMPLE = "scripts/sample.py"


def drawn(outcome: Outcome, name: str) -> Path:
    assert outcome.code == 0 and outcome.err == "", outcome.err
    path = outcome.run / "images" / name
    assert str(path) in outcome.out.splitlines() and path.is_file()
    return path


def cells(path: Path, shape: tuple[int, int] = (2, 3)) -> np.ndarray:
    """The images of a grid by row and column, without their caption: (rows, columns, H, W)."""
    with Image.open(path) as image:
        words = image.info
        width, height = map(int, words["grid"].split("x"))
        grid = np.asarray(image.convert("L"))[:height, :width]
    assert words["caption"]
    lines = (grid == 127) | (grid == 128)  # what lies between the images is grey
    tops, lefts = (np.flatnonzero(~lines.all(axis)) for axis in (1, 0))
    starts = [place[np.diff(place, prepend=-9) > 1] for place in (tops, lefts)]
    sides = [np.diff(place).min() - 2 if len(place) > 1 else 0 for place in starts]
    scale = max(sides[0] // shape[0], sides[1] // shape[1])
    return np.array([
        [grid[top : top + scale * shape[0] : scale, left : left + scale * shape[1] : scale]
         for left in starts[1]] for top in starts[0]
    ])  # fmt: skip


def test_generated_images(command: Command, trained: Path) -> None:
    run = trained / "rws"
    path = drawn(command(SAMPLE, str(run), "--count", "6"), "generate_count_6_seed_0.png")
    first = path.read_bytes()
    assert cells(path).shape == (3, 2, 2, 3) and len({*cells(path).ravel()}) > 3  # probabilities
    command(SAMPLE, f"{run}/", "--count", "6")
    assert path.read_bytes() == first  # a seed fixes the draws
    other = command(SAMPLE, str(run), "--seed", "2", "--checkpoint", "last")
    assert drawn(other, "generate_checkpoint_last_seed_2.png").read_bytes() != first
    for _ in range(2):
        mine = command(SAMPLE, str(run), "--count", "2", "--output", "new/mine.png")
        assert mine.code == 0 and Path("new/mine.png").is_file()
    beyond = captioned(torch.tensor([-0.1, 1.1]).expand(3, 1, 2), "means of Gaussian units")
    assert [beyond.getpixel((x, 0)) for x in (0, 1)] == [(0, 0, 0), (255, 255, 255)]


def test_reconstructions_stand_below_their_originals(command: Command, trained: Path) -> None:
    outcome = command(SAMPLE, str(trained / "rws"), "reconstruct", "--count", "4", "--columns", "2")
    grid = cells(drawn(outcome, "reconstruct_columns_2_count_4_seed_0.png"))
    assert grid.shape[:2] == (4, 2)  # two images above their reconstructions, twice
    valid = command(SAMPLE, str(trained / "rws"), "reconstruct", "--split", "valid")
    shown = cells(drawn(valid, "reconstruct_split_valid_seed_0.png"))[::2].reshape(-1, 6)
    images = load_run(trained / "rws", device="cpu").data.valid.batch()
    assert (shown[: len(images)] == 255 * images.numpy()).all()
    for row in (0, 2):
        assert {*grid[row].ravel()} <= {0, 255} and len({*grid[row + 1].ravel()}) > 2


@pytest.mark.parametrize("chain", ["gibbs", "resampling"])
def test_inpainting_leaves_the_rest_alone(command: Command, trained: Path, chain: str) -> None:
    mask = np.array([[0, 255, 0], [0, 0, 255]], np.uint8)
    Image.fromarray(mask).save("mask.png")
    for name, missing in (("left", np.array([[1, 0, 0]] * 2) > 0), ("mask.png", mask > 0)):
        options = ("--mask", name, "--count", "3", "--steps", "4", "--chain", chain)
        outcome = command(SAMPLE, str(trained / "rws"), "inpaint", *options)
        path = f"inpaint_count_3_mask_{name}_steps_4_chain_{chain}_seed_0.png"
        original, left, filled = cells(drawn(outcome, path))
        assert (original[:, ~missing] == left[:, ~missing]).all()
        assert {*left[:, missing].ravel()} == {64}
        assert (original[:, ~missing] == filled[:, ~missing]).all()
        assert len({*filled[:, missing].ravel()}) > 2


def test_denoising(command: Command, trained: Path) -> None:
    """Noise turns pixels; what is restored is the mean of p given the noisy image."""
    options = ("--count", "12", "--columns", "12", "--noise", "0.3", "--samples", "200")
    outcome = command(SAMPLE, str(trained / "rws"), "denoise", *options)
    path = drawn(outcome, "denoise_columns_12_count_12_noise_0.3_samples_200_seed_0.png")
    original, noisy, restored = cells(path)
    error = (0.3 * 0.7 / original.size) ** 0.5
    assert abs((original != noisy).mean() - 0.3) < 3 * error and {*noisy.ravel()} <= {0, 255}
    assert len({*restored.ravel()}) > 2 and "30% of the pixels turned" in outcome.out


def test_images_of_ones_own(command: Command, trained: Path, tmp_path: Path) -> None:
    """A picture in colour and of another size is made grey, resized, and drawn from."""
    values = np.array([[0, 255, 0], [255, 0, 120]], np.uint8)
    colour = np.repeat(np.repeat(values, 10, 0), 10, 1)[:, :, None].repeat(3, 2)
    turned = Image.Exif()
    turned[0x0112] = 3  # by half a turn, which a camera notes beside the pixels
    Image.fromarray(colour[::-1, ::-1].copy()).save(tmp_path / "one.png", exif=turned)
    Image.fromarray(np.where(values > 200, values, 0).astype(np.uint8)).save(tmp_path / "two.bmp")
    run = str(trained / "rws")
    for what, kept in (("reconstruct", 3), ("inpaint", 4), ("denoise", 3)):
        outcome = command(SAMPLE, run, what, "--image", "one.png", "two.bmp")
        grid = cells(drawn(outcome, f"{what}_image_one.png_two.bmp_seed_0.png"))
        assert (grid[0, 0] == values).all() and {*grid[1, 0].ravel()} <= {0, 255}
        assert (grid[1, 0][values != 120] == values[values != 120]).all() and len(grid) == kept
    outcome = command(SAMPLE, run, "denoise", "--image", "two.bmp")  # binary: nothing turns
    assert len(cells(drawn(outcome, "denoise_image_two.bmp_seed_0.png"))) == 2
    Image.fromarray(values.astype(np.uint16) * 257).save(tmp_path / "deep.png")  # of 16 bits
    assert (read_image(tmp_path / "deep.png", (2, 3)).numpy() * 255 == values.ravel()).all()


def test_chains_and_walks(command: Command, trained: Path) -> None:
    run = str(trained / "bihm")
    outcome = command(SAMPLE, run, "chain", "--count", "4", "--steps", "6")
    with Image.open(drawn(outcome, "chain_count_4_steps_6_seed_0.gif")) as image:
        assert (image.format, image.n_frames, image.info["loop"]) == ("GIF", 6, 0)
        frames = {image.seek(frame) or image.convert("L").tobytes() for frame in range(6)}
    assert len(frames) > 1 and "6 steps of Gibbs sampling" in outcome.out  # as bihm is
    outcome = command(SAMPLE, run, "walk", "--count", "2", "--steps", "5")
    assert cells(drawn(outcome, "walk_count_2_steps_5_seed_0.png")).shape[:2] == (2, 5)


def test_too_few_effective_samples_are_said(command: Command, trained: Path) -> None:
    steps = [SAMPLE, str(trained / "rws"), "generate", "--count", "4", "--steps", "2"]
    few = command(*steps, "--samples", "2")
    size = re.search(r"effective sample size (\d\.\d) of 2: too few to follow p", few.out)
    assert size is not None and 1 <= float(size[1]) <= 2
    assert "effective sample size" not in command(*steps, "--chain", "gibbs").out  # the control
    assert "effective sample size" not in command(*steps, "--samples", "200").out


def test_grey_sources_stand_above_the_draws_of_them(command: Command, train: Command) -> None:
    digits = train("trainer.epochs=0.1")  # grey digits, made binary once for test
    outcome = command(SAMPLE, str(digits.run), "reconstruct", "--count", "2")
    grid = cells(drawn(outcome, "reconstruct_count_2_seed_0.png"), (8, 8))
    source = load_dataset(load_digits, binarize="none").test.batch()[:2].numpy().reshape(2, 8, 8)
    assert len(grid) == 3 and np.abs(grid[0] / 255 - source).max() < 1 / 255
    assert {*grid[1].ravel()} <= {0, 255} and (grid[1][source == 0] == 0).all()
    assert (grid[1][source == 1] == 255).all() and (grid[1] != grid[0]).any()


def test_a_small_copy_is_sampled_as_its_run(command: Command, trained: Path) -> None:
    message = command("scripts/export.py", str(trained / "rws"), str(trained)).message()
    assert "is there already" in message
    made = command("scripts/export.py", str(trained / "rws"), "copies/small")
    assert made.code == 0 and "half precision" in made.out
    outcomes = (command(SAMPLE, str(run)) for run in (trained / "rws", made.run))
    grids = [cells(drawn(each, "generate_seed_0.png")).astype(float) for each in outcomes]
    assert np.abs(grids[0] - grids[1]).max() <= 2


def test_a_small_copy_keeps_orders_and_masks(command: Command) -> None:
    order = "{_target_: nws.models.masks.from_the_centre, _partial_: true}"
    graph = ("model.generator.lateral=visible", f"model.order={order}")
    run = command("train.py", *TWO_STEPS, *graph).run
    copy = command("scripts/export.py", str(run), "copies/small").run
    whole, half = (load_run(each).machine.state_dict() for each in (run, copy))
    file = copy / "checkpoints" / "best.pt"
    saved = torch.load(file, weights_only=True)["machine"]  # halves are not exact above 2,048
    assert {each.dtype for each in saved.values()} == {torch.float16, torch.int64}
    torch.testing.assert_close(half, whole, rtol=2**-11, atol=2**-25)  # half an ulp


def test_what_is_refused(command: Command, trained: Path, tmp_path: Path) -> None:
    run = trained / "rws"
    before = sorted((run / "images").iterdir())
    (tmp_path / "text.png").write_text("no image")
    os.mkfifo(tmp_path / "pipe.png")
    for line, expected in {
        "generate --chain=gibbs": "--chain and --samples are for steps of a chain",
        "generate --mask=left": "--mask is for inpaint; generate does not take it",
        "generate --image=x.png": "--image is for reconstruct, inpaint, denoise; generate",
        "reconstruct --steps=3": "--steps is for generate, inpaint, chain, walk; recon",
        "denoise --image=x.png --count=3": "--count and --split are for held-out images",
        "walk --steps=0": "--steps must be a whole number of at least 1",
        "generate --count=0": "--count must be a whole number of at least 1, got 0",
        "generate --seed=-1": "--seed must be",
        "denoise --noise=1.5": "--noise must be a number of at least 0 and at most 1, got",
        "generate --device=foo": "device must be one of auto, cpu, cuda, got 'foo'",
        "generate --output=/dev/null/a.png": "/dev/null is a file, expected a folder there",
        "chain --output=a.png": "must name a .gif file for chain",
        "inpaint --mask=text.png": "cannot be read as an image",
        "inpaint --mask=middle": "left, right, top, bottom or a PNG file, got 'middle'",
        "inpaint --chain=gibbs --samples=5": "a Gibbs chain takes no --samples",
        "denoise --image=pipe.png": "pipe.png is no regular file",
    }.items():
        assert expected in command(SAMPLE, str(run), *line.split()).message(), line
    usual = command(SAMPLE, str(trained / "bihm"), "chain", "--samples=5")  # without --chain
    assert "a Gibbs chain takes no --samples" in usual.message()
    assert "is not a run directory" in command(SAMPLE, str(tmp_path)).message()
    assert command(SAMPLE).code == command(SAMPLE, str(run), "--nope").code == 2
    assert sorted((run / "images").iterdir()) == before
