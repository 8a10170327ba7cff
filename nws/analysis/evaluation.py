"""Evaluation of runs: the request, and evaluation.json, which keeps what was computed."""

import hashlib
import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nws.analysis.runs import is_bidirectional
from nws.analysis.sums import Show, Sums
from nws.errors import UserError, positive_int
from nws.experiment.build import load_machine
from nws.experiment.directory import RunDirectory, load_checkpoint
from nws.files import write_atomically
from nws.models.helmholtz import HelmholtzMachine
from nws.models.likelihood import (
    MAX_ELEMENTS,
    Z_INNER,
    Z_SAMPLES,
    dreams_at_once,
    resolves,
    rows_at_once,
)

Row = dict[str, Any]  # one entry of evaluation.json


@dataclass(frozen=True)
class Request:
    """What to evaluate, by the options of scripts/evaluate.py.

    Raises:
        UserError: A number is out of range.
    """

    split: str = "test"
    samples: int = 1000  # importance samples of each image
    data_points: int | None = None  # the first so many images; None: all
    seed: int = 0
    checkpoint: str = "best"
    batch: int | None = None  # images at once; None: as many as MAX_ELEMENTS allows
    p_star: bool | None = None  # log p* too; None: where the run's rule is bidirectional
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
    cached: bool  # evaluation.json had them already


def evaluate(
    path: Path,
    request: Request,
    device: torch.device,
    again: bool = False,
    show: Show = lambda done, total: None,
) -> Evaluation:
    """Compute the figures of one run, unless its evaluation.json has them, and add them to it.

    An interrupted computation leaves a partial result in the run directory. The same request goes
    on from there, on the CPU bit for bit as if it had never been interrupted.

    Args:
        path: The run directory.
        request, device: What to evaluate, and where.
        again: Whether to compute what evaluation.json has already.
        show: Called with the number of samples drawn so far and in all.

    Raises:
        UserError: This is no run, a file is damaged, or the figures are not finite.
    """
    run, config, data, machine = load_machine(path, request.checkpoint, device)
    rows = read_rows(run)
    images = (data.test if request.split == "test" else data.valid).batch()[: request.data_points]
    max_rows = rows_at_once(machine, MAX_ELEMENTS)
    sums = Sums(machine, images, request.samples, request.seed, request.batch, max_rows=max_rows)
    if request.p_star or (request.p_star is None and is_bidirectional(config)):
        sums.z_samples = request.z_samples
    step = load_checkpoint(run.best if request.checkpoint == "best" else run.last)["step"]
    key = _key(request, sums, device) | {"step": step, "fingerprint": fingerprint(machine, images)}
    for row in [] if again else rows:
        if row.items() >= key.items() and sums.z_samples in (0, row.get("z_samples")):
            return Evaluation(run.path, row, True)
    state = json.dumps([key, sums.z_samples, Z_INNER, dreams_at_once(max_rows)])
    partial = run.path / f".evaluation_{hashlib.sha256(state.encode()).hexdigest()[:16]}.pt"
    _check_writable(run.path)
    sums.compute(partial, show)
    _add(run, row := _figures(sums) | key, _key(request, sums, device))
    partial.unlink(missing_ok=True)
    return Evaluation(run.path, row, False)


def _key(request: Request, sums: Sums, device: torch.device) -> Row:
    """What a row of evaluation.json says of its request."""
    key = asdict(request) | {"data_points": len(sums.images), "batch": sums.batch}
    del key["p_star"], key["z_samples"]  # a row with log p* answers a request without
    return key | {"device": device.type}


def _check_writable(path: Path) -> None:
    if not os.access(path, os.W_OK):
        raise UserError(
            f"{path} cannot be written to, and evaluation.json belongs there; "
            "copy the run and try again"
        )


def _add(run: RunDirectory, row: Row, key: Row) -> None:
    """Write a row in place of those that answer the same request; old ones have fewer keys."""
    if not math.isfinite(row["log_likelihood"]):
        raise UserError(
            f"{run.path}: the log-likelihood is not finite, as its {row['checkpoint']} checkpoint "
            "does not hold finite parameters"
        )
    rows = [
        other
        for other in read_rows(run)
        if any(other.get(name, value) != value for name, value in key.items())
        or other.get("z_samples") not in (None, row.get("z_samples"))
    ]
    write_atomically(run.path / "evaluation.json", json.dumps([*rows, row], indent=2).encode())


def read_rows(run: RunDirectory) -> list[Row]:
    """The rows of a run's evaluation.json; none where there is no such file.

    Raises:
        UserError: The file is no list of rows.
    """
    path = run.path / "evaluation.json"
    problem = ""
    try:
        rows = json.loads(path.read_text()) if path.is_file() else []
    except ValueError as error:
        rows, problem = None, f" ({error})"
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(
            f"{path} is not the list that evaluate.py writes{problem}; move it away and run again"
        )
    return rows


def fingerprint(machine: HelmholtzMachine, images: Tensor) -> str:
    """A digest of what the figures depend on beside the request: units, parameters, images."""
    digest = hashlib.sha256(repr(machine.units).encode())
    for tensor in (*machine.state_dict().values(), images):
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]


def _figures(sums: Sums) -> Row:
    """The figures as JSON has them: null for a standard error that one value does not have."""
    result = sums.log_likelihood()._asdict()
    row: Row = {"split": None, "log_likelihood": result.pop("mean"), **result}
    row["bits_per_dimension"] = -row["log_likelihood"] / (sums.images.shape[1] * math.log(2))
    if sums.z_samples:
        star = sums.log_p_star()._asdict()
        row |= {"log_p_star": star.pop("mean")}
        row |= {"log_p_star_standard_error": star.pop("standard_error"), **star}
    errors = [name for name in row if name.endswith("standard_error") and math.isnan(row[name])]
    return row | dict.fromkeys(errors)


def is_resolved(row: Row) -> bool:
    """Whether log Z, where a row has one, is large enough for its number of dreams."""
    return "log_z" not in row or resolves(row["log_z"], row["z_samples"])
