"""Evaluation of runs: what to compute, partial results that outlive a stop, `evaluation.json`, and the table.

Every draw is a function of the request's seed: chunk c of the data points takes its random numbers from a generator with seed
derive_seed(seed, 0, c), chunk c of the dreams of log Z from one with derive_seed(seed, 1, c). So they are the same for every
run, and the same whether or not an evaluation was stopped on the way.
"""

import hashlib
import io
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nws.errors import UserError, positive_int
from nws.experiment.checkpoint import load_checkpoint, load_parameters
from nws.experiment.run import (
    RunDirectory,
    build_data,
    build_machine,
    check_groups,
    derive_seed,
    open_run,
)
from nws.files import write_atomically
from nws.models.helmholtz import HelmholtzMachine
from nws.models.likelihood import (
    MAX_ELEMENTS,
    Z_INNER,
    Z_SAMPLES,
    dreams_at_once,
    log_sums,
    log_z_sums,
    resolves,
    rows_at_once,
    summarise,
    summarise_p_star,
)

EXPONENTS = (1, 2, 0.5)  # of the importance weights: log p and its ess, log p~*
SAVE_EVERY = 5.0  # seconds between writes of the partial result
BIDIRECTIONAL = ("bihm", "nbihm")  # algorithms whose runs get log p* unless told otherwise

Row = dict[str, Any]  # one entry of evaluation.json


@dataclass(frozen=True)
class Request:
    """What to evaluate, as the options of scripts/evaluate.py say it. Raises `UserError` for numbers that are out of range."""

    split: str = "test"
    samples: int = 1000  # importance samples a data point
    data_points: int | None = None  # the first so many images; None: all
    seed: int = 0
    checkpoint: str = "best"
    batch: int | None = None  # data points at once; None: as many as MAX_ELEMENTS allows
    p_star: bool | None = None  # log p* too; None: where the run's algorithm is BIDIRECTIONAL
    z_samples: int = Z_SAMPLES  # dreams for log Z

    def __post_init__(self) -> None:
        positive_int("--samples", self.samples)
        positive_int("--seed", self.seed, minimum=0)
        positive_int("--z-samples", self.z_samples)
        for name in ("data_points", "batch"):
            if getattr(self, name) is not None:
                positive_int(f"--{name.replace('_', '-')}", getattr(self, name))


class Evaluation(NamedTuple):
    """The figures of one run."""

    path: Path  # the run directory
    row: Row
    held: bool  # evaluation.json held them already

    @property
    def unresolved(self) -> bool:
        """Whether log Z is too small for the dreams that it was estimated from."""
        return "log_z" in self.row and not resolves(self.row["log_z"], self.row["z_samples"])


def find_runs(path: str | Path) -> list[Path]:
    """The run itself, or every run directory below a directory, 2 before 10. Raises `UserError` where there is none."""
    folder = Path(path).expanduser().resolve()
    if RunDirectory(folder).config.is_file() or not folder.is_dir():
        return [open_run(folder)[0].path]
    runs = []
    for here, below, _ in os.walk(folder):
        if RunDirectory(Path(here)).config.is_file():
            runs.append(Path(here))
            below.clear()
        below.sort(key=lambda name: (len(name), name) if name.isdigit() else (0, name))
    if not runs:
        raise UserError(
            f"{folder} is not a run directory: it has no .hydra/config.yaml, and no run is below it"
        )
    return runs


