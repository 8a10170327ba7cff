"""The sums that log-likelihoods are made of, in chunks, with partial results that outlive a stop.

Every draw is a function of the seed: chunk c of the data points takes its random numbers from a
generator with seed derive_seed(seed, 0, c), chunk c of the dreams from derive_seed(seed, 1, c).
So the draws are the same for every run, and whether or not the computation was interrupted.
Several processes compute a chunk each at a time.

Symbols: N data points, K samples of each, w = p(x, h) / q(h | x), M dreams for log Z.
"""

import contextlib
import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nws import distributed
from nws.errors import positive_int
from nws.experiment.training.seeds import derive_seed
from nws.files import write_atomically
from nws.learning.together import results
from nws.models import likelihood
from nws.models.helmholtz import HelmholtzMachine
from nws.models.likelihood import LogLikelihood, LogPStar, log_sums, log_z_sums

EXPONENTS = (1, 2, 0.5)  # of w: log p, its effective sample size, log p~*
SAVE_EVERY = 5.0  # seconds between writes of the partial result

Show = Callable[[int, int], object]  # is called with the samples drawn so far, and in all


def log_p_star(
    machine: HelmholtzMachine, images: Tensor, samples: int, seed: int = 0,
    z_samples: int = likelihood.Z_SAMPLES, max_elements: int = likelihood.MAX_ELEMENTS,
) -> LogPStar:  # fmt: skip
    """log p*(x) = log p~*(x) - log Z of the bidirectional machine, averaged over images.

        p~*(x) = (E_q sqrt(w))^2 <= p(x),     Z = sum_x p~*(x) <= 1     (Z^2 in the paper)

    `nws.models.likelihood.summarise_p_star` says how the estimates err.

    Args:
        images: (N, n_0), in [0, 1].
        samples: K, importance samples of each image.
        z_samples: M, dreams for log Z.
        max_elements: Unit states in memory at once.

    Raises:
        UserError: No image, one out of range, no sample or no dream.
    """
    positive_int("evaluation.z_samples", z_samples)
    max_rows = likelihood.rows_at_once(machine, max_elements)
    sums = Sums(machine, images, samples, seed, None, z_samples, max_rows)
    sums.compute()
    return sums.log_p_star()


@dataclass
class Sums:
    """Sums over the samples of each image and over the dreams, computed chunk by chunk."""

    machine: HelmholtzMachine
    images: Tensor  # (N, n_0), in [0, 1]
    samples: int  # K
    seed: int
    batch: int | None  # images at once; None: as many as max_rows allows
    z_samples: int  # M, dreams for log Z; 0: no log Z
    max_rows: int  # rows (images x samples) at once

    def __post_init__(self) -> None:
        likelihood.check_data(self.machine, self.images)
        self.samples = positive_int("evaluation.samples", self.samples)
        at_once = self.batch or max(1, self.max_rows // self.samples)
        self.parts = self.images.split(min(len(self.images), self.max_rows, at_once))
        at_once = likelihood.dreams_at_once(self.max_rows)
        self.dreams = [min(at_once, left) for left in range(self.z_samples, 0, -at_once)]
        self.sizes = [len(images) * self.samples for images in self.parts]  # samples of each chunk
        self.sizes += [dreams * likelihood.Z_INNER for dreams in self.dreams]
        self.sums: list[Tensor] = []  # of the chunks so far

    def compute(self, partial: Path | None = None, show: Show = lambda done, total: None) -> None:
        """Compute what is left; `show` is called before the first chunk and after each.

        `partial`, the file of the partial result, is read at the start. It is written every few
        seconds, and where a signal or an error breaks the computation off.
        """
        if partial is not None:
            with contextlib.suppress(Exception):  # one that cannot be read only costs time
                found = torch.load(partial, weights_only=True)
                self.sums = found if self._fits(found) else []
        saved = time.monotonic()
        try:
            show(sum(self.sizes[: len(self.sums)]), sum(self.sizes))
            for found in results(self._chunk, range(len(self.sums), len(self.sizes))):
                self.sums.append(found)
                show(sum(self.sizes[: len(self.sums)]), sum(self.sizes))
                if time.monotonic() - saved > SAVE_EVERY:
                    self._save(partial)
                    saved = time.monotonic()
        except BaseException:  # a stop, or an error that may not come again
            self._save(partial)
            raise

    def _fits(self, found: list[Tensor]) -> bool:
        """Whether these are the sums of the first chunks."""
        shapes: list[tuple[int, ...]] = [(len(EXPONENTS), len(part)) for part in self.parts]
        shapes += [(2,)] * len(self.dreams)
        return [tuple(each.shape) for each in found] == shapes[: len(found)]

    def log_likelihood(self) -> LogLikelihood:
        """The importance-sampled log p(x), averaged over the images."""
        sums = torch.cat(self.sums[: len(self.parts)], dim=1)
        return likelihood.summarise(sums[:2], self.samples)

    def log_p_star(self) -> LogPStar:
        """log p*(x), averaged over the images."""
        roots = torch.cat(self.sums[: len(self.parts)], dim=1)[2]
        z_sums = torch.stack(self.sums[len(self.parts) :]).logsumexp(0)
        return likelihood.summarise_p_star(roots, self.samples, z_sums, self.z_samples)

    def _chunk(self, number: int) -> Tensor:
        """The sums of one chunk: of images (3, B), or after all of these, of dreams (2,)."""
        dream = number - len(self.parts)
        stream = (0, number) if dream < 0 else (1, dream)
        rng = torch.Generator(self.images.device).manual_seed(derive_seed(self.seed, *stream))
        if dream < 0:
            x = self.parts[number]
            return log_sums(self.machine, x, self.samples, rng, EXPONENTS, self.max_rows)
        return log_z_sums(self.machine, self.dreams[dream], rng, self.max_rows)

    def _save(self, partial: Path | None) -> None:
        if partial is not None and self.sums and distributed.is_first():
            torch.save(self.sums, buffer := io.BytesIO())
            write_atomically(partial, buffer.getvalue())
