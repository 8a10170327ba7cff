"""Train a Helmholtz machine: `python train.py [resume=RUN] [key=value ...]`; `python train.py --help` lists the groups."""

import logging
import shlex
import sys
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from nws.checkpoint import load_checkpoint
from nws.errors import UserError
from nws.loggers import WandbLogger, check_mode
from nws.run import (
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
    override,
    pick_device,
    plain,
    resume_arguments,
    save_config,
    saved_choices,
)
from nws.trainer import Trainer, TrainerSettings
from nws.wake_sleep import WakeSleep

log = logging.getLogger(__name__)


def train(
    config: DictConfig,
    run: RunDirectory,
    state: dict[str, Any] | None,
    changed: set[str],
    choices: dict[str, str],
    group: str | None,
) -> int | None:
    """One run, new (`state` None) or gone on with from a checkpoint. Returns the signal that stopped it, if one did."""
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

    def keep_config() -> None:  # config.yaml is always that of last.pt: a failed resume leaves both alone
        save_config(run, config, choices)

    trainer = Trainer(
        settings, data, machine, learner, optimizer, scheduler, run, config.seed, config.progress, keep_config
    )
    if state is None:
        keep_config()
    else:
        trainer.load_state_dict(state, changed)
        if trainer.step >= total_steps:
            print(
                f"nothing to do: step {trainer.step} of {total_steps}; go on with trainer.epochs=N, N > {settings.epochs:g}"
            )
            return None

    print(run.path, flush=True)
    wandb_id = state["wandb_id"] if state is not None else None
    trainer.wandb = checked(
        WandbLogger, "logger", run.path, config=plain(config), run_id=wandb_id, group=group, **plain(config.logger)
    )
    exit_code = 1
    try:
        stopped = trainer.fit()
        exit_code = 0 if stopped is None else 128 + stopped
        return stopped
    finally:
        trainer.wandb.finish(trainer.summary(), exit_code)


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    logging.raiseExceptions = False  # a log file that cannot be written, on a full disk, is no reason for a traceback
    hydra_config = HydraConfig.get()
    run = RunDirectory(Path(hydra_config.runtime.output_dir))
    sweep = hydra_config.mode == RunMode.MULTIRUN
    group = "/".join(Path(hydra_config.sweep.dir).parts[-2:]) if sweep else None
    chosen = hydra_config.runtime.choices
    choices = {name: choice for name, choice in chosen.items() if "/" not in name and choice is not None}
    for name in ("experiment", "debug"):  # their choices of groups are among the others
        choices.pop(name, None)
    state, changed = None, set[str]()
    try:
        if config.resume is not None:
            run, saved = open_run(config.resume)
            as_before = {f"{name}={choice}" for name, choice in saved_choices(run).items()}
            overrides = [text for text in hydra_config.overrides.task if text not in as_before]
            config = override(saved, config, overrides)
            state, changed = load_checkpoint(run.last), {text.split("=")[0].split(".")[0] for text in overrides}
        stopped = train(config, run, state, changed, choices, group)
    except (UserError, OmegaConfBaseException) as error:
        if sweep:  # the other jobs go on; Hydra repeats the first error at the end
            log.error("%s", error)
            raise CompactHydraException(f"error: {error}") from None
        if any(run.path.iterdir()):
            log.info("error: %s", error)  # for the log file
        else:
            run.path.rmdir()
        sys.exit(f"error: {error}")
    if stopped is not None:
        print(f"stopped by signal {stopped}; go on with\n  python train.py {shlex.quote(f'resume={run.path}')}")
    print(run.path)
    if stopped is not None:
        sys.exit(128 + stopped)


if __name__ == "__main__":
    try:
        sys.argv[1:] = resume_arguments(sys.argv[1:])
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