def evaluate(
    path: Path,
    request: Request,
    device: torch.device,
    again: bool = False,
    show: Callable[[int, int], object] = lambda done, total: None,
) -> Evaluation:
    """The figures of one run, from evaluation.json where it holds them (unless `again`), else computed and added to it.

    A computation that is broken off leaves its partial result beside the run, and the same request goes on from there: on the
    CPU bit for bit to what it would have been. `show(done, total)` is told of the progress, in samples.
    Raises `UserError` for what is no run, for damaged files, and where the figures are not finite.
    """
    run, config = open_run(path)
    check_groups(config)
    file = run.best if request.checkpoint == "best" else run.last
    state = load_checkpoint(file)
    data = build_data(config, device)
    machine = build_machine(config, data)
    load_parameters(machine, state["machine"], file)
    machine.to(device)
    rows = read_rows(run)
    if not os.access(run.path, os.W_OK):
        raise UserError(
            f"{run.path} cannot be written to, and evaluation.json belongs there; copy the run and try again"
        )
    images = (data.test if request.split == "test" else data.valid).batch()[: request.data_points]
    p_star = (
        request.p_star
        if request.p_star is not None
        else config.algorithm.get("name") in BIDIRECTIONAL
    )
    max_rows = rows_at_once(machine, MAX_ELEMENTS)
    batch = min(len(images), max_rows, request.batch or max(1, max_rows // request.samples))
    key: Row = {
        "split": request.split,
        "samples": request.samples,
        "data_points": len(images),
        "checkpoint": request.checkpoint,
        "seed": request.seed,
        "batch": batch,
        "device": device.type,
    }
    z_samples = request.z_samples if p_star else None
    digest = {"fingerprint": fingerprint(machine, images)}
    for row in [] if again else rows:
        if z_samples in (None, row.get("z_samples")) and row.items() >= (key | digest).items():
            return Evaluation(run.path, row, True)
    everything = json.dumps([key, digest, z_samples, Z_INNER, dreams_at_once(max_rows)])
    partial = run.path / f".evaluation_{hashlib.sha256(everything.encode()).hexdigest()[:16]}.pt"
    work = _Work(machine, images, request.samples, request.seed, batch, z_samples or 0, max_rows)
    work.compute(partial, show)
    row = _row(key, work, images.shape[1]) | {"step": state["step"]} | digest
    if not math.isfinite(row["log_likelihood"]):
        raise UserError(
            f"{run.path}: the log-likelihood is not finite, as {file} does not hold finite parameters"
        )
    rows = [other for other in read_rows(run) if not _replaces(row, other, key)]
    write_atomically(run.path / "evaluation.json", json.dumps([*rows, row], indent=2).encode())
    partial.unlink(missing_ok=True)
    return Evaluation(run.path, row, False)


def read_rows(run: RunDirectory) -> list[Row]:
    """What evaluation.json of a run holds; nothing where there is none. Raises `UserError` where it is no list of rows."""
    path = run.path / "evaluation.json"
    try:
        rows = json.loads(path.read_text()) if path.is_file() else []
    except ValueError as error:
        raise UserError(
            f"{path} is not the list that evaluate.py writes ({error}); move it away and run again"
        ) from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(
            f"{path} is not the list that evaluate.py writes; move it away and run again"
        )
    return rows


def fingerprint(machine: HelmholtzMachine, images: Tensor) -> str:
    """Of all that a figure depends on besides the request: the encoding of the units, the parameters, the images."""
    digest = hashlib.sha256(machine.units.encode())
    for tensor in (*machine.state_dict().values(), images):
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]


class _Work:
    """The sums that the figures are made of, chunk by chunk; `compute` saves them on the way and goes on from them."""

    def __init__(
        self,
        machine: HelmholtzMachine,
        images: Tensor,
        samples: int,
        seed: int,
        batch: int,
        z_samples: int,  # 0: no log Z
        max_rows: int,
    ) -> None:
        self.machine, self.images, self.samples, self.seed = machine, images, samples, seed
        self.batch, self.z_samples, self.max_rows = batch, z_samples, max_rows
        self.sums = torch.empty(
            len(EXPONENTS), 0, dtype=torch.float64
        )  # `log_sums` of the data points so far
        self.z_sums = torch.full(
            (2,), -math.inf, dtype=torch.float64
        )  # `log_z_sums` of the dreams so far
        self.z_chunks = 0

    def compute(self, partial: Path, show: Callable[[int, int], object]) -> None:
        self._load(partial)
        saved = time.monotonic()
        try:
            show(*self._progress())
            while self._next_chunk():
                show(*self._progress())
                if time.monotonic() - saved > SAVE_EVERY:
                    self._save(partial)
                    saved = time.monotonic()
        except BaseException:  # a stop, or an error that may not come again
            if self._progress()[0]:
                self._save(partial)
            raise

    def _next_chunk(self) -> bool:
        """Add one chunk's sums; False where none is left. State changes only once a chunk is complete."""
        done, per_chunk = self.sums.shape[1], dreams_at_once(self.max_rows)
        dreams = min(per_chunk, self.z_samples - self.z_chunks * per_chunk)
        if done < len(self.images):
            x = self.images[done : done + self.batch]
            sums = log_sums(
                self.machine, x, self.samples, self._rng(0, done // self.batch), EXPONENTS, self.max_rows
            )  # fmt: skip
            self.sums = torch.cat([self.sums, sums.cpu()], dim=1)
        elif dreams > 0:
            sums = log_z_sums(self.machine, dreams, self._rng(1, self.z_chunks), self.max_rows)
            self.z_sums, self.z_chunks = torch.logaddexp(self.z_sums, sums.cpu()), self.z_chunks + 1
        return done < len(self.images) or dreams > 0

    def _rng(self, stream: int, chunk: int) -> torch.Generator:
        return torch.Generator(self.images.device).manual_seed(
            derive_seed(self.seed, stream, chunk)
        )

    def _progress(self) -> tuple[int, int]:
        """Samples drawn so far, and in all."""
        dreams = min(self.z_samples, self.z_chunks * dreams_at_once(self.max_rows))
        done, total = self.sums.shape[1] * self.samples, len(self.images) * self.samples
        return done + dreams * Z_INNER, total + self.z_samples * Z_INNER

    def _save(self, partial: Path) -> None:
        buffer = io.BytesIO()
        torch.save({"sums": self.sums, "z_sums": self.z_sums, "z_chunks": self.z_chunks}, buffer)
        write_atomically(partial, buffer.getvalue())

    def _load(self, partial: Path) -> None:
        """Take up a partial result; one that cannot be read costs only the time to compute it again."""
        try:
            state = torch.load(partial, weights_only=True)
            self.sums, self.z_sums, self.z_chunks = (
                state["sums"],
                state["z_sums"],
                state["z_chunks"],
            )
        except Exception:
            return


def _row(key: Row, work: _Work, pixels: int) -> Row:
    result = summarise(work.sums[:2], work.samples)
    row: Row = {
        "split": key["split"],
        "log_likelihood": result.mean,
        "standard_error": _known(result.standard_error),
        "samples": result.samples,
        "data_points": result.data_points,
        "bits_per_dimension": -result.mean / (pixels * math.log(2)),
        "ess": result.ess,
        **key,
    }
    if work.z_samples:
        star = summarise_p_star(work.sums[2], work.samples, work.z_sums, work.z_samples)
        row |= {"log_p_star": star.mean, "log_p_star_standard_error": _known(star.standard_error)}
        row |= {"log_z": star.log_z, "log_z_standard_error": _known(star.log_z_standard_error)}
        row["z_samples"] = star.z_samples
    return row


def _known(error: float) -> float | None:
    """A standard error as JSON knows it: null where one data point or dream has none."""
    return None if math.isnan(error) else error


def _replaces(row: Row, other: Row, key: Row) -> bool:
    """Whether an older row answers the same request. A row of an early version has fewer keys; one without log p* says less."""
    same = all(other.get(name, value) == value for name, value in key.items())
    return same and other.get("z_samples") in (None, row.get("z_samples"))


def table(evaluations: Sequence[Evaluation]) -> str:
    """One line a run, under a line of headings."""
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("split", lambda row: row["split"]),
        ("log p, nats", lambda row: _with_error(row, "log_likelihood", "standard_error")),
        ("bits/dim", lambda row: f"{row['bits_per_dimension']:.4f}"),
        ("ess", lambda row: f"{row['ess']:.1f}"),
        ("samples", lambda row: str(row["samples"])),
        ("data points", lambda row: str(row["data_points"])),
        ("batch", lambda row: str(row["batch"])),
    ]
    if any("log_p_star" in row for _, row, _ in evaluations):
        columns += [
            (name, lambda row, key=key: _with_error(row, key, f"{key}_standard_error"))  # type: ignore[misc]
            for name, key in (("log p*, nats", "log_p_star"), ("log Z", "log_z"))
        ]
    names = ["run", *_names([path for path, _, _ in evaluations])]
    cells = [[heading, *(text(row) for _, row, _ in evaluations)] for heading, text in columns]
    widths = [max(map(len, column)) for column in cells]
    lines = []
    for line, name in enumerate(names):
        texts = [column[line].rjust(width) for column, width in zip(cells, widths, strict=True)]
        lines.append("  ".join([name.ljust(max(map(len, names))), *texts]).rstrip())
    return "\n".join(lines)


def _with_error(row: Row, value: str, error: str) -> str:
    if value not in row:
        return ""
    return f"{row[value]:.3f} ± " + ("?" if row[error] is None else f"{row[error]:.3f}")


def _names(paths: list[Path]) -> list[str]:
    """Short names: the last two parts of a single run's path, or what lies below the runs' common folder."""
    if len(paths) == 1:
        return [str(Path(*paths[0].parts[-2:]))]
    common = os.path.commonpath([path.parent for path in paths])
    return [str(path.relative_to(common)) for path in paths]
