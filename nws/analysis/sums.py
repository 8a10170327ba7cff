"""The sums that log-likelihoods are made of, in chunks, with partial results that outlive a stop.

Every draw is a function of the seed: chunk c of the data points takes its random numbers from a
generator with seed derive_seed(seed, 0, c), chunk c of the dreams from derive_seed(seed, 1, c).
So the draws are the same for every run, and whether or not the computation was interrupted.

Symbols: N data points, K samples of each, w = p(x, h) / q(h | x), M dreams for log Z.
"""

import contextlib
import io
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from nws.errors import UserError, positive_int
from nws.experiment.run import derive_seed
from nws.files import write_atomically
from nws.models.helmholtz import HelmholtzMachine
from nws.models.likelihood import (
    MAX_ELEMENTS,
    Z_INNER,
    Z_SAMPLES,
    LogLikelihood,
    LogPStar,
    dreams_at_once,
    log_sums,
    log_z_sums,
    rows_at_once,
    summarise,
    summarise_p_star,
)

EXPONENTS = (1, 2, 0.5)  # of w: log p, its effective sample size, log p~*
STATE = ("sums", "z_sums", "z_chunks")  # of the partial result
SAVE_EVERY = 5.0  # seconds between writes of the partial result

Show = Callable[[int, int], object]  # is called with the samples drawn so far, and in all


def log_p_star(
    machine: HelmholtzMachine,
    images: Tensor,
    samples: int,
    seed: int = 0,
    z_samples: int = Z_SAMPLES,
    max_elements: int = MAX_ELEMENTS,
) -> LogPStar:
    """log p*(x) = log p~*(x) - log Z of the bidirectional machine, averaged over images.

        p~*(x) = (sum_h sqrt(p(x, h) q(h | x)))^2 = (E_q sqrt(w))^2 <= p(x)
        Z      = sum_x p~*(x) <= 1        (Z^2 in the paper)

    Both are equalities where q is the posterior. The estimates of both logarithms are too low in
    expectation: log p~* by about 2 / K relative variances of sqrt(w), log Z by half the squared
    standard error of Z, which raises log p*. Source: Bornschein, Shabanian, Fischer, Bengio 2016.

    Args:
        machine: The Helmholtz machine.
        images: (N, n_0), in [0, 1].
        samples: K, importance samples of each image.
        seed: Of all draws.
        z_samples: M, dreams for log Z.
        max_elements: Unit states in memory at once.

    Raises:
        UserError: No image, no sample or no dream.
    """
    positive_int("evaluation.z_samples", z_samples)
    max_rows = rows_at_once(machine, max_elements)
    sums = Sums(machine, images, samples, seed, z_samples=z_samples, max_rows=max_rows)
    sums.compute()
    return sums.log_p_star()


class Sums:
    """Sums over the samples of each image and over the dreams, computed chunk by chunk.

    Args:
        batch: Images at once; None for as many as `max_rows` allows.
        z_samples: M, dreams for log Z; 0 for no log Z.
        max_rows: Rows (images x samples) at once.
    The others, and what is raised, are those of `log_p_star`.
    """

    def __init__(
        self,
        machine: HelmholtzMachine,
        images: Tensor,
        samples: int,
        seed: int,
        batch: int | None = None,
        z_samples: int = 0,
        max_rows: int = 1,
    ) -> None:
        if len(images) == 0:
            raise UserError("a log-likelihood needs at least one data point, got none")
        self.machine, self.images, self.seed = machine, images, seed
        self.samples = positive_int("evaluation.samples", samples)
        self.z_samples, self.max_rows = z_samples, max_rows
        self.batch = min(len(images), max_rows, batch or max(1, max_rows // samples))
        self.sums = torch.empty(len(EXPONENTS), 0, dtype=torch.float64)  # of the images so far
        self.z_sums = torch.full((2,), -math.inf, dtype=torch.float64)  # of the dreams so far
        self.z_chunks = 0

    def compute(self, partial: Path | None = None, show: Show = lambda done, total: None) -> None:
        """Compute what is left.

        Args:
            partial: The file of the partial result. It is read at the start and written every
                few seconds, and where a signal or an error breaks the computation off.
            show: Called before the first chunk and after each.
        """
        if partial is not None:
            self._load(partial)
        saved = time.monotonic()
        try:
            show(*self._progress())
            while self._next_chunk():
                show(*self._progress())
                if partial is not None and time.monotonic() - saved > SAVE_EVERY:
                    self._save(partial)
                    saved = time.monotonic()
        except BaseException:  # a stop, or an error that may not come again
            if partial is not None and self._progress()[0]:
                self._save(partial)
            raise

    def log_likelihood(self) -> LogLikelihood:
        """The importance-sampled log p(x), averaged over the images."""
        return summarise(self.sums[:2], self.samples)

    def log_p_star(self) -> LogPStar:
        """log p*(x), averaged over the images."""
        return summarise_p_star(self.sums[2], self.samples, self.z_sums, self.z_samples)

    def _next_chunk(self) -> bool:
        """Add one chunk's sums; False where none is left. A chunk counts once it is complete."""
        done, at_once = self.sums.shape[1], dreams_at_once(self.max_rows)
        dreams = min(at_once, self.z_samples - self.z_chunks * at_once)
        if done < len(self.images):
            x, rng = self.images[done : done + self.batch], self._rng(0, done // self.batch)
            sums = log_sums(self.machine, x, self.samples, rng, EXPONENTS, self.max_rows)
            self.sums = torch.cat([self.sums, sums.cpu()], dim=1)
        elif dreams > 0:
            sums = log_z_sums(self.machine, dreams, self._rng(1, self.z_chunks), self.max_rows)
            self.z_sums, self.z_chunks = torch.logaddexp(self.z_sums, sums.cpu()), self.z_chunks + 1
        return done < len(self.images) or dreams > 0

    def _rng(self, stream: int, chunk: int) -> torch.Generator:
        seed = derive_seed(self.seed, stream, chunk)
        return torch.Generator(self.images.device).manual_seed(seed)

    def _progress(self) -> tuple[int, int]:
        """Samples drawn so far, and in all."""
        dreams = min(self.z_samples, self.z_chunks * dreams_at_once(self.max_rows))
        done, total = self.sums.shape[1] * self.samples, len(self.images) * self.samples
        return done + dreams * Z_INNER, total + self.z_samples * Z_INNER

    def _save(self, partial: Path) -> None:
        buffer = io.BytesIO()
        torch.save({name: getattr(self, name) for name in STATE}, buffer)
        write_atomically(partial, buffer.getvalue())

    def _load(self, partial: Path) -> None:
        """Read a partial result; one that cannot be read only costs time."""
        with contextlib.suppress(Exception):
            state = torch.load(partial, weights_only=True)
            self.__dict__ |= {name: state[name] for name in STATE}
