"""The log-likelihood of a run on held-out images: `python scripts/evaluate.py RUN`."""

import argparse
import json
import math
import sys
from pathlib import Path

import torch
from omegaconf.errors import OmegaConfBaseException

from nws.errors import UserError, positive_int
from nws.files import write_atomically
from nws.likelihood import log_likelihood
from nws.run import load_machine, pick_device


def main() -> None:
    parser = argparse.ArgumentParser(description="Importance-sampled log-likelihood of a run, in nats per data point.")
    parser.add_argument("run", metavar="RUN", help="a run directory, as train.py prints it")
    parser.add_argument("--samples", type=int, default=1000, help="importance samples a data point (default 1000)")
    parser.add_argument("--split", choices=["test", "valid"], default="test")
    parser.add_argument("--data-points", type=int, help="only the first so many images (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the importance samples (default 0)")
    parser.add_argument("--checkpoint", choices=["best", "last"], default="best", help="default: best")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default auto)")
    arguments = parser.parse_args()
    positive_int("--samples", arguments.samples)
    positive_int("--seed", arguments.seed, minimum=0)
    if arguments.data_points is not None:
        positive_int("--data-points", arguments.data_points)
    device = pick_device(arguments.device)
    run, _, data, machine = load_machine(arguments.run, arguments.checkpoint, device)
    images = (data.test if arguments.split == "test" else data.valid).batch()[: arguments.data_points]
    result = log_likelihood(machine, images, arguments.samples, torch.Generator(device).manual_seed(arguments.seed))
    row = {
        "split": arguments.split,
        "log_likelihood": result.mean,
        "standard_error": result.standard_error,
        "samples": result.samples,
        "data_points": result.data_points,
        "bits_per_dimension": -result.mean / (images.shape[1] * math.log(2)),
        "ess": result.ess,
    }
    path = run.path / "evaluation.json"
    write_atomically(path, json.dumps([*_others(path, row), row], indent=2).encode())
    print(
        f"{result.mean:.3f} ± {result.standard_error:.3f} nats per data point ({arguments.split}, {result.data_points} "
        f"images, {result.samples} importance samples, ess {result.ess:.1f}, {arguments.checkpoint} checkpoint)"
    )
    print(f"written to {path}")
    print(run.path)


def _others(path: Path, row: dict[str, object]) -> list[dict[str, object]]:
    """What stands in evaluation.json already, but for earlier figures of the same kind."""
    same = ("split", "samples", "data_points")
    try:
        rows = json.loads(path.read_text()) if path.is_file() else []
    except ValueError as error:
        raise UserError(
            f"{path} is not the list that this script writes ({error}); move it away and run again"
        ) from error
    return [other for other in rows if any(other.get(key) != row[key] for key in same)]


if __name__ == "__main__":
    try:
        main()
    except (UserError, OmegaConfBaseException) as error:
        sys.exit(f"error: {error}")
