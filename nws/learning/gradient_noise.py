"""The noise of the gradients: how much of a batch's gradient is chance.

The gradient of a batch of B data points has mean G, and a covariance Sigma / B. The simple noise
scale tr(Sigma) / |G|^2 is the batch size at which both count the same. Far below it a larger batch
saves nearly as many steps as it costs data; far above it, it saves next to none.
Source: McCandlish et al. 2018, An Empirical Model of Large-Batch Training, section 2.2 and
appendix A.1.
"""

import copy
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nws.errors import UserError
from nws.learning.rules import Rule
from nws.learning.step import WakeSleep
from nws.models import HelmholtzMachine


class GradientNoise(NamedTuple):
    """Unbiased estimates for the gradient of one network."""

    trace: float  # tr(Sigma), of one data point
    squared_norm: float  # |G|^2; the estimate may be below 0 where noise prevails

    @property
    def scale(self) -> float:
        """tr(Sigma) / |G|^2 in data points; inf where no |G|^2 shows above the noise."""
        return math.inf if self.squared_norm <= 0 else self.trace / self.squared_norm


def estimate_noise(gradients: Tensor, size: int) -> GradientNoise:
    """Return the noise of gradients of batches that are alike.

    Args:
        gradients: One for each batch, (M, P), M at least 2.
        size: Data points in each batch.
    """
    count = len(gradients)
    if count < 2:
        need = "the noise of gradients needs at least 2 batches"
        raise UserError(f"{need}, got {count}; take more batches")
    mean = gradients.mean(0)
    trace = size * (gradients - mean).square().sum() / (count - 1)
    squared_norm = mean.square().sum() - trace / (size * count)
    return GradientNoise(float(trace), float(squared_norm))


def gradient_noise(
    machine: HelmholtzMachine, rule: Rule, batches: Sequence[Tensor], rng: torch.Generator
) -> dict[str, GradientNoise]:
    """Return the noise of each network's plain gradient, by the network's name.

    The machine and its `.grad` stay as they are: a copy takes the steps. Each batch has its own
    samples and dreams, so their chance is part of the noise.

    Args:
        machine: The machine.
        rule: Whose gradients these are.
        batches: Data in [0, 1], two or more of the same size, (B, n_0) each.
        rng: Generator of the draws.
    """
    if len(sizes := {len(x) for x in batches}) != 1:
        raise UserError(f"the noise of gradients needs batches of one size, got {sorted(sizes)}")
    learner = WakeSleep(*copy.deepcopy((machine, rule)), rng)  # the weighting may have a state
    found: dict[str, list[Tensor]] = {each.name: [] for each in learner.machine.networks}
    for x in batches:
        learner.step(x)
        for network in learner.machine.networks:
            parts = [each.grad.flatten() for each in network.parameters() if each.grad is not None]
            found[network.name].append(torch.cat(parts))
    (size,) = sizes
    return {name: estimate_noise(torch.stack(each), size) for name, each in found.items()}
