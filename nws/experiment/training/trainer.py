"""The training loop. It stops at any step, and goes on bit for bit."""

import copy
import logging
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from nws.data import Dataset
from nws.errors import Diverged, UserError
from nws.experiment.process.hardware import matmul_precision
from nws.experiment.process.processes import AgreedStop
from nws.experiment.process.signals import StopSignals
from nws.experiment.process.terminal import Terminal
from nws.experiment.storage.checkpoints import from_checkpoint, load_parameters
from nws.experiment.storage.metrics_file import restore_metrics
from nws.experiment.training.batches import Batches
from nws.experiment.training.divergence import DivergenceCheck, back_off, warn_of_a_bad_end
from nws.experiment.training.facts import facts
from nws.experiment.training.images import progress_pictures
from nws.experiment.training.loggers import Outputs
from nws.experiment.training.measures import (
    EVALUATION_SEED,
    Row,
    dream_loss,
    noise_scales,
    validate,
)
from nws.experiment.training.parts import Parts
from nws.experiment.training.rates import Rates, are_apart, learning_rates, restore, scaled
from nws.experiment.training.seeds import continue_draws, derive_seed
from nws.experiment.training.settings import TrainerSettings
from nws.learning.step import STATISTICS
from nws.models import HelmholtzMachine

log = logging.getLogger(__name__)

PLAIN_STATE = ("step", "total_steps", "seconds", "best", "waited", "finished", "sums", "count")
#: Groups whose new options change what a checkpoint carries.
CARRIED = {"optimizer", "scheduler", "average", "metric", "solver", "damping"}


