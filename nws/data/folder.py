"""Pictures, read as grey: PNG or JPEG files in a user's own folder, and what torchvision has.

Symbols: N images of H x W pixels.
"""

import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nws.data.dataset import PARTS, RawImages
from nws.data.files import check_regular, find_path, one_line
from nws.data.own import HELD_OUT, height_and_width, in_parts, resize
from nws.errors import UserError, positive_int

ENDINGS = (".png", ".jpg", ".jpeg")
MAX_PIXELS = 10**8  # of an image; more are promised by a damaged file alone


def load_folder(
    path: str | os.PathLike[str] | None = None,
    size: int | Sequence[int] | None = None,
    held_out: float = HELD_OUT,
) -> RawImages:
    """Return the images of a folder and the folders in it, as grey bytes.

    Folders `train`, `valid` and `test` in it are the three parts. Without them the images are split
    at random, the same for all runs.

    Args:
        path: The folder.
        size: (H, W), or the side of a square, that every image is brought to; None where all of
            them have one size.
        held_out: Without those folders, the share of images that become the validation part; as
            many become the test part.

    Raises:
        UserError: There are no images, a file cannot be read, or the sizes differ.
    """
    top = find_path("data.path", path)
    if not top.is_dir():
        raise UserError(f"data.path: expected a folder of PNG or JPEG images, found none at {top}")
    there = [part for part in PARTS if (top / part).is_dir()]
    if there and len(there) < len(PARTS):
        raise UserError(
            f"{top}: expected the folders train, valid and test, or none of them for an automatic"
            f" split, got {', '.join(there)}"
        )
    parts = [_files(top / part) for part in there] or [_files(top)]
    images = (((str(file), _read(file)) for file in files) for files in parts)
    return _images(images, size, held_out, top)


def load_torchvision(
    dataset: str,
    root: str | os.PathLike[str] = "data",
    size: int | Sequence[int] | None = None,
    held_out: float = HELD_OUT,
    options: Mapping[str, Any] | None = None,
) -> RawImages:
    """Return an image data set of torchvision as grey bytes, downloaded where it is missing.

    Its test images are the test part. The validation part is split off its training images at
    random, the same for all runs. One without official parts is split into three.

    Args:
        dataset: The name in `torchvision.datasets`, for instance `KMNIST` or `SVHN`.
        root: The folder of downloads.
        size: (H, W), or the side of a square, that every image is brought to; None: as they are.
        held_out: The share of images that become the validation part.
        options: What else the data set takes, for instance `{"split": "letters"}` for `EMNIST`.

    Raises:
        UserError: There is no such data set, it cannot be had, or its images have several sizes.
    """
    where = f"torchvision's {dataset}"
    try:
        parts = _official(dataset, find_path("data.root", root), dict(options or {}))
    except Exception as error:
        raise UserError(f"data.dataset: {where} cannot be had: {one_line(error)}") from error
    grey = (((where, np.array(image.convert("L"))) for image, *_ in part) for part in parts)
    images = (((name, torch.from_numpy(image)) for name, image in part) for part in grey)
    return _images(images, size, held_out, where)


def _official(dataset: str, root: Path, options: dict[str, Any]) -> list[Any]:
    """Return the training and the test part of a data set of torchvision, or all of it as one."""
    import torchvision  # late, as that takes seconds

    make = getattr(torchvision.datasets, dataset)
    taken = inspect.signature(make).parameters
    places = {"root": str(root), "download": True}
    given = {key: places[key] for key in places if key in taken} | options
    if "train" in taken or "kwargs" in taken:  # which EMNIST hands on
        return [make(**given, train=train) for train in (True, False)]
    if "split" in taken and "split" not in given:
        return [make(**given, split=split) for split in ("train", "test")]
    return [make(**given)]


def _images(
    parts: Iterable[Iterable[tuple[str, Tensor]]],
    size: int | Sequence[int] | None,
    held_out: float,
    where: object,
) -> RawImages:
    """Return parts of named images (H, W) uint8, brought to `data.size` if it is given."""
    if isinstance(size, int | float):
        size = (positive_int("data.size", size),) * 2
    target = None if size is None else height_and_width("data.size", size)
    names: list[str] = []
    stacked: list[list[Tensor]] = []
    for part in parts:
        stacked.append([])
        for name, image in part:  # one at a time: before they are brought to a size they are large
            image = image if target is None else resize(image[None], target)[0]
            names.append(name)
            stacked[-1].append(image)
            (a, b), (c, d) = stacked[0][0].shape, image.shape
            if (a, b) != (c, d):
                raise UserError(
                    f"expected images of one size, got {a}x{b} pixels in {names[0]} and {c}x{d} in"
                    f" {name}; data.size=[H,W] brings all of them to one size"
                )
    shape = (stacked[0][0].shape[0], stacked[0][0].shape[1])
    return in_parts([torch.stack(part) for part in stacked], shape, held_out, where)


def _files(folder: Path) -> list[Path]:
    """Return the image files at or below a folder, by name; `UserError` if there are none."""
    found = sorted(path for path in folder.rglob("*") if not path.name.startswith("."))
    images = [path for path in found if path.suffix.lower() in ENDINGS and not path.is_dir()]
    if not images:
        others = ", ".join(path.name for path in found[:3]) or "nothing"
        raise UserError(f"{folder}: expected images ending in {', '.join(ENDINGS)}, found {others}")
    return images


def _read(file: Path) -> Tensor:
    """Return one image as grey bytes (H, W)."""
    from PIL import Image
    from torchvision.io import ImageReadMode, decode_image, read_file

    check_regular(file, "a PNG or JPEG image")
    try:
        with Image.open(file, formats=("PNG", "JPEG")) as header:  # which reads no pixels
            width, height = header.size
        if width * height > MAX_PIXELS:
            raise ValueError(f"it promises {width}x{height} pixels")
        image = decode_image(read_file(str(file)), ImageReadMode.GRAY)[0]
    except Exception as error:  # both raise whatever they stumble over
        raise UserError(
            f"{file} cannot be read as a PNG or JPEG image ({one_line(error)}); replace it or take"
            " it away"
        ) from error
    if image.dtype == torch.uint16:  # a PNG of 16 bits
        image = (image.to(torch.int32) + 128).div(257, rounding_mode="floor")
    return image.to(torch.uint8)
