"""The training loop. It stops at any step, and goes on bit for bit."""

import logging
import math
import time
from functools import partial
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from nws import distributed
from nws.errors import Diverged, UserError
from nws.experiment.batches import EVALUATION_SEED, Batches, derive_seed
from nws.experiment.build import Parts
from nws.experiment.callbacks.callback import Row
from nws.experiment.checkpoints import State, from_checkpoint
from nws.experiment.config import to_dict
from nws.experiment.optimizers import restore, starting_rates, title, training
from nws.experiment.run import RunDirectory
from nws.experiment.signals import StopSignals
from nws.learning import CapturedStep
from nws.learning.step import STATISTICS
from nws.learning.together import log_sums
from nws.models import HelmholtzMachine
from nws.models.likelihood import kl_divergence, log_likelihood

log = logging.getLogger(__name__)


class Trainer:
    """Trains one machine on one data set.

    `parts` are at step 0; `name` is what loggers call the run, `group` what jobs of a sweep share,
    and `choices` are those of the groups of the configuration.

    Attributes:
        steps_per_epoch: Whole batches in a pass over the training images.
        rows: Those of metrics.csv.
        best: The best valid/log_likelihood so far, nats.
        seconds: Of training, evaluations left out.
        sums: Over the `count` steps since the last row, on the device, as STATISTICS says.
    """

    def __init__(
        self, parts: Parts, config: DictConfig, run: RunDirectory, name: str = "",
        group: str | None = None, choices: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.settings, self.data, self.learner = parts.settings, parts.data, parts.learner
        self.optimizer, self.scheduler = parts.optimizer, parts.scheduler
        self._take = CapturedStep(self.learner) if parts.settings.cuda_graph else self.learner.step
        self.total_steps, callbacks = parts.total_steps, parts.callbacks.items()
        self.callbacks = {name: each for name, each in callbacks if run.writes or not each.shows}
        self.every = [each.every for _, each in callbacks if each.every]  # in all processes
        self.config, self.run = to_dict(config), run
        self.name, self.group, self.choices = name, group, choices or {}
        self.machine, self.device = self.learner.machine, self.data.train.device
        self.seed = int(config.seed)
        sources = {metric.options.batch for metric in self.learner.metrics}
        self.batches = Batches(self.data, self.settings.batch_size, sources, self.seed)
        self.steps_per_epoch = len(self.data.train) // self.settings.batch_size
        self.plateau = isinstance(self.scheduler, ReduceLROnPlateau)
        self.step, self.count, self.seconds, self.best = 0, 0, 0.0, -math.inf
        self.rows: list[Row] = []
        self.sums = torch.zeros(len(STATISTICS), device=self.learner.rng.device)
        self.saved_step: int | None = None  # of last.pt

    @property
    def epoch(self) -> float:
        """Passes over the training images so far."""
        return self.step / self.steps_per_epoch

    @property
    def rates(self) -> tuple[float, float]:
        """The present learning rates of the generator and of recognition."""
        groups = self.optimizer.param_groups
        return groups[0]["lr"], groups[-1]["lr"]

    @property
    def ends(self) -> str:
        """Why the run ends here, empty where it goes on: its last step, or a callback's reason."""
        if self.step >= self.total_steps:
            return f"{self.place}; go on with trainer.epochs=N, N > {self.epoch:g}"
        return next((each.ends for each in self.callbacks.values() if each.ends), "")

    @property
    def place(self) -> str:
        """How far the run is, in words."""
        return f"step {self.step} of {self.total_steps}"

    def fit(self, stop: StopSignals) -> None:
        """Train to the end, or until a signal came; `Diverged` where numbers are not finite."""
        self.call("start", self)
        before = torch.get_float32_matmul_precision()
        tf32 = self.settings.precision == "tf32"
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        try:
            if not self.rows:
                self.rows.append(self._row())
                self._keep_row()
            while not distributed.any_(bool(self.ends)) and not stop.asked():
                with training(self.optimizer):
                    self._train_until_due(stop)
                if evaluates := self._is_due(self.settings.evaluate_every):
                    self.rows.append(self._row())
                self.call("due", self)
                if evaluates:  # the checkpoint comes last
                    self._keep_row()
            if self.ends and self.step < self.total_steps:
                log.warning(f"the run ends at {self.place}: {self.ends}")
            if self.saved_step != self.step:
                self.call("before_stop", self)
                self._save(best=False)
        except Diverged as error:
            kept = f"{self.run.last} (step {self.saved_step}) is the last good checkpoint"
            if self.saved_step is None:
                kept = "no checkpoint was written yet"
            raise Diverged(f"{error}; {kept}") from error
        finally:
            torch.set_float32_matmul_precision(before)

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of each callback, `due` where it is; one that shows the run may fail."""
        found = []
        for name, callback in list(self.callbacks.items()):
            if method == "due" and not (callback.every and self._is_due(callback.every)):
                continue
            try:
                found.append(getattr(callback, method)(*arguments))
            except (Exception, SystemExit) as error:  # wandb exits where its service failed
                if not callback.shows:
                    raise
                reason = f"{type(error).__name__}: {error}"
                log.warning(f"{name} failed ({reason}); going on without it")
                self.callbacks.pop(name, None)
        return found

    def _train_until_due(self, stop: StopSignals) -> None:
        """Take steps up to the next evaluation or other event, the end, or a signal."""
        started, due = time.perf_counter(), None  # None: no step was taken, and `fit` has asked
        try:
            while due is None or not (due or self.ends or stop.asked(self.step)):
                self._step()
                due = any(map(self._is_due, [self.settings.evaluate_every, *self.every]))
            for metric in self.learner.metrics:
                metric.metric.check()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        finally:
            self.seconds += time.perf_counter() - started

    def _step(self) -> None:
        for metric in self.learner.metrics:
            metric.learning_rate.fill_(self.rates[metric.network.upward])
        self.call("before_step", self)
        batches = self.batches.at(self.step, self.learner.rng)
        self.optimizer.step(partial(self._loss, *batches))  # type: ignore[arg-type]
        self.learner.after_step()
        if not self.plateau:
            self.scheduler.step()  # type: ignore[call-arg]
        self.step += 1
        self.call("after_step", self)

    def _loss(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Write the gradients of one batch; the closure that a torch optimizer calls."""
        try:
            result = self._take(x, other)
        except Diverged as error:
            raise Diverged(f"step {self.step + 1}: {error}") from error
        self.sums += result.statistics
        self.count += 1
        self.call("after_loss", self, result)
        return result.layer_losses.sum()

    def bound(self) -> float:
        """Return the mean training bound since the last row, in nats (synchronises)."""
        return float(self.sums[2]) / self.count

    def _is_due(self, epochs: float) -> bool:
        """Return whether something is due that comes every so many epochs, and at the end."""
        every = max(1, round(epochs * self.steps_per_epoch))
        return self.step % every == 0 or self.step == self.total_steps

    def _keep_row(self) -> None:
        """Write the checkpoints with the newest row."""
        row = self.rows[-1]
        mean = row["valid/log_likelihood"]
        if self.plateau and self.step:
            self.scheduler.step(mean)  # type: ignore[arg-type]
        self.call("after_row", self, row)
        better = self.step > 0 and mean > self.best
        if better:  # max() would keep a mean that is no number
            self.best = mean
        self._save(better)

    def _row(self) -> Row:
        """Return the row of metrics of this step, and start the sums of the next."""
        own = self.call("row", self)  # a callback may find that the numbers are lost
        row: Row = {"epoch": self.epoch, "step": self.step, "seconds": round(self.seconds, 3)}
        if self.count:  # means since the last row
            train = dict(zip(STATISTICS, (self.sums / self.count).tolist(), strict=True))
            if not self.learner.rule.recognition_dream:
                del train["dream_loss"]
            row |= {f"train/{name}": value for name, value in train.items()}
            self.sums.zero_()
            self.count = 0
        row |= self.validate(self.machine)
        row["learning_rate"], rate = self.rates
        if len(starting_rates(self.optimizer)) > 1:
            row["recognition/learning_rate"] = rate
        for name, value in (pair for columns in own for pair in (columns or {}).items()):
            if not isinstance(value, int | float):
                raise UserError(f"a callback's {name} must be an int or a float, got {value!r}")
            row[name] = value
        return row | (self.learner.report() if self.step else {})

    def validate(self, machine: HelmholtzMachine) -> Row:
        """Return the columns of an evaluation of a machine, in nats, always from the same draws."""
        images = self.data.valid.first(self.settings.evaluation_points)
        rng = torch.Generator(images.device).manual_seed(EVALUATION_SEED)
        samples = self.settings.evaluation_samples
        valid = log_likelihood(machine, images, samples, rng, sums=log_sums)
        row: Row = {"valid/log_likelihood": valid.mean}
        row |= {"valid/standard_error": valid.standard_error, "valid/samples": valid.samples}
        if self.data.distribution is not None:
            row["exact/kl"] = kl_divergence(machine, *self.data.distribution)
        return row

    def _save(self, best: bool) -> None:
        self.run.save(self.state_dict(), best)
        self.saved_step = self.step
        self.call("saved", self)

    def state_dict(self) -> State:
        """Return everything to go on bit for bit, as tensors and plain values."""
        plain = ("step", "total_steps", "seconds", "best", "sums", "count", "rows", "choices")
        return {name: getattr(self, name) for name in plain} | {
            "finished": bool(self.ends),
            "configuration": OmegaConf.to_yaml(OmegaConf.create(self.config)),
            "shape": list(self.data.shape),
            "machine": self.machine.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "optimizer_class": title(self.optimizer),
            "scheduler": self.scheduler.state_dict(),
            "metrics": [metric.state_dict() for metric in self.learner.metrics],
            "rng": self.learner.rng.get_state(),
            "rng_device": self.learner.rng.device.type,
            "callbacks": {name: each.state_dict() for name, each in self.callbacks.items()},
            "stateful": {name: each.state_dict() for name, each in self._stateful().items()},
        }

    def _stateful(self) -> dict[str, Any]:
        """Return the parts of a user's own that keep a state: a weighting, or families of units."""
        parts: dict[str, Any] = {"weighting": self.learner.rule.weighting}
        parts |= {f"units.{n}": each for n, each in enumerate(self.machine.units[:2])}
        return {name: each for name, each in parts.items() if hasattr(each, "state_dict")}

    def load_state_dict(self, state: State, changed: set[str]) -> None:
        """Go on from a checkpoint; options of the `changed` groups win over the saved ones."""
        with from_checkpoint(self.run.last):
            self.machine.load_state_dict(state["machine"])
            self.step = self.saved_step = state["step"]
            self.seconds, self.best, self.count = state["seconds"], state["best"], state["count"]
            self.rows = [dict(row) for row in state["rows"]]
            self.sums.copy_(state["sums"])
            # With new options, or another number of steps, the schedule is followed from step 0.
            longer = state["total_steps"] != self.total_steps and not self.plateau
            steps = 0 if self.plateau else min(self.step, self.total_steps)
            again = longer or changed & {"optimizer", "scheduler"}
            restore(self.optimizer, self.scheduler, state, steps if again else None)
            old = state["metrics"]  # a run that had none starts with them here
            anew = changed if old else {"damping", "metric"}
            fresh = "damping" in anew, bool(anew & {"metric", "solver"})
            for metric, saved in zip(self.learner.metrics, old or 2 * [state], strict=False):
                metric.load_state_dict(saved, *fresh)
            for name, saved in state["callbacks"].items():
                if name in self.callbacks and name not in changed:
                    self.callbacks[name].load_state_dict(saved)
            for name, each in self._stateful().items():
                each.load_state_dict(state["stateful"][name])
            rng, device = self.learner.rng, state["rng_device"]
            if device == rng.device.type:
                rng.set_state(state["rng"])
            else:
                log.warning(f"the checkpoint is from {device}: its draws go on from a new seed")
                rng.manual_seed(derive_seed(self.seed, 1, self.step))
