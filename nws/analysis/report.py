"""The report on a comparison of methods: curves and table.md, made of the run directories of every method and seed.

Units: log-likelihoods, their standard errors and the exact KL in nats per image, times in seconds.
"""

import importlib.metadata
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nws.analysis.curves import Run, draw, read_run, save, with_column
from nws.analysis.evaluation import read_rows
from nws.errors import UserError
from nws.experiment.checkpoint import load_checkpoint
from nws.experiment.processor import processor
from nws.experiment.run import RunDirectory
from nws.experiment.sweeps import is_finished as is_last_step
from nws.files import write_atomically
from nws.models.likelihood import resolves


@dataclass(frozen=True)
class Entry:
    """A method of a comparison."""

    title: str
    runs: list[Path]  # its run directories, one a seed
    wanted: bool  # whether it is named as missing where it is not there
    grid: Path  # picture of its samples
    machines: list[str]  # that it was trained on


@dataclass(frozen=True)
class Report:
    """What is reported of which methods."""

    title: str
    command: str  # that made it
    folder: Path  # of its files
    slug: str  # that the names of the curves' files begin with
    column: str  # of metrics.csv, drawn as curves
    log: bool  # their y axis
    samples: int  # importance samples an image
    images: int | None  # test images at most; None: all
    entries: list[Entry]

    def write(self) -> None:
        """The curves and table.md of all runs that came to their end."""
        runs = [
            [read_run(path) for path in entry.runs if is_finished(path)] for entry in self.entries
        ]
        pairs = zip(self.entries, runs, strict=True)
        groups = {entry.title: with_column(each, self.column) for entry, each in pairs if each}
        curves: list[Path] = []
        if groups:
            ymin, ymax = (None, None) if self.log else y_range(groups, self.column)
            files = draw(groups, self.column, title=self.title, log=self.log, ymin=ymin, ymax=ymax)
            curves = save(files, self.folder / f"{self.slug}_{self.column.replace('/', '_')}")
        write_atomically(self.folder / "table.md", self.table(runs, curves).encode())

    def table(self, runs: list[list[Run]], curves: list[Path]) -> str:
        """table.md: the test log-likelihoods of every method that has some, and where they come from.

        `runs` are the finished ones of each method, `curves` the files drawn of them.
        """
        found = [
            [(run, row) for run in each for row in [self.result(run.path)] if row is not None]
            for each in runs
        ]
        exact = self.column == "exact/kl"
        soft = not exact and any(
            run.options["data.binarize"] == "none" for each in runs for run in each
        )
        star = any("log_p_star" in row for shown in found for _, row in shown)
        pairs = list(zip(self.entries, found, strict=True))
        lines = [_cells(entry, shown, exact, star) for entry, shown in pairs if shown]
        missing = [
            f"{entry.title} ({len(shown)} of {len(entry.runs)} seeds)"
            for entry, shown in pairs
            if entry.wanted and len(shown) < len(entry.runs)
        ]
        heads = ["method", "epochs", "seeds", "test log-likelihood (nats)"]
        heads += ["standard error over images"] * (
            not exact
        )  # the 3x3 images are all there are, no sample of them
        heads += ["log p* (nats)"] * star + ["KL(p_D \\|\\| p) (nats)"] * exact
        heads += ["importance samples", "test images", "training seconds", "machine"]
        text = [f"# {self.title}", "", f"Made by `{self.command}`.", ""]
        text += [
            "Log-likelihoods in nats per image, higher is better, of the checkpoint that was best on validation images: mean ± "
            "standard deviation over the seeds. Training seconds are a run's, without evaluations, mean over the seeds."
            + " The standard error over images is that of one run, mean over the seeds."
            * (not exact)
            + " The exact KL is that of the last evaluation." * exact
            + " log p* is that of the bidirectional machine." * star
            + " In brackets: log Z is too small for its dreams, so it is likely estimated too low and log p* too high."
            * any("log_z" in row and not _resolved(row) for shown in found for _, row in shown)
            + " Images are intensities as soft targets (data.binarize=none): compare with others of the kind alone."
            * soft,
            "",
        ]
        text += ["| " + " | ".join(cells) + " |" for cells in [heads, ["---"] * len(heads), *lines]]
        if missing:
            text += [
                "",
                f"Missing: {', '.join(missing)}: not there yet, or it did not come to its end.",
            ]
        text += [
            line
            for path in curves
            if path.suffix == ".png"
            for line in ("", f"![curves]({path.name})")
        ]
        for entry in self.entries:
            if entry.grid.is_file():
                text += ["", f"{entry.title}:", "", f"![generated]({entry.grid.name})"]
        return "\n".join([*text, ""])

    def result(self, path: Path) -> dict[str, Any] | None:
        """The row of a run's evaluation.json that is of this size; the test part may have fewer images."""
        wanted = {"split": "test", "samples": self.samples, "checkpoint": "best", "seed": 0}
        rows = [row for row in read_rows(RunDirectory(path)) if row.items() >= wanted.items()]
        rows = [row for row in rows if row["data_points"] <= (self.images or math.inf)]
        return max(rows, key=lambda row: int(row["data_points"]), default=None)


