"""The report on a comparison of methods: curves and table.md, from the runs of each method.

Units: log-likelihoods, standard errors and the exact KL in nats per image, times in seconds.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nws.analysis.curves import with_column
from nws.analysis.evaluation import Row, is_resolved, read_rows
from nws.analysis.figures import draw, save
from nws.analysis.runs import Run, is_finished, read_run
from nws.analysis.tables import markdown
from nws.experiment.run import RunDirectory
from nws.files import write_atomically

HEADS = (
    "method", "epochs", "seeds", "test log-likelihood (nats)", "standard error over images",
    "log p* (nats)", "KL(p_D \\|\\| p) (nats)", "importance samples", "test images",
    "training seconds", "machine",
)  # fmt: skip
METHOD, EPOCHS, SEEDS, LOG_P, ERROR, STAR, KL, SAMPLES, IMAGES, SECONDS, MACHINE = HEADS

NOTE = (
    "Log-likelihoods in nats per image, higher is better, of the checkpoint that was best on "
    "validation images: mean ± standard deviation over the seeds. Training seconds are those of a "
    "run without evaluations, mean over the seeds."
)
NOTES = {  # of tables with such a column
    ERROR: "The standard error over images is that of one run, mean over the seeds.",
    STAR: "log p* is that of the bidirectional machine. In brackets: log Z is too small for its "
    "number of dreams, so log p* is likely too high.",
    KL: "The exact KL is that of the last evaluation.",
}
SOFT = (
    "Images are intensities as soft targets (data.binarize=none): "
    "compare only with others of this kind."
)


@dataclass(frozen=True)
class Entry:
    """A method of a comparison."""

    title: str
    runs: list[Path]  # its run directories, one for each seed
    wanted: bool  # whether the report says what is missing of it
    grid: Path  # picture of its samples
    machines: list[str]  # on which it was trained


class Result(NamedTuple):
    """A finished run, and the row of its evaluation.json that a report shows."""

    run: Run
    row: Row | None


@dataclass(frozen=True)
class Report:
    """What is reported of which methods."""

    title: str
    command: str  # that made it
    folder: Path  # of its files
    slug: str  # the start of the names of the curves' files
    column: str  # of metrics.csv, drawn as curves
    log: bool  # whether their y axis is logarithmic
    samples: int  # importance samples of each image
    images: int | None  # test images at most; None: all
    entries: list[Entry]

    def write(self) -> None:
        """Write the curves and table.md of all finished runs."""
        results = self.results()
        groups = {
            entry.title: with_column([run for run, _ in found], self.column)
            for entry, found in zip(self.entries, results, strict=True)
            if found
        }
        pictures = [
            f"{entry.title}:\n\n![generated]({entry.grid.name})"
            for entry in self.entries
            if entry.grid.is_file()
        ]
        if groups:
            ymin, ymax = (None, None) if self.log else y_range(groups, self.column)
            files = draw(groups, self.column, title=self.title, log=self.log, ymin=ymin, ymax=ymax)
            curves = save(files, self.folder / f"{self.slug}_{self.column.replace('/', '_')}")
            pictures[:0] = [f"![curves]({path.name})" for path in curves if path.suffix == ".png"]
        heads, cells = self.table(results)
        parts = [f"# {self.title}", f"Made by `{self.command}`.", self._notes(heads, results)]
        parts += [markdown(heads, cells), *self.missing(results), *pictures]
        write_atomically(self.folder / "table.md", ("\n\n".join(parts) + "\n").encode())

    def results(self) -> list[list[Result]]:
        """The finished runs of each method, with what their evaluations found."""
        return [
            [Result(read_run(path), self.row(path)) for path in entry.runs if is_finished(path)]
            for entry in self.entries
        ]

    def row(self, path: Path) -> Row | None:
        """The row of a run's evaluation.json for this report; the test part may be smaller."""
        wanted = {"split": "test", "samples": self.samples, "checkpoint": "best", "seed": 0}
        rows = [row for row in read_rows(RunDirectory(path)) if row.items() >= wanted.items()]
        rows = [row for row in rows if row["data_points"] <= (self.images or math.inf)]
        return max(rows, key=lambda row: int(row["data_points"]), default=None)

    def table(self, results: list[list[Result]]) -> tuple[list[str], list[list[str]]]:
        """The headings of the table, and its cells with a line for each evaluated method."""
        lines = []
        for entry, found in zip(self.entries, results, strict=True):
            evaluated = [(run, row) for run, row in found if row is not None]
            if evaluated:
                lines.append(_cells(entry, evaluated, self.column == "exact/kl"))
        heads = [head for head in HEADS if any(head in line for line in lines)]
        return heads, [[line.get(head, "-") for head in heads] for line in lines]

    def missing(self, results: list[list[Result]]) -> list[str]:
        """A line that names the methods that lack seeds; none where there is no such method."""
        counts = [sum(row is not None for _, row in found) for found in results]
        names = [
            f"{entry.title} ({count} of {len(entry.runs)} seeds)"
            for entry, count in zip(self.entries, counts, strict=True)
            if entry.wanted and count < len(entry.runs)
        ]
        return [f"Missing: {', '.join(names)}: not there yet, or not finished."] if names else []

    def _notes(self, heads: list[str], results: list[list[Result]]) -> str:
        notes = [NOTE, *(note for head, note in NOTES.items() if head in heads)]
        runs = [run for found in results for run, _ in found]
        if KL not in heads and any(run.options["data.binarize"] == "none" for run in runs):
            notes.append(SOFT)
        return " ".join(notes)


def _cells(entry: Entry, evaluated: list[tuple[Run, Row]], exact: bool) -> dict[str, str]:
    """A method's line of the table, by heading."""
    rows = [row for _, row in evaluated]
    last = [run.metrics.iloc[-1] for run, _ in evaluated]
    cells = {METHOD: entry.title, EPOCHS: f"{last[0]['epoch']:.4g}", SEEDS: str(len(rows))}
    cells[LOG_P] = mean([row["log_likelihood"] for row in rows])
    errors = [row["standard_error"] for row in rows if row["standard_error"] is not None]
    if exact:  # the images are all there are, no sample of them
        cells[KL] = mean([float(each["exact/kl"]) for each in last], 3)
    elif errors:
        cells[ERROR] = f"{statistics.fmean(errors):.2f}"
    star = [row for row in rows if "log_p_star" in row]
    if star:
        text = mean([row["log_p_star"] for row in star])
        cells[STAR] = text if all(map(is_resolved, star)) else f"({text})"
    cells |= {SAMPLES: f"{rows[0]['samples']:,}", IMAGES: f"{rows[0]['data_points']:,}"}
    cells[SECONDS] = f"{statistics.fmean(float(each['seconds']) for each in last):,.1f}"
    return cells | {MACHINE: "; ".join(entry.machines)}


def y_range(groups: dict[str, list[Run]], column: str) -> tuple[float, float]:
    """The ends of the y axis, chosen so that the first steps do not fill it.

    It goes down from the best value to twice the distance of the worst last value.
    """
    values = [run.metrics[column] for runs in groups.values() for run in runs]
    best = max(float(each.max()) for each in values)
    worst = min(float(each.iloc[-1]) for each in values)
    spread = max(best - worst, 0.01 * abs(best), 1e-6)
    return best - 2 * spread, best + 0.1 * spread


def mean(values: Sequence[float], digits: int = 2) -> str:
    """Mean ± sample standard deviation, which one value does not have."""
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"
