"""Log-likelihoods of runs on held-out images: `python scripts/evaluate.py RUN...`."""

import argparse
import io
import signal
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from nws import distributed
from nws.analysis.evaluation import Request, Row, evaluate, is_resolved, is_trusted
from nws.analysis.runs import Run, differing_keys, label, read_config
from nws.analysis.summaries import Table, folder_names, key_columns, means_table
from nws.analysis.tables import console, print_table
from nws.errors import UserError
from nws.experiment.boundary import errors_for_people, say_error
from nws.experiment.process.hardware import pick_device
from nws.experiment.process.processes import AgreedStop
from nws.experiment.process.signals import StopSignals
from nws.experiment.storage.directory import find_runs
from nws.models.likelihood import TRUSTED_ESS, Z_SAMPLES

UserErrors = (UserError, OmegaConfBaseException)
Evaluation = tuple[Path, Row, bool]  # the run directory; whether evaluation.json had the row


class Stopped(BaseException):
    """A signal came."""


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Importance-sampled log-likelihoods of runs, in nats per data point; added to "
        "evaluation.json of each. After an interruption the same command goes on."
    )
    add = parser.add_argument
    add("runs", metavar="RUN", nargs="+", help="a run directory, or one with runs below it")
    add("--samples", type=int, default=1000, help="importance samples a data point (default 1000)")
    add("--split", choices=["test", "valid"], default="test")
    add("--data-points", type=int, help="only the first so many images (default: all)")
    add("--seed", type=int, default=0, help="of the samples, the same for every run (default 0)")
    add("--checkpoint", choices=["best", "last"], default="best", help="default: best")
    add(
        "--weights", choices=["plain", "average"], default="plain",
        help="average: those that a run with average=exponential or tail averaged (default plain)",
    )  # fmt: skip
    add("--device", default="auto", help="auto, cpu or cuda (default auto)")
    add("--batch", type=int, help="data points at once (default: by a bound on memory)")
    add(
        "--p-star", action=argparse.BooleanOptionalAction,
        help="also log p* and log Z of the bidirectional machine "
        "(default: for runs of a bidirectional algorithm, such as bihm and nbihm)",
    )  # fmt: skip
    add("--z-samples", type=int, default=Z_SAMPLES, help=f"dreams for log Z (default {Z_SAMPLES})")
    add("--again", action="store_true", help="also compute what evaluation.json has already")
    return parser.parse_args()


def main(stop: AgreedStop) -> None:
    options = vars(read_arguments())
    given, again = options.pop("runs"), options.pop("again")
    device, request = pick_device(options.pop("device")), Request(**options)
    runs: list[Path] = []
    done: list[Evaluation] = []
    failures: list[tuple[object, Exception]] = []
    for path in given:
        try:
            runs += [run for run in find_runs(path) if run not in runs]
        except UserErrors as error:
            failures.append((path, error))
    with progress_bar() as bar:
        for number, run in enumerate(runs, 1):
            task = bar.add_task(f"{run.name}, {number} of {len(runs)}", total=None)

            def show(count: int, total: int, task: TaskID = task) -> None:
                if stop.ask() is not None:
                    raise Stopped
                bar.update(task, completed=count, total=total)

            try:
                done.append((run, *evaluate(run, request, device, again, show)))
            except UserErrors as error:
                failures.append((run, error))
            bar.remove_task(task)
    if done:
        report(request, done)
    if len(failures) == 1 and not done:
        raise failures[0][1]
    if failures:
        counts = f"{len(failures)} of {len(done) + len(failures)}"
        lines = [f"  {path}: {error}" for path, error in failures]
        say_error("\n".join([f"{counts} could not be evaluated", *lines]))
        sys.exit(1)


def progress_bar() -> Progress:
    """A line for the run that is evaluated, in a terminal only."""
    columns = [TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()]
    return Progress(
        *columns, MofNCompleteColumn(), TextColumn("samples"), TimeRemainingColumn(),
        console=console(), transient=True, disable=not sys.stdout.isatty(),
    )  # fmt: skip


