"""What the page says of runs: tables, curves, images and provenance, as plain values.

Log-likelihoods are in nats per image, times in seconds of training without evaluation.
"""

import json
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nws.analysis.curves import Band, by_epochs, group_runs, interpolate, scale, with_column
from nws.analysis.figures import LABELS
from nws.analysis.report.pictures import Frame, frames
from nws.analysis.report.scores import request_words, requests
from nws.analysis.runs import (
    ERROR,
    LOG_LIKELIHOOD,
    POSITION,
    Run,
    all_differences,
    differing_keys,
    short_names,
    value_text,
)
from nws.analysis.summaries import folder_names

DIGITS = 6  # of the numbers of curves
WORDS = LABELS | {"exact/kl": "KL(p_D ‖ p) (nats)"}  # what a column is called on the y axis
MAX_DIFF = 100_000  # characters of a diff that are shown
#: of provenance.json, in the order of the page; others follow
FACTS = (
    "state", "started", "ended", "steps", "total_steps", "epochs", "ms_per_step",
    "training_seconds", "evaluation_seconds", "peak_memory_bytes", "layers", "parameters",
    "experiment", "version", "git", "host", "device", "processor", "threads", "python", "torch",
    "platform",
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A cell of a table: what is shown, and by what it is sorted."""

    text: str
    order: float | str
    title: str = ""  # shown where the mouse rests


@dataclass(frozen=True)
class Entry:
    """A run on the page."""

    name: str  # what tells it from the others
    place: str  # its directory, below that of all runs
    group: int  # the number of its method
    cells: list[Cell]
    command: str  # that started it, empty where it is unknown
    facts: list[tuple[str, str]]
    diff: str  # of the code, empty where there was none
    config: list[tuple[str, str, bool]]  # key, value, whether the runs differ in it
    frames: list[Frame] = field(default_factory=list)


def entries(runs: Sequence[Run], images: int) -> tuple[list[str], list[Entry]]:
    """Return the headings of the table of runs, and an entry for each."""
    keys, places = differing_keys(runs), folder_names(runs)
    groups = group_runs(runs)
    unlike = set(all_differences(runs))
    heads, lines = _table(runs, keys)
    found = []
    names = run_names(runs)
    numbers = {run.path: i for i, each in enumerate(groups.values()) for run in each}
    for run, cells, name, place in zip(runs, lines, names, places, strict=True):
        config = [(key, value_text(key, each), key in unlike) for key, each in run.config.items()]
        facts, command = run.provenance, shlex.join(map(str, run.provenance.get("command") or ()))
        found.append(
            Entry(
                name, place, numbers[run.path], cells, command, _facts(facts), _diff(run), config,
                frames(run, images) if images else [],
            )
        )  # fmt: skip
    return heads, found


def run_names(runs: Sequence[Run]) -> list[str]:
    """What tells each run from the others; its directory where nothing else does."""
    named = {run.path: name for name, each in group_runs(runs, "run").items() for run in each}
    return [named[run.path] for run in runs]


# --- the table ------------------------------------------------------------------------------------


def _table(runs: Sequence[Run], keys: Sequence[str]) -> tuple[list[str], list[list[Cell]]]:
    columns: dict[str, list[Cell]] = {
        name: [_option(run, key) for run in runs] for key, name in short_names(keys).items()
    }
    columns |= {name: [cell(run) for run in runs] for name, cell in LIKELIHOODS.items()}
    columns |= _evaluations(runs)
    if any("exact/kl" in run.metrics for run in runs):
        columns["last KL, nats"] = [_number(run.last.get("exact/kl"), "{:.4f}") for run in runs]
    columns |= {name: [cell(run) for run in runs] for name, cell in COSTS.items()}
    return list(columns), [list(cells) for cells in zip(*columns.values(), strict=True)]


def _option(run: Run, key: str) -> Cell:
    value = run.config.get(key)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = value_text(key, value)
    return Cell(text, float(value) if number else text)  # type: ignore[arg-type]


def _number(value: Any, form: str, error: Any = None, title: str = "") -> Cell:
    if value is None or not math.isfinite(value):
        return Cell("-", -math.inf, title)
    text = form.format(value)
    if error is not None and math.isfinite(error):
        text += f" ± {form.format(error)}"
    return Cell(text, float(value), title)


def _valid(row: dict[str, float]) -> Cell:
    """The validation log-likelihood of a row of metrics.csv."""
    title = f"epoch {row['epoch']:g}, step {row['step']:.0f}" if row else ""
    return _number(row.get(LOG_LIKELIHOOD), "{:.2f}", row.get(ERROR), title)


def _evaluations(runs: Sequence[Run]) -> dict[str, list[Cell]]:
    """A column for each kind of evaluation that evaluate.py made of a run, and for its log p*."""
    found = [dict(requests(run)) for run in runs]
    columns = {}
    for request in dict.fromkeys(key for rows in found for key in rows):
        rows = [each.get(request, {}) for each in found]
        split, samples, points, checkpoint, *_ = request
        head = f"{split} log p, nats ({points:,} images, {samples:,} samples, {checkpoint})"
        columns[head] = [
            _number(r.get("log_likelihood"), "{:.2f}", r.get("standard_error"), _ess(r, request))
            for r in rows
        ]
        if any("log_p_star" in row for row in rows):
            columns[head.replace("log p", "log p*")] = [
                _number(r.get("log_p_star"), "{:.2f}", r.get("log_p_star_standard_error"))
                for r in rows
            ]
    return columns


def _ess(row: dict[str, Any], request: Sequence[object]) -> str:
    ess = f"; effective sample size {row['ess']:.1f}" if "ess" in row else ""
    return request_words(request) + ess if row else ""


def _host(run: Run) -> Cell:
    host = str(run.provenance.get("host", "unknown"))
    parts = [str(run.provenance.get(key, "")) for key in ("processor", "device")]
    threads = run.provenance.get("threads")
    title = ", ".join([*filter(None, parts), *([f"{threads} threads"] if threads else [])])
    return Cell(host, host, title)


#: columns of the table, before and after what evaluate.py found
LIKELIHOODS: dict[str, Callable[[Run], Cell]] = {
    "state": lambda run: Cell(run.state, run.state),
    "best valid, nats": lambda run: _valid(run.best),
    "last valid, nats": lambda run: _valid(run.last),
}
COSTS: dict[str, Callable[[Run], Cell]] = {
    "epochs done": lambda run: _number(run.last.get("epoch"), "{:.4g}"),
    "seconds": lambda run: _number(run.last.get("seconds"), "{:,.1f}"),
    "ms/step": lambda run: _number(run.ms_per_step, "{:,.1f}"),
    "host": _host,
}


# --- provenance -----------------------------------------------------------------------------------


def _facts(record: dict[str, Any]) -> list[tuple[str, str]]:
    """What provenance.json says, as pairs of words; not the command and what follows from it."""
    keys = [*FACTS, *(key for key in record if key not in FACTS)]
    left_out = ("command", "overrides", "best", "last", "pid")
    shown = [key for key in keys if record.get(key) not in (None, []) and key not in left_out]
    return [
        (key.removesuffix("_bytes").replace("_", " "), _fact(key, record[key])) for key in shown
    ]


def _fact(key: str, value: Any) -> str:
    if key == "peak_memory_bytes" and isinstance(value, int | float):
        return f"{value / 2**20:,.0f} MiB"
    if key == "git" and isinstance(value, dict):
        return f"{value.get('commit')}{', changed since' * bool(value.get('changed'))}"
    if key == "layers" and isinstance(value, list):
        return "-".join(map(str, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)


def _diff(run: Run) -> str:
    """What was changed in the code since its commit."""
    name = (run.provenance.get("git") or {}).get("diff")
    path = run.path / Path(str(name)).name
    if not name or not path.is_file():
        return ""
    text = path.read_text(errors="replace")
    return text if len(text) <= MAX_DIFF else text[:MAX_DIFF] + "\n(the rest is in the file)"


# --- curves ---------------------------------------------------------------------------------------


def curves(every: Sequence[Run]) -> dict[str, Any]:
    """Every column of metrics.csv, of each run and as mean ± deviation of each method."""
    named = dict(zip(run_names(every), every, strict=True))
    lines = {name: [run] for name, run in named.items() if len(run.metrics)}
    runs = [run for (run,) in lines.values()]
    columns = _columns(runs)
    methods = group_runs(runs)
    views = {"runs": lines} | ({"methods": methods} if len(methods) < len(runs) else {})
    places = {name: place for place, name in enumerate(methods)}
    numbers = {run.path: places[name] for name, group in methods.items() for run in group}
    return {
        "columns": [{"name": name, "label": WORDS.get(name, name)} for name in columns],
        "views": {view: _view(groups, columns, numbers) for view, groups in views.items()},
    }


def _columns(runs: Sequence[Run]) -> list[str]:
    """The columns of metrics.csv that have numbers, the validation log-likelihood first."""
    names = dict.fromkeys(name for run in runs for name in run.metrics)
    columns = [name for name in names if name not in POSITION and _drawn(runs, name)]
    return sorted(columns, key=lambda name: name != LOG_LIKELIHOOD)


def _view(
    groups: dict[str, list[Run]], columns: Sequence[str], numbers: dict[Path, int]
) -> dict[str, Any]:
    """The lines of all columns; `numbers` says of which method a run is, for its colour."""
    lines = [{"name": name, "group": numbers[group[0].path]} for name, group in groups.items()]
    return {"lines": lines, "columns": {name: _curve(groups, name) for name in columns}}


def _drawn(runs: Sequence[Run], column: str) -> bool:
    return any(column in run.metrics and run.metrics[column].notna().any() for run in runs)


def _curve(groups: dict[str, list[Run]], column: str) -> dict[str, Any]:
    """The lines of a column, by the places of their groups, and the ends of the y axis."""
    bands: dict[str, Band] = {}
    lines: list[dict[str, Any] | None] = []
    for name, group in groups.items():
        if not _drawn(group, column):
            lines.append(None)
            continue
        kept = with_column(group, column)
        bands[name] = by_epochs(kept, column)
        seconds = interpolate(kept, "seconds", column)
        lines.append({"epoch": _points(bands[name]), "seconds": _points(seconds)})
    found = scale(bands, column)
    ends = None if found.low is None else [found.low, found.high]
    cut = [f"{name} goes to {value:,.4g}" for name, value in found.cut.items()]
    return {"lines": lines, "range": ends, "cut": cut}


def _points(band: Band) -> dict[str, list[float | None]]:
    points = {"x": _rounded(band.x), "y": _rounded(band.mean)}
    return points | ({"deviation": _rounded(band.deviation)} if band.deviation.any() else {})


def _rounded(values: np.ndarray[Any, Any]) -> list[float | None]:
    """Numbers with few digits, for a small file; None for those that are not finite."""
    return [float(f"{v:.{DIGITS}g}") if np.isfinite(v) else None for v in pd.Series(values)]
