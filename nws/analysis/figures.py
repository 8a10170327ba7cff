"""Training curves as figures: a column of metrics.csv by epochs and by training seconds."""

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from nws.analysis.curves import Scale, count, curve, scale
from nws.analysis.runs import Run
from nws.errors import UserError
from nws.files import check_writable, write_atomically
from nws.style import COLOURS, STYLE

DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
LINES = cycler(linestyle=DASHES) * cycler(color=COLOURS)  # all colours first
WIDTH, HEIGHT = 6.8, 2.9  # inches, with a legend of one line
LINE = 0.16  # inches, of the legend
LETTERS = 16  # of the legend in an inch, about
MAX_COLUMNS, MAX_LABEL = 4, 100  # columns of the legend, letters in a line of it

#: what a column is called on the y axis; others go by their own names
LABELS = {
    "valid/log_likelihood": "validation log-likelihood (nats)",
    "train/log_likelihood": "training bound on log p(x) (nats)",
    "valid/standard_error": "standard error, validation (nats)",
    "train/wake_loss": "wake loss, −log p (nats)",
    "train/dream_loss": "dream loss, −log q (nats)",
    "train/ess": "effective sample size",
    "exact/kl": "KL(data ‖ p) (nats)",
    "learning_rate": "learning rate",
}


def draw(
    groups: dict[str, list[Run]], column: str, *, log: bool = False,
    ymin: float | None = None, ymax: float | None = None,
) -> dict[str, bytes]:  # fmt: skip
    """Draw a column by epochs and by seconds, with a line and a band for each group.

    The runs of each group are from `with_column`. The ends of the y axis, which may be logarithmic,
    are by default as the curves need. It returns what `render` does.
    """
    runs = [run for group in groups.values() for run in group]
    if log and (low := min(run.metrics[column].min() for run in runs)) <= 0:
        lowest = f"{column} goes down to {low:g}"
        raise UserError(f"a logarithmic axis needs values above 0, {lowest}; leave --log out")
    bands = {name: curve(group, "epoch", column) for name, group in groups.items()}
    found = Scale(None, None, {})
    if not log and ymin is None and ymax is None:
        found = scale(bands, column)
        ymin, ymax = found.low, found.high
    with matplotlib.rc_context(STYLE | {"axes.prop_cycle": LINES}):  # type: ignore[arg-type]
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for name, text in labels(groups, found).items():
            _line(left, bands[name], label=textwrap.fill(text, MAX_LABEL))
            _line(right, curve(groups[name], "seconds", column))
        left.set(xlabel="epochs", ylabel=y_label(runs, column))
        right.set(xlabel="training seconds")
        if log:
            left.set_yscale("log", nonpositive="clip")
            decimal_ticks(left.yaxis)
        left.set_ylim(ymin, ymax)
        _add_legend(figure)
        return render(figure)


def draw_bound(names: Sequence[str], rows: pd.DataFrame) -> dict[str, bytes]:
    """Draw log-likelihoods against importance samples, with bars of one standard error.

    `rows` are those of evaluation.json, and `names` their runs. It returns what `render` does.
    """
    with matplotlib.rc_context(STYLE | {"axes.prop_cycle": LINES}):  # type: ignore[arg-type]
        figure = Figure(figsize=(0.6 * WIDTH, HEIGHT), layout="constrained")
        axes = figure.subplots()
        for name, line in rows.assign(name=names).groupby("name", sort=False):
            values, error = line["log_likelihood"], line["standard_error"].astype(float)
            style: Any = {"marker": "o", "markersize": 2.5, "capsize": 2, "label": str(name)}
            axes.errorbar(line["samples"], values, error, **style)
        axes.set(xlabel="importance samples", ylabel="bound on log p(x) (nats)", xscale="log")
        decimal_ticks(axes.xaxis)
        _add_legend(figure)
        return render(figure)


