"""Pictures, read as grey: PNG or JPEG files in a user's own folder, and what torchvision has."""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from nws.data.dataset import PARTS, RawImages
from nws.data.reading import find_path, height_and_width, in_parts, resize
from nws.errors import UserError, explained
from nws.files import check_file

ENDINGS = (".png", ".jpg", ".jpeg")


def load_folder(
    path: str | Path | None = None, size: int | Sequence[int] | None = None
) -> RawImages:
    """Return the images of a folder and the folders in it, as grey bytes.

    Folders `train`, `valid` and `test` in it are the three parts. Without them the images are split
    at random, the same for all runs.

    Args:
        path: The folder.
        size: (H, W), or the side of a square, that every image is brought to; None where all of
            them have one size.

    Raises:
        UserError: There are no images, a file cannot be read, or the sizes differ.
    """
    top = find_path("data.path", path)
    there = [part for part in PARTS if (top / part).is_dir()]
    if there and len(there) < len(PARTS):
        expected = "expected the folders train, valid and test, or none of them for a random split"
        raise UserError(f"{top}: {expected}, got {', '.join(there)}")
    parts = [_files(top / part) for part in there] or [_files(top)]
    return _images((map(read_grey, files) for files in parts), size, top)


def load_torchvision(
    dataset: str, root: str | Path = "data", size: int | Sequence[int] | None = None,
    options: Mapping[str, Any] | None = None,
) -> RawImages:  # fmt: skip
    """Return an image data set of torchvision as grey bytes, downloaded where it is missing.

    Its test images are the test part. The validation part is split off its training images at
    random, the same for all runs. One without official parts is split into three.

    Args:
        dataset: The name in `torchvision.datasets`, for instance `KMNIST` or `SVHN`.
        root: The folder of downloads.
        size: (H, W), or the side of a square, that every image is brought to; None: as they are.
        options: What else the data set takes, for instance `{"split": "letters"}` for `EMNIST`.

    Raises:
        UserError: There is no such data set, it cannot be had, or its images have several sizes.
    """
    where, folder = f"torchvision's {dataset}", find_path("data.root", root)
    with explained(f"data.dataset: {where} cannot be had", "see torchvision.datasets"):
        parts = _official(dataset, folder, dict(options or {}))
    return _images((_greys(part, where) for part in parts), size, where)


def _greys(part: Any, where: str) -> Iterator[Tensor]:
    for number, (image, *_) in enumerate(part):
        with explained(f"data.dataset: image {number} of {where} cannot be taken"):
            found = grey(image)
        yield found


def _official(dataset: str, root: Path, options: dict[str, Any]) -> list[Any]:
    """Return the training and the test part of a data set of torchvision, or all of it as one."""
    import torchvision  # late, as that takes seconds

    make = getattr(torchvision.datasets, dataset)
    taken = inspect.signature(make).parameters
    places = {"root": str(root), "download": True}
    given = {key: places[key] for key in places if {key, "kwargs"} & {*taken}} | options
    if "train" in taken or "kwargs" in taken:  # which EMNIST hands on
        return [make(**given, train=train) for train in (True, False)]
    if "split" in taken and "split" not in given:
        return [make(**given, split=split) for split in ("train", "test")]
    return [make(**given)]


def _images(parts: Iterable[Iterable[Tensor]], size: Any, where: object) -> RawImages:
    """Return parts of images (H, W) uint8, brought to `data.size` if it is given."""
    if size is not None:
        size = height_and_width("data.size", [size] * 2 if isinstance(size, int | float) else size)
    found = [[i if size is None else resize(i[None], size)[0] for i in part] for part in parts]
    sizes = {tuple(image.shape) for part in found for image in part}
    if len(sizes) > 1:
        got = ", ".join(f"{height}x{width}" for height, width in sorted(sizes))
        advice = "data.size=[H,W] brings all of them to one size"
        raise UserError(f"{where}: expected images of one size, got {got}; {advice}")
    return in_parts([torch.stack(part) for part in found], sizes.pop(), where)


def _files(folder: Path) -> list[Path]:
    """Return the image files at or below a folder, by name; `UserError` if there are none."""
    paths = (path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS)
    found = sorted(path for path in paths if "/." not in f"/{path.relative_to(folder)}")
    if not found:
        raise UserError(f"{folder}: expected images ending in {', '.join(ENDINGS)}, found none")
    return found


def read_grey(file: Path) -> Tensor:
    """Return the image in a file as grey bytes (H, W)."""
    check_file(file)
    problem = explained(f"{file} cannot be read as an image", "give a PNG or JPEG, or take it away")
    with problem, Image.open(file, formats=("PNG", "JPEG", "BMP")) as picture:
        return grey(ImageOps.exif_transpose(picture))


def grey(picture: Image.Image) -> Tensor:
    """Return a picture as grey bytes (H, W)."""
    if picture.has_transparency_data and np.array(picture.convert("RGBA"))[..., 3].min() < 255:
        raise ValueError("it is transparent in places, where it is neither black nor white")
    if picture.mode.startswith("I"):  # of 16 bits
        return torch.from_numpy(np.rint(np.asarray(picture) / 257).astype(np.uint8))
    return torch.from_numpy(np.array(picture.convert("L")))
