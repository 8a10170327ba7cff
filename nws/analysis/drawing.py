"""The pictures that `nws sample` draws from a run."""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nws.data.folder import read_grey
from nws.errors import UserError
from nws.experiment import pictures
from nws.experiment.loading import LoadedRun
from nws.models import sampling
from nws.models.gibbs import GibbsChain
from nws.models.likelihood import TRUSTED_ESS

View = tuple[list[Tensor], str]  # the frames of a picture, and what it shows
NOISE = 0.1  # share of the pixels that `denoise` turns
SAMPLES = 50  # of resampling and of `denoise`
MISSING = 0.25  # grey level of pixels that were taken away
GREY = "grey is the mean of a pixel"


@dataclass
class Drawing:
    """A run, and what the command line asks of it. A view returns its picture."""

    given: argparse.Namespace
    loaded: LoadedRun
    ess: float = math.nan  # mean effective sample size of the importance samples

    def __post_init__(self) -> None:
        self.rng = torch.Generator(self.loaded.device).manual_seed(self.given.seed)
        usual = "gibbs" if self.loaded.bidirectional else "resampling"
        self.gibbs = (self.given.chain or usual) == "gibbs"
        if self.gibbs and self.given.samples and self.given.what != "denoise":
            raise UserError("a Gibbs chain takes no --samples; give --chain resampling with it")
        self.samples = self.given.samples or SAMPLES

    def draw(self) -> tuple[list[Tensor], str]:
        """The frames that are asked for, and their caption: what, which machine, and doubts."""
        given, place = self.given, self.loaded.directory.path
        frames, shown = getattr(self, given.what)()
        kind = f"{given.checkpoint} checkpoint{', averaged weights' * (given.weights == 'average')}"
        origin = f"{place.parent.name}/{place.name}, step {self.loaded.state['step']:,} ({kind})"
        caption = f"{given.what}, {origin}\n{shown}"
        if self.ess < TRUSTED_ESS:  # nan: no importance samples
            size = f"effective sample size {self.ess:.1f} of {self.samples}"
            caption += f"\n{size}: too few to follow p; take more with --samples"
        return frames, caption

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
        file = mask.lower().endswith(".png")
        missing = read_image(Path(mask), shape) > 0.5 if file else sampling.half_mask(shape, mask)
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
        machine, noisy, samples = self.loaded.machine, parts[-1], self.samples
        if machine.generator.edges[-1].lateral:
            raise UserError("denoise needs pixels that do not see each other; take reconstruct")
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
        return [self.stacked(*parts, images)], pictures.rows([*names, "expected pixels under p"])

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
        binarize = self.loaded.config.data.get("binarize")
        seen, threshold = binarize == "none", binarize == "threshold"  # none: as they are
        seen |= self.loaded.machine.units[0].support is None
        if seen or ((grey == 0) | (grey == 1)).all():
            return [grey], ["images of your own"]
        binary = (grey > 0.5).float() if threshold else torch.bernoulli(grey, generator=self.rng)
        how = "their pixels above 0.5" if threshold else "binary draws of them"
        return [grey, binary], ["images of your own", f"{how}, which the run sees"]

    def dreams(self, count: int | None = None, probabilities: bool = False) -> Tensor:
        count = count or self.given.count
        return sampling.generate(self.loaded.machine, count, self.rng, probabilities)

    def run_chain(self, start: Tensor, observed: Tensor | None = None) -> list[Tensor]:
        """The pixels' probabilities after each step, (C, n_0)."""
        samples = {} if self.gibbs else {"samples": self.samples}
        kind = GibbsChain if self.gibbs else sampling.ResamplingChain
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
    small = Image.fromarray(read_grey(path).numpy()).resize(shape[::-1], Image.Resampling.BOX)
    return torch.from_numpy(np.asarray(small) / np.float32(255)).flatten()
