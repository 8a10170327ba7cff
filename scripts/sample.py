"""Draw images from a run: `python scripts/sample.py RUN [generate | reconstruct | inpaint | chain | walk]`."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor
from torchvision.io import ImageReadMode, read_image
from tqdm import trange

from nws.data.datasets import Dataset
from nws.errors import UserError, positive_int
from nws.experiment.checkpoint import load_checkpoint
from nws.experiment.images import image_grid, save_gif, save_png, stacked_grid
from nws.experiment.loggers import WandbLogger
from nws.experiment.run import load_machine, pick_device, plain
from nws.models.helmholtz import HelmholtzMachine
from nws.models.sampling import (
    Chain,
    GibbsChain,
    ResamplingChain,
    generate,
    half_mask,
    reconstruct,
    walk,
)

COUNTS = {"generate": 64, "reconstruct": 32, "inpaint": 24, "chain": 16, "walk": 8}
STEPS = {"generate": 0, "inpaint": 50, "chain": 50, "walk": 16}
MISSING = 0.25  # grey level of pixels that were taken away
DESCRIPTION = """Draw images from a run, finished or not.

generate     images drawn from the generator; with --steps, refined by so many steps of a Markov chain
reconstruct  held-out images above what the generator makes of the states that the recogniser infers from them
inpaint      held-out images, what was left of them, and the missing pixels filled in by a Markov chain
chain        an animated GIF of a Markov chain that starts from generated images, one step a frame
walk         a walk in the deepest layer: each row starts from a draw, then one unit after the other flips
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", metavar="RUN", help="a run directory, as train.py prints it")
    parser.add_argument(
        "what", nargs="?", choices=list(COUNTS), default="generate", help="default: generate"
    )
    parser.add_argument("--count", type=int, help=f"images, or walks (default: {listing(COUNTS)})")
    parser.add_argument(
        "--steps", type=int, help=f"of the chain or of the walk (default: {listing(STEPS)})"
    )
    parser.add_argument(
        "--chain", choices=["auto", "gibbs", "resampling"], default="auto",
        help="gibbs: exact for p* of bidirectional machines; resampling: importance resampling, for p; "
        "auto (default): gibbs for runs of bihm and nbihm",
    )  # fmt: skip
    parser.add_argument(
        "--samples", type=int, default=50, help="importance samples of resampling (default 50)"
    )
    parser.add_argument(
        "--mask",
        default="bottom",
        help="what inpaint takes away: left, right, top, bottom (default), or a PNG, white there",
    )
    parser.add_argument(
        "--split", choices=["test", "valid"], default="test", help="of the held-out images"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default 0)")
    parser.add_argument(
        "--binary", action="store_true", help="binary draws instead of the pixels' probabilities"
    )
    parser.add_argument("--columns", type=int, help="of the grid (default: as square as can be)")
    parser.add_argument(
        "--checkpoint", choices=["best", "last"], default="best", help="default: best"
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="file to write (default: RUN/images/, named after WHAT, the seed and these options)",
    )
    parser.add_argument(
        "--wandb",
        choices=["online", "offline"],
        help="add the image to the run's Weights & Biases run too",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default auto)")
    arguments = parser.parse_args()
    what = arguments.what
    count = positive_int("--count", COUNTS[what] if arguments.count is None else arguments.count)
    steps = STEPS.get(what, 0) if arguments.steps is None else arguments.steps
    positive_int("--steps", steps, minimum=0 if what in ("generate", "reconstruct") else 1)
    positive_int("--samples", arguments.samples)
    positive_int("--seed", arguments.seed, minimum=0)
    if arguments.columns is not None:
        positive_int("--columns", arguments.columns)
    suffix = ".gif" if what == "chain" else ".png"
    if arguments.output is not None and arguments.output.suffix.lower() != suffix:
        raise UserError(f"--output must name a {suffix} file for {what}, got {arguments.output}")

    device = pick_device(arguments.device)
    run, config, data, machine = load_machine(arguments.run, arguments.checkpoint, device)
    rng = torch.Generator(device).manual_seed(arguments.seed)
    bidirectional = config.algorithm.name in ("bihm", "nbihm")
    gibbs = arguments.chain == "gibbs" or (arguments.chain == "auto" and bidirectional)
    resampling = partial(ResamplingChain, samples=arguments.samples)
    chain: Any = (
        GibbsChain if gibbs else resampling
    )  # Callable[..., Chain], which mypy does not see in a class
    kind = f"{'binary_' * arguments.binary}{'samples' if what == 'generate' else what}"
    path = (
        arguments.output or run.images / f"{kind}{named(arguments)}_seed_{arguments.seed}{suffix}"
    )
    missing = read_mask(arguments.mask, data) if what == "inpaint" else None
    originals = (data.test if arguments.split == "test" else data.valid).batch()[:count]

    def drawn(images: Tensor) -> Tensor:
        return torch.bernoulli(images, generator=rng) if arguments.binary else images

    if what == "generate":
        images = generate(machine, count, rng, probabilities=not (arguments.binary or steps))
        if steps:
            images = drawn(run_chain(chain(machine, images, rng), steps)[-1])
        save_png(image_grid(images, data.shape, arguments.columns), path)
    elif what == "reconstruct":
        parts = [originals, drawn(reconstruct(machine, originals, rng))]
        save_png(stacked_grid(parts, data.shape, arguments.columns), path)
    elif what == "inpaint":
        assert missing is not None
        filled = drawn(inpaint(machine, chain, originals, missing.to(device), steps, rng))
        left = torch.where(missing.to(device), MISSING, originals)
        save_png(stacked_grid([originals, left, filled], data.shape, arguments.columns), path)
    elif what == "chain":
        frames = run_chain(
            chain(machine, generate(machine, count, rng, probabilities=False), rng), steps
        )
        save_gif(
            [image_grid(drawn(frame), data.shape, arguments.columns) for frame in frames], path
        )
    else:
        images = drawn(walk(machine, count, steps, rng)).flatten(0, 1)
        save_png(image_grid(images, data.shape, arguments.columns or steps), path)

    how = (
        f", {steps} steps of {'Gibbs sampling' if gibbs else 'importance resampling'}"
        if steps and what != "walk"
        else ""
    )
    images_of = {
        "reconstruct": f" of {arguments.split}",
        "inpaint": f" of {arguments.split}, {arguments.mask} missing",
    }
    shown = min(count, len(originals)) if what in images_of else count
    print(
        f"{what}: {shown} {'walks' if what == 'walk' else 'images'}{images_of.get(what, '')}{how}, "
        f"seed {arguments.seed}, {arguments.checkpoint} checkpoint: {path}"
    )
    if arguments.wandb:
        state = load_checkpoint(run.best if arguments.checkpoint == "best" else run.last)
        options = plain(config.logger) | {"mode": arguments.wandb}
        logger = WandbLogger(
            run.path, config=plain(config), run_id=state["wandb_id"], group=None, **options
        )
        logger.images(f"samples/{kind}", path, state["step"])
        logger.finish({}, 0)
    print(run.path)


