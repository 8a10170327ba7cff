"""What a row of metrics.csv says of a machine: how good is it?"""

import torch

from nws.data import Dataset
from nws.experiment.callbacks.callback import Row
from nws.learning.together import log_sums
from nws.models.helmholtz import HelmholtzMachine
from nws.models.likelihood import kl_divergence, log_likelihood

EVALUATION_SEED = 0  # of validation and images: the same draws for every run, none of training's


def validate(machine: HelmholtzMachine, data: Dataset, samples: int, points: int | None) -> Row:
    """Return the columns of an evaluation, in nats an image; with the exact KL if p_D is known.

    `samples` are K importance samples an image, of the first validation images, or all.
    """
    images = data.valid.first(points)
    rng = torch.Generator(images.device).manual_seed(EVALUATION_SEED)
    valid = log_likelihood(machine, images, samples, rng, sums=log_sums)
    row: Row = {"valid/log_likelihood": valid.mean, "valid/standard_error": valid.standard_error}
    row["valid/samples"] = valid.samples
    if data.distribution is not None:
        row["exact/kl"] = kl_divergence(machine, *data.distribution)
    return row


def dream_loss(machine: HelmholtzMachine, rows: int, seed: int) -> float:
    """Return -log q of so many dreams, in nats: their mean, from random numbers of the seed."""
    rng = torch.Generator(next(machine.parameters()).device).manual_seed(seed)
    log_probs = machine.dream(rows, rng).layer_log_probs(machine.recognition).sum(0)
    return -float(log_probs.mean())