def report(request: Request, done: list[Evaluation]) -> None:
    """Print the tables, what they mean, and the best run's directory on a line of its own."""
    runs = [read_config(path) for path, _, _ in done]
    keys = differing_keys(runs)
    print_table(*table(runs, keys, [row for _, row, _ in done]))
    values = [row["log_likelihood"] for _, row, _ in done]
    if means := means_table(runs, values, keys, "log p, nats"):
        print()
        print_table(*means)
        print()
    print(
        "nats per data point, mean ± standard error over the data points\n"
        f"{common(done)}, "
        f"seed {request.seed}, {request.checkpoint} checkpoint"
        f"{', averaged weights' * (request.weights == 'average')}"
    )
    print_doubts(done)
    cached = sum(found for _, _, found in done)
    if cached:
        print(f"{cached} of {len(done)} were in evaluation.json already; --again computes them")
    if cached < len(done):
        file = "evaluation.json of each run" if len(done) > 1 else done[0][0] / "evaluation.json"
        print(f"written to {file}")
    best = max(range(len(done)), key=lambda place: values[place])
    if len(done) > 1:
        name = label(runs[best], keys) or folder_names(runs)[best]
        value = with_error(done[best][1], "log_likelihood", "standard_error")
        print(f"best of {len(done)} runs: {name}: {value} nats")
    print(done[best][0])


def print_doubts(done: Sequence[Evaluation]) -> None:
    """Print which figures cannot be trusted, and why."""
    low = [row["ess"] for _, row, _ in done if not is_trusted(row)]
    if low:
        span = " to ".join(dict.fromkeys(f"{ess:.1f}" for ess in (min(low), max(low))))
        print(
            f"{LOW}: the effective sample size is below {TRUSTED_ESS:g} in {len(low)} of "
            f"{len(done)} runs ({span}), so their log p is likely too low, beyond the errors "
            "shown; take more with --samples"
        )
    for path, row, _ in done:
        if not is_resolved(row):
            print(
                f"{path}: log Z is too small for {row['z_samples']} dreams, so it is likely too "
                "low and log p* too high, beyond the errors shown; take more with --z-samples"
            )


LOW = "(low)"  # beside an effective sample size that is
VARYING = {  # columns that are said once, below the table, where all runs have the same
    "samples": "importance samples", "data_points": "data points", "batch": "at once",
}  # fmt: skip


def table(runs: Sequence[Run], keys: Sequence[str], rows: Sequence[Row]) -> Table:
    """The headings of a table, and its cells with a line for each run."""
    star = any("log_p_star" in row for row in rows)
    named, cells = key_columns(runs, keys)
    varying = [key for key in VARYING if len({row[key] for row in rows}) > 1]
    heads = ["run", *named, "log p, nats", "bits/dim", "ess", *(VARYING[key] for key in varying)]
    lines = []
    for row, values, name in zip(rows, cells, folder_names(runs), strict=True):
        line = [name, *values, with_error(row, "log_likelihood", "standard_error")]
        line += [
            f"{row['bits_per_dimension']:.4f}",
            f"{row['ess']:.1f}" + f" {LOW}" * (not is_trusted(row)),
        ]
        line += [str(row[key]) for key in varying]
        if star:
            line.append(with_error(row, "log_p_star", "log_p_star_standard_error"))
            line.append(with_error(row, "log_z", "log_z_standard_error"))
        lines.append(line)
    return heads + ["log p*, nats", "log Z"] * star, lines


def common(done: Sequence[Evaluation]) -> str:
    """What all runs were evaluated by: split, samples, data points, batch."""
    rows = [row for _, row, _ in done]
    shared = [key for key in VARYING if len({row[key] for row in rows}) == 1]
    return ", ".join([rows[0]["split"], *(f"{rows[0][key]:,} {VARYING[key]}" for key in shared)])


def with_error(row: Row, value: str, error: str) -> str:
    if value not in row:
        return ""
    return f"{row[value]:.3f} ± " + ("?" if row[error] is None else f"{row[error]:.3f}")


def run() -> None:
    """The program: one message for a user's error, and how to go on after a signal."""
    with errors_for_people(), StopSignals() as signals:
        stop = AgreedStop(signals)
        try:
            distributed.start()
            with redirect_stdout(sys.stdout if distributed.is_first() else io.StringIO()):
                main(stop)  # of several processes one speaks
        except (Stopped, KeyboardInterrupt):
            number = int(stop.caught or signal.SIGINT)
            if distributed.is_first():
                kept = "what is computed is kept, and the same command goes on"
                print(f"stopped by signal {number}; {kept}", file=sys.stderr)
            sys.exit(128 + number)
