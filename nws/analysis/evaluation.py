"""Evaluation of runs: the request, and evaluation.json, which keeps what was computed."""

import hashlib
import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nws import distributed
from nws.analysis.runs import is_bidirectional
from nws.analysis.sums import Show, Sums
from nws.errors import UserError, positive_int
from nws.experiment.storage import kinds
from nws.experiment.trained.loading import load_run
from nws.experiment.training.seeds import check_seed
from nws.files import write_atomically
from nws.models.helmholtz import HelmholtzMachine
from nws.models.likelihood import MAX_ELEMENTS, TRUSTED_ESS, Z_SAMPLES, resolves, rows_at_once

Row = dict[str, Any]  # one entry of evaluation.json
#: What the values of a row are.
KINDS = {
    **dict.fromkeys(("log_likelihood", "bits_per_dimension", "ess"), kinds.number),
    **dict.fromkeys(("log_p_star", "log_z"), kinds.number),
    **dict.fromkeys(("samples", "data_points", "batch", "seed", "z_samples"), kinds.whole),
    **dict.fromkeys(("split", "checkpoint", "weights"), kinds.text),
    **{
        f"{name}standard_error": kinds.maybe(kinds.number) for name in ("", "log_p_star_", "log_z_")
    },
}
#: What every row has that says a log-likelihood.
NEEDED = ("log_likelihood", "standard_error", "bits_per_dimension", "ess", "samples")
EARLY: Row = {"weights": "plain"}  # what rows of earlier versions do not say


@dataclass(frozen=True)
class Request:
    """What to evaluate, by evaluate.py's options; `UserError` where a number is out of range."""

    split: str = "test"
    samples: int = 1000  # importance samples of each image
    data_points: int | None = None  # the first so many images; None: all
    seed: int = 0
    checkpoint: str = "best"
    weights: str = "plain"  # or those that the run averaged: average
    batch: int | None = None  # images at once; None: as many as MAX_ELEMENTS allows
    p_star: bool | None = None  # log p* too; None: where the run's rule is bidirectional
    z_samples: int = Z_SAMPLES  # dreams for log Z

    def __post_init__(self) -> None:
        for name in ("samples", "seed", "z_samples", "data_points", "batch"):
            if (value := getattr(self, name)) is not None:
                positive_int(f"--{name.replace('_', '-')}", value, minimum=int(name != "seed"))
        check_seed("--seed", self.seed)


def evaluate(
    path: Path, request: Request, device: torch.device, again: bool = False,
    show: Show = lambda done, total: None,
) -> tuple[Row, bool]:  # fmt: skip
    """Compute the figures of one run, unless its evaluation.json has them, and add them to it.

    An interrupted computation leaves a partial result in the run directory. The same request goes
    on from there, on the CPU bit for bit as if it had never been interrupted. `again` computes all
    of it; `show` is called with the number of samples drawn so far and in all.

    Returns:
        The row of evaluation.json, and whether it was there already.

    Raises:
        UserError: This is no run, a file is damaged, or the figures are not finite.
    """
    loaded = load_run(path, request.checkpoint, request.weights, device)
    run, data, machine = loaded.directory, loaded.data, loaded.machine
    rows = read_rows(run.path)
    images = (data.test if request.split == "test" else data.valid).first(request.data_points)
    p_star = is_bidirectional(loaded.config) if request.p_star is None else request.p_star
    max_rows, z_samples = rows_at_once(machine, MAX_ELEMENTS), request.z_samples * p_star
    sums = Sums(machine, images, request.samples, request.seed, request.batch, z_samples, max_rows)
    asked = asdict(request) | {"data_points": len(images), "batch": len(sums.parts[0])}
    asked["device"] = device.type
    del asked["p_star"], asked["z_samples"]  # a row with log p* answers a request without
    key = asked | {"step": loaded.state["step"], "fingerprint": fingerprint(machine, images)}
    for row in [] if again else rows:
        if is_of(row, key) and {*NEEDED} <= {*row} and z_samples in (0, row.get("z_samples")):
            return row, True
    if not os.access(run.path, os.W_OK):
        place = f"{run.path}, where evaluation.json belongs, cannot be written to"
        raise UserError(f"{place}; copy the run and try again")
    state = json.dumps([key, z_samples, sums.sizes])
    partial = run.path / f".evaluation_{hashlib.sha256(state.encode()).hexdigest()[:16]}.pt"
    sums.compute(partial, show)
    row = _figures(sums) | key
    if distributed.is_first():  # of several processes, which all have the figures
        _add(run.path, row, asked)
        partial.unlink(missing_ok=True)
    return row, False


def _figures(sums: Sums) -> Row:
    """The figures as JSON has them: null for a standard error that one value does not have."""
    result = sums.log_likelihood()._asdict()
    row: Row = {"split": None, "log_likelihood": result.pop("mean"), **result}
    row["bits_per_dimension"] = -row["log_likelihood"] / (sums.images.shape[1] * math.log(2))
    if sums.z_samples:
        names = {"mean": "log_p_star", "standard_error": "log_p_star_standard_error"}
        row |= {names.get(name, name): x for name, x in sums.log_p_star()._asdict().items()}
    errors = [name for name in row if name.endswith("standard_error") and math.isnan(row[name])]
    return row | dict.fromkeys(errors)


def _add(path: Path, row: Row, asked: Row) -> None:
    """Write a row in place of those that answer the same request; old ones have fewer keys."""
    if not math.isfinite(row["log_likelihood"]):
        reason = f"the parameters of its {row['checkpoint']} checkpoint are not finite"
        raise UserError(f"{path}: the log-likelihood is not finite, as {reason}")
    rows = [
        other
        for other in read_rows(path)
        if any((EARLY | other).get(name, value) != value for name, value in asked.items())
        or other.get("z_samples") not in (None, row.get("z_samples"))
    ]
    write_atomically(path / "evaluation.json", json.dumps([*rows, row], indent=2).encode())


def is_of(row: Row, wanted: Row) -> bool:
    """Whether a row of evaluation.json has the wanted values."""
    return (EARLY | row).items() >= wanted.items()


def read_rows(path: Path) -> list[Row]:
    """The rows of a run's evaluation.json, if any; `UserError` where it is no list of rows."""
    file = path / "evaluation.json"
    try:
        rows = kinds.read_json(file) if file.is_file() else []
        if not isinstance(rows, list) or not all(map(kinds.mapping, rows)):
            raise ValueError("it holds something else")
        wrong = [wrong for row in rows if (wrong := kinds.misfit(row, KINDS))]
        if wrong:
            raise ValueError(wrong[0])
    except (OSError, ValueError) as error:
        raise UserError(
            f"{file} is not the list that evaluate.py writes ({error}); move it away and run again"
        ) from error
    return rows


def fingerprint(machine: HelmholtzMachine, images: Tensor) -> str:
    """A digest of what the figures depend on beside the request: units, parameters, images."""
    digest = hashlib.sha256(repr(machine.units).encode())
    for tensor in (*machine.state_dict().values(), images):
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]


def is_trusted(row: Row) -> bool:
    """Whether the samples of an image are enough for its log p; see `TRUSTED_ESS`."""
    return float(row.get("ess", TRUSTED_ESS)) >= TRUSTED_ESS


def is_resolved(row: Row) -> bool:
    """Whether log Z, where a row has one, is large enough for its number of dreams."""
    return "log_z" not in row or resolves(row["log_z"], row["z_samples"])
