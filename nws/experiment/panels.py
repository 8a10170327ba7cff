"""The panels at the start and at the end of a run: what it is, and what became of it."""

from typing import Any

from omegaconf import DictConfig

from nws import distributed
from nws.experiment.evaluation import Likelihood, best_and_last
from nws.experiment.hardware import device_text
from nws.experiment.invocation import command_line
from nws.experiment.provenance import Facts
from nws.experiment.terminal import PanelLines, Terminal, duration, short_path
from nws.experiment.trainer import Trainer

MAX_LAYERS = 6  # that are listed; of more the middle ones are left out


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
    layers = [str(size) for size in facts["layers"]]
    if len(layers) > MAX_LAYERS:
        layers = [*layers[: MAX_LAYERS - 2], "..", layers[-1]]
    network = f"{'-'.join(layers)} ({len(facts['layers'])} layers)"
    processes = f", {distributed.size()} processes" * (distributed.size() > 1)
    return [
        ("algorithm", f"{config.algorithm.name}, K = {trainer.learner.rule.samples}"),
        ("metric", metric_text(trainer, config)),
        ("optimizer", optimizer_text(trainer, config)),
        ("data", f"{data.name} {data.shape[0]}x{data.shape[1]}: {sizes}{held}"),
        ("layers", f"{network}, {facts['parameters']:,} parameters"),
        ("device", device_text(trainer.device.type) + processes),
    ]


def metric_text(trainer: Trainer, config: DictConfig) -> str:
    """Return the metric with its solver and damping."""
    if not trainer.learner.metrics:
        return "Euclidean: the plain gradient"
    metric = trainer.learner.metrics[0]
    parts = [type(metric.metric).__name__]
    parts += [_name(config.solver._target_)] * hasattr(metric.metric, "solvers")
    kind = _name((config.damping.get("schedule") or config.damping)._target_)
    parts.append(f"damping {float(metric.damping.alpha):g} {kind}".removesuffix(" Damping"))
    return ", ".join(parts)


def optimizer_text(trainer: Trainer, config: DictConfig) -> str:
    """Return the optimizer, its rates at the start of the schedule, and the schedule."""
    groups = trainer.optimizer.param_groups
    rates = dict.fromkeys(f"{group.get('initial_lr', group['lr']):g}" for group in groups)
    momentum = f", momentum {groups[0]['momentum']:g}" if groups[0].get("momentum") else ""
    schedule = _name((config.scheduler.get("lr_lambda") or config.scheduler)._target_)
    return f"{type(trainer.optimizer).__name__}{momentum}, rate {' and '.join(rates)}, {schedule}"


def _name(target: object) -> str:
    """Return the last word of a `_target_`."""
    return str(target).rpartition(".")[2]


def end_rows(trainer: Trainer, facts: Facts) -> PanelLines:
    """Return what became of a run; `facts` are those of its provenance."""
    best, last = best_and_last(trainer.rows)
    rows = [
        (name, likelihood_text(each)) for name, each in (("best", best), ("last", last)) if each
    ]
    pace = f", {facts['ms_per_step']:.1f} ms a step" if facts["ms_per_step"] else ""
    training, evaluation = facts["training_seconds"], facts["evaluation_seconds"]
    return [
        *rows,
        ("time", f"{duration(training)} training{pace}; {duration(evaluation)} evaluation"),
        ("memory", f"{facts['peak_memory_bytes'] / 2**20:,.0f} MiB at most"),
    ]


def likelihood_text(found: Likelihood) -> str:
    """Return a validation log-likelihood with its error and its place."""
    value = f"{found.mean:.3f} ± {found.standard_error:.3f} nats"
    return f"{value} on validation images, epoch {found.epoch:.2f}, step {found.step:,}"


def show_end(terminal: Terminal, trainer: Trainer, facts: dict[str, Any], single: bool) -> None:
    """Show what became of a run, and the commands to look at a single one."""
    stopped = facts["state"] == "stopped"
    where = f" at step {trainer.step:,} of {trainer.total_steps:,}"
    terminal.panel(facts["state"] + where * stopped, end_rows(trainer, facts))
    if single and not stopped and trainer.run.best.is_file():
        terminal.line("next:")
        for program in ("sample", "evaluate", "plot"):
            terminal.line(f"  {command_line(program, short_path(trainer.run.path))}")
