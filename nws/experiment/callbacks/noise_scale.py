"""The noise scale of the gradients at evaluations."""

import torch

from nws.errors import positive_int
from nws.experiment.batches import EVALUATION_SEED
from nws.experiment.callbacks.callback import Callback, Row, Trainer
from nws.learning.gradient_noise import gradient_noise


class NoiseScale(Callback):
    """The column noise_scale/NETWORK of metrics.csv: that of the plain gradient, in data points.

    It takes the halves of the next batches of training, and draws of its own.

    Args:
        batches: How many of them, at least 2; null for no column.
    """

    def __init__(self, batches: int | None = None) -> None:
        name = "callbacks.noise_scale.batches"
        self.batches = None if batches is None else positive_int(name, batches, 2, 10_000)

    def row(self, trainer: Trainer) -> Row:
        if self.batches is None:
            return {}
        rng = torch.Generator(trainer.learner.rng.device).manual_seed(EVALUATION_SEED)
        batches = trainer.batches
        size, steps = max(1, batches.size // 2), range(trainer.step, trainer.step + self.batches)
        halves = [half for step in steps for half in batches.at(step, rng)[0].split(size)[:2]]
        noise = gradient_noise(trainer.machine, trainer.learner.rule, halves, rng)
        return {f"noise_scale/{name}": each.scale for name, each in noise.items()}
