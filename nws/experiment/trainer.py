"""The training loop: batches, steps, evaluations, checkpoints, images; it stops and goes on bit for bit."""

import logging
import math
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from tqdm import tqdm

from nws.data.datasets import Dataset, Split
from nws.errors import Diverged, UserError, positive_int
from nws.experiment.checkpoint import load_parameters, save_checkpoint
from nws.experiment.images import image_grid, save_png, stacked_grid
from nws.experiment.loggers import MetricsFile, Row, WandbLogger
from nws.experiment.run import RunDirectory, derive_seed
from nws.learning.wake_sleep import STATISTICS, WakeSleep
from nws.models.helmholtz import HelmholtzMachine
from nws.models.likelihood import kl_divergence, log_likelihood
from nws.models.sampling import generate, reconstruct

log = logging.getLogger(__name__)

EVALUATION_SEED = (
    0  # of validation and images: the same draws for every run, and none taken from training's
)
IMAGES = 64
SHUFFLES = {"train": 2, "unlabeled": 3}  # the stream of random numbers that shuffles each part


@dataclass(frozen=True)
class TrainerSettings:
    """The `trainer` group. Epochs and intervals are in passes over the training part and may be fractions.

    Raises `UserError` for what is not positive.
    """

    epochs: float
    batch_size: int
    evaluate_every: float
    images_every: float
    check_every: int  # steps between looks at the losses on the device: progress bar, finiteness
    evaluation_samples: int
    evaluation_points: int | None  # validation images used; null: all

    def __post_init__(self) -> None:
        for name in ("epochs", "evaluate_every", "images_every"):
            value = getattr(self, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0 < value < math.inf
            ):
                raise UserError(f"trainer.{name} must be a number of epochs above 0, got {value!r}")
        for name in ("batch_size", "check_every", "evaluation_samples"):
            positive_int(f"trainer.{name}", getattr(self, name))
        if self.evaluation_points is not None:
            positive_int("trainer.evaluation_points", self.evaluation_points)

    def steps_per_epoch(self, images: int, kind: str = "training") -> int:
        """Whole batches in one pass over `images`; the few images left over are other ones in each epoch's shuffle."""
        if self.batch_size > images:
            raise UserError(
                f"trainer.batch_size must be at most the {images} {kind} images, got {self.batch_size}; lower it"
            )
        return images // self.batch_size


