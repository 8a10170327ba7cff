"""Draw images from a run: `python scripts/sample.py RUN [generate | inpaint | ...]`."""

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from rich.progress import track
from torch import Tensor
from torchvision.io import ImageReadMode, read_image

from nws.analysis.runs import is_bidirectional, read_run
from nws.analysis.tables import console
from nws.errors import UserError, positive_int
from nws.experiment.options.configuration import to_dict
from nws.experiment.boundary import errors_for_people
from nws.experiment.process.hardware import pick_device
from nws.experiment.process.memory import FLOAT, check_fits
from nws.experiment.storage.directory import RunDirectory
from nws.experiment.trained.loading import LoadedRun, load_run
from nws.experiment.training.images import (
    RECONSTRUCTION,
    image_grid,
    rows,
    save_gif,
    save_png,
    stacked_grid,
    with_source,
)
from nws.experiment.training.loggers import WANDB, Outputs
from nws.experiment.training.seeds import check_seed
from nws.files import check_writable
from nws.models import sampling
from nws.models.helmholtz import HelmholtzMachine
from nws.models.likelihood import TRUSTED_ESS

View = tuple[list[Tensor], str]  # the frames of a picture, and what it shows
COUNTS = {"generate": 64, "reconstruct": 32, "inpaint": 24, "chain": 16, "walk": 8}
STEPS = {"generate": 0, "inpaint": 50, "chain": 50, "walk": 16}
SAMPLES = 50  # importance samples
TAKEN_BY = {  # options that only some take
    "mask": ("inpaint",), "split": ("reconstruct", "inpaint"),
    "steps": ("generate", "inpaint", "chain", "walk"),
    "chain": ("generate", "inpaint", "chain"), "samples": ("generate", "inpaint", "chain"),
}  # fmt: skip
MISSING = 0.25  # grey level of pixels that were taken away
DESCRIPTION = """Draw images from a run, finished or not.

generate     images drawn from the generator; --steps refines them by a Markov chain
reconstruct  held-out images above their reconstructions, from q to the states and back by p
inpaint      held-out images, what is left of them, the rest filled in by a Markov chain
chain        an animated GIF of a Markov chain from generated images, one step a frame
walk         a walk in the deepest layer: from a draw, one unit after the other flips
"""


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    counts, steps = (
        ", ".join(f"{value} for {what}" for what, value in defaults.items())
        for defaults in (COUNTS, STEPS)
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="a run directory, as training prints it; or pretrained/digits")
    add("what", nargs="?", choices=list(COUNTS), default="generate", help="default: generate")
    add("--count", type=int, help=f"images, or walks (default: {counts})")
    add("--steps", type=int, help=f"of the chain or of the walk (default: {steps})")
    add(
        "--chain", choices=["auto", "gibbs", "resampling"],
        help="gibbs: exact for p* of bidirectional machines; resampling: importance resampling, "
        "for p; auto (default): gibbs for runs of a bidirectional algorithm, as bihm and nbihm",
    )  # fmt: skip
    add("--samples", type=int, help=f"importance samples of resampling (default {SAMPLES})")
    taken = "what inpaint takes away: left, right, top, bottom (default), or a PNG, white there"
    add("--mask", help=taken)
    held_out = "of the held-out images of reconstruct and inpaint: test (default) or valid"
    add("--split", choices=["test", "valid"], help=held_out)
    add("--seed", type=int, default=0, help="of the draws (default 0)")
    add("--binary", action="store_true", help="binary draws instead of the pixels' probabilities")
    add("--columns", type=int, help="of the grid (default: as square as can be)")
    add("--checkpoint", choices=["best", "last"], default="best", help="default: best")
    averaged = "average: those that a run with average=exponential or tail averaged (default plain)"
    add("--weights", choices=["plain", "average"], default="plain", help=averaged)
    written = "file to write (default: RUN/images/, named after WHAT, the seed and these options)"
    add("--output", type=Path, help=written)
    add("--wandb", choices=["online", "offline"], help="add it to the run's W&B run too")
    add("--device", default="auto", help="auto, cpu or cuda (default auto)")
    return parser.parse_args()


