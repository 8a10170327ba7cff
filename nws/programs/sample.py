"""Draw images from a run: `python scripts/sample.py RUN [generate | inpaint | ...]`."""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nws.analysis.runs import is_bidirectional
from nws.data.reading import explained
from nws.errors import UserError, number, positive_int
from nws.experiment import pictures
from nws.experiment.batches import check_seed
from nws.experiment.loading import LoadedRun
from nws.files import check_file, check_writable
from nws.models import sampling
from nws.models.likelihood import TRUSTED_ESS
from nws.programs.options import machine_options, open_machine, say_replaced

View = tuple[list[Tensor], str]  # the frames of a picture, and what it shows
IMAGES = {"split": "test", "image": None}
CHAIN = {"chain": None, "samples": 50}
#: The options of each WHAT that not all of them take, and their defaults.
OPTIONS: dict[str, dict[str, Any]] = {
    "generate": {"count": 64, "steps": 0, **CHAIN},
    "reconstruct": {"count": 32, **IMAGES},
    "inpaint": {"count": 24, **IMAGES, "mask": "bottom", "steps": 50, **CHAIN},
    "denoise": {"count": 24, **IMAGES, "noise": None, "samples": 50},
    "chain": {"count": 16, "steps": 50, **CHAIN},
    "walk": {"count": 8, "steps": 16},
}
TAKEN_BY_SOME = {name for options in OPTIONS.values() for name in options}
NOISE = 0.1  # share of the pixels that `denoise` turns
MISSING = 0.25  # grey level of pixels that were taken away
GREY = "grey is a pixel's probability"
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
    add("what", nargs="?", choices=list(OPTIONS), default="generate", help="default: generate")
    add("--count", type=int, help="images, or walks (default: 8 walks, 16 to 64 images)")
    add("--steps", type=int, help="of the chain (default 50) or of the walk (default 16)")
    kinds = "gibbs: exact for p*, the default for runs of bihm and nbihm; resampling: for p"
    add("--chain", choices=["gibbs", "resampling"], help=kinds)
    add("--samples", type=int, help="importance samples (default 50)")
    taken = "what inpaint takes away: left, right, top, bottom (default), or a PNG, white there"
    add("--mask", help=taken)
    turned = f"share of the pixels that denoise turns (default {NOISE}; 0 for images of your own)"
    add("--noise", type=float, help=turned)
    own = "images of your own, made grey and as large as the run's"
    add("--image", type=Path, nargs="+", metavar="FILE", help=own)
    add("--split", choices=["test", "valid"], help="of the held-out images (default: test)")
    add("--seed", type=int, default=0, help="of the draws (default 0)")
    add("--columns", type=int, help="of the grid (default: as square as can be)")
    written = "file to write (default: RUN/images/, named after WHAT, the seed and these options)"
    add("--output", type=Path, help=written)
    given = parser.parse_args()
    fill_in(given)
    return given


def fill_in(given: argparse.Namespace) -> None:
    """Fill in the defaults of WHAT; refuse what it does not take, and numbers out of range."""
    own = OPTIONS[given.what]
    for name in TAKEN_BY_SOME:
        if getattr(given, name) is None:
            setattr(given, name, own.get(name))
        elif name not in own:
            takers = ", ".join(what for what, options in OPTIONS.items() if name in options)
            raise UserError(f"--{name} is for {takers}; {given.what} does not take it")
    for name in ("count", "steps", "samples", "columns"):
        if getattr(given, name) is not None:
            positive_int(f"--{name}", getattr(given, name), int(own.get(name) != 0))
    check_seed("--seed", given.seed)
    if given.noise is not None:
        number("--noise", given.noise, "from 0 to 1", lambda share: 0 <= share <= 1)


def file_name(given: argparse.Namespace) -> str:
    """The name of the file, with the options that differ from their defaults."""
    usual = {"checkpoint": "best", "weights": "plain", **OPTIONS[given.what]}
    parts = [given.what]
    for name, default in usual.items():
        value = getattr(given, name)
        if value != default:
            first = value[0] if isinstance(value, list) else value
            parts.append(f"{name}_{Path(str(first)).name}")
    return f"{'_'.join(parts)}_seed_{given.seed}{'.gif' if given.what == 'chain' else '.png'}"


