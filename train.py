"""Train a Helmholtz machine: `python train.py [resume=RUN|auto] [key=value ...]`; `python train.py --help` lists the groups."""

import logging
import math
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from nws.errors import UserError
from nws.experiment.checkpoint import load_checkpoint
from nws.experiment.loggers import WandbLogger, check_mode
from nws.experiment.run import (
    RunDirectory,
    absolute_paths,
    build_data,
    build_machine,
    build_metrics,
    build_optimizer,
    build_rule,
    build_scheduler,
    check_groups,
    checked,
    derive_seed,
    open_run,
    overridden,
    override,
    pick_device,
    plain,
    resume_arguments,
    save_config,
    saved_choices,
    unused_options,
)
from nws.experiment.sweeps import (
    auto_arguments,
    end_by_signal,
    is_finished,
    job,
    left_state,
    plugin_arguments,
    stopping,
)
from nws.experiment.trainer import Trainer, TrainerSettings
from nws.learning.wake_sleep import WakeSleep

log = logging.getLogger(__name__)


def train(
    config: DictConfig,
    run: RunDirectory,
    state: dict[str, Any] | None,
    changed: set[str],
    choices: dict[str, str],
    group: str | None,
) -> tuple[float, int | None]:
    """One run, new (`state` None) or gone on with from a checkpoint.

    Returns its best validation log-likelihood in nats, and the signal that stopped it, if one did. Raises `Diverged` where
    numbers are not finite any more.
    """
    check_groups(config)
    absolute_paths(config)
    device = pick_device(config.device)
    settings = checked(TrainerSettings, "trainer", **plain(config.trainer))
    rule = build_rule(config)
    check_mode(config.logger.get("mode"))
    data = build_data(config, device)
    machine = build_machine(config, data).to(device)
    total_steps = max(1, round(settings.epochs * settings.steps_per_epoch(len(data.train))))
    rng = torch.Generator(device).manual_seed(derive_seed(config.seed, 1))
    learner = WakeSleep(machine, rule, rng, build_metrics(config, total_steps, machine))
    optimizer = build_optimizer(config, total_steps, machine)
    scheduler = build_scheduler(config, total_steps, optimizer)

    def keep_config() -> (
        None
    ):  # config.yaml is always that of last.pt: a failed resume leaves both alone
        save_config(run, config, choices)

    trainer = Trainer(
        settings,
        data,
        machine,
        learner,
        optimizer,
        scheduler,
        run,
        config.seed,
        config.progress,
        keep_config,
    )
    if state is None:
        if not run.config.is_file():
            run.claim()
        keep_config()
    else:
        trainer.load_state_dict(state, changed)
        if trainer.step >= total_steps:
            print(
                f"nothing to do: step {trainer.step} of {total_steps}; go on with trainer.epochs=N, N > {settings.epochs:g}"
            )
            return trainer.best, None

    print(run.path, flush=True)
    wandb_id = state["wandb_id"] if state is not None else None
    trainer.wandb = checked(
        WandbLogger,
        "logger",
        run.path,
        config=plain(config),
        run_id=wandb_id,
        group=group,
        **plain(config.logger),
    )
    exit_code = 1
    try:
        stopped = trainer.fit()
        exit_code = 0 if stopped is None else 128 + stopped
        return trainer.best, stopped
    finally:
        trainer.wandb.finish(trainer.summary(), exit_code)


def starting_point(
    config: DictConfig, hydra_config: HydraConf
) -> tuple[RunDirectory, DictConfig, dict[str, Any] | None, set[str]]:
    """What `resume` stands for: the run, its configuration, its last checkpoint (None: a new run), the groups that changed."""
    run = RunDirectory(Path(hydra_config.runtime.output_dir))
    if config.resume == "auto":
        state, config.resume = left_state(run, config), None
        return run, config, state, set()
    if config.resume is None:
        run.check_free()
        return run, config, None, set()
    run, saved = open_run(config.resume)
    as_before = {f"{name}={choice}" for name, choice in saved_choices(run).items()}
    overrides = [text for text in hydra_config.overrides.task if text not in as_before]
    changed = {overridden(text).split(".")[0] for text in overrides}
    return run, override(saved, config, overrides), load_checkpoint(run.last), changed


@contextmanager
def alone(hydra_config: HydraConf) -> Iterator[None]:
    """Around a run that is no job of a sweep: a user's error ends the program, and leaves no empty run directory."""
    try:
        yield
    except (UserError, OmegaConfBaseException) as error:
        directory = Path(hydra_config.runtime.output_dir)
        if any(directory.iterdir()):
            log.info("error: %s", error)  # for the log file
        else:
            directory.rmdir()
        sys.exit(f"error: {error}")


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> float:
    """One run, or one job of a sweep. Returns its best validation log-likelihood, which hydra/sweeper=optuna maximizes."""
    logging.raiseExceptions = (
        False  # a log file that cannot be written, on a full disk, is no reason for a traceback
    )
    hydra_config = HydraConfig.get()
    sweep = hydra_config.mode == RunMode.MULTIRUN
    group = "/".join(Path(hydra_config.sweep.dir).parts[-2:]) if sweep else None
    chosen = hydra_config.runtime.choices
    choices = {
        name: choice for name, choice in chosen.items() if "/" not in name and choice is not None
    }
    for name in ("experiment", "debug"):  # their choices of groups are among the others
        choices.pop(name, None)
    best, stopped = -math.inf, None  # of a job that diverged
    with job(hydra_config) if sweep else alone(hydra_config):
        automatic = config.resume == "auto"
        run, config, state, changed = starting_point(config, hydra_config)
        if automatic and state is not None and is_finished(state):
            print(f"finished already: step {state['step']} of {state['total_steps']}")
            best = float(state["best"])
        else:
            unused = unused_options(config, hydra_config.overrides.task) if state is None else []
            if unused:
                log.warning(
                    "without effect with metric=%s: %s", config.metric.kind, ", ".join(unused)
                )
            best, stopped = train(config, run, state, changed, choices, group)
        if stopped is not None and not sweep:
            print(
                f"stopped by signal {stopped}; go on with\n  python train.py {shlex.quote(f'resume={run.path}')}"
            )
        print(run.path)
        if stopped is not None:
            end_by_signal(stopped, hydra_config)
    return best


if __name__ == "__main__":
    try:
        with stopping(sys.argv[1:]):
            arguments = resume_arguments(plugin_arguments(sys.argv[1:]))
            sys.argv[1:] = auto_arguments(arguments, Path(__file__).resolve().parent / "conf")
            main()
    except UserError as error:
        sys.exit(f"error: {error}")
