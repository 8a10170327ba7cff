"""Image grids as PNG and GIF files. Torchvision is imported late, as that takes seconds."""

import io
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from nws.data import Dataset
from nws.files import write_atomically
from nws.models.helmholtz import HelmholtzMachine
from nws.models.sampling import generate, reconstruct

CELL = 56  # least width or height of an image in a grid, in pixels; small ones are enlarged
BACKGROUND = 0.5  # grey level of the lines between images
IMAGES = 64


def progress_grids(machine: HelmholtzMachine, data: Dataset, seed: int) -> dict[str, Tensor]:
    """Return grids of generated images, and of validation images above their reconstructions."""
    rng = torch.Generator(data.valid.bytes.device).manual_seed(seed)
    originals = data.valid.batch()[: IMAGES // 2]
    generated = image_grid(generate(machine, IMAGES, rng), data.shape)
    pairs = [originals, reconstruct(machine, originals, rng)]
    return {"generated": generated, "reconstructed": stacked_grid(pairs, data.shape)}


def image_grid(images: Tensor, shape: tuple[int, int], columns: int | None = None) -> Tensor:
    """Return a grid (3, height, width) of images (n, H W) in [0, 1], row by row.

    It is as square as can be unless `columns` is given. `shape` is (H, W).
    """
    from torchvision.utils import make_grid

    scale = max(1, math.ceil(CELL / max(shape)))
    pictures = images.detach().float().cpu().reshape(-1, 1, *shape)
    pictures = interpolate(pictures, scale_factor=scale)  # repeats pixels
    columns = columns or math.ceil(math.sqrt(len(pictures) * shape[0] / shape[1]))
    return make_grid(pictures, nrow=columns, padding=2, pad_value=BACKGROUND)


def stacked_grid(
    parts: Sequence[Tensor], shape: tuple[int, int], columns: int | None = None
) -> Tensor:
    """Return a grid in which image i of the first part stands above image i of the next ones.

    Each of `parts` is (n, H W), for example originals and their reconstructions.
    """
    count = len(parts[0])
    columns = columns or min(count, math.ceil(math.sqrt(len(parts) * count)))
    blank = parts[0].new_full((-count % columns, parts[0].shape[1]), BACKGROUND)
    rows = [torch.cat([part, blank]).split(columns) for part in parts]
    stacked = [torch.cat(group) for group in zip(*rows, strict=True)]
    return image_grid(torch.cat(stacked), shape, columns)


def save_png(grid: Tensor, path: Path) -> None:
    """Write a grid (3, height, width) as PNG, completely or not at all."""
    from torchvision.utils import save_image

    buffer = io.BytesIO()
    save_image(grid, buffer, format="png")
    write_atomically(path, buffer.getvalue())


def save_gif(frames: Sequence[Tensor], path: Path, milliseconds: int = 100) -> None:
    """Write grids (3, height, width) as an endless animated GIF, completely or not at all."""
    from torchvision.transforms.functional import to_pil_image

    first, *others = [to_pil_image(frame) for frame in frames]
    options = dict(append_images=others, duration=milliseconds, loop=0, optimize=False)
    buffer = io.BytesIO()
    first.save(buffer, format="gif", save_all=True, **options)
    write_atomically(path, buffer.getvalue())
