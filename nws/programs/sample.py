"""Draw images from a run: `python scripts/sample.py RUN [generate | inpaint | ...]`."""

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.progress import track
from torch import Tensor

from nws.analysis.runs import is_bidirectional, read_run
from nws.analysis.tables import console, with_error
from nws.data.reading import explained
from nws.errors import UserError, number, positive_int
from nws.experiment import pictures
from nws.experiment.batches import check_seed
from nws.experiment.loading import LoadedRun
from nws.files import check_file, check_writable
from nws.models import sampling
from nws.models.likelihood import TRUSTED_ESS
from nws.programs.options import machine_options, open_machine, say_replaced, warn

View = tuple[list[Tensor], str]  # the frames of a picture, and what it shows
COUNTS = {
    "generate": 64, "reconstruct": 32, "inpaint": 24, "denoise": 24, "chain": 16, "walk": 8,
}  # fmt: skip
STEPS = {"inpaint": 50, "chain": 50, "walk": 16}
SAMPLES, NOISE = 50, 0.1  # importance samples; share of the pixels that `denoise` turns
OF_IMAGES = ("reconstruct", "inpaint", "denoise")
CHAINS = ("generate", "inpaint", "chain")
TAKEN_BY = {  # options that only some take
    "mask": ("inpaint",), "noise": ("denoise",), "split": OF_IMAGES, "image": OF_IMAGES,
    "steps": (*CHAINS, "walk"), "chain": CHAINS, "samples": (*CHAINS, "denoise"),
}  # fmt: skip
MISSING = 0.25  # grey level of pixels that were taken away
DESCRIPTION = """Draw images from a run, finished or not.

generate     images drawn from the generator; --steps refines them by a Markov chain
reconstruct  held-out images above their reconstructions, from q to the states and back by p
inpaint      held-out images, what is left of them, the rest filled in by a Markov chain
denoise      held-out images, the same with turned pixels, and the means of p given these
chain        an animated GIF of a Markov chain from generated images, one step a frame
walk         a walk in the deepest layer: from a draw, one unit after the other flips

reconstruct, inpaint and denoise take images of your own: --image FILE...
"""


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[machine_options()],
    )  # fmt: skip
    add = parser.add_argument
    add("run", metavar="RUN", help="a run directory, as training prints it; or pretrained/digits")
    add("what", nargs="?", choices=list(COUNTS), default="generate", help="default: generate")
    add("--count", type=int, help="images, or walks (default: 8 walks, 16 to 64 images)")
    add("--steps", type=int, help="of the chain (default 50) or of the walk (default 16)")
    kinds = "gibbs: exact for p*, the default for runs of bihm and nbihm; resampling: for p"
    add("--chain", choices=["gibbs", "resampling"], help=kinds)
    add("--samples", type=int, help=f"importance samples (default {SAMPLES})")
    taken = "what inpaint takes away: left, right, top, bottom (default), or a PNG, white there"
    add("--mask", help=taken)
    turned = f"share of the pixels that denoise turns (default {NOISE}; 0 for images of your own)"
    add("--noise", type=float, help=turned)
    own = "images of your own, made grey and as large as the run's"
    add("--image", type=Path, nargs="+", metavar="FILE", help=own)
    add("--split", choices=["test", "valid"], help="of the held-out images (default: test)")
    add("--seed", type=int, default=0, help="of the draws (default 0)")
    add("--binary", action="store_true", help="binary draws instead of the pixels' probabilities")
    add("--columns", type=int, help="of the grid (default: as square as can be)")
    written = "file to write (default: RUN/images/, named after WHAT, the seed and these options)"
    add("--output", type=Path, help=written)
    return parser.parse_args()


def file_name(given: argparse.Namespace) -> str:
    """The name of the file, with the options that differ from the usual ones."""
    what = given.what
    usual = {"count": COUNTS[what], "split": "test", "checkpoint": "best", "weights": "plain"}
    words = {"count": "_walks" if what == "walk" else "_images", "steps": "_steps"}
    words |= dict.fromkeys(("noise", "chain", "split", "checkpoint", "weights"), "")
    parts = ["binary_" * given.binary + ("samples" if what == "generate" else what)]
    parts += [Path(given.mask or "bottom").stem] * (what == "inpaint")
    parts += [path.stem for path in (given.image or [])[:1]]
    for name, word in words.items():
        if (value := getattr(given, name)) not in (None, usual.get(name)):
            parts.append(f"{value}{word}")
    return f"{'_'.join(parts)}_seed_{given.seed}{'.gif' if what == 'chain' else '.png'}"


def check_taken(given: argparse.Namespace) -> None:
    """Refuse options that WHAT does not take."""
    for name, takers in TAKEN_BY.items():
        idle = given.what == "generate" and not given.steps and name in ("chain", "samples")
        if getattr(given, name) is not None and (given.what not in takers or idle):
            reason = f"--{name} is for {', '.join(takers)}, and {given.what} does not take it"
            without = " without --steps" * idle
            raise UserError(f"{reason}{without}; leave it out, or name {takers[-1]} after the run")


