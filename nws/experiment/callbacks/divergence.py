"""Training that goes wrong: numbers that are not finite, and what else is looked at."""

import logging
import math
from typing import TYPE_CHECKING

import torch

from nws.errors import Diverged, UserError, positive_int
from nws.experiment.callbacks.callback import Callback

if TYPE_CHECKING:
    from nws.experiment.run import Row
    from nws.experiment.trainer import Trainer
    from nws.learning import StepResult

log = logging.getLogger(__name__)

COINS = 1.5  # times the nats of a fair coin a pixel: far below
SMALL_ALPHA = 1e-4  # below it a Fisher block from few rows is close to singular


class Divergence(Callback):
    """Finds the step and the layer where numbers stopped being finite, and ends the run there.

    It warns, once, of a bound far below a fair coin's.

    Args:
        every: Steps between looks at the losses; each of them waits for the device.
        answer: What is done about a loss that is not finite: "stop", or "warn", which goes on while
            the parameters are finite.

    Raises:
        UserError: For another answer, or an interval below 1.
    """

    def __init__(self, every: int = 50, answer: str = "stop") -> None:
        if answer not in ("stop", "warn"):
            raise UserError(f"callbacks.divergence.answer must be stop or warn, got {answer!r}")
        self.steps = positive_int("callbacks.divergence.every", every)
        self.answer = answer
        self._warned: set[str] = set()

    def start(self, trainer: "Trainer") -> None:
        """Begin to look."""
        machine = trainer.machine
        self._layers = [
            f"{network.name} layer {each}"
            for network in machine.networks
            for each in range(len(network.layers))
        ]
        device = next(machine.parameters()).device
        self._step = torch.zeros((), dtype=torch.long, device=device)  # counted from 1
        # For each layer the first step of a loss that is not finite.
        self._first_bad = torch.full((len(self._layers),), -1, device=device)
        # The log-likelihood of an image by a fair coin a pixel, in nats; of bits alone.
        bits = machine.units[0].support == (0.0, 1.0)
        self._coins = -math.log(2) * machine.sizes[0] if bits else -math.inf

    def before_step(self, trainer: "Trainer") -> None:
        """Take the next losses as those of this step."""
        self._step.fill_(trainer.step + 1)

    def after_loss(self, trainer: "Trainer", result: "StepResult") -> None:
        """Take in a step's losses, one a layer. It does not wait for the device."""
        bad = ~result.layer_losses.isfinite() & (self._first_bad < 0)
        torch.where(bad, self._step, self._first_bad, out=self._first_bad)

    def after_step(self, trainer: "Trainer") -> None:
        """Look every so many steps."""
        if trainer.step % self.steps == 0:
            self.check(trainer)

    def row(self, trainer: "Trainer") -> "Row":
        """Look before each evaluation: no row has numbers of a machine that is lost."""
        self.check(trainer)
        return {}

    def after_row(self, trainer: "Trainer", row: "Row") -> None:
        """Warn where a run ends far below what a fair coin for each pixel reaches."""
        if trainer.step == trainer.total_steps:
            self._check_likelihood(trainer, "the run ended at", row["valid/log_likelihood"])

    def check(self, trainer: "Trainer") -> None:
        """Raise `Diverged` where a loss or a parameter is not finite (synchronises)."""
        named = [(name, each) for name, each in trainer.machine.named_parameters() if each.numel()]
        names, parameters = zip(*named, strict=True)
        largest = torch.stack([torch.linalg.vector_norm(each, math.inf) for each in parameters])
        numbers = torch.cat([self._first_bad.double(), largest.detach().double()]).tolist()
        losses = zip(numbers, self._layers, strict=False)
        bad = [(int(each), f"the loss of {layer}") for each, layer in losses if each >= 0]
        sizes = zip(names, numbers[len(self._layers) :], strict=True)
        rest = [name for name, each in sizes if not math.isfinite(each)]
        bad += [(trainer.step, f"the parameter of {name}") for name in rest]
        if bad:
            first, what = min(bad, key=lambda pair: pair[0])  # a loss before a parameter
            self._end(trainer, f"step {first}: {what} is not finite", bool(rest), first == 0)
        elif trainer.count:
            what = f"step {trainer.step}: the training bound is"
            self._check_likelihood(trainer, what, trainer.bound())

    def _end(self, trainer: "Trainer", found: str, fatal: bool, at_start: bool) -> None:
        """Raise `Diverged`, unless the run may go on with finite parameters and a warning."""
        why = cause(trainer)
        if at_start:
            why = "before any training; see model.weight_scale, hidden_bias and visible_bias"
        if self.answer == "warn" and not fatal:
            self._warn(found, f"{found}, {why}; going on (callbacks.divergence.answer=warn)")
            self._first_bad.fill_(-1)
            return
        kept = f"{trainer.run.last} (step {trainer.saved_step}) is the last good checkpoint"
        if trainer.saved_step is None:
            kept = "no checkpoint was written yet"
        raise Diverged(f"{found}, {why}; {kept}")

    def _check_likelihood(self, trainer: "Trainer", what: str, nats: float) -> None:
        if math.isnan(nats) or nats < COINS * self._coins:
            far = f"far below what a fair coin a pixel reaches ({self._coins:.1f})"
            self._warn("bound", f"{what} {nats:.4g} nats, {far}, {cause(trainer)}")

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            log.warning(text)
        self._warned.add(kind)


def cause(trainer: "Trainer") -> str:
    """Return the learning rate, and what to do: a small damping is blamed first (synchronises)."""
    alphas = [float(metric.damping.alpha) for metric in trainer.learner.metrics]
    remedy = "lower optimizer.lr, or start from smaller weights (model.weight_scale)"
    if alphas and min(alphas) < SMALL_ALPHA:
        remedy = (
            f"raise damping.value (alpha is {min(alphas):.2g}: a Fisher block from few rows is"
            " close to singular, and its direction is too long for any rate; 0.02 to 1 is usual)"
        )
    groups = trainer.optimizer.param_groups  # the schedule may have brought the rates to 0 by now
    rates = dict.fromkeys(f"{group.get('initial_lr', group['lr']):g}" for group in groups)
    return f"with a learning rate of {' and '.join(rates)} at the start; {remedy}"
