"""Families of the tests' own: a user who needs a further one writes as much as each of these."""

import math
from typing import Any

import torch
from cases import random_machine
from torch import Tensor

from nws.models import Gaussian, HelmholtzMachine, Poisson, Units
from nws.models.units import Binary


class Gauss(Gaussian):
    """Data in [0, 1] are spread to -1 .. 1."""

    def from_data(self, x: Tensor) -> Tensor:
        return 2 * x - 1

    def to_data(self, values: Tensor) -> Tensor:
        return (values + 1) / 2


class Pair(Units):
    """The sum of two coins, y in {0, 1, 2}: A(a) = 2 log(1 + e^a). Others see y - 1."""

    support = (0.0, 1.0, 2.0)

    def log_partition(self, logits: Tensor) -> Tensor:
        return 2 * torch.logaddexp(logits, torch.zeros_like(logits))

    def mean(self, logits: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.sigmoid(logits, out=out).mul_(2)

    def curvature(self, mean: Tensor) -> Tensor:
        return mean * (1 - mean / 2)

    def link(self, mean: Tensor) -> Tensor:
        return torch.logit(mean / 2)

    def sample_(self, noise: Tensor, mean: Tensor) -> Tensor:
        p = mean / 2
        return noise.copy_((noise < 1 - (1 - p) ** 2).to(noise) + (noise < p**2).to(noise))

    def log_base(self, values: Tensor) -> Tensor:
        return (values == 1).to(values) * math.log(2)

    def encode(self, values: Tensor) -> Tensor:
        return values - 1

    def decode(self, states: Tensor) -> Tensor:
        return states + 1

    def from_data(self, x: Tensor) -> Tensor:
        return 2 * x

    def to_data(self, values: Tensor) -> Tensor:
        return values / 2


class Odds(Binary):
    """A bit whose two values have other weights: base(1) = e, A(a) = log(1 + e^(a + 1))."""

    def log_partition(self, logits: Tensor) -> Tensor:
        return super().log_partition(logits + 1)

    def mean(self, logits: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.sigmoid(logits + 1, out=out)

    def link(self, mean: Tensor) -> Tensor:
        return torch.logit(mean) - 1

    def log_base(self, values: Tensor) -> Tensor:
        return values


class Counts(Poisson):
    """Poisson counts whose `curvature` is `mean`, and gives the very tensor back."""

    def curvature(self, mean: Tensor) -> Tensor:
        return mean


MIXED: dict[str, tuple[Any, Any]] = {  # hidden units, visible units
    "pairs": (Pair(), None), "counts": (Counts(), None), "gauss": (Gauss(), None),
    "binary under gauss": ("binary", Gauss()), "bipolar under counts": ("bipolar", Counts()),
    "pairs under gauss": (Pair(), Gauss()), "gauss under bipolar": (Gauss(), "bipolar"),
    "odds": (Odds(), None),
}  # fmt: skip


def small_machine(
    units: tuple[Any, Any], sizes: tuple[int, ...] = (4, 3, 2), scale: float = 0.5
) -> HelmholtzMachine:
    """A machine of hidden and visible units whose counts stay small."""
    machine = random_machine(sizes, units[0], visible=units[1])
    for parameter in machine.parameters():
        parameter.data.mul_(scale)
    return machine
