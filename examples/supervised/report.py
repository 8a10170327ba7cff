"""What a comparison shows: tables, and a figure."""

import math

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from small_worlds.drawing import as_png

from nws.analysis.figures import decimal_ticks
from nws.style import COLOURS, STYLE
from supervised.methods import METHODS, Run
from supervised.search import score
from supervised.tasks import Task

Runs = dict[str, list[Run]]  # of each method


def epochs_of(results: Runs) -> pd.DataFrame:
    """All epochs of all runs, a row each."""
    runs = (run for each in results.values() for run in each)
    return pd.DataFrame([run["settings"] | row for run in runs for row in run["rows"]])


def scores_of(searches: Runs) -> pd.DataFrame:
    """Every run of the searches, the best of each method first; inf where it diverged."""
    runs = (run for each in searches.values() for run in sorted(each, key=score))
    return pd.DataFrame([run["settings"] | {"validation_score": score(run)} for run in runs])


def table(task: Task, results: Runs) -> pd.DataFrame:
    """Of each method the settings, and what its last epoch reached, as texts."""
    rows = []
    for method, runs in results.items():
        last = pd.DataFrame([run["rows"][-1] for run in runs])
        settings, ended = runs[0]["settings"], sum(math.isinf(score(run)) for run in runs)
        note = f" ({ended} of {len(runs)} diverged)" if ended else ""
        damping = settings["damping"]
        row = {
            "method": METHODS[method].label + note,
            "rate": f"{settings['lr']:.3g}",
            "damping": "" if damping is None else f"{damping:.3g}",
        }
        for part in ("train", "test"):
            row[f"{part} loss"] = _cell(last[f"{part}_loss"])
            if task.classifies:
                row[f"{part} error %"] = _cell(last[f"{part}_error"], 2)
        rows.append(row | {"CPU seconds": _cell(last["seconds"], 1)})
    return pd.DataFrame(rows)


def _cell(values: pd.Series, digits: int | None = None) -> str:
    if digits is None:
        digits = 4 if values.mean() < 1 else 2
    spread = f" ± {values.std():.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{spread}"


def markdown(frame: pd.DataFrame) -> str:
    """A table of texts in Markdown."""
    lines = [list(frame), ["---"] * frame.shape[1], *frame.to_numpy().tolist()]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def figure(task: Task, results: Runs) -> bytes:
    """A PNG: training and test curves, by epochs and by CPU seconds. Lines are means over seeds."""
    column, unit = ("error", "error (%)") if task.classifies else ("loss", "loss (nats)")
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        image = Figure(figsize=(7.2, 5.0), layout="constrained")
        axes = image.subplots(2, 2, sharey="row")
        for line, part in zip(axes, ("train", "test"), strict=True):
            for axis, x in zip(line, ("epoch", "seconds"), strict=True):
                for colour, (method, runs) in zip(COLOURS, results.items(), strict=False):
                    _curve(axis, runs, x, f"{part}_{column}", colour, METHODS[method].label)
                axis.set_xlabel("epochs" if x == "epoch" else "CPU seconds of training")
                _set_scales(axis, x == "seconds", part == "test" and task.classifies)
            line[0].set_ylabel(f"{'training' if part == 'train' else part} {unit}")
        image.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        return as_png(image)


def _set_scales(axes: Axes, seconds: bool, errors: bool) -> None:
    """Logarithmic scales: of seconds, as methods are far apart; of test errors over a wide range.

    A training error may be 0.
    """
    if seconds and axes.dataLim.xmax > 0:  # not where every run ended in its first epoch
        axes.set_xscale("log")
        decimal_ticks(axes.xaxis)
    low, high = axes.get_ylim()
    if errors and high > 3 * low > 0:
        axes.set_yscale("log")
        decimal_ticks(axes.yaxis)


def _curve(axes: Axes, runs: list[Run], x: str, column: str, colour: str, label: str) -> None:
    """The mean over runs, and their range, as far as all of them came."""
    count = min(len(run["rows"]) for run in runs)
    rows = pd.concat([pd.DataFrame(run["rows"][:count]) for run in runs]).groupby("epoch")
    mean, low, high = (found.iloc[1:] for found in (rows.mean(), rows.min(), rows.max()))
    places = mean.index if x == "epoch" else mean[x]
    axes.plot(places, mean[column], color=colour, label=label)
    axes.fill_between(places, low[column], high[column], color=colour, alpha=0.15, linewidth=0)