def fill_in(given: argparse.Namespace) -> None:
    """Fill in the defaults of WHAT, and check the numbers and the file."""
    what, output = given.what, given.output
    suffix = ".gif" if what == "chain" else ".png"
    if output is not None and output.suffix.lower() != suffix:
        raise UserError(f"--output must name a {suffix} file for {what}, got {output}")
    defaults = {
        "mask": "bottom", "split": "test", "samples": SAMPLES, "count": COUNTS[what],
        "steps": STEPS.get(what, 0), "noise": NOISE * (given.image is None),
    }  # fmt: skip
    for name, value in defaults.items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    for name in ("count", "steps", "samples", "columns"):
        if getattr(given, name) is not None:
            positive_int(f"--{name}", getattr(given, name), int(name != "steps" or what in STEPS))
    check_seed("--seed", given.seed)
    number("--noise", given.noise, "from 0 to 1", lambda share: 0 <= share <= 1)


@dataclass
class Task:
    """A run, and what the command line asks of it. A view returns its picture."""

    given: argparse.Namespace
    loaded: LoadedRun
    rng: torch.Generator
    gibbs: bool  # the kind of the chain
    ess: float = math.nan  # mean effective sample size of the importance samples

    def generate(self) -> View:
        if self.given.steps:
            images = self.drawn(self.run_chain(self.dreams())[-1])
            return [self.grid(images)], f"from p, then {self.kernel}; {self.grey}"
        images = self.dreams(probabilities=not self.given.binary)
        return [self.grid(images)], f"drawn from the generator p; {self.grey}"

    def reconstruct(self) -> View:
        parts, names = self.originals()
        images = self.drawn(sampling.reconstruct(self.loaded.machine, parts[-1], self.rng))
        drawn = "binary draws of p(x | h), h ~ q(h | x)"
        name = drawn if self.given.binary else pictures.RECONSTRUCTION
        return [self.stacked(*parts, images)], pictures.rows([*names, name])

    def inpaint(self) -> View:
        """The missing pixels at the end of a chain that starts from a generated image."""
        parts, names = self.originals()
        originals = parts[-1]
        missing = read_mask(self.given.mask, self.loaded.shape).to(originals.device)
        start = torch.where(missing, self.dreams(len(originals)), originals)
        filled = self.drawn(self.run_chain(start, observed=~missing)[-1])
        left = torch.where(missing, MISSING, originals)
        names += ["what is left", f"filled in by {self.kernel}"]
        return [self.stacked(*parts, left, filled)], pictures.rows(names)

    def denoise(self) -> View:
        """Means of p(x | h) over states h ~ q(h | noisy), weighted by p(noisy, h) / q(h | noisy).

        They are expected pixels given the posterior of the noisy image, which the machine takes
        for one of its own.
        """
        parts, names = self.originals()
        machine, noisy, samples = self.loaded.machine, parts[-1], self.given.samples
        if self.given.noise:
            turned = torch.rand(noisy.shape, generator=self.rng, device=noisy.device)
            noisy = torch.where(turned < self.given.noise, 1 - noisy, noisy)
            parts, names = [*parts, noisy], [*names, f"{self.given.noise:.0%} of the pixels turned"]
        with torch.no_grad():
            trace = machine.wake(noisy, samples, self.rng)
            weights = torch.softmax(machine.log_weights(trace), dim=1)
            images = trace.pixel_means.unflatten(0, (-1, samples))
            images = (weights[:, :, None] * images).sum(1)
        self.ess = float(weights.square().sum(1).reciprocal().mean())
        names = [*names, "expected pixels under p"]
        return [self.stacked(*parts, self.drawn(images))], pictures.rows(names)

    def chain(self) -> View:
        frames = [self.grid(self.drawn(frame)) for frame in self.run_chain(self.dreams())]
        return frames, f"one chain an image, one step a frame, {self.kernel}; {self.grey}"

    def walk(self) -> View:
        count, steps = self.given.count, self.given.steps
        images = self.drawn(sampling.walk(self.loaded.machine, count, steps, self.rng))
        text = "each row a walk: from image to image one unit of the deepest layer flips"
        return [self.grid(images.flatten(0, 1), columns=steps)], f"{text}; {self.grey}"

    @property
    def kernel(self) -> str:
        kind = "Gibbs sampling" if self.gibbs else "importance resampling"
        return f"{self.given.steps} steps of {kind}"

    @property
    def grey(self) -> str:
        return "binary draws" if self.given.binary else "grey is a pixel's probability"

    def originals(self) -> tuple[list[Tensor], list[str]]:
        """Images, (C, n_0), below their grey sources where they have them; and their names."""
        if self.given.image:
            return self.own_images()
        part = self.given.split
        data, kind = self.loaded.data, {"test": "test", "valid": "validation"}[part]
        split = data.test if part == "test" else data.valid
        if self.given.count > len(split) and self.given.count != COUNTS[self.given.what]:
            warn(f"--count is {self.given.count:,}, and there are {len(split):,} {kind} images")
        return pictures.with_source(split, split.first(self.given.count), f"{kind} images")

    def own_images(self) -> tuple[list[Tensor], list[str]]:
        """The images of --image, and binary draws of them where the run sees such."""
        shape, device = self.loaded.shape, self.loaded.device
        grey = torch.stack([read_image(path, shape) for path in self.given.image]).to(device)
        seen = self.loaded.config.data.get("binarize") == "none"  # as they are
        seen |= self.loaded.machine.units[0].support is None
        if seen or ((grey == 0) | (grey == 1)).all():
            return [grey], ["images of your own"]
        binary = torch.bernoulli(grey, generator=self.rng)
        return [grey, binary], ["images of your own", "binary draws of them, which the run sees"]

    def dreams(self, count: int | None = None, probabilities: bool = False) -> Tensor:
        count = count or self.given.count
        return sampling.generate(self.loaded.machine, count, self.rng, probabilities)

    def run_chain(self, start: Tensor, observed: Tensor | None = None) -> list[Tensor]:
        """The pixels' probabilities after each step, (C, n_0)."""
        samples = {} if self.gibbs else {"samples": self.given.samples}
        kind = sampling.GibbsChain if self.gibbs else sampling.ResamplingChain
        chain = kind(self.loaded.machine, start, self.rng, observed, **samples)
        hidden = not sys.stdout.isatty()
        steps = range(self.given.steps)
        frames, sizes = [], []
        for _ in track(steps, "steps", console=console(), transient=True, disable=hidden):
            frames.append(chain.step())
            sizes.append(getattr(chain, "ess", math.nan))
        self.ess = sum(sizes) / len(sizes)
        return frames

    def doubt(self) -> list[str]:
        """Why the pictures cannot be trusted, where they cannot."""
        size = f"effective sample size {self.ess:.1f} of {self.given.samples}"
        text = f"{size}: too few to follow p; take more with --samples"
        return [text] * (self.ess < TRUSTED_ESS)  # nan: no importance samples

    def drawn(self, images: Tensor) -> Tensor:
        """Pixels' probabilities, or binary draws of them where these are asked for."""
        return torch.bernoulli(images, generator=self.rng) if self.given.binary else images

    def grid(self, images: Tensor, columns: int | None = None) -> Tensor:
        return pictures.image_grid(images, self.loaded.shape, self.given.columns or columns)

    def stacked(self, *parts: Tensor) -> Tensor:
        return pictures.stacked_grid(parts, self.loaded.shape, self.given.columns)


