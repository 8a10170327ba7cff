"""A user's own folder of images: what is read, and the messages where something is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import SMALL, Command
from PIL import Image
from torch import Tensor

from nws.data import load_dataset, load_folder
from nws.errors import UserError


def write(path: Path, grey: Tensor) -> None:
    """Write grey bytes (H, W) as the file's ending says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(grey.numpy()).save(path)


def pictures(count: int, height: int = 6, width: int = 5) -> Tensor:
    rng = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, height, width), generator=rng, dtype=torch.uint8)


def test_files_at_any_depth_are_split(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    images = pictures(20)
    for number, image in enumerate(images):
        write(tmp_path / f"class_{number % 3}" / f"{number:02}.PNG", image)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / ".hidden.png").write_text("no image")
    with caplog.at_level("INFO"):
        data = load_dataset(load_folder, path=tmp_path, binarize="none", held_out=0.25)
    splits = (data.train, data.valid, data.test)
    assert data.shape == (6, 5) and [len(split) for split in splits] == [10, 5, 5]
    found = {tuple(row.tolist()) for split in splits for row in split.bytes}
    assert found == {tuple(image.flatten().tolist()) for image in images}
    assert "20 images, split at random" in caplog.text and str(tmp_path) in caplog.text


def test_folders_are_the_parts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    images = pictures(6)
    counts = {"train": 3, "valid": 2, "test": 1}
    parts = dict(zip(counts, images.split(list(counts.values())), strict=True))
    for part, some in parts.items():
        for number, image in enumerate(some):
            write(tmp_path / part / f"{number}.png", image)
    data = load_dataset(load_folder, path=str(tmp_path), binarize="none")
    assert all(getattr(data, part).bytes.equal(some.flatten(1)) for part, some in parts.items())
    assert "split" not in caplog.text


@pytest.mark.parametrize(("size", "shape"), [(8, (8, 8)), ([3, 4], (3, 4))])
def test_images_of_several_sizes(tmp_path: Path, size: object, shape: tuple[int, int]) -> None:
    """A constant image stays so, and an image of that size stays as it is, bit for bit."""
    same = pictures(1, *shape)[0]
    write(tmp_path / "0.png", same)
    write(tmp_path / "1.png", torch.full((20, 30), 77, dtype=torch.uint8))
    write(tmp_path / "2.png", torch.full((7, 3), 200, dtype=torch.uint8))
    data = load_dataset(load_folder, path=tmp_path, size=size, binarize="none")
    assert data.shape == shape
    rows = torch.cat([data.train.bytes, data.valid.bytes, data.test.bytes])
    rows = rows[rows.float().mean(1).argsort()]
    assert any(row.equal(same.flatten()) for row in rows)
    constant = [row[0].item() for row in rows if len(row.unique()) == 1]
    assert constant == [77, 200]


def test_colours_jpeg_and_sixteen_bits(tmp_path: Path) -> None:
    write(tmp_path / "a.png", torch.full((4, 4, 3), 90, dtype=torch.uint8))
    write(tmp_path / "b.jpg", torch.full((4, 4), 90, dtype=torch.uint8))
    Image.new("I;16", (4, 4), 90 * 257).save(tmp_path / "c.png")
    Image.new("LA", (4, 4), (90, 128)).save(tmp_path / "d.png")
    data = load_dataset(load_folder, path=tmp_path, binarize="none")
    found = torch.cat([data.train.bytes, data.valid.bytes, data.test.bytes])
    assert len(found) == 4 and (found.int() - 90).abs().max() <= 1


def no_image(folder: Path) -> None:
    folder.mkdir()
    (folder / "a.gif").touch()


def unlike(folder: Path) -> None:
    write(folder / "a.png", pictures(1)[0])
    write(folder / "b.png", pictures(1, 7, 5)[0])


def damaged(folder: Path) -> None:
    write(folder / "a.png", pictures(1)[0])
    content = (folder / "a.png").read_bytes()
    (folder / "b.png").write_bytes(content[: len(content) // 2])


def two_parts(folder: Path) -> None:
    write(folder / "train" / "a.png", pictures(1)[0])
    write(folder / "test" / "a.png", pictures(1)[0])


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda folder: None, {}, "expected a folder of PNG or JPEG images, found none at"),
        (no_image, {}, r"expected images ending in \.png, \.jpg, \.jpeg, found a\.gif"),
        (unlike, {}, r"got 6x5 pixels in .*a\.png and 7x5 in .*b\.png; data\.size=\[H,W\] brings"),
        (damaged, {}, r"b\.png cannot be read as a PNG or JPEG image \(.*\); replace it"),
        (two_parts, {}, "folders train, valid and test, or none of them .*, got train, test"),
        (unlike, {"size": 0}, "data.size must be a whole number of at least 1, got 0"),
        (unlike, {"size": [1]}, r"data.size must be \[H, W\] or null, got \[1\]"),
        (unlike, {"size": 4}, "expected at least 3 images, .* got 2"),
    ],
)
def test_mistakes(
    tmp_path: Path, make: Callable[[Path], object], options: dict[str, object], message: str
) -> None:
    make(tmp_path / "mine")
    with pytest.raises(UserError, match=message) as caught:
        load_dataset(load_folder, path=tmp_path / "mine", **options)
    assert "data." in str(caught.value) or str(tmp_path / "mine") in str(caught.value)


def test_without_a_path() -> None:
    with pytest.raises(UserError, match="data.path must name a folder of images, got null"):
        load_dataset(load_folder)


def test_training_on_a_folder(command: Command, tmp_path: Path) -> None:
    """The log of the run says how the images were split."""
    for number, image in enumerate(pictures(30)):
        write(tmp_path / "mine" / f"{number}.png", image)
    options = ("data=folder", "data.path=mine", "data.size=4", "trainer.batch_size=12")
    outcome = command("train.py", *SMALL, *options)
    assert outcome.code == 0, outcome.err
    log = (outcome.run / "train.log").read_text()
    assert f"{tmp_path}/mine: 30 images, split at random" in log and "24 to train on" in log
