"""What came of a comparison of methods: curves and table.md, from the runs of each method.

Units: log-likelihoods, standard errors and the exact KL in nats per image, times in seconds.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from nws.analysis.curves import with_column
from nws.analysis.evaluation import EARLY, NEEDED, Row, is_of, is_resolved, read_rows
from nws.analysis.figures import draw, save
from nws.analysis.runs import Run, read_run
from nws.analysis.tables import markdown
from nws.experiment.storage.directory import RunDirectory
from nws.files import write_atomically

HEADS = (
    "method", "epochs", "seeds", "test log-likelihood (nats)", "standard error over images",
    "log p* (nats)", "KL(p_D || p) (nats)", "importance samples", "test images",
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
SOFT = "Images are soft targets (data.binarize=none): compare only with others of this kind."


@dataclass(frozen=True)
class Entry:
    """A method of a comparison."""

    title: str
    runs: list[Path]  # its run directories, one for each seed
    wanted: bool  # whether table.md says what is missing of it
    grid: Path  # picture of its samples
    machines: list[str]  # on which it was trained


@dataclass(frozen=True)
class Comparison:
    """Methods side by side."""

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
        runs = {entry.title: [run for run, _ in found] for entry, found in self.results if found}
        groups = {title: with_column(each, self.column) for title, each in runs.items()}
        drawn = [entry for entry in self.entries if entry.grid.is_file()]
        pictures = [f"{each.title}:\n\n![generated]({each.grid.name})" for each in drawn]
        if groups:
            ymin, ymax = (None, None) if self.log else y_range(groups, self.column)
            files = draw(groups, self.column, title=self.title, log=self.log, ymin=ymin, ymax=ymax)
            curves = save(files, self.folder / f"{self.slug}_{self.column.replace('/', '_')}")
            pictures.insert(0, f"![curves]({curves[0].name})")
        heads, lines = self.table()
        parts = [f"# {self.title}", f"Made by `{self.command}`.", self._notes(heads)]
        parts += [markdown(heads, lines)] if lines else []
        content = "\n\n".join([*parts, *self.missing(), *pictures]) + "\n"
        write_atomically(self.folder / "table.md", content.encode())

    @cached_property
    def results(self) -> list[tuple[Entry, list[tuple[Run, Row | None]]]]:
        """Each method's finished runs, with the rows of evaluation.json that the table shows."""
        results = []
        for entry in self.entries:
            paths = [path for path in entry.runs if RunDirectory(path).is_finished()]
            results.append((entry, [(read_run(path), self.row(path)) for path in paths]))
        return results

    def row(self, path: Path) -> Row | None:
        """The row of a run's evaluation.json for this table; the test part may be smaller."""
        wanted = {"split": "test", "samples": self.samples, "checkpoint": "best", "seed": 0}
        rows = [row for row in read_rows(path) if is_of(row, wanted | EARLY)]
        rows = [row for row in rows if {*NEEDED, "data_points"} <= {*row}]
        rows = [row for row in rows if row["data_points"] <= (self.images or math.inf)]
        return max(rows, key=lambda row: int(row["data_points"]), default=None)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """The headings of the table, and its cells with a line for each evaluated method."""
        lines = []
        for entry, found in self.results:
            if evaluated := [(run, row) for run, row in found if row is not None]:
                lines.append(_cells(entry, evaluated, self.column == "exact/kl"))
        heads = [head for head in HEADS if any(head in line for line in lines)]
        return heads, [[line.get(head, "-") for head in heads] for line in lines]

    def missing(self) -> list[str]:
        """A line that names the methods that lack seeds; none where there is no such method."""
        names = []
        for entry, found in self.results:
            there = sum(row is not None for _, row in found)
            if entry.wanted and there < len(entry.runs):
                names.append(f"{entry.title} ({there} of {len(entry.runs)} seeds)")
        return [f"Missing: {', '.join(names)}: not there yet, or not finished."] if names else []

    def _notes(self, heads: list[str]) -> str:
        notes = [NOTE, *(note for head, note in NOTES.items() if head in heads)]
        runs = [run for _, found in self.results for run, _ in found]
        if KL not in heads and any(run.config["data.binarize"] == "none" for run in runs):
            notes.append(SOFT)
        return " ".join(notes)


def _cells(entry: Entry, evaluated: list[tuple[Run, Row]], exact: bool) -> dict[str, str]:
    """A method's line of the table, by heading."""
    rows = pd.DataFrame([row for _, row in evaluated])
    last = pd.DataFrame([run.metrics.iloc[-1] for run, _ in evaluated])
    cells = {METHOD: entry.title, EPOCHS: f"{last['epoch'].iloc[0]:.4g}", SEEDS: str(len(rows))}
    cells[LOG_P] = mean(rows["log_likelihood"])
    if exact:  # the images are all there are, no sample of them
        cells[KL] = mean(last["exact/kl"], 3)
    elif rows["standard_error"].notna().any():
        cells[ERROR] = f"{rows['standard_error'].mean():.2f}"
    if "log_p_star" in rows:
        resolved = all(is_resolved(row) for _, row in evaluated)
        cells[STAR] = mean(rows["log_p_star"]) if resolved else f"({mean(rows['log_p_star'])})"
    cells |= {SAMPLES: f"{rows['samples'][0]:,}", IMAGES: f"{rows['data_points'][0]:,}"}
    cells[SECONDS] = f"{last['seconds'].mean():,.1f}"
    return cells | {MACHINE: "; ".join(entry.machines)}


def y_range(groups: dict[str, list[Run]], column: str) -> tuple[float, float]:
    """The ends of the y axis: the best value, and twice as far below it as the worst last one."""
    values = [run.metrics[column] for runs in groups.values() for run in runs]
    best = max(float(each.max()) for each in values)
    worst = min(float(each.iloc[-1]) for each in values)
    spread = max(best - worst, 0.01 * abs(best), 1e-6)
    return best - 2 * spread, best + 0.1 * spread


def mean(values: pd.Series, digits: int = 2) -> str:
    """Mean ± sample standard deviation, which one value does not have."""
    values = values.astype(float).dropna()
    spread = f" ± {values.std():.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{spread}"
