"""Poisson units: counts."""

import torch
from torch import Tensor

from nws.models.units import Scaled

COUNTED = 1e4  # up to this mean units are counted


class Poisson(Scaled):
    """Counts y = x / scale: A(a) = e^a, mean and curvature e^a, base measure 1 / y!.

    Meant for the visible layer (`model/visible=poisson`, of grey images as they are).
    Log-likelihoods are those of the counts, in nats.

    Args:
        scale: Data of one count; 1/255 takes the bytes of an image as counts.
    """

    waits = True

    def log_partition(self, logits: Tensor) -> Tensor:
        return logits.exp()

    def mean(self, logits: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.exp(logits, out=out)

    def curvature(self, mean: Tensor) -> Tensor:
        return mean.clone()

    def link(self, mean: Tensor) -> Tensor:
        return mean.log()

    def sample_(self, noise: Tensor, mean: Tensor) -> Tensor:
        """The least count whose cumulative probability is above the noise, by counting up.

        The count starts 12 standard deviations below the mean: less than 1e-30 lies below that. One
        number is read from the device for each count. Means above `COUNTED` take the quantile of
        Cornish & Fisher 1938, which is off by less than one count there.
        """
        rate = mean.double()
        noise_ = noise.double().clamp_max(1 - 1e-10)  # rounding ends the sums up to 2e-11 below 1
        z = torch.special.ndtri(noise_.clamp(1e-12, 1 - 1e-12))
        normal = (rate + rate.sqrt() * z + (z.square() - 1) / 6).round().clamp_min(0)
        rate = torch.where(rate > COUNTED, 0.0, rate)  # these have nothing to count
        count = (rate - 12 * rate.sqrt()).clamp_min(0).floor()
        values = count.clone()
        probability = (torch.xlogy(count, rate) - rate - torch.lgamma(count + 1)).exp()
        cumulative = probability.clone()
        while (above := noise_ >= cumulative).any():
            values += above
            count += 1
            cumulative += probability.mul_(rate / count)
        return noise.copy_(torch.where(mean > COUNTED, normal, values))

    def log_base(self, values: Tensor) -> Tensor:
        return -torch.lgamma(values + 1)