def read_image(path: Path, shape: tuple[int, int]) -> Tensor:
    """An image file as intensities (H W,) in [0, 1]: grey, and resized to (H, W)."""
    check_file(path)
    with explained(f"{path} cannot be read as an image", "give a PNG"), Image.open(path) as picture:
        grey = picture.convert("L").resize(shape[::-1], Image.Resampling.BOX)
    return torch.from_numpy(np.asarray(grey) / np.float32(255)).flatten()


def read_mask(mask: str, shape: tuple[int, int]) -> Tensor:
    """Which pixels are missing, (H W,) booleans: a half, or the white of a PNG of the same size."""
    if not mask.lower().endswith(".png"):
        return sampling.half_mask(shape, mask)
    missing = read_image(Path(mask), shape) > 0.5
    if not missing.any():
        raise UserError(f"--mask: {mask} has no white pixel, so nothing would be missing")
    return missing


def origin(loaded: LoadedRun, given: argparse.Namespace) -> str:
    """The first line of the caption: what, which run, its step and its likelihood there."""
    run, step = loaded.directory, loaded.state["step"]
    kind = f"{given.checkpoint} checkpoint" + ", averaged weights" * (given.weights == "average")
    text = f"{given.what}, {run.path.parent.name}/{run.path.name}, step {step:,} ({kind})"
    part = {"plain": "valid"}.get(given.weights, given.weights)
    metrics = read_run(run.path).metrics  # none of an exported run
    columns = [f"{part}/log_likelihood", f"{part}/standard_error"]
    table = metrics[metrics["step"] == step].reindex(columns=columns).dropna()
    if table.empty:
        return text
    value, error = table.iloc[-1]
    return f"{text}, validation log p {with_error(value, error, 2)} nats"


def run() -> None:
    given = read_arguments()
    name = file_name(given)
    check_taken(given)
    fill_in(given)
    loaded = open_machine(given.run, given)
    path = given.output or loaded.directory.images / name
    check_writable(path)
    gibbs = given.chain == "gibbs" or (given.chain is None and is_bidirectional(loaded.config))
    if given.binary and loaded.machine.units[0].support is None:
        raise UserError("--binary needs units that are binary, those of this run's pixels are not")
    task = Task(given, loaded, torch.Generator(loaded.device).manual_seed(given.seed), gibbs)
    frames, shown = getattr(task, given.what)()
    caption = "\n".join([origin(loaded, given), shown, *task.doubt()])
    if given.output:
        say_replaced([path])
    if given.what == "chain":
        pictures.save_gif(frames, path, caption)
    else:
        pictures.save_png(frames[0], path, caption)
    print(f"{caption}\n{path}\n{loaded.directory.path}")
