"""Training curves as figures: a column of metrics.csv by epochs and by training seconds."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from nws.analysis.curves import Band, by_epochs, count, interpolate
from nws.analysis.runs import Run
from nws.errors import UserError
from nws.files import write_atomically

#: Okabe and Ito's colours, which colour-blind people can tell apart; not the yellow, weak on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")  # of the groups beyond the colours

#: what a column is called on the y axis; others go by their own names
LABELS = {
    "valid/log_likelihood": "validation log-likelihood (nats)",
    "train/log_likelihood": "training bound on log p(x) (nats)",
    "valid/standard_error": "standard error, validation (nats)",
    "train/wake_loss": "wake loss, −log p (nats)",
    "train/dream_loss": "dream loss, −log q (nats)",
    "train/ess": "effective sample size",
    "exact/kl": r"$\mathrm{KL}(p_D \,\Vert\, p)$ (nats)",
    "learning_rate": "learning rate",
}

STYLE = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 8,
    "axes.titlesize": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "legend.fontsize": 7.5, "legend.frameon": False, "lines.linewidth": 1.2,
    "axes.linewidth": 0.6, "axes.spines.top": False, "axes.spines.right": False,
    "axes.axisbelow": True, "axes.grid": True, "grid.color": "#e4e4e4", "grid.linewidth": 0.5,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.major.size": 2.5,
    "ytick.major.size": 2.5, "savefig.dpi": 200, "svg.fonttype": "none", "svg.hashsalt": "nws",
}  # fmt: skip


def draw(
    groups: dict[str, list[Run]],
    column: str,
    *,
    title: str | None = None,
    log: bool = False,
    log_x: bool = False,
    ymin: float | None = None,
    ymax: float | None = None,
) -> dict[str, bytes]:
    """Draw a column by epochs and by seconds, with a line and a band for each group.

    Args:
        groups, column: The runs of each group, from `with_column`; a column of metrics.csv.
        title: A line above the figure.
        log, log_x: Whether the y axis, the x axes are logarithmic.
        ymin, ymax: The ends of the y axis; by default as the curves need them.

    Returns:
        The content of the files: {"png": ..., "svg": ...}, the same bytes each time.

    Raises:
        UserError: A logarithmic axis with values of at most 0, or wrong ends of the y axis.
    """
    runs = [run for group in groups.values() for run in group]
    floor = _lowest(runs, column, log, ymin, ymax)
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(6.8, 2.9), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        _lines(left, right, groups, column, floor)
        left.set(xlabel="epochs", ylabel=y_label(runs, column))
        right.set(xlabel="training seconds")
        for axes, name in [(left, "y")] * log + [(left, "x"), (right, "x")] * log_x:
            axes.set(**{f"{name}scale": "log"})
            _decimal_ticks(getattr(axes, f"{name}axis"))
        left.set_ylim(ymin, ymax)
        if title:
            figure.suptitle(title, fontsize=8.5)
        figure.legend(loc="outside lower center", ncols=min(len(groups), 4), handlelength=1.8)
        return {kind: _render(figure, kind) for kind in ("png", "svg")}


def _lowest(
    runs: Sequence[Run], column: str, log: bool, ymin: float | None, ymax: float | None
) -> float:
    """Where the bands end below: -inf, or the lowest value of any run on a logarithmic axis."""
    lowest = min(float(run.metrics[column].min()) for run in runs)
    if log and lowest <= 0:
        raise UserError(
            f"a logarithmic axis needs values above 0, {column} goes down to {lowest:g}; "
            "leave --log out"
        )
    if ymin is not None and ymax is not None and ymin >= ymax:
        raise UserError(f"--ymin must be below --ymax, got {ymin:g} and {ymax:g}")
    if log and ymin is not None and ymin <= 0:
        raise UserError(f"--ymin must be above 0 on a logarithmic axis, got {ymin:g}")
    return lowest if log else -np.inf


def _lines(
    left: Axes, right: Axes, groups: dict[str, list[Run]], column: str, floor: float
) -> None:
    """Every group in both panels."""
    for number, (name, group) in enumerate(groups.items()):
        style = {
            "color": COLOURS[number % len(COLOURS)],
            "linestyle": DASHES[number // len(COLOURS) % len(DASHES)],
        }
        label = f"{name} ({count(group)})"
        _line(left, by_epochs(group, column), floor, label=label, **style)
        _line(right, interpolate(group, "seconds", column), floor, **style)


def _line(axes: Axes, band: Band, floor: float, label: str | None = None, **style: str) -> None:
    """One group in one panel."""
    marker = "o" if len(band.x) <= 12 else None
    kwargs: dict[str, Any] = {"label": label, "marker": marker, "markersize": 2.2, **style}
    axes.plot(band.x, band.mean, **kwargs)
    if band.deviation.any():
        lower = np.maximum(band.mean - band.deviation, floor)
        upper = band.mean + band.deviation
        if len(band.x) == 1:
            axes.vlines(band.x, lower, upper, color=style["color"], linewidth=0.8)
        else:
            axes.fill_between(band.x, lower, upper, color=style["color"], alpha=0.18, linewidth=0)


def y_label(runs: Sequence[Run], column: str) -> str:
    """What the y axis shows, its units, and the number of importance samples where it is known."""
    label = LABELS.get(column, column)
    if column.startswith("valid/"):
        samples = [run.metrics["valid/samples"] for run in runs if "valid/samples" in run.metrics]
        numbers = sorted({int(number) for each in samples for number in each.dropna()})
        if numbers:
            ends = dict.fromkeys((numbers[0], numbers[-1]))
            label += f"\n{' to '.join(f'{each:,}' for each in ends)} importance samples"
    return label


def _decimal_ticks(axis: Axis) -> None:
    """0.2, 0.5, 1 rather than powers of ten; more of them within one decade, fewer over many."""
    low, high = axis.get_view_interval()
    subs = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if high / low < 10 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=subs if high / low < 300 else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _render(figure: Figure, kind: str) -> bytes:
    """The same bytes each time: no date, no software's version."""
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    figure.savefig(buffer, format=kind, metadata=metadata)
    return buffer.getvalue()


def save(files: dict[str, bytes], path: Path) -> list[Path]:
    """Write the files of a figure and return their paths.

    Args:
        files: As `draw` returns them.
        path: It ends in .png, in .svg or in neither; each file gets its own ending.

    Raises:
        UserError: Another ending, or the files cannot be written.
    """
    if path.suffix not in ("", ".png", ".svg"):
        raise UserError(f"a figure is written as .png and .svg, got {path.name}; end it in either")
    paths = [path.with_suffix(f".{kind}") for kind in files]
    for each, content in zip(paths, files.values(), strict=True):
        write_atomically(each, content)
    return paths
