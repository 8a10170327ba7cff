"""Image grids as PNG and GIF files. Torchvision takes seconds to import: only where something is drawn."""

import io
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from nws.files import write_atomically

CELL = 56  # pixels that a cell of a grid should have at least: small images are enlarged by a whole factor
BACKGROUND = 0.5  # grey level of the lines between images


def image_grid(images: Tensor, shape: tuple[int, int], columns: int | None = None) -> Tensor:
    """A grid (3, height, width) of images (n, H W) in [0, 1], row by row; as square as can be unless `columns` is given."""
    from torchvision.utils import make_grid

    scale = max(1, math.ceil(CELL / max(shape)))
    pictures = images.detach().float().cpu().reshape(-1, 1, *shape)
    pictures = pictures.repeat_interleave(scale, 2).repeat_interleave(scale, 3)
    columns = columns or math.ceil(math.sqrt(len(pictures) * shape[0] / shape[1]))
    return make_grid(pictures, nrow=columns, padding=2, pad_value=BACKGROUND)


def stacked_grid(
    parts: Sequence[Tensor], shape: tuple[int, int], columns: int | None = None
) -> Tensor:
    """A grid of several images of each thing, one above the other: originals (n, H W) above their reconstructions, say."""
    count = len(parts[0])
    columns = columns or min(count, math.ceil(math.sqrt(len(parts) * count)))
    blank = parts[0].new_full(
        (-count % columns, parts[0].shape[1]), BACKGROUND
    )  # the last rows stay below each other
    filled = [torch.cat([part, blank]).split(columns) for part in parts]
    return image_grid(
        torch.cat([torch.cat(group) for group in zip(*filled, strict=True)]), shape, columns
    )


def save_png(grid: Tensor, path: Path) -> None:
    """Write a grid (3, height, width) as PNG, whole or not at all."""
    from torchvision.utils import save_image

    buffer = io.BytesIO()
    save_image(grid, buffer, format="png")
    write_atomically(path, buffer.getvalue())


def save_gif(frames: Sequence[Tensor], path: Path, milliseconds: int = 100) -> None:
    """Write grids (3, height, width) as an endless animated GIF, whole or not at all."""
    from torchvision.transforms.functional import to_pil_image

    pictures = [to_pil_image(frame) for frame in frames]
    buffer = io.BytesIO()
    pictures[0].save(
        buffer,
        format="gif",
        save_all=True,
        append_images=pictures[1:],
        duration=milliseconds,
        loop=0,
        optimize=False,
    )
    write_atomically(path, buffer.getvalue())
