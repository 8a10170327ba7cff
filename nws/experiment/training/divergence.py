"""Training that goes wrong: what is looked at while a run trains, and whose fault it is.

`trainer.on_divergence` says what a run does about numbers that are not finite: `stop`, `warn` (go
on while the parameters are finite) or `back_off` (go back to the last evaluation with half the
learning rate, `MAX_BACK_OFFS` times at most). A bound far below a fair coin's is warned of once;
with `back_off` it counts as a divergence where the machine has been better before.
"""

import logging
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nws.errors import Diverged
from nws.learning import WakeSleep
from nws.models.helmholtz import HelmholtzMachine

if TYPE_CHECKING:
    from nws.experiment.training.trainer import Trainer

log = logging.getLogger(__name__)

MAX_BACK_OFFS = 3  # halvings of the learning rate
COINS = 1.5  # times the nats of a fair coin a pixel: far below
LARGE = 1e4  # of a parameter: the units below it are certain, whatever else they see
SMALL_ALPHA = 1e-4  # below it a Fisher block from few rows is close to singular


def back_off(trainer: "Trainer", error: Diverged) -> None:
    """Go back to the last evaluation, or the start, with half the rate; or raise the error.

    What is restored is what a resumed run restores, and a checkpoint of a stop has the last
    evaluation in it. So a run that is stopped and resumed backs off in the same way.
    """
    count = trainer.back_offs + 1
    if trainer.settings.on_divergence != "back_off":
        raise error
    if count > MAX_BACK_OFFS:
        raise Diverged(f"{error}; {MAX_BACK_OFFS} times half the rate was no help") from error
    rows, seconds, warned = trainer.outputs.metrics.rows, trainer.seconds, trainer.divergence.warned
    state = trainer.good
    trainer.start()
    if state is not None:
        trainer.load_state_dict(state, set())
    trainer.outputs.metrics.rows = [row for row in rows if int(row["step"]) <= trainer.step]
    trainer.seconds, trainer.back_offs, trainer.divergence.warned = seconds, count, warned
    log.warning(
        f"{error}; back to step {trainer.step} with a learning rate of {trainer.rates}"
        f" (back-off {count} of {MAX_BACK_OFFS})"
    )


