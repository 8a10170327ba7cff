"""What a run says: what it is, a line for each evaluation, and what became of it."""

import logging
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from nws.experiment.callbacks.callback import Callback, Row, Trainer
from nws.experiment.config import foreign_modules, parameters_of
from nws.experiment.hardware import surroundings
from nws.experiment.invocation import command_line
from nws.experiment.optimizers import starting_rates, title

log = logging.getLogger(__name__)

LOOK_EVERY = 1.0  # seconds between two looks at the bound, each of which waits for the device
#: How a line shows the columns of metrics.csv that it has, what matters most first.
PARTS = {
    "epoch": "epoch {epoch:6.2f}",
    "step": "step {step:7d}",
    "valid/log_likelihood": "valid {valid/log_likelihood:8.3f} ± {valid/standard_error:.3f} nats",
    "train/log_likelihood": "bound {train/log_likelihood:8.3f}",
    "exact/kl": "KL {exact/kl:.3f}",
    "average/log_likelihood": "average {average/log_likelihood:8.3f}",
    "seconds": "{seconds:.1f} s",
    "train/ess": "ess {train/ess:.2f}",
    "valid/samples": "{valid/samples} samples",
}


def write_line(text: object) -> None:
    """Write a line to standard output as one piece, which parallel jobs may share."""
    print(f"{text}\n", end="", flush=True)


def short_path(path: Path) -> Path:
    """Return a path relative to the working directory where it lies below it."""
    here = Path.cwd()
    return path.relative_to(here) if path != here and path.is_relative_to(here) else path


class Terminal(Callback):
    """Says what a run is and how it goes: lines, and below them a bar where there is a terminal.

    The title is the run's name, and the code that it runs. The number of a job that shares the
    output stands before each line, without a bar. The end of a single run says what to do next.
    """

    def __init__(self, title: str, config: DictConfig, job: str | None, single: bool) -> None:
        self.title, self.config, self.single = title, config, single
        self.name = "" if job is None else f"[{job}] "
        self.is_terminal = sys.stdout.isatty() and job is None
        self.bars = Progress(
            TextColumn("{task.description}"), BarColumn(None), TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"), transient=True, expand=True,
            disable=not (config.progress and self.is_terminal),
        )  # fmt: skip
        self._looked = time.monotonic()

    def start(self, trainer: Trainer) -> None:
        """Say what the run is, in short where several runs share a terminal; start the bar."""
        settings, rows = trainer.settings, [] if self.name else self._identity(trainer)
        steps = f"{trainer.total_steps:,} of {settings.batch_size} images"
        rows.append(("steps", f"{steps}, {settings.epochs:g} epoch{'s' * (settings.epochs != 1)}"))
        if trainer.rows:
            rows.append(("resumed", f"from step {trainer.step:,} (epoch {trainer.epoch:.2f})"))
        self._panel(self.title, [*rows, ("directory", short_path(trainer.run.path))])
        self.bars.start()
        total, step = trainer.total_steps, trainer.step
        self._bar = self.bars.add_task("training", total=total, completed=step, note="")

    def after_step(self, trainer: Trainer) -> None:
        """Show the step on the bar; the bound is read from time to time."""
        if self.bars.disable:
            return
        head, now = f"epoch {trainer.epoch:.2f} of {trainer.settings.epochs:g}", time.monotonic()
        self.bars.update(self._bar, completed=trainer.step, description=head)
        if now - self._looked > LOOK_EVERY:
            self.bars.update(self._bar, note=f"bound {trainer.bound():.2f} nats")
            self._looked = now

    def after_row(self, trainer: Trainer, row: Row) -> None:
        """Write a row of metrics.csv, on a terminal the first parts that fit into its width."""
        shown = [text.format_map(row) for name, text in PARTS.items() if name in row]
        log.info("  ".join(shown))
        while self.is_terminal and len("  ".join(shown)) > self.bars.console.width:
            shown.pop()
        write_line(self.name + "  ".join(shown))

    def finish(self, trainer: Trainer, summary: dict[str, Any], state: str) -> None:
        """Say what became of the run, and the commands to look at a single one."""
        self.bars.stop()
        if state not in ("finished", "stopped"):
            return
        trained = [row for row in trainer.rows if row["step"]]
        best = [row for row in trained if row["valid/log_likelihood"] == trainer.best]
        rows = [("best", likelihood_text(row)) for row in best[:1]]
        rows += [("last", likelihood_text(row)) for row in trained[-1:]]
        pace = f", {1000 * trainer.seconds / trainer.step:.1f} ms a step" if trainer.step else ""
        rows.append(("time", f"{timedelta(seconds=round(trainer.seconds))} of training{pace}"))
        self._panel(state if state == "finished" else f"{state} at {trainer.place}", rows)
        if self.single and state == "finished" and trainer.run.best.is_file():
            place = short_path(trainer.run.path)
            trust = [word for each in foreign_modules(self.config) for word in ("--trust", each)]
            commands = [command_line(each, place, *trust) for each in ("sample", "evaluate")]
            write_line("\n  ".join(["next:", *commands, command_line("plot", place)]))

    def _panel(self, head: str, rows: Sequence[tuple[str, object]]) -> None:
        lines = [head, *(f"  {label:10} {what}" for label, what in rows)]
        write_line("\n".join(self.name + line for line in lines))  # one piece
        log.info("\n".join(lines))

    def _identity(self, trainer: Trainer) -> list[tuple[str, object]]:
        """Return what is trained, on what and by what."""
        data, sizes, rule = trainer.data, trainer.machine.sizes, trainer.learner.rule
        count = sum(each.numel() for each in trainer.machine.parameters())
        device = "{processor}, torch {torch}, threads {threads}, processes {processes}"
        parts = f"{len(data.train):,} train, {len(data.valid):,} valid, {len(data.test):,} test"
        held = ", in host memory" * (data.train.onto is not None)
        rounded = ", products in bfloat16" * (trainer.learner.precision == torch.bfloat16)
        layers = f"{'-'.join(map(str, sizes))} ({len(sizes)} layers)"
        return [
            ("algorithm", f"{self.config.algorithm.name}, K = {rule.samples}"),
            ("metric", metric_text(trainer, self.config)),
            ("optimizer", optimizer_text(trainer, self.config)),
            ("data", f"{data.name} {data.shape[0]}x{data.shape[1]}: {parts}{held}"),
            ("layers", f"{layers}, {count:,} parameters"),
            ("device", device.format(**surroundings(trainer.device)) + rounded),
        ]


