"""Tables of runs: a line for each, by what differs, and the means over their seeds."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nws.analysis.runs import (
    ERROR,
    LOG_LIKELIHOOD,
    Run,
    differing_keys,
    label,
    read_config,
    read_run,
    short_names,
    value_text,
)
from nws.analysis.tables import print_table
from nws.errors import UserError
from nws.experiment.process.invocation import command_line
from nws.experiment.process.terminal import short_path
from nws.experiment.storage.directory import RunDirectory, find_runs

#: the columns that say what became of a run
OUTCOME = ("state", "best valid, nats", "ms/step", "epochs", "seconds")

Table = tuple[list[str], list[list[str]]]  # the headings, and a line of cells for each row


@dataclass(frozen=True)
class Summary:
    """The runs with one value of all keys but the seed."""

    cells: list[str]  # the values of the keys
    runs: list[Run]
    mean: float
    deviation: float  # sample standard deviation over the runs; nan for one run


def summaries(runs: Sequence[Run], values: Sequence[float], keys: Sequence[str]) -> list[Summary]:
    """Mean and deviation of the finite values, over the runs that share the keys but the seed."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, run in enumerate(runs):
        if np.isfinite(values[place]):
            groups.setdefault(tuple(_cells(run, _but_seed(keys))), []).append(place)
    found = []
    for cells, places in groups.items():
        numbers = np.array([values[place] for place in places])
        deviation = float(numbers.std(ddof=1)) if len(numbers) > 1 else np.nan
        members = [runs[place] for place in places]
        found.append(Summary(list(cells), members, float(numbers.mean()), deviation))
    return found


def means_table(
    runs: Sequence[Run], values: Sequence[float], keys: Sequence[str], name: str
) -> Table | None:
    """The table of `summaries`, of a value in nats; None where no runs differ in the seed alone."""
    found = summaries(runs, values, keys)
    if all(len(each.runs) == 1 for each in found):
        return None
    heads = [short_names(keys)[key] for key in _but_seed(keys)]
    lines = []
    for each in found:
        spread = "" if np.isnan(each.deviation) else f" ± {each.deviation:.3f}"
        lines.append([*each.cells, str(len(each.runs)), f"{each.mean:.3f}{spread}"])
    return [*heads, "seeds", f"{name}: mean ± deviation over seeds"], lines


def key_columns(runs: Sequence[Run], keys: Sequence[str]) -> Table:
    """The values of keys, a column for each, under short names."""
    return list(short_names(keys).values()), [_cells(run, keys) for run in runs]


def column_names(keys: Sequence[str]) -> list[str]:
    """Short names of keys, apart from `OUTCOME`: trainer.epochs is not the epochs that are done."""
    return [key if name in OUTCOME else name for key, name in short_names(keys).items()]


def runs_table(runs: Sequence[Run], keys: Sequence[str]) -> Table:
    """A line for each run: where it is, what differs, its state, best value and costs."""
    _, cells = key_columns(runs, keys)
    heads = ["run", *column_names(keys), *OUTCOME]
    lines = []
    for run, values, name in zip(runs, cells, folder_names(runs), strict=True):
        epochs = f"{run.last['epoch']:.4g}" if run.last else "0"
        seconds = f"{run.last['seconds']:,.1f}" if run.last else ""
        speed = "" if np.isnan(run.ms_per_step) else milliseconds(run.ms_per_step)
        lines.append([name, *values, run.state, best_text(run), speed, epochs, seconds])
    return heads, lines


def milliseconds(value: float) -> str:
    """A time in milliseconds with about three digits.

    Example:
        >>> milliseconds(1.234), milliseconds(40), milliseconds(1234.5)
        ('1.23', '40.0', '1,234')
    """
    return f"{value:,.{2 if value < 10 else 1 if value < 100 else 0}f}"


def best_text(run: Run) -> str:
    """The best validation log-likelihood with its standard error over the images, in nats."""
    if not run.best:
        return ""
    error = run.best.get(ERROR, np.nan)
    return f"{run.best[LOG_LIKELIHOOD]:.3f}" + (f" ± {error:.3f}" if error == error else "")


def folder_names(runs: Sequence[Run]) -> list[str]:
    """What lies below the runs' common folder; the end of a single run's path."""
    paths = [run.path for run in runs]
    if len(paths) == 1:
        return [str(Path(*paths[0].parts[-2:]))]
    common = os.path.commonpath([path.parent for path in paths])
    return [str(path.relative_to(common)) for path in paths]


def best_run(runs: Sequence[Run]) -> Run | None:
    """The run with the best validation log-likelihood, if any has one."""
    scored = [run for run in runs if run.best]
    return max(scored, key=lambda run: run.best[LOG_LIKELIHOOD], default=None)


def repeating(run: Run) -> str | None:
    """The command that repeats a run by itself; None where provenance.json lacks its overrides."""
    overrides = run.provenance.get("overrides")
    if not isinstance(overrides, list):
        return None
    left_out = ("resume", "hydra")
    kept = [text for text in map(str, overrides) if not text.lstrip("+~").startswith(left_out)]
    return command_line("train", *kept)


def print_sweep(folder: Path) -> None:
    """Print the end of a sweep: its runs, the means over seeds, and the best run's directory.

    A folder without runs, and one whose runs are to be quiet, print nothing.
    """
    try:
        runs = read_started(find_runs(folder))
    except UserError:  # no job came to a run of its own
        return
    if all(run.config.get("verbosity") == "quiet" for run in runs):
        return
    keys = differing_keys(runs)
    if (runs[0].path.parent / "optimization_results.yaml").is_file():  # Optuna's: best trial first
        runs.sort(key=lambda run: -run.best.get(LOG_LIKELIHOOD, -np.inf))
    print()
    print_table(*runs_table(runs, keys))
    values = [run.best.get(LOG_LIKELIHOOD, np.nan) for run in runs]
    means = means_table(runs, values, keys, "best valid, nats")
    if means is not None:
        print()
        print_table(*means)
    if best := best_run(runs):
        command = repeating(best)
        name = f" {label(best, keys)}:" if keys else ""
        print(f"\nbest of {len(runs)} runs:{name} {best_text(best)} nats")
        if command is not None:
            print(f"repeat it with\n  {command}")
        print("next:")
        for program in ("evaluate", "plot", "report"):
            print(f"  {command_line(program, short_path(folder))}")
        print(best.path)


def read_started(paths: Sequence[Path]) -> list[Run]:
    """The runs at these paths, those without metrics.csv too; `UserError` for a damaged one."""
    has = [RunDirectory(path).metrics.is_file() for path in paths]
    return [
        read_run(path) if there else read_config(path)
        for path, there in zip(paths, has, strict=True)
    ]


def _but_seed(keys: Sequence[str]) -> list[str]:
    return [key for key in keys if key != "seed"]


def _cells(run: Run, keys: Sequence[str]) -> list[str]:
    return [value_text(key, run.config.get(key)) for key in keys]