def named(arguments: argparse.Namespace) -> tuple[str, str]:
    """What is drawn, and its file's name, with the options that differ from the usual ones."""
    what = arguments.what
    kind = "binary_" * arguments.binary + ("samples" if what == "generate" else what)
    parts = [kind] + [Path(arguments.mask or "bottom").stem] * (what == "inpaint")
    if arguments.count not in (None, COUNTS[what]):
        parts.append(f"{arguments.count}_{'walks' if what == 'walk' else 'images'}")
    parts += [] if arguments.steps is None else [f"{arguments.steps}_steps"]
    others = {
        "auto": arguments.chain or "auto",
        "test": arguments.split or "test",
        "best": arguments.checkpoint,
    }
    others["plain"] = arguments.weights
    parts += [other for usual, other in others.items() if other != usual]
    return kind, f"{'_'.join(parts)}_seed_{arguments.seed}{'.gif' if what == 'chain' else '.png'}"


def check_taken(arguments: argparse.Namespace) -> None:
    """Refuse options that WHAT does not take."""
    what, still = arguments.what, not arguments.steps
    for name, takers in TAKEN_BY.items():
        if getattr(arguments, name) is None:
            continue
        if what not in takers:
            reason = f"--{name} is for {', '.join(takers)}, and {what} does not take it"
            raise UserError(f"{reason}; leave it out, or name {takers[-1]} after the run")
        if what == "generate" and still and name in ("chain", "samples"):
            reason = f"--{name} is of a Markov chain, and generate runs none without --steps"
            raise UserError(f"{reason}; leave it out, or give --steps N too")


def fill_in(arguments: argparse.Namespace) -> None:
    """Fill in the defaults of WHAT, and check the numbers and the file."""
    what, output = arguments.what, arguments.output
    arguments.mask, arguments.split = arguments.mask or "bottom", arguments.split or "test"
    arguments.samples = SAMPLES if arguments.samples is None else arguments.samples
    arguments.count = COUNTS[what] if arguments.count is None else arguments.count
    arguments.steps = STEPS.get(what, 0) if arguments.steps is None else arguments.steps
    may_be_zero = ["seed"] + ["steps"] * (what in ("generate", "reconstruct"))
    for name in ("count", "steps", "samples", "seed", "columns"):
        if getattr(arguments, name) is not None:
            positive_int(f"--{name}", getattr(arguments, name), int(name not in may_be_zero))
    check_seed("--seed", arguments.seed)
    suffix = ".gif" if what == "chain" else ".png"
    if output is not None and output.suffix.lower() != suffix:
        raise UserError(f"--output must name a {suffix} file for {what}, got {output}")


