"""Evaluation of runs: importance-sampled log-likelihoods, kept in evaluation.json of each.

Every draw is a function of the seed. Chunk c of the data points has a generator with the seed
derive_seed(seed, 0, c); that of chunk c of the dreams is derive_seed(seed, 1, c). Several processes
compute a chunk each at a time, and all of them find the same figures.

Symbols: N data points, K samples of each, w = p(x, h) / q(h | x), M dreams for log Z.
"""

import hashlib
import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

from nws.errors import UserError, explained, positive_int
from nws.experiment.batches import check_seed, derive_seed
from nws.experiment.loading import LoadedRun
from nws.files import read_text
from nws.learning.together import results
from nws.models import likelihood
from nws.models.helmholtz import HelmholtzMachine
from nws.models.likelihood import log_sums, log_z_sums, rows_at_once

EXPONENTS = (1, 2, 0.5)  # of w: log p, its effective sample size, log p~*
FILE = "evaluation.json"
NEEDED = {"data_points", "samples", "log_likelihood", "standard_error"}  # of a row

Figures = dict[str, Any]  # one entry of evaluation.json


@dataclass(frozen=True)
class Request:
    """What to evaluate, by evaluate.py's options; `UserError` where a number is out of range."""

    split: str = "test"
    samples: int = 1000  # K, importance samples of each data point
    data_points: int | None = None  # the first so many; None: all
    seed: int = 0
    checkpoint: str = "best"
    weights: str = "plain"  # or those that the run averaged: average
    z_samples: int | None = None  # M, dreams for log Z; 0: no log p*; None: as the rule needs

    def __post_init__(self) -> None:
        for name, least in {"samples": 1, "data_points": 1, "z_samples": 0}.items():
            if (value := getattr(self, name)) is not None:
                positive_int(f"--{name.replace('_', '-')}", value, least)
        check_seed("--seed", self.seed)


def evaluate(run: LoadedRun, request: Request) -> tuple[Figures, bool]:
    """Compute the figures of one run, unless its evaluation.json has them, and add them to it.

    The run was loaded with the checkpoint and the weights of the request. Returns the row, and
    whether it was there already. `UserError` where the figures are not finite.
    """
    images = getattr(run.data, request.split).first(request.data_points)
    asked = asdict(request) | {"data_points": len(images), "device": run.device.type}
    if request.z_samples is None:
        asked["z_samples"] = likelihood.Z_SAMPLES if run.bidirectional else 0
    key = asked | {"step": run.state["step"], "fingerprint": fingerprint(run.machine, images)}
    file = run.directory.path / FILE
    for row in read_rows(file.parent):
        if row.items() >= key.items():
            return row, True
    if not os.access(file.parent, os.W_OK):
        raise UserError(f"{file} cannot be written; copy the run and try again")
    row = figures(run.machine, images, request, asked["z_samples"]) | key
    if not math.isfinite(row["log_likelihood"]):
        checkpoint = f"its {request.checkpoint} checkpoint"
        raise UserError(f"{file.parent}: the log-likelihood of {checkpoint} is not finite")
    kept = [old for old in read_rows(file.parent) if not old.items() >= asked.items()]
    run.directory.write(FILE, json.dumps([*kept, row], indent=2).encode())
    return row, False


def figures(machine: HelmholtzMachine, images: Tensor, request: Request, dreams: int) -> Figures:
    """The figures of images (N, n_0) as JSON has them: null for an error of one value.

    `dreams` is M for log Z; 0 leaves log p* out.
    """
    sums = sums_of_images(machine, images, request.samples, request.seed)
    found = likelihood.summarise(sums[:2], request.samples)._asdict()
    row: Figures = {"split": request.split, "log_likelihood": found.pop("mean"), **found}
    row["bits_per_dimension"] = -row["log_likelihood"] / (images.shape[1] * math.log(2))
    if dreams:
        z_sums = sums_of_dreams(machine, dreams, request.seed)
        star = likelihood.summarise_p_star(sums[2], request.samples, z_sums, dreams)._asdict()
        names = {"mean": "log_p_star", "standard_error": "log_p_star_standard_error"}
        row |= {names.get(name, name): value for name, value in star.items()}
    errors = [name for name in row if name.endswith("standard_error") and math.isnan(row[name])]
    return row | dict.fromkeys(errors)


def sums_of_images(machine: HelmholtzMachine, images: Tensor, samples: int, seed: int) -> Tensor:
    """log sum_k w_k^e of each image (N, n_0) and each of `EXPONENTS`: (3, N), float64."""
    likelihood.check_data(machine, images)
    max_rows = rows_at_once(machine, likelihood.MAX_ELEMENTS)
    chunks = images.split(min(max_rows, max(1, max_rows // samples)))

    def compute(number: int, rng: torch.Generator) -> Tensor:
        return log_sums(machine, chunks[number], samples, rng, EXPONENTS, max_rows)

    return _chunks(compute, len(chunks), (seed, 0), images.device)


def sums_of_dreams(machine: HelmholtzMachine, dreams: int, seed: int) -> Tensor:
    """`nws.models.likelihood.log_z_sums` over all dreams: (2,), float64."""
    max_rows = rows_at_once(machine, likelihood.MAX_ELEMENTS)
    at_once = max(1, max_rows // likelihood.Z_INNER)
    sizes = [min(at_once, left) for left in range(dreams, 0, -at_once)]

    def compute(number: int, rng: torch.Generator) -> Tensor:
        return log_z_sums(machine, sizes[number], rng, max_rows)[:, None]

    device = next(machine.parameters()).device
    return _chunks(compute, len(sizes), (seed, 1), device).logsumexp(1)


def _chunks(
    compute: Callable[[int, torch.Generator], Tensor], count: int, stream: tuple[int, int],
    device: torch.device,
) -> Tensor:  # fmt: skip
    """Chunks side by side; several processes compute one each at a time."""

    def seeded(number: int) -> Tensor:
        rng = torch.Generator(device).manual_seed(derive_seed(*stream, number))
        return compute(number, rng)

    found, silent = results(seeded, range(count)), not sys.stdout.isatty()
    return torch.cat([*track(found, "evaluating", count, transient=True, disable=silent)], dim=1)


def read_rows(path: Path) -> list[Figures]:
    """The rows of a run's evaluation.json, if any; `UserError` where it is no list of rows."""
    file = path / FILE
    if not os.path.lexists(file):
        return []
    with explained(f"{file} is not the list that evaluate.py writes", "move it away"):
        rows = json.loads(read_text(file))
        if not isinstance(rows, list) or not all({*dict(row)} >= NEEDED for row in rows):
            raise ValueError("it holds something else")
        return rows


def fingerprint(machine: HelmholtzMachine, images: Tensor) -> str:
    """A digest of what the figures depend on beside the request: units, parameters, images."""
    digest = hashlib.sha256(repr(machine.units).encode())
    for tensor in (*machine.state_dict().values(), images):
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]
