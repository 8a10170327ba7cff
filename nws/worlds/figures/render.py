"""Draw a world by its name."""

import io
from importlib import import_module

import numpy as np
from PIL import Image

from nws.errors import UserError
from nws.style import COLOURS
from nws.worlds.figures.drawing import styled

#: the worlds in the order of the documentation; each is a module here and one in nws/worlds/
WORLDS = {
    "two_bits": "stochastic relaxation on two bits",
    "gaussian_relaxation": "stochastic relaxation by Gaussians",
    "rosenbrock": "Rosenbrock's function as least squares, and units of measure",
    "unit_balls": "steepest descent in Mahalanobis metrics",
    "univariate_gaussian": "the geometry of the univariate Gaussian",
    "empirical_fisher": "true and empirical Fisher matrix",
    "autoencoder": "an autoencoder of one hidden unit",
}


def find_worlds(name: str) -> list[str]:
    """The worlds that a name stands for: one, or every one for "all".

    Raises:
        UserError: For an unknown name.
    """
    if name != "all" and name not in WORLDS:
        raise UserError(f"a world must be one of {', '.join(WORLDS)}, or all, got {name!r}")
    return list(WORLDS) if name == "all" else [name]


def render(name: str) -> bytes:
    """The figure of a world as the content of a PNG file, the same bytes each time."""
    with styled():
        figure = import_module(f"nws.worlds.figures.{name}").draw()
        figure.savefig(buffer := io.BytesIO(), format="png", metadata={"Software": None})
    return compress(Image.open(buffer).convert("RGB"))


def compress(image: Image.Image) -> bytes:
    """A PNG file of the 120 most frequent colours and those of the roles: a third of the bytes."""
    pixels = np.asarray(image)
    packed = (pixels.astype(np.int64) * (1 << 16, 1 << 8, 1)).sum(-1)
    found, where, counts = np.unique(packed, return_inverse=True, return_counts=True)
    colours = (found[:, None] >> np.array((16, 8, 0))) & 255
    roles = [[int(colour[k : k + 2], 16) for k in (1, 3, 5)] for colour in COLOURS]
    palette = np.concatenate([roles, colours[np.argsort(-counts)[:120]]])
    gaps = ((colours[:, None] - palette) ** 2).sum(-1)  # of each colour to each of the palette
    indices = gaps.argmin(1)[where].reshape(packed.shape).astype(np.uint8)
    reduced = Image.fromarray(indices, mode="P")
    reduced.putpalette(palette.astype(np.uint8).tobytes())
    reduced.save(small := io.BytesIO(), format="png", optimize=True)
    return small.getvalue()


def facts(name: str) -> dict[str, float]:
    """The numbers of a world."""
    found: dict[str, float] = import_module(f"nws.worlds.{name}").facts()
    return found


def shown(value: float) -> str:
    """A number as the pages and the program show it: three digits; rounding errors are 0."""
    if abs(value) < 1e-9:
        return "0"
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.3g}"