@dataclass
class Task:
    """A run, and what the command line asks of it. A view returns its picture."""

    arguments: argparse.Namespace
    machine: HelmholtzMachine
    loaded: LoadedRun
    rng: torch.Generator
    gibbs: bool  # the kind of the chain
    ess: float = math.nan  # mean effective sample size of a resampling chain

    def generate(self) -> View:
        if self.arguments.steps:
            images = self.drawn(self.run_chain(self.dreams())[-1])
            return [
                self.grid(images)
            ], f"images at the end of chains that started from p; {self.grey}"
        images = self.dreams(probabilities=not self.arguments.binary)
        return [self.grid(images)], f"drawn from the generator p; {self.grey}"

    def reconstruct(self) -> View:
        parts, names = self.originals()
        images = self.drawn(sampling.reconstruct(self.machine, parts[-1], self.rng))
        name = "binary draws of p(x | h), h ~ q(h | x)" if self.arguments.binary else RECONSTRUCTION
        return [self.stacked(*parts, images)], rows([*names, name])

    def inpaint(self) -> View:
        """The missing pixels at the end of a chain that starts from a generated image."""
        parts, names = self.originals()
        originals = parts[-1]
        missing = read_mask(self.arguments.mask, self.loaded.shape).to(originals.device)
        start = torch.where(missing, self.dreams(len(originals)), originals)
        filled = self.drawn(self.run_chain(start, observed=~missing)[-1])
        left = torch.where(missing, MISSING, originals)
        return [self.stacked(*parts, left, filled)], rows([*names, "what is left", "filled in"])

    def chain(self) -> View:
        frames = [self.grid(self.drawn(frame)) for frame in self.run_chain(self.dreams())]
        return frames, f"one chain an image, one step a frame; {self.grey}"

    def walk(self) -> View:
        count, steps = self.arguments.count, self.arguments.steps
        images = self.drawn(sampling.walk(self.machine, count, steps, self.rng))
        text = "each row a walk: from image to image one unit of the deepest layer flips"
        return [self.grid(images.flatten(0, 1), columns=steps)], f"{text}; {self.grey}"

    @property
    def grey(self) -> str:
        return "binary draws" if self.arguments.binary else "grey is a pixel's probability"

    def originals(self) -> tuple[list[Tensor], list[str]]:
        """Held-out images, (C, n_0), below their grey sources where they have them; their names."""
        data = self.loaded.data
        split = data.test if self.arguments.split == "test" else data.valid
        name = "test images" if self.arguments.split == "test" else "validation images"
        return with_source(split, split.first(self.arguments.count), name)

    def dreams(self, count: int | None = None, probabilities: bool = False) -> Tensor:
        count = count or self.arguments.count
        return sampling.generate(self.machine, count, self.rng, probabilities)

    def run_chain(self, start: Tensor, observed: Tensor | None = None) -> list[Tensor]:
        """The pixels' probabilities after each step, (C, n_0)."""
        samples = {} if self.gibbs else {"samples": self.arguments.samples}
        kind = sampling.GibbsChain if self.gibbs else sampling.ResamplingChain
        chain = kind(self.machine, start, self.rng, observed, **samples)
        steps, hidden = range(self.arguments.steps), not sys.stdout.isatty()
        turns = track(steps, "steps", console=console(), transient=True, disable=hidden)
        frames, sizes = [], []
        for _ in turns:
            frames.append(chain.step())
            sizes.append(getattr(chain, "ess", math.nan))
        self.ess = sum(sizes) / len(sizes)
        return frames

    def doubt(self) -> str:
        """Why the pictures cannot be trusted, empty where they can."""
        if not self.ess < TRUSTED_ESS:  # nan: no resampling
            return ""
        size = f"effective sample size {self.ess:.1f} of {self.arguments.samples}"
        return f"{size}: too few for the chain to follow p; take more with --samples"

    def drawn(self, images: Tensor) -> Tensor:
        """Pixels' probabilities, or binary draws of them where these are asked for."""
        return torch.bernoulli(images, generator=self.rng) if self.arguments.binary else images

    def grid(self, images: Tensor, columns: int | None = None) -> Tensor:
        return image_grid(images, self.loaded.shape, self.arguments.columns or columns)

    def stacked(self, *parts: Tensor) -> Tensor:
        return stacked_grid(parts, self.loaded.shape, self.arguments.columns)


def read_mask(mask: str, shape: tuple[int, int]) -> Tensor:
    """Which pixels are missing, (H W,) booleans: a half, or the white of a PNG of the same size."""
    if not mask.lower().endswith(".png"):
        return sampling.half_mask(shape, mask)
    try:
        grey = read_image(mask, ImageReadMode.GRAY)[0]
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"--mask: {mask} cannot be read as a PNG ({reason})") from error
    if tuple(grey.shape) != shape:
        size = f"the images' size {shape} (height, width)"
        raise UserError(f"--mask: {mask} must have {size}, got {tuple(grey.shape)}")
    missing = (grey > 127).flatten()
    if not missing.any():
        raise UserError(f"--mask: {mask} has no white pixel, so nothing would be missing")
    return missing


