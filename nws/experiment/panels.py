"""The panels at the start and at the end of a run: what it is, and what became of it."""

import torch
from omegaconf import DictConfig

from nws.experiment.callbacks.callback import Row
from nws.experiment.config import parameters_of
from nws.experiment.hardware import device_text
from nws.experiment.invocation import command_line
from nws.experiment.optimizers import starting_rates, title
from nws.experiment.provenance import Facts
from nws.experiment.terminal import Terminal, duration, short_path
from nws.experiment.trainer import Trainer


def identity(trainer: Trainer) -> Facts:
    """Return the layers of a machine, the visible one first, and the number of its parameters."""
    parameters = sum(each.numel() for each in trainer.machine.parameters())
    return {"layers": list(trainer.machine.sizes), "parameters": parameters}


def show_start(
    terminal: Terminal, title: str, trainer: Trainer, config: DictConfig, code: str
) -> None:
    """Show what a run is; in short where several runs share a terminal."""
    settings = trainer.settings
    rows = [] if terminal.name else identity_rows(trainer, config)
    steps = f"{trainer.total_steps:,} of {settings.batch_size} images"
    rows.append(("steps", f"{steps}, {settings.epochs:g} epoch{'s' * (settings.epochs != 1)}"))
    if trainer.rows:
        rows.append(("resumed", f"from step {trainer.step:,} (epoch {trainer.epoch:.2f})"))
    rows.append(("directory", str(short_path(trainer.run.path))))
    terminal.panel(title, rows, code)


def identity_rows(trainer: Trainer, config: DictConfig) -> list[tuple[str, str]]:
    """Return the lines of the panel that say what is trained, on what and by what."""
    data, facts = trainer.data, identity(trainer)
    sizes = f"{len(data.train):,} train, {len(data.valid):,} valid, {len(data.test):,} test"
    held = ", in host memory" * (data.train.onto is not None)
    rounded = ", products in bfloat16" * (trainer.learner.precision == torch.bfloat16)
    network = f"{'-'.join(map(str, facts['layers']))} ({len(facts['layers'])} layers)"
    return [
        ("algorithm", f"{config.algorithm.name}, K = {trainer.learner.rule.samples}"),
        ("metric", metric_text(trainer, config)),
        ("optimizer", optimizer_text(trainer, config)),
        ("data", f"{data.name} {data.shape[0]}x{data.shape[1]}: {sizes}{held}"),
        ("layers", f"{network}, {facts['parameters']:,} parameters"),
        ("device", device_text(trainer.device.type) + rounded),
    ]


def metric_text(trainer: Trainer, config: DictConfig) -> str:
    """Return the metric with its solver and damping."""
    if not trainer.learner.metrics:
        return "Euclidean: the plain gradient"
    metric = trainer.learner.metrics[0]
    parts = [type(metric.metric).__name__]
    if "solver" in parameters_of(type(metric.metric))[0]:
        parts.append(_name(config.solver._target_))
    kind = _name((config.damping.get("schedule") or config.damping)._target_)
    parts.append(f"damping {float(metric.damping.alpha):g} {kind}".removesuffix(" Damping"))
    return ", ".join(parts)


def optimizer_text(trainer: Trainer, config: DictConfig) -> str:
    """Return the optimizer, its rates at the start of the schedule, and the schedule."""
    groups = trainer.optimizer.param_groups
    rates = " and ".join(starting_rates(trainer.optimizer))
    momentum = f", momentum {groups[0]['momentum']:g}" if groups[0].get("momentum") else ""
    schedule = _name((config.scheduler.get("lr_lambda") or config.scheduler)._target_)
    return f"{title(trainer.optimizer)}{momentum}, rate {rates}, {schedule}"


def _name(target: object) -> str:
    """Return the last word of a `_target_`."""
    return str(target).rpartition(".")[2]


def show_end(terminal: Terminal, trainer: Trainer, facts: Facts, single: bool) -> None:
    """Show what became of a run, by its provenance, and the commands to look at a single one."""
    trained = [row for row in trainer.rows if row["step"]]
    best = [row for row in trained if row["valid/log_likelihood"] == trainer.best]
    rows = [("best", likelihood_text(row)) for row in best[:1]]
    rows += [("last", likelihood_text(row)) for row in trained[-1:]]
    pace = f", {facts['ms_per_step']:.1f} ms a step" if facts["ms_per_step"] else ""
    rows.append(("time", f"{duration(trainer.seconds)} training{pace}"))
    stopped = facts["state"] == "stopped"
    where = f" at step {trainer.step:,} of {trainer.total_steps:,}"
    terminal.panel(facts["state"] + where * stopped, rows)
    if single and not stopped and trainer.run.best.is_file():
        terminal.line("next:")
        for program in ("sample", "evaluate", "plot"):
            terminal.line(f"  {command_line(program, short_path(trainer.run.path))}")


def likelihood_text(row: Row) -> str:
    """Return the validation log-likelihood of a row with its error and its place."""
    value = f"{row['valid/log_likelihood']:.3f} ± {row['valid/standard_error']:.3f} nats"
    return f"{value} on validation images, epoch {row['epoch']:.2f}, step {row['step']:,}"
