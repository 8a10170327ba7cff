"""Draw images from a run: `python scripts/sample.py RUN [generate | inpaint | ...]`."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.progress import track
from torch import Tensor
from torchvision.io import ImageReadMode, read_image

from nws.analysis.runs import is_bidirectional
from nws.analysis.tables import console
from nws.data import Dataset
from nws.errors import UserError, positive_int
from nws.experiment.build import load_machine
from nws.experiment.configuration import to_dict
from nws.experiment.directory import RunDirectory, load_checkpoint
from nws.experiment.hardware import pick_device
from nws.experiment.images import image_grid, save_gif, save_png, stacked_grid
from nws.experiment.loggers import WandbLogger
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

generate     images drawn from the generator; --steps refines them by a Markov chain
reconstruct  held-out images above their reconstructions, from q to the states and back by p
inpaint      held-out images, what is left of them, the rest filled in by a Markov chain
chain        an animated GIF of a Markov chain from generated images, one step a frame
walk         a walk in the deepest layer: from a draw, one unit after the other flips
"""


@dataclass
class Task:
    """A run, and what the command line asks of it."""

    arguments: argparse.Namespace
    machine: HelmholtzMachine
    data: Dataset
    rng: torch.Generator
    chain: Callable[..., Chain]
    originals: Tensor  # (C, n_0), held-out images

    def drawn(self, images: Tensor) -> Tensor:
        """Pixels' probabilities, or binary draws of them where these are asked for."""
        return torch.bernoulli(images, generator=self.rng) if self.arguments.binary else images

    def grid(self, images: Tensor, columns: int | None = None) -> Tensor:
        return image_grid(images, self.data.shape, self.arguments.columns or columns)

    def stacked(self, *parts: Tensor) -> Tensor:
        return stacked_grid(parts, self.data.shape, self.arguments.columns)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="a run directory, as train.py prints it")
    add("what", nargs="?", choices=list(COUNTS), default="generate", help="default: generate")
    add("--count", type=int, help=f"images, or walks (default: {listing(COUNTS)})")
    add("--steps", type=int, help=f"of the chain or of the walk (default: {listing(STEPS)})")
    add(
        "--chain", choices=["auto", "gibbs", "resampling"], default="auto",
        help="gibbs: exact for p* of bidirectional machines; resampling: importance resampling, "
        "for p; auto (default): gibbs for runs of a bidirectional algorithm, as bihm and nbihm",
    )  # fmt: skip
    add("--samples", type=int, default=50, help="importance samples of resampling (default 50)")
    add(
        "--mask", default="bottom",
        help="what inpaint takes away: left, right, top, bottom (default), or a PNG, white there",
    )  # fmt: skip
    add("--split", choices=["test", "valid"], default="test", help="of the held-out images")
    add("--seed", type=int, default=0, help="of the draws (default 0)")
    add("--binary", action="store_true", help="binary draws instead of the pixels' probabilities")
    add("--columns", type=int, help="of the grid (default: as square as can be)")
    add("--checkpoint", choices=["best", "last"], default="best", help="default: best")
    add(
        "--output", type=Path,
        help="file to write (default: RUN/images/, named after WHAT, the seed and these options)",
    )  # fmt: skip
    add(
        "--wandb", choices=["online", "offline"],
        help="add the image to the run's Weights & Biases run too",
    )  # fmt: skip
    add("--device", default="auto", help="auto, cpu or cuda (default auto)")
    return parser.parse_args()


def check(arguments: argparse.Namespace) -> tuple[int, int]:
    """Check the numbers and the file. Returns how many images, and how many steps."""
    what, given = arguments.what, arguments.steps
    count = positive_int("--count", COUNTS[what] if arguments.count is None else arguments.count)
    minimum = 0 if what in ("generate", "reconstruct") else 1
    steps = positive_int("--steps", STEPS.get(what, 0) if given is None else given, minimum=minimum)
    positive_int("--samples", arguments.samples)
    positive_int("--seed", arguments.seed, minimum=0)
    if arguments.columns is not None:
        positive_int("--columns", arguments.columns)
    output = arguments.output
    if output is not None and output.suffix.lower() != suffix(what):
        raise UserError(f"--output must name a {suffix(what)} file for {what}, got {output}")
    return count, steps


def suffix(what: str) -> str:
    return ".gif" if what == "chain" else ".png"