class Trainer:
    """Trains one machine on one data set, and leaves behind what a run leaves behind (metrics, checkpoints, images)."""

    def __init__(
        self,
        settings: TrainerSettings,
        data: Dataset,
        machine: HelmholtzMachine,
        learner: WakeSleep,
        optimizer: Optimizer,
        scheduler: LRScheduler | ReduceLROnPlateau,
        run: RunDirectory,
        seed: int,
        progress: bool = True,
        on_save: Callable[[], object] = lambda: None,  # called after each checkpoint
    ) -> None:
        self.settings, self.data, self.machine, self.learner = settings, data, machine, learner
        self.optimizer, self.scheduler, self.run, self.seed = optimizer, scheduler, run, seed
        self.on_save = on_save
        self.device = data.train.bytes.device
        self.steps_per_epoch = settings.steps_per_epoch(len(data.train))
        if any(metric.settings.batch == "unlabeled" for metric in learner.metrics):
            if data.unlabeled is None:
                raise UserError(
                    f"metric.batch=unlabeled needs a data set with unlabelled images, {data.name} has none; use data=tfd,"
                    " or metric.batch=other for another batch of the training images"
                )
            settings.steps_per_epoch(len(data.unlabeled), "unlabelled")
        self.total_steps = max(1, round(settings.epochs * self.steps_per_epoch))
        self.step, self.seconds, self.best, self.saved_step = 0, 0.0, -math.inf, 0
        self.layer_names = [
            f"{net.name} layer {edge}"
            for net in machine.networks
            for edge in range(len(net.layers))
        ]
        self.sums = torch.zeros(
            len(STATISTICS), device=self.device
        )  # since the last evaluation, over `count` steps
        self.count = 0
        self.first_bad = torch.full(
            (len(self.layer_names),), -1, device=self.device
        )  # first step of a loss not finite
        self.show = progress and sys.stdout.isatty()
        self._orders: dict[
            tuple[str, int], Tensor
        ] = {}  # of each part the shuffle of this epoch and of its neighbour
        self.metrics = MetricsFile(run.metrics)
        self.wandb: WandbLogger | None = None

    def fit(self) -> int | None:
        """Train to the last step, or to a signal. Returns the signal that stopped it, None where it came to its end.

        Raises `Diverged` where a loss or a parameter is not finite, `UserError` where a file cannot be written.
        """
        bar = tqdm(
            desc=self._position(), total=self.total_steps, initial=self.step, unit=" steps", leave=False,
            disable=not self.show, file=sys.stdout, dynamic_ncols=True,
        )  # fmt: skip
        with _StopSignal() as stop, bar:
            while self.step < self.total_steps and stop.caught is None:
                started = time.perf_counter()
                try:
                    self._train_until_due(bar, stop)
                except UserError:  # a solver's, of rows that it cannot use
                    self._check()  # where numbers are not finite, these are the reason
                    raise
                self.seconds += time.perf_counter() - started
                self._check()
                last = self.step == self.total_steps
                if self._due(self.settings.images_every) or last:
                    self._draw_images()
                if self._due(self.settings.evaluate_every) or last:
                    self._evaluate()
            if stop.caught is not None and self.saved_step != self.step:
                self._save(best=False)
            return stop.caught

    def _train_until_due(self, bar: "tqdm[Any]", stop: "_StopSignal") -> None:
        """Steps up to the next evaluation or image, the end, or a signal; the clock of training runs here alone."""
        while True:
            for metric in self.learner.metrics:
                metric.learning_rate.fill_(self.optimizer.param_groups[0]["lr"])
            self.optimizer.step(partial(self._loss, *self._batches()))  # type: ignore[arg-type]  # a tensor is what it takes
            self.learner.after_step()
            if not isinstance(self.scheduler, ReduceLROnPlateau):
                self.scheduler.step()
            self.step += 1
            bar.update()
            if self.step % self.settings.check_every == 0:
                self._check()
                bar.set_description(self._position(), refresh=False)
                bar.set_postfix_str(f"bound {float(self.sums[2]) / self.count:.2f} nats")
            due = self._due(self.settings.evaluate_every) or self._due(self.settings.images_every)
            if due or self.step == self.total_steps or stop.caught is not None:
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)
                return

    def _loss(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Write the gradients of one batch; the closure that a torch optimizer asks for."""
        result = self.learner.step(x, other)
        self.sums += result.statistics
        self.count += 1
        bad = ~result.layer_losses.isfinite() & (self.first_bad < 0)
        self.first_bad.masked_fill_(bad, self.step + 1)
        return result.layer_losses.sum()

    def _batches(self) -> list[Tensor]:
        """The next batch, and where a metric takes its rows from another: the one after it, or one of unlabelled images."""
        batches = [self._batch(self.data.train, self.step, "train")]
        sources = {metric.settings.batch for metric in self.learner.metrics}
        if "other" in sources:
            batches.append(self._batch(self.data.train, self.step + 1, "train"))
        elif "unlabeled" in sources:
            assert self.data.unlabeled is not None
            batches.append(self._batch(self.data.unlabeled, self.step, "unlabeled"))
        return batches

    def _batch(self, split: Split, step: int, part: str) -> Tensor:
        """A step's batch. The shuffle is a function of seed, part and epoch alone, so there is no state to save."""
        size = self.settings.batch_size
        epoch, batch = divmod(step, len(split) // size)  # an epoch is a pass over this part
        if (part, epoch) not in self._orders:
            rng = torch.Generator().manual_seed(derive_seed(self.seed, SHUFFLES[part], epoch))
            kept = {
                key: order
                for key, order in self._orders.items()
                if key[0] != part or key[1] == epoch - 1
            }
            self._orders = {
                **kept,
                (part, epoch): torch.randperm(len(split), generator=rng).to(self.device),
            }
        return split.batch(
            self._orders[part, epoch][batch * size : (batch + 1) * size], self.learner.rng
        )

    def _position(self) -> str:
        return f"epoch {self.step / self.steps_per_epoch:.2f}/{self.settings.epochs:g}"

    def _due(self, epochs: float) -> bool:
        return self.step % max(1, round(epochs * self.steps_per_epoch)) == 0

    def _check(self) -> None:
        """Raise `Diverged` where a loss or a parameter is not finite, naming the first step and layer where it was seen."""
        finite = torch.stack(
            [parameter.isfinite().all() for parameter in self.machine.parameters()]
        )
        report = torch.cat([self.first_bad, finite.long()]).tolist()  # one synchronisation
        bad_steps, finite_parameters = (
            report[: len(self.layer_names)],
            report[len(self.layer_names) :],
        )
        found = [
            (step, name)
            for step, name in zip(bad_steps, self.layer_names, strict=True)
            if step >= 0
        ]
        what = "the loss"
        if not found and not all(finite_parameters):
            names = [name for name, _ in self.machine.named_parameters()]
            found = [
                (self.step, name)
                for name, good in zip(names, finite_parameters, strict=True)
                if not good
            ]
            what = "the parameter"
        if found:
            step, name = min(found, key=lambda pair: pair[0])
            kept = (
                f"{self.run.last} (step {self.saved_step}) is the last good checkpoint"
                if self.saved_step
                else "no checkpoint was written yet"
            )
            raise Diverged(
                f"step {step}: {what} of {name} is not finite, with a learning rate of "
                f"{self.optimizer.param_groups[0]['lr']:g}; lower optimizer.lr, or start from smaller weights "
                f"(model.weight_scale); {kept}"
            )

    def _evaluate(self) -> None:
        """One row of metrics, one line on the terminal, the checkpoints."""
        settings, rng = self.settings, torch.Generator(self.device).manual_seed(EVALUATION_SEED)
        valid = log_likelihood(
            self.machine,
            self.data.valid.batch()[: settings.evaluation_points],
            settings.evaluation_samples,
            rng,
        )
        train = dict(zip(STATISTICS, (self.sums / self.count).tolist(), strict=True))
        row: Row = {
            "epoch": self.step / self.steps_per_epoch,
            "step": self.step,
            "seconds": round(self.seconds, 3),
        }
        row |= {
            f"train/{name}": train[name] for name in ("wake_loss", "dream_loss", "log_likelihood")
        }
        row |= {"valid/log_likelihood": valid.mean, "train/ess": train["ess"]}
        row |= {"valid/standard_error": valid.standard_error, "valid/samples": valid.samples}
        row["learning_rate"] = self.optimizer.param_groups[0]["lr"]
        if self.data.distribution is not None:
            row["exact/kl"] = kl_divergence(self.machine, *self.data.distribution)
        row |= self.learner.report()
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(valid.mean)
        self.sums.zero_()
        self.count = 0

        self.metrics.write(row)
        if self.wandb is not None:
            self.wandb.write(row)
        exact = f"  KL {row['exact/kl']:.3f}" if "exact/kl" in row else ""
        self.say(
            f"epoch {row['epoch']:7.2f}  step {self.step:7d}  valid {valid.mean:9.3f} ± {valid.standard_error:.3f} nats"
            f" ({valid.samples} samples)  train bound {train['log_likelihood']:9.3f}  ess {train['ess']:5.2f}"
            f"{exact}  {self.seconds:7.1f} s"
        )
        coins = -math.log(2) * math.prod(self.data.shape)
        if self.step == self.total_steps and valid.mean < 1.5 * coins:
            log.warning(
                "the run ended at %.4g nats, far below what a fair coin a pixel reaches (%.1f): lower optimizer.lr",
                valid.mean, coins,
            )  # fmt: skip
        better = valid.mean > self.best
        self.best = max(valid.mean, self.best)
        self._save(better)

    def _draw_images(self) -> None:
        rng = torch.Generator(self.device).manual_seed(EVALUATION_SEED)
        originals = self.data.valid.batch()[: IMAGES // 2]
        grids = {
            "generated": image_grid(generate(self.machine, IMAGES, rng), self.data.shape),
            "reconstructed": stacked_grid(
                [originals, reconstruct(self.machine, originals, rng)], self.data.shape
            ),
        }
        for name, grid in grids.items():
            path = self.run.images / f"{name}_step_{self.step:07d}.png"
            save_png(grid, path)
            if self.wandb is not None:
                self.wandb.images(f"images/{name}", path, self.step)

    def _save(self, best: bool) -> None:
        state = self.state_dict()
        for path in [self.run.best] * best + [self.run.last]:
            save_checkpoint(path, state)
        self.saved_step = self.step
        self.on_save()

    def state_dict(self) -> dict[str, Any]:
        """Everything to go on bit for bit, as tensors and plain values."""
        rng = self.learner.rng
        return {
            "step": self.step,
            "total_steps": self.total_steps,
            "seconds": self.seconds,
            "best": self.best,
            "sums": self.sums,
            "count": self.count,
            "machine": self.machine.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "optimizer_class": type(self.optimizer).__name__,
            "scheduler": self.scheduler.state_dict(),
            "metrics": [metric.state_dict() for metric in self.learner.metrics],
            "rng": rng.get_state(),
            "rng_device": rng.device.type,
            "wandb_id": self.wandb.id if self.wandb is not None else None,
        }

    def load_state_dict(self, state: dict[str, Any], changed: set[str]) -> None:
        """Go on from a checkpoint. `changed`: the groups that the user overrode, whose new options win over the saved ones.

        New options of the optimizer or the scheduler, or another number of steps, mean that the schedule is followed anew up
        to here; what the optimizer has gathered (momentum, second moments) stays, unless it is another optimizer.
        Raises `UserError` for a checkpoint of another architecture.
        """
        load_parameters(self.machine, state["machine"], self.run.last)
        self.step = self.saved_step = state["step"]
        self.seconds, self.best, self.count = state["seconds"], state["best"], state["count"]
        self.sums.copy_(state["sums"])
        plateau = isinstance(self.scheduler, ReduceLROnPlateau)
        longer = state["total_steps"] != self.total_steps and not plateau
        anew = longer or bool(changed & {"optimizer", "scheduler"})
        saved = dict(state["optimizer"])
        if anew:
            if not plateau:
                self._follow_schedule(min(self.step, self.total_steps))
            saved["param_groups"] = self.optimizer.state_dict()["param_groups"]
        else:
            self.scheduler.load_state_dict(state["scheduler"])
        if state["optimizer_class"] == type(self.optimizer).__name__:
            self.optimizer.load_state_dict(saved)
        fresh_solvers = bool(changed & {"metric", "solver"})
        for metric, metric_state in zip(self.learner.metrics, state["metrics"], strict=False):
            metric.load_state_dict(metric_state, "damping" in changed, fresh_solvers)
        if not state[
            "metrics"
        ]:  # the run had none so far; a schedule of the damping goes by the run's steps
            for metric in self.learner.metrics:
                metric.start_at(self.step)
        if state["rng_device"] == self.device.type:
            self.learner.rng.set_state(state["rng"])
        else:
            log.warning(
                "the checkpoint is from %s: on %s its draws cannot be continued",
                state["rng_device"],
                self.device,
            )
            self.learner.rng.manual_seed(derive_seed(self.seed, 1, self.step))
        self.metrics = MetricsFile(self.run.metrics, self.step)

    def _follow_schedule(self, steps: int) -> None:
        with warnings.catch_warnings():  # torch wonders why the optimizer has not stepped
            warnings.simplefilter("ignore", UserWarning)
            for _ in range(steps):
                self.scheduler.step()  # type: ignore[call-arg]  # not the plateau's

    def summary(self) -> Row:
        """The run in a few numbers, for Weights & Biases."""
        return {
            "best/log_likelihood": self.best,
            "steps": self.step,
            "training_seconds": round(self.seconds, 3),
        }

    def say(self, line: str) -> None:
        """One line to the run's log file, and to the terminal where there is one and `progress` is on."""
        log.info(line)
        if self.show:
            tqdm.write(line)


class _StopSignal:
    """Holds SIGINT and SIGTERM back while it is entered: `caught` is the first one's number. A second one acts at once."""

    def __init__(self) -> None:
        self.caught: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "_StopSignal":
        if threading.current_thread() is threading.main_thread():
            self._previous = {
                number: signal.signal(number, self._catch)
                for number in (signal.SIGINT, signal.SIGTERM)
            }
        return self

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self.caught = number
        self._restore()
        print(
            f"\nstopping after this step (signal {number}); once more to stop at once",
            file=sys.stderr,
            flush=True,
        )

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def __exit__(self, *exception: object) -> None:
        self._restore()