def metric_text(trainer: Trainer, config: DictConfig) -> str:
    """Return the metric with its solver and damping."""
    if not trainer.learner.metrics:
        return "Euclidean: the plain gradient"
    metric = trainer.learner.metrics[0]
    parts = [type(metric.metric).__name__]
    if "solver" in parameters_of(type(metric.metric))[0]:
        parts.append(config.solver._target_.rpartition(".")[2])
    inner = getattr(config.damping.get("schedule"), "_target_", None)
    kind = (inner or config.damping._target_).rpartition(".")[2]
    parts.append(f"damping {float(metric.damping.alpha):g} {kind}".removesuffix(" Damping"))
    return ", ".join(parts)


def optimizer_text(trainer: Trainer, config: DictConfig) -> str:
    """Return the optimizer, its rates at the start of the schedule, and the schedule."""
    groups = trainer.optimizer.param_groups
    rates = " and ".join(starting_rates(trainer.optimizer))
    momentum = f", momentum {groups[0]['momentum']:g}" if groups[0].get("momentum") else ""
    inner = getattr(config.scheduler.get("lr_lambda"), "_target_", None)  # of a list none
    schedule = (inner or config.scheduler._target_).rpartition(".")[2]
    return f"{title(trainer.optimizer)}{momentum}, rate {rates}, {schedule}"


def likelihood_text(row: Row) -> str:
    """Return the validation log-likelihood of a row with its error and its place."""
    value = f"{row['valid/log_likelihood']:.3f} ± {row['valid/standard_error']:.3f} nats"
    return f"{value} on validation images, epoch {row['epoch']:.2f}, step {row['step']:,}"
