"""Gaussian units: grey images as they are."""

import math

import torch
from torch import Tensor

from nws.errors import UserError
from nws.models.units import Units


class Gaussian(Units):
    """Unit variance after scaling: y = x / scale is normal, A(a) = a^2 / 2, mean a, curvature 1.

    Meant for the visible layer (`model/visible=gaussian` with `data.binarize=none`).
    Log-likelihoods are log-densities of x, in nats.

    Args:
        scale: Standard deviation of x given its parents, in units of the data.

    Raises:
        UserError: Unless the scale is above 0.
    """

    def __init__(self, scale: float = 1.0) -> None:
        if not (isinstance(scale, int | float) and 0 < scale < math.inf):
            raise UserError(f"the scale of Gaussian units must be a number above 0, got {scale!r}")
        self.scale = float(scale)

    def log_partition(self, logits: Tensor) -> Tensor:
        return logits.square() / 2

    def mean(self, logits: Tensor, out: Tensor | None = None) -> Tensor:
        return logits.clone() if out is None else out.copy_(logits)

    def curvature(self, mean: Tensor) -> Tensor:
        return torch.ones_like(mean)

    def link(self, mean: Tensor) -> Tensor:
        return mean

    def fill_noise(self, out: Tensor, rng: torch.Generator | None = None) -> None:
        out.normal_(generator=rng)

    def sample_(self, noise: Tensor, mean: Tensor) -> Tensor:
        return noise.add_(mean)

    def log_base(self, values: Tensor) -> Tensor:
        return -values.square() / 2 - math.log(math.sqrt(2 * math.pi) * self.scale)

    def encode(self, values: Tensor) -> Tensor:
        return values * self.scale

    def decode(self, states: Tensor) -> Tensor:
        return states / self.scale

    def from_data(self, x: Tensor) -> Tensor:
        return x / self.scale

    def to_data(self, values: Tensor) -> Tensor:
        return values * self.scale