def origin(loaded: LoadedRun, arguments: argparse.Namespace) -> str:
    """The first line of the caption: what, which run, its step and its likelihood there."""
    run, step = loaded.directory, loaded.state["step"]
    kind = f"{arguments.checkpoint} checkpoint"
    kind += ", averaged weights" * (arguments.weights == "average")
    text = f"{arguments.what}, {run.path.parent.name}/{run.path.name}, step {step:,} ({kind})"
    columns = ("log_likelihood", "standard_error")
    part = "average" if arguments.weights == "average" else "valid"
    if not run.metrics.is_file():  # of an exported run
        return text
    metrics = read_run(run.path).metrics
    table = metrics[metrics["step"] == step].reindex(columns=[f"{part}/{c}" for c in columns])
    if table.empty or table.isna().all(axis=None):
        return text
    value, error = table.iloc[-1]
    return f"{text}, validation log p {value:.2f} ± {error:.2f} nats"


def heading(arguments: argparse.Namespace, task: Task, gibbs: bool) -> str:
    """What was drawn, for the terminal."""
    what = arguments.what
    shown = f"{arguments.count} {'walks' if what == 'walk' else 'images'}"
    if what in ("reconstruct", "inpaint"):
        shown = f"{len(task.originals()[0][-1])} images of {arguments.split}"
        shown += f", {arguments.mask} missing" * (what == "inpaint")
    if arguments.steps and what not in ("walk", "reconstruct"):
        kernel = "Gibbs sampling" if gibbs else "importance resampling"
        shown += f", {arguments.steps} steps of {kernel}"
    return shown


def add_to_wandb(
    run: RunDirectory, config: DictConfig, mode: str, name: str, path: Path, state: dict[str, Any]
) -> None:
    """Log the picture to the run's own W&B run, or to a new one where it has none."""
    options = to_dict(config.logger)
    if options.get("_target_", WANDB) != WANDB:  # the run was logged elsewhere
        options = {"_target_": WANDB, "project": "nws"}
    config = config.copy()
    config.logger = options | {"mode": mode}
    logger = Outputs(run, config, {}).start_logger(state["step"], state.get("wandb_id"))
    logger.images(name, path, state["step"])
    logger.finish({}, "finished" if run.is_finished() else "stopped")


def check_room(
    arguments: argparse.Namespace, machine: HelmholtzMachine, device: torch.device
) -> None:
    """Refuse more images than fit into memory; those of a data set are never too many."""
    if arguments.what not in ("reconstruct", "inpaint"):
        kept = arguments.steps if arguments.what in ("chain", "walk") else 1  # frames
        states = arguments.count * (sum(machine.sizes) + machine.sizes[0] * float(kept))
        check_fits(FLOAT * states, device, f"--count {arguments.count}", "lower it")


def main() -> None:
    arguments = read_arguments()
    check_taken(arguments)
    kind, name = named(arguments)
    fill_in(arguments)
    what, device = arguments.what, pick_device(arguments.device)
    source = arguments.checkpoint, arguments.weights, device
    loaded = load_run(arguments.run, *source)
    run, config, machine = loaded.directory, loaded.config, loaded.machine
    check_room(arguments, machine, device)
    own = arguments.chain in (None, "auto")
    gibbs = is_bidirectional(config) if own else arguments.chain == "gibbs"
    if arguments.binary and machine.units[0].support is None:
        raise UserError("--binary needs units that are binary, those of this run's pixels are not")
    rng = torch.Generator(device).manual_seed(arguments.seed)
    task, path = Task(arguments, machine, loaded, rng, gibbs), arguments.output or run.images / name
    check_writable(path)
    frames, shown = getattr(task, what)()
    about = [origin(loaded, arguments), shown, task.doubt()]
    caption = "\n".join(filter(None, about))
    if what == "chain":
        save_gif(frames, path, caption)
    else:
        save_png(frames[0], path, caption)
    drawn = f"seed {arguments.seed}, {arguments.checkpoint} checkpoint"
    drawn += ", averaged weights" * (arguments.weights == "average")
    print(f"{what}: {heading(arguments, task, gibbs)}, {drawn}: {path}")
    if task.doubt():
        print(task.doubt())
    if arguments.wandb:
        add_to_wandb(run, config, arguments.wandb, f"samples/{kind}", path, loaded.state)
    print(run.path)


def run() -> None:
    """The program: one message for a user's error."""
    with errors_for_people():
        main()
