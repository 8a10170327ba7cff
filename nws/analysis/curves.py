"""Training curves: `metrics.csv` of many runs, averaged over seeds, drawn by epochs and by training seconds.

Units: x in epochs or in seconds of training, y as the column of metrics.csv has it (log-likelihoods in nats).
"""

import csv
import difflib
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray
from omegaconf import OmegaConf

from nws.analysis import evaluation
from nws.errors import UserError
from nws.experiment.run import RunDirectory, open_run
from nws.files import write_atomically

Array = NDArray[np.float64]

#: Okabe & Ito's colours, told apart by the colour-blind; without the yellow, which is weak on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")  # of the groups beyond the colours

#: what a column is called on the y axis; others stand there by their own names
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

#: configuration that may differ within a group without making its mean one of unlike things
INCIDENTAL = (
    "seed", "name", "device", "progress", "resume", "logger", "data.root", "trainer.check_every", "trainer.images_every"
)  # fmt: skip

STYLE = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 8, "axes.titlesize": 8,
    "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7, "legend.fontsize": 7.5,
    "axes.linewidth": 0.6, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.major.size": 2.5, "ytick.major.size": 2.5,
    "axes.grid": True, "grid.color": "#e4e4e4", "grid.linewidth": 0.5, "lines.linewidth": 1.2,
    "legend.frameon": False, "savefig.dpi": 200, "svg.fonttype": "none", "svg.hashsalt": "nws",
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What a run directory tells of one run."""

    path: Path
    argument: str  # the path under which it was found
    options: dict[str, Any]  # its configuration, by keys such as optimizer.lr
    columns: dict[str, Array]  # of metrics.csv, one value a row; NaN where a row has none


class Band(NamedTuple):
    """A group's curve: the mean over its runs and their sample standard deviation (zeros for one run), all (points,)."""

    x: Array
    mean: Array
    deviation: Array


# --- reading -------------------------------------------------------------------------------------------------------


def find_runs(folder: str | Path) -> list[Path]:
    """The run directories at or below a folder that have a metrics.csv. Raises `UserError` where there is none."""
    found = [path for path in evaluation.find_runs(folder) if RunDirectory(path).metrics.is_file()]
    if not found:
        raise UserError(
            f"no run at or below {folder} has a metrics.csv yet: it is there after the first evaluation"
        )
    return found


def read_run(path: str | Path, argument: str | None = None) -> Run:
    """A run's configuration and metrics. Raises `UserError` for what cannot be read."""
    directory, config = open_run(path)
    try:
        with open(directory.metrics, newline="") as file:
            rows = list(csv.DictReader(file))
        names = list(rows[0]) if rows else []
        columns = {name: np.array([float(row[name] or "nan") for row in rows]) for name in names}
        _ = [columns[name] for name in ("epoch", "step", "seconds")]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{directory.metrics} cannot be read: expected rows of numbers with columns epoch, step and seconds "
            f"({type(error).__name__}: {error})"
        ) from error
    options = flatten(OmegaConf.to_container(config, resolve=True))
    return Run(directory.path, argument or str(path), options, columns)


