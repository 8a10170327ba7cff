"""Training that goes wrong: numbers that are not finite."""

import torch

from nws.errors import Diverged, positive_int
from nws.experiment.callbacks.callback import Callback, Row, Trainer
from nws.experiment.optimizers import starting_rates
from nws.learning import StepResult

SMALL_ALPHA = 1e-4  # below it a Fisher block from few rows is close to singular


class Divergence(Callback):
    """Finds the step and the layer where numbers stopped being finite, and ends the run there.

    Args:
        every: Steps between looks at the losses; each of them waits for the device.
    """

    def __init__(self, every: int = 50) -> None:
        self.steps = positive_int("callbacks.divergence.every", every)

    def start(self, trainer: Trainer) -> None:
        networks, device = trainer.machine.networks, trainer.learner.rng.device
        self._layers = [f"{net.name} layer {i}" for net in networks for i in range(len(net.layers))]
        # For each layer the first step, from 1, of a loss that is not finite.
        self._first_bad = torch.full((len(self._layers),), -1, device=device)

    def after_loss(self, trainer: Trainer, result: StepResult) -> None:
        """Take in a step's losses, one a layer. It does not wait for the device."""
        bad = ~result.layer_losses.isfinite() & (self._first_bad < 0)
        self._first_bad.masked_fill_(bad, trainer.step + 1)

    def after_step(self, trainer: Trainer) -> None:
        if trainer.step % self.steps == 0:
            self.check(trainer)

    def row(self, trainer: Trainer) -> Row:
        """Look before each evaluation: no row has numbers of a machine that is lost."""
        self.check(trainer)
        return {}

    def check(self, trainer: Trainer) -> None:
        """Raise `Diverged` where a loss or a parameter is not finite (synchronises)."""
        names, parameters = zip(*trainer.machine.named_parameters(), strict=True)
        finite = torch.stack([each.isfinite().all() for each in parameters])
        steps = torch.cat([self._first_bad, torch.where(finite, -1, trainer.step)]).tolist()
        whats = [f"the loss of {each}" for each in self._layers]
        whats += [f"the parameter of {each}" for each in names]
        bad = [pair for pair in zip(steps, whats, strict=True) if pair[0] >= 0]
        if bad:
            first, what = min(bad, key=lambda pair: pair[0])  # a loss before a parameter
            why = cause(trainer)
            if first == 0:
                why = "before any training; see model.weight_scale, hidden_bias and visible_bias"
            raise Diverged(f"step {first}: {what} is not finite, {why}")

    before_stop = check


def cause(trainer: Trainer) -> str:
    """Return the learning rate, and what to do: a small damping is blamed first (synchronises)."""
    alphas = [float(metric.damping.alpha) for metric in trainer.learner.metrics]
    remedy = "lower optimizer.lr, or start from smaller weights (model.weight_scale)"
    if alphas and min(alphas) < SMALL_ALPHA:
        remedy = (
            f"raise damping.value (alpha is {min(alphas):.2g}: a Fisher block from few rows is"
            " close to singular, and its direction is too long for any rate; 0.02 to 1 is usual)"
        )
    rates = " and ".join(starting_rates(trainer.optimizer))
    return f"with a learning rate of {rates} at the start; {remedy}"
