"""What the figures share: colours for roles, error surfaces, paths, legends, PNG files."""

import io
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from PIL import Image
from torch import Tensor

from nws.style import COLOURS, STYLE

BLUE, VERMILION, GREEN, PURPLE, ORANGE, _, BLACK = COLOURS
Style = dict[str, Any]
#: one colour and line for each role, the same in every world
NATURAL: Style = {"color": BLUE, "linestyle": "-", "linewidth": 1.5}
PLAIN: Style = {"color": VERMILION, "linestyle": "--", "linewidth": 1.3}
THIRD: Style = {"color": GREEN, "linestyle": "-.", "linewidth": 1.3}
FOURTH: Style = {"color": PURPLE, "linestyle": ":", "linewidth": 1.6}
GREY = "#8a8a8a"
RESOLUTION = 161  # points of a surface along each axis
LOW_IS_DARK = LinearSegmentedColormap.from_list("low is dark", ["#cfd6de", "#ffffff"])
HALO = [withStroke(linewidth=2.2, foreground="white")]


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, its size in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(w_pad=0.07)  # type: ignore[call-arg]
    return figure


def styled() -> AbstractContextManager[None]:
    """The context in which a figure is made and saved."""
    return matplotlib.rc_context(STYLE | {"axes.grid": False})  # type: ignore


def surface(
    axes: Axes, function: Callable[[Tensor], Tensor], x: tuple[float, float],
    y: tuple[float, float], levels: Sequence[float] | np.ndarray,
) -> None:  # fmt: skip
    """Level lines of a function of points (..., 2) over a rectangle; darker is lower."""
    across = torch.linspace(*x, RESOLUTION, dtype=torch.float64)
    up = torch.linspace(*y, RESOLUTION, dtype=torch.float64)
    values = function(torch.stack(torch.meshgrid(across, up, indexing="xy"), dim=-1)).numpy()
    shown = np.clip(values, levels[0], levels[-1])
    steps = np.arange(len(levels))
    ranks = np.interp(shown, levels, steps)  # equal shades between neighbouring levels
    axes.contourf(across, up, ranks, levels=steps, cmap=LOW_IS_DARK, antialiased=True)
    axes.contour(
        across, up, values, levels=levels, colors="#b4bac1", linewidths=0.45, linestyles="solid"
    )
    axes.set(xlim=x, ylim=y)


def line(
    axes: Axes, points: Tensor, style: Style, arrow: float | None = None, **more: Any
) -> None:  # fmt: skip
    """A path (T, 2), with an arrow head at a share of its length within the axes."""
    x, y = points.T.numpy()
    axes.plot(x, y, **(style | more))
    if arrow is None:
        return
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    inside = (x >= left) & (x <= right) & (y >= low) & (y <= high)
    x, y = x[inside], y[inside]
    lengths = np.hypot(np.diff(x) / (right - left), np.diff(y) / (high - low))
    if len(lengths) < 2 or lengths.sum() < 0.03:
        return
    at = int(np.searchsorted(lengths.cumsum(), arrow * lengths.sum()))
    at = min(max(at, 0), len(x) - 2)
    axes.annotate(
        "", (x[at + 1], y[at + 1]), (x[at], y[at]),
        arrowprops={"arrowstyle": "-|>", "color": style["color"], "linewidth": 0,
                    "mutation_scale": 8, "shrinkA": 0, "shrinkB": 0},
    )  # fmt: skip


def dot(axes: Axes, point: Tensor | Sequence[float], **more: Any) -> None:
    """A black dot with a white rim."""
    look: Style = {"marker": "o", "markersize": 4, "color": BLACK, "zorder": 5}
    look |= {"markeredgecolor": "white", "markeredgewidth": 0.6, "linestyle": "none"}
    axes.plot([float(point[0])], [float(point[1])], **(look | more))


def star(axes: Axes, point: Tensor | Sequence[float], color: str = ORANGE) -> None:
    """Where the minimum or maximum is."""
    look: Style = {"marker": "*", "markersize": 9, "markeredgecolor": BLACK, "clip_on": False}
    dot(axes, point, color=color, **look)


def note(axes: Axes, text: str, at: tuple[float, float], **more: Any) -> None:
    """A short text within a panel, legible on lines."""
    axes.text(*at, text, fontsize=7, path_effects=HALO, **more)


def field(axes: Axes, points: Tensor, arrows: Tensor, **more: Any) -> None:
    """Arrows of one length, which show the direction of a vector field alone."""
    unit = arrows / arrows.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    look: Style = {"color": GREY, "width": 0.0035, "scale": 26, "pivot": "mid", "headwidth": 4}
    axes.quiver(*points.T.numpy(), *unit.T.numpy(), **(look | more))


def legend(figure: Figure, entries: dict[str, Style], columns: int | None = None) -> None:
    """One legend below all panels."""
    handles = [Line2D([], [], **style) for style in entries.values()]
    figure.legend(
        handles, list(entries), loc="outside lower center", ncols=columns or len(entries),
        handlelength=2.4,
    )  # fmt: skip


def as_png(figure: Figure) -> bytes:
    """A figure as the content of a PNG file, the same bytes each time."""
    figure.savefig(drawn := io.BytesIO(), format="png", metadata={"Software": None})
    return compress(Image.open(drawn).convert("RGB"))


def compress(image: Image.Image) -> bytes:
    """A PNG file of the 120 most frequent colours and those of the style: a third of the bytes."""
    packed = (np.asarray(image).astype(np.int64) * (1 << 16, 1 << 8, 1)).sum(-1)
    found, where, counts = np.unique(packed, return_inverse=True, return_counts=True)
    colours = (found[:, None] >> np.array((16, 8, 0))) & 255
    ours = [[int(colour[k : k + 2], 16) for k in (1, 3, 5)] for colour in COLOURS]
    palette = np.concatenate([ours, colours[np.argsort(-counts)[:120]]])
    gaps = ((colours[:, None] - palette) ** 2).sum(-1)  # of each colour to each of the palette
    indices = gaps.argmin(1)[where].reshape(packed.shape).astype(np.uint8)
    reduced = Image.fromarray(indices, mode="P")
    reduced.putpalette(palette.astype(np.uint8).tobytes())
    reduced.save(small := io.BytesIO(), format="png", optimize=True)
    return small.getvalue()