class DivergenceCheck:
    """Finds the step and the layer where numbers stopped being finite, and what else goes wrong.

    Args:
        learner: With the machine that is trained, and the metrics, whose damping may be the cause.
        answer: trainer.on_divergence.
    """

    def __init__(self, learner: WakeSleep, answer: str = "stop") -> None:
        self.machine, self.metrics, self.answer = learner.machine, learner.metrics, answer
        self.layers: list[str] = []
        for network in self.machine.networks:
            self.layers += [f"{network.name} layer {each}" for each in range(len(network.layers))]
        device = next(self.machine.parameters()).device
        self._step = torch.zeros((), dtype=torch.long, device=device)  # counted from 1
        # For each layer the first step of a loss that is not finite.
        self._first_bad = torch.full((len(self.layers),), -1, device=device)
        self.coins = coins(self.machine)
        self.warned: set[str] = set()  # of what this process has warned

    def is_far_below(self, nats: float) -> bool:
        """Whether a log-likelihood is far below a fair coin's a pixel, or no number."""
        return math.isnan(nats) or (self.coins is not None and nats < COINS * self.coins)

    def check_damping(self) -> None:
        """Warn where alpha is lost beside the curvature in the precision of the machine."""
        for metric in self.metrics:
            weight = next(metric.network.parameters())
            parents = max(layer.weight.shape[1] for layer in metric.network.layers)  # type: ignore
            alpha, lost = float(metric.damping.alpha), torch.finfo(weight.dtype).eps * parents
            if alpha < lost:
                self._warn(
                    "damping",
                    f"damping.value: alpha is {alpha:.2g}, and {weight.dtype} loses what is below"
                    f" {lost:.1g} beside {parents} parents: a Fisher block from few rows is then"
                    " singular, and its direction too long; 0.02 to 1 is usual",
                )

    def start_step(self, step: int) -> None:
        """Take the next losses as those of a step, counted from 1."""
        self._step.fill_(step)

    def note(self, layer_losses: Tensor) -> None:
        """Take in a step's losses, one a layer. It does not wait for the device."""
        bad = ~layer_losses.isfinite() & (self._first_bad < 0)
        torch.where(bad, self._step, self._first_bad, out=self._first_bad)

    def check(
        self, step: int, rates: object, kept: str, bound: Tensor | None = None,
        reached: float = -math.inf,
    ) -> None:  # fmt: skip
        """Raise `Diverged` where a loss or, at this `step`, a parameter is not finite.

        Warn, once each, of parameters that are too large to mean anything, and of a bound far below
        a fair coin's.

        Args:
            step: Of the run.
            rates: The learning rates, for messages.
            kept: The checkpoint that is kept, in words.
            bound: The mean training bound since the last evaluation, in nats, a tensor ().
            reached: The best bound of an evaluation so far, in nats.
        """
        named = [(name, each) for name, each in self.machine.named_parameters() if each.numel()]
        names, parameters = zip(*named, strict=True)
        largest = torch.stack([torch.linalg.vector_norm(each, math.inf) for each in parameters])
        parts = [self._first_bad.double(), largest.detach().double()]
        parts += [] if bound is None else [bound.double().reshape(1)]
        report = torch.cat(parts).tolist()  # one synchronisation
        first_bad, sizes = report[: len(self.layers)], report[len(self.layers) :]
        losses = zip(first_bad, self.layers, strict=True)
        bad = [(int(each), f"the loss of {layer}") for each, layer in losses if each >= 0]
        rest = [name for name, each in zip(names, sizes, strict=False) if not math.isfinite(each)]
        bad += [(step, f"the parameter of {name}") for name in rest]
        if bad:
            first, what = min(bad, key=lambda pair: pair[0])  # a loss before a parameter
            self._answer(f"step {first}: {what} is not finite", bool(rest), first == 0, rates, kept)
            return
        self._warn_of_large(step, dict(zip(names, sizes, strict=False)), rates)
        if bound is not None:
            self._check_bound(step, sizes[-1], reached, rates, kept)

    def _answer(self, found: str, fatal: bool, at_start: bool, rates: object, kept: str) -> None:
        """Raise `Diverged`, unless the run may go on with finite parameters and a warning."""
        cause = f"with a learning rate of {rates}; {self.remedy()}"
        if at_start:
            cause = "before any training; see model.weight_scale, hidden_bias and visible_bias"
        if self.answer == "warn" and not fatal:
            self._warn(found, f"{found}, {cause}; going on (trainer.on_divergence=warn)")
            self._first_bad.fill_(-1)
            return
        raise Diverged(f"{found}, {cause}; {kept}")

    def _warn_of_large(self, step: int, sizes: dict[str, float], rates: object) -> None:
        name = max(sizes, key=sizes.__getitem__)
        if sizes[name] > LARGE:
            self._warn(
                "large",
                f"step {step}: {name} has come to {sizes[name]:.2g}, where a unit is certain"
                f" whatever it sees, with a learning rate of {rates}; {self.remedy()}",
            )

    def _check_bound(
        self, step: int, bound: float, reached: float, rates: object, kept: str
    ) -> None:
        """Warn of a bound far below a fair coin's; with back_off it may be a divergence."""
        if self.coins is None or not self.is_far_below(bound):
            return
        found = (
            f"step {step}: the training bound is {bound:.4g} nats, far below what a fair coin a"
            f" pixel reaches ({self.coins:.1f})"
        )
        cause = f"with a learning rate of {rates}; {self.remedy()}"
        if self.answer == "back_off" and not self.is_far_below(reached):
            raise Diverged(f"{found}, {cause}; {kept}")
        self._warn("bound", f"{found}, {cause}")

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self.warned:
            log.warning(text)
        self.warned.add(kind)

    def remedy(self) -> str:
        """Return what to do: a small damping is blamed before the learning rate (synchronises)."""
        alphas = [float(metric.damping.alpha) for metric in self.metrics]
        if alphas and min(alphas) < SMALL_ALPHA:
            return (
                f"raise damping.value (alpha is {min(alphas):.2g}: a Fisher block from few rows is"
                " close to singular, and its direction is too long for any rate; 0.02 to 1 is"
                " usual)"
            )
        return "lower optimizer.lr, or start from smaller weights (model.weight_scale)"


def coins(machine: HelmholtzMachine) -> float | None:
    """Return the log-likelihood of an image by a fair coin a pixel, in nats; None if not of bits.

    Example:
        >>> coins(HelmholtzMachine([4, 2]))
        -2.772588722239781
    """
    if machine.units[0].support != (0.0, 1.0):
        return None
    return -math.log(2) * machine.sizes[0]


def warn_of_a_bad_end(machine: HelmholtzMachine, mean: float) -> None:
    """Warn where a run on bits ends far below what a fair coin for each pixel reaches."""
    limit = coins(machine)
    if limit is not None and mean < COINS * limit:
        log.warning(
            f"the run ended at {mean:.4g} nats, far below what a fair coin a pixel reaches"
            f" ({limit:.1f}): lower optimizer.lr"
        )
