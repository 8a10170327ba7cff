"""Train a Helmholtz machine: `python train.py [resume=RUN] [key=value ...]`; `python train.py --help` lists the groups."""

import sys
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException
from hydra.types import RunMode
from omegaconf import DictConfig

from nws.checkpoint import load_checkpoint
from nws.errors import UserError
from nws.loggers import WandbLogger
from nws.run import (
    RunDirectory,
    build,
    build_data,
    build_machine,
    build_rule,
    derive_seed,
    open_run,
    override,
    pick_device,
    plain,
    save_config,
)
from nws.trainer import Trainer, TrainerSettings
from nws.wake_sleep import WakeSleep


def train(
    config: DictConfig, run: RunDirectory, state: dict[str, Any] | None, changed: set[str], group: str | None
) -> int | None:
    """One run, new (`state` None) or gone on with from a checkpoint. Returns the signal that stopped it, if one did."""
    device = pick_device(config.device)
    settings = TrainerSettings(**config.trainer)
    rule = build_rule(config)
    data = build_data(config, device)
    machine = build_machine(config, data).to(device)
    learner = WakeSleep(machine, rule, torch.Generator(device).manual_seed(derive_seed(config.seed, 1)))
    total_steps = max(1, round(settings.epochs * settings.steps_per_epoch(len(data.train))))
    optimizer = build(config.optimizer, total_steps, machine.parameters())
    scheduler = build(config.scheduler, total_steps, optimizer)
    trainer = Trainer(settings, data, machine, learner, optimizer, scheduler, run, config.seed, config.progress)
    if state is not None:
        trainer.load_state_dict(state, changed)

    save_config(run, config)
    wandb_id = state["wandb_id"] if state is not None else None
    trainer.wandb = WandbLogger(run.path, config=plain(config), run_id=wandb_id, group=group, **config.logger)
    exit_code = 1
    try:
        stopped = trainer.fit()
        exit_code = 0 if stopped is None else 128 + stopped
        return stopped
    finally:
        trainer.wandb.finish(trainer.summary(), exit_code)


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    hydra_config = HydraConfig.get()
    run = RunDirectory(Path(hydra_config.runtime.output_dir))
    group = str(Path(hydra_config.sweep.dir).resolve()) if hydra_config.mode == RunMode.MULTIRUN else None
    state, changed = None, set()
    try:
        if config.resume is not None:
            run, saved = open_run(config.resume)
            overrides = list(hydra_config.overrides.task)
            config = override(saved, config, overrides)
            state, changed = load_checkpoint(run.last), {text.split("=")[0].split(".")[0] for text in overrides}
        print(run.path, flush=True)
        stopped = train(config, run, state, changed, group)
    except UserError as error:
        raise CompactHydraException(f"error: {error}") from None
    if stopped is not None:
        print(f"stopped by signal {stopped}; go on with\n  python train.py resume={run.path}")
    print(run.path)
    if stopped is not None:
        sys.exit(128 + stopped)


def resumed_directory(arguments: list[str]) -> list[str]:
    """The override that keeps Hydra's log of a resumed run in the run's own directory."""
    for argument in arguments:
        if argument.startswith("resume=") and argument != "resume=null":
            run, _ = open_run(argument.removeprefix("resume=").strip("'\""))
            return [f"hydra.run.dir='{run.path}'"]
    return []


if __name__ == "__main__":
    try:
        sys.argv += resumed_directory(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
    main()