def read_runs(folders: Iterable[str | Path]) -> list[Run]:
    """All runs at or below folders, each once, in their order. Raises `UserError` where a folder holds none."""
    found: dict[Path, str] = {}
    for folder in folders:
        for path in find_runs(folder):
            found.setdefault(path, str(folder))
    return [read_run(path, argument) for path, argument in found.items()]


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, its keys joined by dots; a list is a value."""
    if not isinstance(value, dict):
        return {prefix: value}
    pairs = [
        flatten(each, f"{prefix}.{name}" if prefix else str(name)) for name, each in value.items()
    ]
    return {key: leaf for pair in pairs for key, leaf in pair.items()}


# --- grouping ------------------------------------------------------------------------------------------------------


def group_runs(runs: Sequence[Run], keys: Sequence[str]) -> dict[str, list[Run]]:
    """Runs by the values of configuration keys, in order of appearance; the key `argument` is the path they were found under.

    Raises `UserError` for a key that no run has.
    """
    known = sorted({key for run in runs for key in run.options} | {"argument"})
    for key in keys:
        if key not in known:
            near = [
                other for other in known if other.startswith(f"{key}.")
            ] or difflib.get_close_matches(key, known)
            hint = f"perhaps {', '.join(near[:6])}; " if near else ""
            raise UserError(
                f"no run has the configuration key {key!r}; {hint}they stand in a run's .hydra/config.yaml"
            )
    groups: dict[str, list[Run]] = {}
    for run in runs:
        parts = [
            _part(key, run.argument if key == "argument" else run.options.get(key)) for key in keys
        ]
        groups.setdefault(", ".join(parts), []).append(run)
    return groups


def _part(key: str, value: Any) -> str:
    """A key's part of a group's name."""
    if isinstance(value, list):
        text = "-".join(str(each) for each in value)
    elif isinstance(value, float):
        text = f"{value:g}"
    else:
        text = "none" if value is None else str(value)
    if key.endswith("_target_"):
        return text.split(".")[-1]
    return text if key == "argument" or key.endswith(".name") else f"{key.split('.')[-1]} {text}"


def differences(runs: Sequence[Run]) -> list[str]:
    """The configuration keys in which runs differ, but for seeds and what else changes no curve."""
    keys = sorted(
        {key for run in runs for key in run.options},
        key=lambda key: (not key.endswith((".name", ".lr")), key),
    )
    keys = [
        key
        for key in keys
        if not any(key == name or key.startswith(f"{name}.") for name in INCIDENTAL)
    ]
    return [
        key for key in keys if any(run.options.get(key) != runs[0].options.get(key) for run in runs)
    ]


def count(runs: Sequence[Run]) -> str:
    """`5 seeds` for runs that differ in nothing else, `5 runs` for others."""
    seeds = len({run.options.get("seed") for run in runs}) == len(runs) and not differences(runs)
    return f"{len(runs)} {'seed' if seeds else 'run'}{'s' * (len(runs) > 1)}"


# --- averaging -----------------------------------------------------------------------------------------------------


def by_epochs(runs: Sequence[Run], column: str) -> Band:
    """Mean and deviation at the epochs at which all runs have a row; where there is none, interpolated as by seconds."""
    tables = [
        dict(zip(np.round(x, 9).tolist(), y.tolist(), strict=True))
        for x, y in _points(runs, "epoch", column)
    ]
    common = sorted(set(tables[0]).intersection(*tables))
    if not common:
        return interpolated(runs, "epoch", column)
    return _band(np.array(common), np.array([[table[x] for x in common] for table in tables]))


def by_seconds(runs: Sequence[Run], column: str) -> Band:
    """Mean and deviation over the training seconds that all runs share, each run interpolated linearly between its rows."""
    return interpolated(runs, "seconds", column)


def interpolated(runs: Sequence[Run], axis: str, column: str) -> Band:
    """Mean and deviation at all runs' own points within the span that they share, each run interpolated linearly.

    Runs of one row each give one point, at their mean x. Where the runs share no span there are no points.
    """
    points = _points(runs, axis, column)
    if all(len(x) == 1 for x, _ in points):
        return _band(
            np.array([np.mean([x[0] for x, _ in points])]), np.array([y for _, y in points])
        )
    first, last = max(x[0] for x, _ in points), min(x[-1] for x, _ in points)
    grid = np.unique(np.concatenate([x for x, _ in points]))
    grid = grid[(grid >= first) & (grid <= last)]
    return _band(grid, np.array([np.interp(grid, x, y) for x, y in points]))


def _points(runs: Sequence[Run], axis: str, column: str) -> list[tuple[Array, Array]]:
    kept = [np.isfinite(run.columns[column]) for run in runs]
    return [
        (run.columns[axis][rows], run.columns[column][rows])
        for run, rows in zip(runs, kept, strict=True)
    ]


def _band(x: Array, values: Array) -> Band:
    """values: (runs, points)."""
    deviation = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
    return Band(x, values.mean(axis=0), deviation)


def with_column(runs: Sequence[Run], column: str, start: float = 0.0) -> list[Run]:
    """The runs that have numbers in a column, their rows from epoch `start` on.

    Raises `UserError` for a column that none of them has, naming those there are, and where no row is left.
    """
    having = [
        run for run in runs if column in run.columns and np.isfinite(run.columns[column]).any()
    ]
    if not having:
        columns = dict.fromkeys(name for run in runs for name in run.columns)
        raise UserError(
            f"no run has numbers in a column {column!r}; there are {', '.join(columns)}"
        )
    cut = []
    for run in having:
        rows = (run.columns["epoch"] >= start) & np.isfinite(run.columns[column])
        if rows.any():
            cut.append(
                Run(
                    run.path,
                    run.argument,
                    run.options,
                    {k: v[rows] for k, v in run.columns.items()},
                )
            )
    if not cut:
        last = max(float(run.columns["epoch"][-1]) for run in having)
        raise UserError(f"no rows from epoch {start:g} on: the runs end at epoch {last:g}")
    return cut


# --- drawing -------------------------------------------------------------------------------------------------------


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
    """The figure as files, {"png": ..., "svg": ...}: a column by epochs and by seconds, a line and a band for each group.

    The runs come from `with_column`. Raises `UserError` for a logarithmic axis through values that are not positive.
    """
    runs = [run for group in groups.values() for run in group]
    lowest = min(float(run.columns[column].min()) for run in runs)
    if log and lowest <= 0:
        raise UserError(
            f"a logarithmic axis needs values above 0, {column} goes down to {lowest:g}; leave --log out"
        )
    if ymin is not None and ymax is not None and ymin >= ymax:
        raise UserError(f"--ymin must be below --ymax, got {ymin:g} and {ymax:g}")
    if log and ymin is not None and ymin <= 0:
        raise UserError(f"--ymin must be above 0 on a logarithmic axis, got {ymin:g}")
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(6.8, 2.9), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for number, (name, group) in enumerate(groups.items()):
            colour, dash = (
                COLOURS[number % len(COLOURS)],
                DASHES[number // len(COLOURS) % len(DASHES)],
            )
            label = f"{name} ({count(group)})"
            _line(
                left, by_epochs(group, column), colour, dash, label, floor=lowest if log else None
            )
            _line(
                right, by_seconds(group, column), colour, dash, None, floor=lowest if log else None
            )
        left.set(xlabel="epochs", ylabel=y_label(runs, column))
        right.set(xlabel="training seconds")
        if log:
            left.set_yscale("log")
            _decimal_ticks(left.yaxis, *left.get_ylim())
        for axes in (left, right) if log_x else ():
            axes.set_xscale("log")
            _decimal_ticks(axes.xaxis, *axes.get_xlim())
        left.set_ylim(ymin, ymax)
        if title:
            figure.suptitle(title, fontsize=8.5)
        figure.legend(
            loc="outside lower center",
            ncols=min(len(groups), 4),
            handlelength=1.8,
            columnspacing=1.4,
        )
        return {kind: _render(figure, kind) for kind in ("png", "svg")}


def _line(
    axes: Axes, band: Band, colour: str, dash: str, label: str | None, floor: float | None
) -> None:
    """One group in one panel; on a logarithmic axis the band ends at the lowest value of any run."""
    marker = {"marker": "o", "markersize": 2.2} if len(band.x) <= 12 else {}
    axes.plot(band.x, band.mean, dash, color=colour, label=label, **marker)  # type: ignore[arg-type]
    if band.deviation.any():
        lower = band.mean - band.deviation
        lower = lower if floor is None else np.maximum(lower, floor)
        upper = band.mean + band.deviation
        if len(band.x) == 1:
            axes.vlines(band.x, lower, upper, color=colour, linewidth=0.8)
        else:
            axes.fill_between(band.x, lower, upper, color=colour, alpha=0.18, linewidth=0)


def y_label(runs: Sequence[Run], column: str) -> str:
    """What the y axis shows, its units, and the number of importance samples where the runs tell it."""
    label = LABELS.get(column, column)
    if column.startswith("valid/"):
        samples = [run.columns["valid/samples"] for run in runs if "valid/samples" in run.columns]
        numbers = sorted({int(number) for each in samples for number in each[np.isfinite(each)]})
        if numbers:
            label += f"\n{' to '.join(f'{number:,}' for number in {numbers[0]: 0, numbers[-1]: 0})} importance samples"
    return label


def _decimal_ticks(axis: Axis, low: float, high: float) -> None:
    """0.2, 0.5, 1 rather than powers of ten; only the decades where these are many, more where there is not one."""
    span = high / low
    subs = (
        (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if span < 10 else (1.0, 2.0, 5.0) if span < 300 else (1.0,)
    )
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _render(figure: Figure, kind: str) -> bytes:
    """The same bytes each time: no date, no software's version, and element names from a fixed salt."""
    buffer = io.BytesIO()
    figure.savefig(
        buffer, format=kind, metadata={"Date": None} if kind == "svg" else {"Software": None}
    )
    return buffer.getvalue()


def save(files: dict[str, bytes], path: Path) -> list[Path]:
    """Write a drawn figure's files beside each other; `path` ends in .png, .svg or in neither. Returns where they are."""
    if path.suffix not in ("", ".png", ".svg"):
        raise UserError(f"a figure is written as .png and .svg, got {path.name}; end it in either")
    paths = [path.with_suffix(f".{kind}") for kind in files]
    for each, content in zip(paths, files.values(), strict=True):
        write_atomically(each, content)
    return paths
