"""Draw a grid of generated images from a run: `python scripts/sample.py RUN`."""

import argparse
import sys
from pathlib import Path

import torch
from omegaconf.errors import OmegaConfBaseException

from nws.errors import UserError, positive_int
from nws.figures import image_grid, save_png
from nws.run import load_machine, pick_device
from nws.sampling import generate


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw a grid of generated images from a run, finished or not.")
    parser.add_argument("run", metavar="RUN", help="a run directory, as train.py prints it")
    parser.add_argument("--count", type=int, default=64, help="images (default 64)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default 0)")
    parser.add_argument("--binary", action="store_true", help="binary draws instead of the pixels' probabilities")
    parser.add_argument("--columns", type=int, help="of the grid (default: as square as can be)")
    parser.add_argument("--checkpoint", choices=["best", "last"], default="best", help="default: best")
    parser.add_argument("--output", type=Path, help="PNG file (default: RUN/images/samples_seed_SEED.png)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default auto)")
    arguments = parser.parse_args()
    positive_int("--count", arguments.count)
    positive_int("--seed", arguments.seed, minimum=0)
    if arguments.columns is not None:
        positive_int("--columns", arguments.columns)
    device = pick_device(arguments.device)
    run, _, data, machine = load_machine(arguments.run, arguments.checkpoint, device)
    rng = torch.Generator(device).manual_seed(arguments.seed)
    images = generate(machine, arguments.count, rng, probabilities=not arguments.binary)
    kind = "binary_samples" if arguments.binary else "samples"
    path = arguments.output or run.images / f"{kind}_seed_{arguments.seed}.png"
    save_png(image_grid(images, data.shape, arguments.columns), path)
    print(f"{arguments.count} images, seed {arguments.seed}, {arguments.checkpoint} checkpoint: {path}")
    print(run.path)


if __name__ == "__main__":
    try:
        main()
    except (UserError, OmegaConfBaseException) as error:
        sys.exit(f"error: {error}")