def render(figure: Figure) -> dict[str, bytes]:
    """The content of a figure's files, {"png": ..., "svg": ...}: the same bytes each time."""
    files = {}
    for kind, date in (("png", "Software"), ("svg", "Date")):
        figure.savefig(buffer := io.BytesIO(), format=kind, metadata={date: None})
        files[kind] = buffer.getvalue()
    return files


def labels(groups: dict[str, list[Run]], found: Scale | None = None) -> dict[str, str]:
    """What the legend calls each group: its name, of how many runs, and where it is cut."""
    several = any(len(group) > 1 for group in groups.values())
    texts = {}
    for name, group in groups.items():
        texts[name] = name + f" ({count(group)})" * several
        if found is not None and name in found.cut:
            texts[name] += f", cut: goes to {float(f'{found.cut[name]:.4g}'):,.10g}"
    return texts


def _add_legend(figure: Figure) -> None:
    """Put a legend below the panels, of as many columns as fit, and make room for its lines."""
    lines, names = figure.axes[0].get_legend_handles_labels()
    letters = 8 + max(len(line) for name in names for line in name.splitlines())  # 8: the handle
    columns = max(1, min(len(names), MAX_COLUMNS, int(LETTERS * figure.get_figwidth() / letters)))
    made = figure.legend(lines, names, loc="outside lower center", ncols=columns, handlelength=2.6)
    for text in made.get_texts():  # a name with dollar signs is no formula
        text.set_parse_math(False)
    rows = sum(name.count("\n") + 1 for name in names) / columns
    figure.set_size_inches(figure.get_size_inches() + np.array([0, LINE * (np.ceil(rows) - 1)]))


def _line(axes: Axes, band: pd.DataFrame, label: str | None = None) -> None:
    """A group in a panel, in the next colour; a bar in place of the band of a single point."""
    marker = "o" if len(band) <= 12 else None
    (line,) = axes.plot(band.index, band["mean"], label=label, marker=marker, markersize=2.2)
    if band["deviation"].any():
        low, high = band["mean"] - band["deviation"], band["mean"] + band["deviation"]
        alpha, width = (0.18, 0.0) if len(band) > 1 else (1.0, 0.8)
        style: Any = {"color": line.get_color(), "alpha": alpha, "linewidth": width}
        axes.fill_between(band.index, low, high, **style)


def y_label(runs: Sequence[Run], column: str) -> str:
    """What the y axis shows, its units, and the number of importance samples where it is known."""
    label = LABELS.get(column, column)
    if column.startswith("valid/"):
        numbers = pd.concat([run.metrics for run in runs]).get("valid/samples", pd.Series())
        ends = numbers.agg(["min", "max"]).dropna().unique()
        if len(ends):
            label += f"\n{' to '.join(f'{each:,.0f}' for each in ends)} importance samples"
    return label


def decimal_ticks(axis: Axis) -> None:
    """0.2, 0.5, 1 rather than powers of ten; more of them within one decade, fewer over many."""
    low, high = axis.get_view_interval()
    subs = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if high / low < 10 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=subs if high / low < 300 else (1.0,)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def figure_paths(output: Path | None, default: str = "") -> list[Path]:
    """The files of a figure: PNG and SVG unless `output` names one. It checks that they can be."""
    path = Path(f"{default}.png") if output is None else output
    if path.suffix not in ("", ".png", ".svg"):
        raise UserError(f"a figure is written as .png and .svg, got {path.name}; end it in either")
    kinds = [".png", ".svg"] if output is None else [path.suffix or ".png"]
    paths = [path.with_suffix(kind) if path.name else path for kind in kinds]
    for each in paths:
        check_writable(each)
    return paths


def save(files: dict[str, bytes], paths: Sequence[Path]) -> None:
    """Write what `render` returns to the paths of `figure_paths`, and print these."""
    for path in paths:
        write_atomically(path, files[path.suffix.removeprefix(".")])
    print(*paths, sep="\n")