def named(arguments: argparse.Namespace) -> str:
    """What tells this request's file from those of others: the mask, and options that were given another value."""
    mask = [Path(arguments.mask).stem] if arguments.what == "inpaint" else []
    steps = [] if arguments.steps is None else [f"{arguments.steps}_steps"]
    others = {"auto": arguments.chain, "test": arguments.split, "best": arguments.checkpoint}
    return "".join(
        f"_{each}"
        for each in [*mask, *steps, *(other for usual, other in others.items() if other != usual)]
    )


def run_chain(chain: Chain, steps: int) -> list[Tensor]:
    """The pixels' probabilities after each step, (C, n_0)."""
    return [
        chain.step()
        for _ in trange(steps, unit=" steps", leave=False, disable=not sys.stdout.isatty())
    ]


def inpaint(
    machine: HelmholtzMachine,
    chain: Callable[..., Chain],
    originals: Tensor,
    missing: Tensor,
    steps: int,
    rng: torch.Generator,
) -> Tensor:
    """The missing pixels' probabilities at the end of a chain in which the others are held, started from a generated image."""
    start = torch.where(
        missing, generate(machine, len(originals), rng, probabilities=False), originals
    )
    return run_chain(chain(machine, start, rng, observed=~missing), steps)[-1]


def read_mask(mask: str, data: Dataset) -> Tensor:
    """Which pixels are missing, (H W,) booleans: a half of the image, or the white of a PNG of the images' size."""
    if not mask.lower().endswith(".png"):
        return half_mask(data.shape, mask)
    try:
        grey = read_image(mask, ImageReadMode.GRAY)[0]
    except RuntimeError as error:
        raise UserError(
            f"--mask: {mask} cannot be read as a PNG ({str(error).splitlines()[0]})"
        ) from error
    if tuple(grey.shape) != data.shape:
        raise UserError(
            f"--mask: {mask} must have the images' size {data.shape} (height, width), got {tuple(grey.shape)}"
        )
    missing = (grey > 127).flatten()
    if not missing.any():
        raise UserError(f"--mask: {mask} has no white pixel, so nothing would be missing")
    return missing


def listing(defaults: dict[str, int]) -> str:
    return ", ".join(f"{value} for {name}" for name, value in defaults.items())


if __name__ == "__main__":
    try:
        main()
    except (UserError, OmegaConfBaseException) as error:
        sys.exit(f"error: {error}")