def _cells(
    entry: Entry, shown: list[tuple[Run, dict[str, Any]]], exact: bool, star: bool
) -> list[str]:
    """A method's line of the table, from its runs and what their evaluations found."""
    runs, rows = [run for run, _ in shown], [row for _, row in shown]
    cells = [entry.title, f"{runs[0].columns['epoch'][-1]:.4g}", str(len(runs))]
    cells.append(mean([row["log_likelihood"] for row in rows]))
    if not exact:
        errors = [row["standard_error"] for row in rows if row["standard_error"] is not None]
        cells.append(f"{statistics.fmean(errors):.2f}" if errors else "-")
    if star:
        known = [row for row in rows if "log_p_star" in row]
        text = mean([row["log_p_star"] for row in known]) if known else "-"
        cells.append(text if all(map(_resolved, known)) else f"({text})")
    if exact:
        cells.append(mean([float(run.columns["exact/kl"][-1]) for run in runs], 3))
    cells += [f"{rows[0]['samples']:,}", f"{rows[0]['data_points']:,}"]
    cells.append(f"{statistics.fmean(float(run.columns['seconds'][-1]) for run in runs):,.1f}")
    return [*cells, "; ".join(entry.machines)]


def _resolved(row: dict[str, Any]) -> bool:
    return resolves(row["log_z"], row["z_samples"])


def y_range(groups: dict[str, list[Run]], column: str) -> tuple[float, float]:
    """The ends of the y axis: down to twice as far below the best value as the worst last one, or first steps would fill it."""
    values = [run.columns[column] for runs in groups.values() for run in runs]
    best = max(float(each.max()) for each in values)
    spread = max(best - min(float(each[-1]) for each in values), 0.01 * abs(best), 1e-6)
    return best - 2 * spread, best + 0.1 * spread


def mean(values: Sequence[float], digits: int = 2) -> str:
    """Mean ± sample standard deviation, which one value has none of."""
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"


def is_finished(path: Path) -> bool:
    """Whether a run directory holds a run that came to its last step."""
    last = RunDirectory(path).last
    try:
        return last.is_file() and is_last_step(load_checkpoint(last))
    except UserError:  # damaged: train.py says how
        return False


def machine(device: str) -> str:
    """The machine that a run on `device` (auto, cpu or cuda) has, the CPU threads that torch takes on it, torch's version."""
    version = f"torch {importlib.metadata.version('torch')}"
    if device != "cpu" and torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, {version}"
    threads = torch.get_num_threads()
    return f"{processor()}, {threads} thread{'s' * (threads > 1)}, {version}"
