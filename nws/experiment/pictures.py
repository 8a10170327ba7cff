"""Image grids with captions, as PNG and GIF. Torchvision is imported late: it takes seconds."""

import io
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo
from torch import Tensor
from torch.nn.functional import interpolate

from nws.data.dataset import Split
from nws.files import write_atomically

CELL = 112  # width or height of an image in a grid, in pixels, where there is room
SMALLEST_CELL = 56  # where there are many columns
WIDTH = 900  # of a grid, about
NARROWEST = 460  # of a picture with a caption
PADDING = 2  # pixels between images
GAP = 12  # pixels between the groups of rows that belong together
BACKGROUND = 0.5  # grey level of the lines between images
FONT_SIZE, MARGIN = 15, 8  # of a caption, in pixels

GENERATED = "drawn from the generator p; grey is the mean of a pixel"
RECONSTRUCTION = "reconstruction, each pixel's mean under p given h ~ q(h | x)"


def rows(names: Sequence[str]) -> str:
    """Return what the rows of a stacked grid are, for its caption."""
    return f"rows, from above: {'; '.join(names)}"


def with_source(split: Split, images: Tensor, name: str) -> tuple[list[Tensor], list[str]]:
    """Return rows of a grid, each (n, H W), and their names: images below their grey sources."""
    if split.source is None:
        return [images], [name]
    grey = split.source.first(len(images))
    return [grey, images], [f"grey {name}", "the binary images made of them, which the run sees"]


def image_grid(images: Tensor, shape: tuple[int, int], columns: int | None = None) -> Tensor:
    """Return a grid (3, height, width) of images (n, H W) in [0, 1], of `shape` (H, W).

    It is as square as can be unless `columns` is given. Small images are enlarged.
    """
    from torchvision.utils import make_grid

    pictures = images.detach().float().cpu().reshape(-1, 1, *shape)
    columns = columns or math.ceil(math.sqrt(len(pictures) * shape[0] / shape[1]))
    room = (WIDTH / columns - PADDING) * max(shape) / shape[1]
    scale = max(1, round(min(CELL, max(room, SMALLEST_CELL)) / max(shape)))
    pictures = interpolate(pictures, scale_factor=scale)  # repeats pixels
    return make_grid(pictures, nrow=columns, padding=PADDING, pad_value=BACKGROUND)


def stacked_grid(
    parts: Sequence[Tensor], shape: tuple[int, int], columns: int | None = None
) -> Tensor:
    """Return a grid in which image i of the first part stands above image i of the next ones.

    Each of `parts` is (n, H W). A wide line lies between one group of rows and the next.
    """
    parts = [part.cpu() for part in parts]
    count = len(parts[0])
    if columns is None:  # about a square, its last line as full as the others
        columns = min(count, math.ceil(math.sqrt(len(parts) * count)))
        columns = math.ceil(count / math.ceil(count / columns))
    blank = parts[0].new_full((-count % columns, parts[0].shape[1]), BACKGROUND)
    rows = [torch.cat([part, blank]).split(columns) for part in parts]
    grids = [image_grid(torch.cat(group), shape, columns) for group in zip(*rows, strict=True)]
    gap = grids[0].new_full((3, GAP, grids[0].shape[2]), BACKGROUND)
    return torch.cat([piece for grid in grids for piece in (gap, grid)][1:], dim=1)


def captioned(grid: Tensor, caption: str) -> Image.Image:
    """Return a grid (3, height, width), clipped to [0, 1], as a picture with a caption below it."""
    grey = grid.detach().clamp(0, 1).mul(255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    picture = Image.fromarray(grey)
    font = ImageFont.load_default(FONT_SIZE)
    width = max(picture.width, NARROWEST)
    letters = int((width - 2 * MARGIN) / font.getlength("n"))
    text = "\n".join(textwrap.fill(line, letters) for line in caption.splitlines())
    height = ImageDraw.Draw(picture).multiline_textbbox((0, 0), text, font)[3]
    page = Image.new("RGB", (width, round(picture.height + height + 2 * MARGIN)), "white")
    page.paste(picture, (0, 0))
    ImageDraw.Draw(page).multiline_text((MARGIN, picture.height + MARGIN), text, "black", font)
    return page


def save_png(grid: Tensor, path: Path, caption: str) -> None:
    """Write a grid (3, height, width) with its caption as PNG, completely or not at all.

    The file says in words of its own, `caption` and `grid` (width x height), what is drawn in it.
    """
    buffer, words = io.BytesIO(), PngInfo()
    words.add_itxt("caption", caption)
    words.add_text("grid", f"{grid.shape[2]}x{grid.shape[1]}")
    captioned(grid, caption).save(buffer, format="png", pnginfo=words)
    write_atomically(path, buffer.getvalue())


def save_gif(frames: Sequence[Tensor], path: Path, caption: str) -> None:
    """Write grids (3, height, width) as an endless animated GIF, completely or not at all."""
    first, *others = [captioned(frame, caption) for frame in frames]
    options = dict(append_images=others, duration=100, loop=0, optimize=False)  # milliseconds
    buffer = io.BytesIO()
    first.save(buffer, format="gif", save_all=True, **options)
    write_atomically(path, buffer.getvalue())
