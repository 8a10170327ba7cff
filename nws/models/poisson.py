"""Poisson units: counts."""

import math

import torch
from torch import Tensor

from nws.errors import UserError
from nws.models.units import Units

LARGE = 1e4  # mean above which nothing is counted


class Poisson(Units):
    """Counts y = x / scale: A(a) = e^a, mean and curvature e^a, base measure 1 / y!.

    Meant for the visible layer (`model/visible=poisson` with `data.binarize=none`). Log-likelihoods
    are those of the counts, in nats.

    Args:
        scale: Data of one count; 1/255 takes the bytes of an image as counts.

    Raises:
        UserError: Unless the scale is above 0.
    """

    def __init__(self, scale: float = 1.0) -> None:
        if not (isinstance(scale, int | float) and 0 < scale < math.inf):
            raise UserError(f"the scale of Poisson units must be a number above 0, got {scale!r}")
        self.scale = float(scale)

    def log_partition(self, logits: Tensor) -> Tensor:
        """e^a."""
        return logits.exp()

    def mean(self, logits: Tensor, out: Tensor | None = None) -> Tensor:
        """e^a."""
        return torch.exp(logits, out=out)

    def curvature(self, mean: Tensor) -> Tensor:
        """The mean."""
        return mean.clone()

    def link(self, mean: Tensor) -> Tensor:
        """log mean."""
        return mean.log()

    def sample_(self, noise: Tensor, mean: Tensor) -> Tensor:
        """The least count whose cumulative probability is above the noise, by counting up.

        The count starts 12 standard deviations below the mean: less than 1e-30 lies below that. One
        number is read from the device for each count. Means above `LARGE` take the quantile of
        Cornish & Fisher 1938, which is off by less than one count there.
        """
        noise_, rate = noise.double(), mean.double()
        z = torch.special.ndtri(noise_.clamp(1e-12, 1 - 1e-12))
        normal = (rate + rate.sqrt() * z + (z.square() - 1) / 6).round().clamp_min(0)
        rate = torch.where(rate > LARGE, 0.0, rate)  # these have nothing to count
        count = (rate - 12 * rate.sqrt()).clamp_min(0).floor()
        values = count.clone()
        probability = (torch.xlogy(count, rate) - rate - torch.lgamma(count + 1)).exp()
        cumulative = probability.clone()
        above = noise_ >= cumulative
        while above.any():
            values += above
            count += 1
            cumulative += probability.mul_(rate / count)
            above = noise_ >= cumulative
        return noise.copy_(torch.where(mean > LARGE, normal, values))

    def log_base(self, values: Tensor) -> Tensor:
        """-log y!."""
        return -torch.lgamma(values + 1)

    def encode(self, values: Tensor) -> Tensor:
        """h = scale y, the data."""
        return values * self.scale

    def decode(self, states: Tensor) -> Tensor:
        """y = h / scale."""
        return states / self.scale

    def from_data(self, x: Tensor) -> Tensor:
        """y = x / scale."""
        return x / self.scale

    def to_data(self, values: Tensor) -> Tensor:
        """x = scale y."""
        return values * self.scale
