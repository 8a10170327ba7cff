"""Evaluation during training: one row of metrics.csv."""

import logging
import math

import torch

from nws.data import Dataset
from nws.experiment.loggers import Row
from nws.models.helmholtz import HelmholtzMachine
from nws.models.likelihood import kl_divergence, log_likelihood

log = logging.getLogger(__name__)

EVALUATION_SEED = 0  # of validation and images: the same draws for every run, none of training's


class Validation:
    """The validation log-likelihood by K `samples`, and the exact KL divergence from a known p_D.

    It uses the first `points` validation images, all if that is None.
    """

    def __init__(self, data: Dataset, samples: int, points: int | None) -> None:
        self.data, self.samples, self.points = data, samples, points

    def row(self, machine: HelmholtzMachine) -> Row:
        """Return the columns of an evaluation, in nats an image."""
        images = self.data.valid.batch()[: self.points]
        rng = torch.Generator(images.device).manual_seed(EVALUATION_SEED)
        valid = log_likelihood(machine, images, self.samples, rng)
        row: Row = {
            "valid/log_likelihood": valid.mean,
            "valid/standard_error": valid.standard_error,
            "valid/samples": valid.samples,
        }
        if self.data.distribution is not None:
            row["exact/kl"] = kl_divergence(machine, *self.data.distribution)
        return row

    def warn_of_a_bad_end(self, machine: HelmholtzMachine, mean: float) -> None:
        """Warn where a run on bits ends far below what a fair coin for each pixel reaches."""
        coins = -math.log(2) * math.prod(self.data.shape)
        if machine.units[0].support == (0.0, 1.0) and mean < 1.5 * coins:
            log.warning(
                "the run ended at %.4g nats, far below what a fair coin a pixel reaches (%.1f):"
                " lower optimizer.lr",
                mean, coins,
            )  # fmt: skip


def describe(row: Row) -> str:
    """Return a row of metrics.csv as a line for people."""
    exact = f"  KL {row['exact/kl']:.3f}" if "exact/kl" in row else ""
    return (
        f"epoch {row['epoch']:7.2f}  step {row['step']:7d}"
        f"  valid {row['valid/log_likelihood']:9.3f} ± {row['valid/standard_error']:.3f} nats"
        f" ({row['valid/samples']} samples)  train bound {row['train/log_likelihood']:9.3f}"
        f"  ess {row['train/ess']:5.2f}{exact}  {row['seconds']:7.1f} s"
    )
