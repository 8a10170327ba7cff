"""What a comparison shows: a table, a file of all numbers, and a figure."""

import csv
import io
import json
from statistics import mean, stdev

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from nws.analysis.figures import decimal_ticks
from nws.analysis.supervised.methods import METHODS
from nws.analysis.supervised.search import Run, score
from nws.analysis.supervised.tasks import Task
from nws.style import COLOURS, STYLE

Results = dict[str, list[Run]]


def table(task: Task, results: Results) -> tuple[list[str], list[list[str]]]:
    """Heads and rows: of each method the settings, and what its last epoch reached."""
    columns = ["train_loss", "test_loss"]
    heads = ["method", "rate", "damping", "train loss", "test loss"]
    if task.classifies:
        columns = ["train_loss", "train_error", "test_loss", "test_error"]
        heads[3:] = ["train loss", "train error %", "test loss", "test error %"]
    rows = []
    for method, runs in results.items():
        settings = runs[0]["settings"]
        damping = "" if settings["damping"] is None else f"{settings['damping']:.3g}"
        cells = [
            _cell([run["rows"][-1][name] for run in runs], 2 if "error" in name else None)
            for name in columns
        ]
        ended = sum(run["rows"][-1]["epoch"] < run["epochs"] for run in runs)
        label = METHODS[method].label + (f" ({ended} of {len(runs)} diverged)" if ended else "")
        seconds = _cell([run["rows"][-1]["seconds"] for run in runs], 1)
        rows.append([label, f"{settings['lr']:.3g}", damping, *cells, seconds])
    return [*heads, "CPU seconds"], rows


def _cell(values: list[float], digits: int | None = None) -> str:
    if digits is None:
        digits = 4 if mean(values) < 1 else 2
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{spread}"


def search_table(searches: Results) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of every run of the searches; more than one seed where it was best so far."""
    heads = ["method", "rate", "damping", "seed", "validation score"]
    rows = []
    for method, runs in searches.items():
        for run in sorted(runs, key=score):
            settings = run["settings"]
            damping = "" if settings["damping"] is None else f"{settings['damping']:.3g}"
            found = score(run)
            rows.append(
                [METHODS[method].label, f"{settings['lr']:.3g}", damping, str(settings["seed"]),
                 f"{found:.3f}" if np.isfinite(found) else "diverged"]
            )  # fmt: skip
    return heads, rows


def as_csv(results: Results) -> bytes:
    """All epochs of all runs, a line each."""
    text = io.StringIO()
    names = list(next(iter(results.values()))[0]["rows"][0])
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "seed", "lr", "damping", *names])
    for method, runs in results.items():
        for run in runs:
            settings = run["settings"]
            head = [method, settings["seed"], settings["lr"], settings["damping"]]
            writer.writerows([*head, *(row[name] for name in names)] for row in run["rows"])
    return text.getvalue().encode()


def as_json(task: Task, results: Results, searches: Results) -> bytes:
    """Settings, final rows, and the scores of the searches."""
    content = {
        "task": task.name,
        "results": {
            method: {
                "settings": runs[0]["settings"] | {"seed": None},
                "final": [run["rows"][-1] for run in runs],
            }
            for method, runs in results.items()
        },
        "searches": {
            method: [run["settings"] | {"score": score(run)} for run in runs]
            for method, runs in searches.items()
        },
    }
    return (json.dumps(content, indent=1) + "\n").encode()


def figure(task: Task, results: Results) -> bytes:
    """A PNG: training and test curves, by epochs and by CPU seconds. Lines are means over seeds."""
    column = "error" if task.classifies else "loss"
    unit = "error (%)" if task.classifies else "loss (nats)"
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        image = Figure(figsize=(7.2, 5.0), dpi=120, layout="constrained")
        axes = image.subplots(2, 2, sharey="row")
        for line, part in zip(axes, ("train", "test"), strict=True):
            for axis, x in zip(line, ("epoch", "seconds"), strict=True):
                for colour, (method, runs) in zip(COLOURS, results.items(), strict=False):
                    _curve(axis, runs, x, f"{part}_{column}", colour, METHODS[method].label)
                axis.set_xlabel("epochs" if x == "epoch" else "CPU seconds of training")
                _set_scales(axis, x == "seconds", part == "test" and task.classifies)
            line[0].set_ylabel(f"{'training' if part == 'train' else part} {unit}")
        image.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        drawn, content = io.BytesIO(), io.BytesIO()
        image.savefig(drawn, format="png")
    few = Image.open(drawn).convert("RGB").quantize(96)  # colours: a third of the bytes
    few.save(content, format="png", optimize=True)
    return content.getvalue()


def _set_scales(axis: Axes, seconds: bool, errors: bool) -> None:
    """Logarithmic scales: of seconds, as methods are far apart; of test errors over a wide range.

    A training error may be 0.
    """
    if seconds:
        axis.set_xscale("log")
        decimal_ticks(axis.xaxis)
    low, high = axis.get_ylim()
    if errors and high > 3 * low > 0:
        axis.set_yscale("log")
        decimal_ticks(axis.yaxis)


def _curve(axis: Axes, runs: list[Run], x: str, column: str, colour: str, label: str) -> None:
    count = min(len(run["rows"]) for run in runs)
    values = np.array([[row[column] for row in run["rows"][:count]] for run in runs])
    places = np.array([[row[x] for row in run["rows"][:count]] for run in runs]).mean(0)
    axis.plot(places[1:], values.mean(0)[1:], color=colour, label=label)
    low, high = values.min(0)[1:], values.max(0)[1:]
    axis.fill_between(places[1:], low, high, color=colour, alpha=0.15, linewidth=0)
