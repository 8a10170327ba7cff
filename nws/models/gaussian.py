"""Gaussian units: grey images as they are."""

import math

import torch
from torch import Tensor

from nws.models.units import Scaled


class Gaussian(Scaled):
    """Unit variance after scaling: y = x / scale is normal, A(a) = a^2 / 2, mean a, curvature 1.

    Meant for the visible layer (`model/visible=gaussian`, of grey images as they are).
    Log-likelihoods are log-densities of x, in nats.

    Args:
        scale: Standard deviation of x given its parents, in units of the data.
    """

    def log_partition(self, logits: Tensor) -> Tensor:
        return logits.square() / 2

    def mean(self, logits: Tensor, out: Tensor | None = None) -> Tensor:
        return logits.clone() if out is None else out.copy_(logits)

    def curvature(self, mean: Tensor) -> Tensor:
        return torch.ones_like(mean)

    def link(self, mean: Tensor) -> Tensor:
        return mean

    def fill_noise(self, out: Tensor, rng: torch.Generator | None = None) -> None:
        """Fill `out` with standard normal noise."""
        out.normal_(generator=rng)

    def sample_(self, noise: Tensor, mean: Tensor) -> Tensor:
        return noise.add_(mean)

    def log_base(self, values: Tensor) -> Tensor:
        """log N(y; 0, 1) - log scale: the density of x, not of y."""
        return -values.square() / 2 - math.log(math.sqrt(2 * math.pi) * self.scale)