def main() -> None:
    arguments = read_arguments()
    count, steps = check(arguments)
    what, device = arguments.what, pick_device(arguments.device)
    run, config, data, machine = load_machine(arguments.run, arguments.checkpoint, device)
    rng = torch.Generator(device).manual_seed(arguments.seed)
    gibbs = arguments.chain == "gibbs"
    if arguments.chain == "auto":
        gibbs = is_bidirectional(config)
    chain: Any = GibbsChain if gibbs else partial(ResamplingChain, samples=arguments.samples)
    originals = (data.test if arguments.split == "test" else data.valid).batch()[:count]
    task = Task(arguments, machine, data, rng, chain, originals)
    kind = f"{'binary_' * arguments.binary}{'samples' if what == 'generate' else what}"
    name = f"{kind}{named(arguments)}_seed_{arguments.seed}{suffix(what)}"
    path = arguments.output or run.images / name
    VIEWS[what](task, path, count, steps)
    kernel = "Gibbs sampling" if gibbs else "importance resampling"
    how = f", {steps} steps of {kernel}" if steps and what != "walk" else ""
    shown = f"{count} {'walks' if what == 'walk' else 'images'}"
    if what in ("reconstruct", "inpaint"):
        missing = f", {arguments.mask} missing" if what == "inpaint" else ""
        shown = f"{len(originals)} images of {arguments.split}{missing}"
    print(f"{what}: {shown}{how}, seed {arguments.seed}, {arguments.checkpoint} checkpoint: {path}")
    if arguments.wandb:
        log_to_wandb(run, config, arguments, f"samples/{kind}", path)
    print(run.path)


def draw_samples(task: Task, path: Path, count: int, steps: int) -> None:
    probabilities = not (task.arguments.binary or steps)
    images = generate(task.machine, count, task.rng, probabilities=probabilities)
    if steps:
        images = task.drawn(run_chain(task.chain(task.machine, images, task.rng), steps)[-1])
    save_png(task.grid(images), path)


def draw_reconstructions(task: Task, path: Path, count: int, steps: int) -> None:
    images = task.drawn(reconstruct(task.machine, task.originals, task.rng))
    save_png(task.stacked(task.originals, images), path)


def draw_inpainting(task: Task, path: Path, count: int, steps: int) -> None:
    """The missing pixels at the end of a chain that starts from a generated image."""
    missing = read_mask(task.arguments.mask, task.data).to(task.originals.device)
    images = generate(task.machine, len(task.originals), task.rng, probabilities=False)
    start = torch.where(missing, images, task.originals)
    chain = task.chain(task.machine, start, task.rng, observed=~missing)
    filled = task.drawn(run_chain(chain, steps)[-1])
    left = torch.where(missing, MISSING, task.originals)
    save_png(task.stacked(task.originals, left, filled), path)


def draw_chain(task: Task, path: Path, count: int, steps: int) -> None:
    images = generate(task.machine, count, task.rng, probabilities=False)
    frames = run_chain(task.chain(task.machine, images, task.rng), steps)
    save_gif([task.grid(task.drawn(frame)) for frame in frames], path)


def draw_walks(task: Task, path: Path, count: int, steps: int) -> None:
    images = task.drawn(walk(task.machine, count, steps, task.rng)).flatten(0, 1)
    save_png(task.grid(images, columns=steps), path)


VIEWS = {
    "generate": draw_samples,
    "reconstruct": draw_reconstructions,
    "inpaint": draw_inpainting,
    "chain": draw_chain,
    "walk": draw_walks,
}


def log_to_wandb(
    run: RunDirectory, config: DictConfig, arguments: argparse.Namespace, key: str, path: Path
) -> None:
    """Add the image to the run's Weights & Biases run."""
    state = load_checkpoint(run.best if arguments.checkpoint == "best" else run.last)
    options = to_dict(config.logger) | {"mode": arguments.wandb}
    logger = WandbLogger(
        run.path, config=to_dict(config), run_id=state["wandb_id"], group=None, **options
    )
    logger.images(key, path, state["step"])
    logger.finish({}, 0)


def named(arguments: argparse.Namespace) -> str:
    """What distinguishes the file of this request: the mask, and options of other values."""
    parts = [Path(arguments.mask).stem] if arguments.what == "inpaint" else []
    parts += [] if arguments.steps is None else [f"{arguments.steps}_steps"]
    others = {"auto": arguments.chain, "test": arguments.split, "best": arguments.checkpoint}
    parts += [other for usual, other in others.items() if other != usual]
    return "".join(f"_{part}" for part in parts)


def run_chain(chain: Chain, steps: int) -> list[Tensor]:
    """The pixels' probabilities after each step, (C, n_0)."""
    hidden = not sys.stdout.isatty()
    turns = track(range(steps), "steps", console=console(), transient=True, disable=hidden)
    return [chain.step() for _ in turns]


def read_mask(mask: str, data: Dataset) -> Tensor:
    """Which pixels are missing, (H W,) booleans: a half, or the white of a PNG of the same size."""
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
            f"--mask: {mask} must have the images' size {data.shape} (height, width), "
            f"got {tuple(grey.shape)}"
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