@dataclass
class Drawing:
    """A run, and what the command line asks of it. A view returns its picture."""

    given: argparse.Namespace
    loaded: LoadedRun
    rng: torch.Generator
    gibbs: bool  # the kind of the chain
    ess: float = math.nan  # mean effective sample size of the importance samples

    def generate(self) -> View:
        if self.given.steps:
            images = self.run_chain(self.dreams())[-1]
            return [self.grid(images)], f"from p, then {self.kernel}; {GREY}"
        return [self.grid(self.dreams(probabilities=True))], pictures.GENERATED

    def reconstruct(self) -> View:
        parts, names = self.originals()
        images = sampling.reconstruct(self.loaded.machine, parts[-1], self.rng)
        shown = pictures.rows([*names, pictures.RECONSTRUCTION])
        return [self.stacked(*parts, images)], shown

    def inpaint(self) -> View:
        """The missing pixels at the end of a chain that starts from a generated image."""
        parts, names = self.originals()
        originals, mask, shape = parts[-1], self.given.mask, self.loaded.shape
        if mask.lower().endswith(".png"):
            missing = read_image(Path(mask), shape) > 0.5
        else:
            missing = sampling.half_mask(shape, mask)
        missing = missing.to(originals.device)
        start = torch.where(missing, self.dreams(len(originals)), originals)
        filled = self.run_chain(start, observed=~missing)[-1]
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
        share = NOISE if self.given.noise is None and not self.given.image else self.given.noise
        if share:
            turned = torch.rand(noisy.shape, generator=self.rng, device=noisy.device)
            noisy = torch.where(turned < share, 1 - noisy, noisy)
            parts, names = [*parts, noisy], [*names, f"{share:.0%} of the pixels turned"]
        with torch.no_grad():
            trace = machine.wake(noisy, samples, self.rng)
            weights = torch.softmax(machine.log_weights(trace), dim=1)
            images = trace.pixel_means.unflatten(0, (-1, samples))
            images = (weights[:, :, None] * images).sum(1)
        self.ess = float(weights.square().sum(1).reciprocal().mean())
        names = [*names, "expected pixels under p"]
        return [self.stacked(*parts, images)], pictures.rows(names)

    def chain(self) -> View:
        frames = [self.grid(frame) for frame in self.run_chain(self.dreams())]
        return frames, f"one chain an image, one step a frame, {self.kernel}; {GREY}"

    def walk(self) -> View:
        count, steps = self.given.count, self.given.steps
        images = sampling.walk(self.loaded.machine, count, steps, self.rng)
        text = "each row a walk: from image to image one unit of the deepest layer flips"
        return [self.grid(images.flatten(0, 1), columns=steps)], f"{text}; {GREY}"

    @property
    def kernel(self) -> str:
        kind = "Gibbs sampling" if self.gibbs else "importance resampling"
        return f"{self.given.steps} steps of {kind}"

    def originals(self) -> tuple[list[Tensor], list[str]]:
        """Images, (C, n_0), below their grey sources where they have them; and their names."""
        if self.given.image:
            return self.own_images()
        kind = {"test": "test", "valid": "validation"}[self.given.split]
        split = getattr(self.loaded.data, self.given.split)
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
        frames, sizes = [], []
        for _ in range(self.given.steps):
            frames.append(chain.step())
            sizes.append(getattr(chain, "ess", math.nan))
        self.ess = sum(sizes) / len(sizes)
        return frames

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


def run() -> None:
    given = read_arguments()
    loaded = open_machine(given.run, given)
    usual = loaded.directory.images / file_name(given)
    path = given.output or usual
    check_writable(path)
    if path.suffix.lower() != usual.suffix:
        raise UserError(f"--output must name a {usual.suffix} file for {given.what}, got {path}")
    gibbs = given.chain == "gibbs" or (given.chain is None and is_bidirectional(loaded.config))
    drawing = Drawing(given, loaded, torch.Generator(loaded.device).manual_seed(given.seed), gibbs)
    frames, shown = getattr(drawing, given.what)()
    place = loaded.directory.path
    kind = f"{given.checkpoint} checkpoint" + ", averaged weights" * (given.weights == "average")
    origin = f"{place.parent.name}/{place.name}, step {loaded.state['step']:,} ({kind})"
    caption = f"{given.what}, {origin}\n{shown}"
    if drawing.ess < TRUSTED_ESS:  # nan: no importance samples
        size = f"effective sample size {drawing.ess:.1f} of {given.samples}"
        caption += f"\n{size}: too few to follow p; take more with --samples"
    if given.output:
        say_replaced([path])
    if given.what == "chain":
        pictures.save_gif(frames, path, caption)
    else:
        pictures.save_png(frames[0], path, caption)
    print(f"{caption}\n{path}\n{place}")
