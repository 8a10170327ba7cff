"""Image grids as PNG files."""

import io
import math
from pathlib import Path

import torch
from torch import Tensor
from torchvision.utils import make_grid, save_image

from nws.files import write_atomically

CELL = 56  # pixels that a cell of a grid should have at least: small images are enlarged by a whole factor


def image_grid(images: Tensor, shape: tuple[int, int], columns: int | None = None) -> Tensor:
    """A grid (3, height, width) of images (n, H W) in [0, 1], row by row; as square as can be unless `columns` is given."""
    scale = max(1, math.ceil(CELL / max(shape)))
    pictures = images.detach().float().cpu().reshape(-1, 1, *shape)
    pictures = pictures.repeat_interleave(scale, 2).repeat_interleave(scale, 3)
    columns = columns or math.ceil(math.sqrt(len(pictures) * shape[0] / shape[1]))
    return make_grid(pictures, nrow=columns, padding=2, pad_value=0.5)


def reconstruction_grid(originals: Tensor, reconstructions: Tensor, shape: tuple[int, int]) -> Tensor:
    """Pairs in rows: originals (n, H W) above their reconstructions."""
    columns = max(1, math.ceil(math.sqrt(2 * len(originals))))
    rows = [torch.cat(pair) for pair in zip(originals.split(columns), reconstructions.split(columns), strict=True)]
    return image_grid(torch.cat(rows), shape, columns)


def save_png(grid: Tensor, path: Path) -> None:
    """Write a grid (3, height, width) as PNG, whole or not at all."""
    buffer = io.BytesIO()
    save_image(grid, buffer, format="png")
    write_atomically(path, buffer.getvalue())