class Trainer:
    """Trains one machine on one data set.

    Args:
        settings: The `trainer` group.
        data: The data set.
        make: Makes what is trained, at step 0, the same each time.
        outputs: Where rows, images and checkpoints go.
    """

    def __init__(
        self, settings: TrainerSettings, data: Dataset, make: Callable[[], Parts], outputs: Outputs
    ) -> None:
        self.settings, self.data, self.make, self.outputs = settings, data, make, outputs
        self.start()
        self.device = data.train.device
        self.steps_per_epoch = settings.steps_per_epoch(len(data.train))
        self.total_steps = settings.total_steps(len(data.train))
        self.seed = outputs.config.seed
        sources = {metric.options.batch for metric in self.learner.metrics}
        self.batches = Batches(data, settings.batch_size, sources, self.seed)
        self.terminal = Terminal("quiet")
        self.seconds, self.evaluation_seconds = 0.0, 0.0  # the latter in this process
        self.saved_step: int | None = None  # of last.pt
        self.good: dict[str, Any] | None = None  # the last evaluation's state, for a back-off
        self.back_offs = 0  # each halves the learning rate
        self.unproved = False  # whether no step was taken since a checkpoint was loaded

    def start(self) -> None:
        """Make what is trained, and begin at step 0."""
        self.learner, self.optimizer, self.scheduler, self.average = self.make()
        self.machine = self.learner.machine
        self.plateau = isinstance(self.scheduler, ReduceLROnPlateau)
        self.divergence = DivergenceCheck(self.learner, self.settings.on_divergence)
        self.step, self.best = 0, -math.inf  # validation log-likelihood, in nats
        self.waited = 0  # evaluations since then
        # Sums over the `count` steps since the last evaluation, on the device.
        self.sums, self.count = torch.zeros(len(STATISTICS), device=self.learner.rng.device), 0

    @property
    def rates(self) -> Rates:
        """The learning rates, halved by each back-off."""
        return learning_rates(self.optimizer, 0.5**self.back_offs)

    @property
    def out_of_patience(self) -> bool:
        """Whether as many evaluations as `trainer.patience` brought nothing better."""
        patience = self.settings.patience
        return patience is not None and self.waited >= patience

    @property
    def finished(self) -> bool:
        """Whether this was the last step, or patience has come to its end."""
        return self.step >= self.total_steps or self.out_of_patience

    @property
    def place(self) -> str:
        """How far the run is, in words."""
        return f"step {self.step} of {self.total_steps}"

    @property
    def way_on(self) -> str:
        """The option with which a finished run goes on."""
        if self.out_of_patience:
            return f"trainer.patience=N, N > {self.waited}"
        return f"trainer.epochs=N, N > {self.step / self.steps_per_epoch:g}"

    def fit(self, terminal: Terminal | None = None, stop: StopSignals | None = None) -> int | None:
        """Train to the last step, or until `stop` has caught a signal, whose number is returned.

        What there is to see goes to the `terminal`; without one nothing is shown. Raises `Diverged`
        where numbers are not finite, `UserError` where a file cannot be written.
        """
        self.terminal = terminal or self.terminal
        agreed = AgreedStop(stop or StopSignals())
        self._note()
        self.divergence.check_damping()
        if self.step == 0:
            self._check()
        bar = self.terminal.training(self.step, self.total_steps, self.settings.epochs)
        with bar, matmul_precision(self.settings.matmul_precision):
            if self.step == 0 and not self.outputs.metrics.rows and agreed.ask() is None:
                self.terminal.row(self.outputs.row(self._row()))
            while not self.finished and agreed.ask() is None:
                self._go_on(agreed)
            if agreed.ask() is not None and self.saved_step != self.step:
                self._save(best=False)
            return agreed.caught

    def _go_on(self, stop: AgreedStop) -> None:
        """Train until something is due, and write that; or go back where the run has diverged."""
        try:
            self._train_until_due(stop)
            self._check()
            self._write_what_is_due()
        except Diverged as error:
            back_off(self, error)

    def _train_until_due(self, stop: AgreedStop) -> None:
        """Take steps up to the next evaluation or image, the end, or a signal."""
        started, due = time.perf_counter(), False
        while not due and stop.caught is None:
            last = self.outputs.run.last
            try:
                with from_checkpoint(last, "the first step from it", enabled=self.unproved):
                    self._step()
            except UserError:  # a solver's, of rows that it cannot use
                self._check()  # the reason, where numbers are not finite
                raise
            self.unproved = False
            if self.step % self.settings.check_every == 0:
                self._check()
            self.terminal.step(self.step, self.step / self.steps_per_epoch, self._bound)
            intervals = (self.settings.evaluate_every, self.settings.images_every)
            due = any(map(self._is_due, intervals))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds += time.perf_counter() - started

    def _write_what_is_due(self) -> None:
        """Evaluate, draw pictures, and write both; a checkpoint comes last, when all is written."""
        row = self._row() if self._is_due(self.settings.evaluate_every) else None
        if self._is_due(self.settings.images_every):
            pictures = progress_pictures(self.machine, self.data, EVALUATION_SEED)
            self.outputs.images(pictures, self.step, row)
        if row is not None:
            self._evaluate(row)

    def _step(self) -> None:
        """Take one step."""
        rates = self.rates
        for metric in self.learner.metrics:
            metric.learning_rate.fill_(rates[metric.network.upward])
        self.learner.start_step(self.step)
        self.divergence.start_step(self.step + 1)
        batches = self.batches.at(self.step, self.learner.rng)
        with scaled(self.optimizer, 0.5**self.back_offs):
            self.optimizer.step(partial(self._loss, *batches))  # type: ignore[arg-type]
        self.learner.after_step()
        if not self.plateau:
            self.scheduler.step()  # type: ignore[call-arg]
        self.step += 1
        if self.average is not None:
            self.average.update(self.machine, self.step)

    def _bound(self) -> float:
        """Return the mean training bound since the last evaluation, in nats (synchronises)."""
        return float(self.sums[2]) / self.count

    def _loss(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Write the gradients of one batch; the closure that a torch optimizer calls."""
        result = self.learner.step(x, other)
        self.sums += result.statistics
        self.count += 1
        self.divergence.note(result.layer_losses)
        return result.layer_losses.sum()

    def _is_due(self, epochs: float) -> bool:
        """Return whether something is due that comes every so many epochs, and at the end."""
        every = max(1, round(epochs * self.steps_per_epoch))
        return self.step % every == 0 or self.step == self.total_steps

    def _check(self) -> None:
        for metric in self.learner.metrics:
            metric.check()
        kept = f"{self.outputs.run.last} (step {self.saved_step}) is the last good checkpoint"
        if self.saved_step is None:
            kept = "no checkpoint was written yet"
        bound = self.sums[2] / self.count if self.count else None
        rows = self.outputs.metrics.rows
        start = float(rows[0]["valid/log_likelihood"]) if rows else -math.inf
        self.divergence.check(self.step, self.rates, kept, bound, max(self.best, start))

    def _evaluate(self, row: Row) -> None:
        """Write one row of metrics and the checkpoints."""
        mean = row["valid/log_likelihood"]
        if self.plateau:
            self.scheduler.step(mean)  # type: ignore[arg-type]
        parts = self.outputs.row(row)
        if self.step == self.total_steps:
            warn_of_a_bad_end(self.machine, mean)
        better = mean > self.best
        if better:  # max() would keep a mean that is no number
            self.best = mean
        self.waited = 0 if better else self.waited + 1
        self._save(better, good=not self.divergence.is_far_below(mean))
        self._note()
        self.terminal.row(parts)
        if self.out_of_patience and self.step < self.total_steps:
            reason = f"trainer.patience={self.waited}, no better valid/log_likelihood since"
            log.warning(f"the run ends at {self.place}: {reason} {self.best:.3f} nats")

    def _row(self) -> Row:
        """Return the row of metrics of this step, and start the sums of the next.

        At step 0 nothing of training is in it.
        """
        started = time.perf_counter()
        valid = self._validate(self.machine, "evaluation")
        train = self._train_means() if self.count else {}
        epoch, seconds = self.step / self.steps_per_epoch, round(self.seconds, 3)
        row: Row = {"epoch": epoch, "step": self.step, "seconds": seconds}
        ess = {"train/ess": train.pop("train/ess")} if train else {}
        row |= train | {"valid/log_likelihood": valid.pop("valid/log_likelihood")}
        rates = self.rates
        row |= ess | valid | {"learning_rate": rates.generator}
        if are_apart(self.optimizer):
            row["recognition/learning_rate"] = rates.recognition
        if self.average is not None and self.average.count:
            averaged = self._validate(self.average.machine, "evaluation of the average")
            row |= {f"average/{key.split('/')[1]}": value for key, value in averaged.items()}
            del row["average/samples"]
        if self.settings.noise_batches is not None:
            count = self.settings.noise_batches
            row |= noise_scales(self.learner, self.batches, self.step, count)
        if self.step:
            row |= self.learner.report()
        self.evaluation_seconds += time.perf_counter() - started
        return row

    def _validate(self, machine: HelmholtzMachine, what: str) -> Row:
        """Return the columns of an evaluation of a machine, with a bar."""
        samples, points = self.settings.evaluation_samples, self.settings.evaluation_points
        with self.terminal.evaluation(what) as show:
            return validate(machine, self.data, samples, points, show)

    def _train_means(self) -> Row:
        """Return the training columns: means since the last row. Start the sums of the next."""
        train = dict(zip(STATISTICS, (self.sums / self.count).tolist(), strict=True))
        if not self.learner.rule.recognition_dream:  # the steps need no dreams
            rows = self.settings.batch_size * self.learner.dreams
            seed = derive_seed(self.seed, 4, self.step)
            train["dream_loss"] = dream_loss(self.machine, rows, seed)
        self.sums.zero_()
        self.count = 0
        return {f"train/{name}": value for name, value in train.items()}

    def _save(self, best: bool, good: bool = False) -> None:
        """Write the checkpoints. One that is not `good` has the last that was, for a back-off."""
        state = self.state_dict()
        if self.settings.on_divergence == "back_off" and good:
            self.good = copy.deepcopy(state)
        elif self.settings.on_divergence == "back_off":
            state["good"] = self.good
        self.outputs.checkpoint(state, best)
        self.saved_step = self.step

    def _note(self) -> None:
        self.outputs.note(facts(self) | {"state": "running"})

    def state_dict(self) -> dict[str, Any]:
        """Return everything to go on bit for bit, as tensors and plain values."""
        return {
            **{name: getattr(self, name) for name in (*PLAIN_STATE, "back_offs")},
            "machine": self.machine.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "optimizer_class": type(self.optimizer).__name__,
            "scheduler": self.scheduler.state_dict(),
            "metrics": [metric.state_dict() for metric in self.learner.metrics],
            "rng": self.learner.rng.get_state(),
            "rng_device": self.learner.rng.device.type,
            "average": self.average.state_dict() if self.average is not None else None,
        }

    def load_state_dict(self, state: dict[str, Any], changed: set[str]) -> None:
        """Go on from a checkpoint; options of the `changed` groups win over the saved ones.

        Raises `UserError` for a checkpoint of another architecture.
        """
        load_parameters(self.machine, state["machine"], self.outputs.run.last)
        self.unproved = True
        self.back_offs = 0 if "optimizer" in changed else state.get("back_offs", 0)
        self.step = self.saved_step = state["step"]
        self.seconds, self.best, self.count = state["seconds"], state["best"], state["count"]
        self.waited = state.get("waited", 0)
        self.sums.copy_(state["sums"])
        self._load_optimizer(state, changed)
        averaged = None if "average" in changed else state.get("average")
        if self.average is not None and averaged is not None:
            self.average.load_state_dict(averaged, self.outputs.run.last)
        fresh_solvers = bool(changed & {"metric", "solver"})
        for metric, saved in zip(self.learner.metrics, state["metrics"], strict=False):
            metric.load_state_dict(saved, "damping" in changed, fresh_solvers)
        if not state["metrics"]:  # the run had none
            for metric in self.learner.metrics:
                metric.start_at(self.step)
        continue_draws(self.learner.rng, state, derive_seed(self.seed, 1, self.step))
        rows = state.get("rows")
        self.outputs.metrics = restore_metrics(self.outputs.run.metrics, self.step, rows)
        if self.settings.on_divergence == "back_off":
            good = self.state_dict() if changed & CARRIED else state.get("good", state)
            self.good = copy.deepcopy(good)  # what is loaded changes in place

    def _load_optimizer(self, state: dict[str, Any], changed: set[str]) -> None:
        """Restore both; with new options, or another number of steps, the schedule from step 0."""
        steps = None
        longer = state["total_steps"] != self.total_steps and not self.plateau
        if longer or changed & {"optimizer", "scheduler"}:
            steps = 0 if self.plateau else min(self.step, self.total_steps)
        restore(self.optimizer, self.scheduler, state, steps)
