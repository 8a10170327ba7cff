"""A callback of one's own: the noise of the gradients, how much of a batch's gradient is chance.

The gradient of a batch of B data points has a mean G, and a covariance Sigma / B. The simple noise
scale tr(Sigma) / |G|^2 is the batch size at which both count the same. Far below it a larger batch
saves nearly as many steps as it costs data; far above it, it saves next to none.
Source: McCandlish et al. 2018, An Empirical Model of Large-Batch Training, section 2.2, appendix A.
"""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nws.errors import positive_int
from nws.experiment.batches import EVALUATION_SEED
from nws.experiment.callbacks import Callback
from nws.experiment.callbacks.callback import Row, Trainer
from nws.learning import Rule, WakeSleep
from nws.models import HelmholtzMachine


def noise(gradients: Tensor, size: int) -> tuple[float, float]:
    """tr(Sigma) of one data point and |G|^2, without bias: the latter may be below 0 in much noise.

    Args:
        gradients: One for each of M batches that are alike, (M, P), M at least 2.
        size: Data points in each batch.
    """
    mean = gradients.mean(0)
    trace = size * (gradients - mean).square().sum() / (len(gradients) - 1)
    return float(trace), float(mean.square().sum() - trace / (size * len(gradients)))


def noise_scales(
    machine: HelmholtzMachine, rule: Rule, batches: Sequence[Tensor], rng: torch.Generator
) -> dict[str, float]:
    """The noise scale of each network's plain gradient, in data points, by the network's name.

    The machine and its `.grad` stay as they are: a copy takes the steps. Each batch has its own
    samples and dreams, so their chance is part of the noise. inf: no |G|^2 shows above the noise.

    Args:
        machine: The machine.
        rule: Whose gradients these are.
        batches: Data in [0, 1], two or more of the same size, (B, n_0) each.
        rng: Generator of the draws.
    """
    learner = WakeSleep(*copy.deepcopy((machine, rule)), rng)  # the weighting may have a state
    found: dict[str, list[Tensor]] = {each.name: [] for each in learner.machine.networks}
    for x in batches:
        learner.step(x)
        for network in learner.machine.networks:
            parts = [each.grad.flatten() for each in network.parameters() if each.grad is not None]
            found[network.name].append(torch.cat(parts))
    pairs = {name: noise(torch.stack(each), len(batches[0])) for name, each in found.items()}
    return {name: trace / norm if norm > 0 else math.inf for name, (trace, norm) in pairs.items()}


class NoiseScale(Callback):
    """The column noise_scale/NETWORK of metrics.csv: that of the plain gradient, in data points.

    It takes the halves of the next batches of training, and draws of its own.

    Args:
        batches: How many of them, at least 2.
    """

    def __init__(self, batches: int) -> None:
        self.batches = positive_int("callbacks.noise_scale.batches", batches, 2, 10_000)

    def row(self, trainer: Trainer) -> Row:
        rng = torch.Generator(trainer.learner.rng.device).manual_seed(EVALUATION_SEED)
        batches = trainer.batches
        size, steps = max(1, batches.size // 2), range(trainer.step, trainer.step + self.batches)
        halves = [half for step in steps for half in batches.at(step, rng)[0].split(size)[:2]]
        scales = noise_scales(trainer.machine, trainer.learner.rule, halves, rng)
        return {f"noise_scale/{name}": scale for name, scale in scales.items()}
