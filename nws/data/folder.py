"""A user's own images in a folder: PNG or JPEG files.

Symbols: N images of H x W pixels.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from nws.data.dataset import RawImages
from nws.data.own import height_and_width, resize, split_places
from nws.errors import UserError, positive_int

PARTS = ("train", "valid", "test")
ENDINGS = (".png", ".jpg", ".jpeg")
MAX_PIXELS = 10**8  # of an image; more are promised by a damaged file alone


def load_folder(
    path: str | Path | None = None, size: int | Sequence[int] | None = None, held_out: float = 0.1
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
    if path is None:
        raise UserError("data.path must name a folder of images, got null: add data.path=FOLDER")
    top = Path(path).expanduser().resolve()
    if not top.is_dir():
        raise UserError(f"data.path: expected a folder of PNG or JPEG images, found none at {top}")
    target = _target(size)
    files = _files_of_parts(top)
    images = _read([file for each in files for file in each], target)
    parts: Sequence[Tensor] = images.split([len(each) for each in files])
    if len(parts) == 1:
        parts = [images[places] for places in split_places(len(images), held_out, top)]
    shape = (images.shape[1], images.shape[2])
    train, valid, test = (part.flatten(1) for part in parts)
    return RawImages(train, valid, test, shape)


def _target(size: int | Sequence[int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    if isinstance(size, int | float):
        return (positive_int("data.size", size),) * 2
    return height_and_width("data.size", size)


def _files_of_parts(top: Path) -> list[list[Path]]:
    """Return the files of the three parts; of all images as one where there are no such folders."""
    there = [part for part in PARTS if (top / part).is_dir()]
    if not there:
        return [_files(top)]
    if len(there) < len(PARTS):
        raise UserError(
            f"{top}: expected the folders train, valid and test, or none of them for an automatic"
            f" split, got {', '.join(there)}"
        )
    return [_files(top / part) for part in PARTS]


def _files(folder: Path) -> list[Path]:
    """Return the image files at or below a folder, by name; `UserError` if there are none."""
    found = sorted(path for path in folder.rglob("*") if not path.name.startswith("."))
    images = [path for path in found if path.suffix.lower() in ENDINGS and path.is_file()]
    if not images:
        others = ", ".join(path.name for path in found[:3]) or "nothing"
        raise UserError(f"{folder}: expected images ending in {', '.join(ENDINGS)}, found {others}")
    return images


def _read(files: list[Path], size: tuple[int, int] | None) -> Tensor:
    """Return images as grey bytes (N, H, W), brought to a size if one is given."""
    images: list[Tensor] = []
    for file in files:
        image = _read_one(file)
        if size is not None and image.shape != size:
            image = resize(image[None], size)[0]
        if images and image.shape != images[0].shape:
            first, other = ("x".join(map(str, each.shape)) for each in (images[0], image))
            raise UserError(
                f"expected images of one size, got {first} pixels in {files[0]} and {other} in"
                f" {file}; data.size=[H,W] brings all of them to one size"
            )
        images.append(image)
    return torch.stack(images)


def _read_one(file: Path) -> Tensor:
    """Return one image as grey bytes (H, W)."""
    from PIL import Image
    from torchvision.io import ImageReadMode, decode_image, read_file

    try:
        with Image.open(file) as header:  # which reads no pixels
            width, height = header.size
        if width * height > MAX_PIXELS:
            raise RuntimeError(f"it promises {width}x{height} pixels")
        image = decode_image(read_file(str(file)), ImageReadMode.GRAY)[0]
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises whatever it stumbles over
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{file} cannot be read as a PNG or JPEG image ({reason}); replace it or take it away"
        ) from error
    if image.dtype == torch.uint16:  # a PNG of 16 bits
        image = (image.to(torch.int32) + 128).div(257, rounding_mode="floor")
    return image.to(torch.uint8)
