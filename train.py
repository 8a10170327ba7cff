"""Train a Helmholtz machine: `python train.py [resume=RUN|auto] [key=value ...]`; `python train.py --help` lists the groups."""

import logging
import math
import shlex
import signal
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
from nws.sweeps import (
    STOPPED,
    Sweep,
    auto_arguments,
    in_process,
    is_finished,
    is_search,
    left_state,
    plugin_arguments,
    stopping,
)
from nws.trainer import Trainer, TrainerSettings
from nws.wake_sleep import WakeSleep

log = logging.getLogger(__name__)


class Diverged(UserError):
    """A run whose numbers are not finite any more."""


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
            return trainer.best, None

    print(run.path, flush=True)
    wandb_id = state["wandb_id"] if state is not None else None
    trainer.wandb = checked(
        WandbLogger, "logger", run.path, config=plain(config), run_id=wandb_id, group=group, **plain(config.logger)
    )
    exit_code = 1
    try:
        stopped = trainer.fit()
        exit_code = 0 if stopped is None else 128 + stopped
        return trainer.best, stopped
    except UserError as error:
        finite = bool((trainer.first_bad < 0).all()) and all(
            bool(each.isfinite().all()) for each in machine.parameters()
        )
        raise error if finite else Diverged(str(error)) from None
    finally:
        trainer.wandb.finish(trainer.summary(), exit_code)


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> float:
    """One run, or one job of a sweep. Returns its best validation log-likelihood, which hydra/sweeper=optuna maximizes."""
    logging.raiseExceptions = False  # a log file that cannot be written, on a full disk, is no reason for a traceback
    hydra_config = HydraConfig.get()
    run = RunDirectory(Path(hydra_config.runtime.output_dir))
    sweep = hydra_config.mode == RunMode.MULTIRUN
    worker = sweep and not in_process(hydra_config.launcher)  # a job in a process beside others
    group = "/".join(Path(hydra_config.sweep.dir).parts[-2:]) if sweep else None
    chosen = hydra_config.runtime.choices
    choices = {name: choice for name, choice in chosen.items() if "/" not in name and choice is not None}
    for name in ("experiment", "debug"):  # their choices of groups are among the others
        choices.pop(name, None)
    state, changed = None, set[str]()
    try:
        if worker:
            if (Path(hydra_config.sweep.dir) / STOPPED).exists():
                raise CompactHydraException("not started: the sweep was stopped; go on with resume=auto")
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if config.resume == "auto":
            state, config.resume = left_state(run, config), None
            if state is not None and is_finished(state):
                print(f"finished already: step {state['step']} of {state['total_steps']}\n{run.path}")
                return float(state["best"])
        elif config.resume is not None:
            run, saved = open_run(config.resume)
            as_before = {f"{name}={choice}" for name, choice in saved_choices(run).items()}
            overrides = [text for text in hydra_config.overrides.task if text not in as_before]
            config = override(saved, config, overrides)
            state, changed = load_checkpoint(run.last), {text.split("=")[0].split(".")[0] for text in overrides}
        best, stopped = train(config, run, state, changed, choices, group)
    except (UserError, OmegaConfBaseException) as error:
        if sweep:  # the other jobs go on; Hydra repeats the first error at the end
            log.error("%s", error)
            if isinstance(error, Diverged) and is_search(hydra_config.sweeper):
                return -math.inf
            raise CompactHydraException(f"error: {error}") from None
        if any(run.path.iterdir()):
            log.info("error: %s", error)  # for the log file
        else:
            run.path.rmdir()
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        if not worker:
            raise
        raise CompactHydraException("interrupted") from None  # what runs in the other processes is left to save
    finally:
        if worker:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # this process may wait for others, which a signal would harm
    if stopped is not None and not sweep:
        print(f"stopped by signal {stopped}; go on with\n  python train.py {shlex.quote(f'resume={run.path}')}")
    print(run.path)
    if stopped is not None:
        if worker:
            raise CompactHydraException(f"stopped by signal {stopped}")
        Sweep.caught = stopped
        sys.exit(128 + stopped)
    return best


if __name__ == "__main__":
    try:
        with stopping(sys.argv[1:]):
            arguments = resume_arguments(plugin_arguments(sys.argv[1:]))
            sys.argv[1:] = auto_arguments(arguments, Path(__file__).resolve().parent / "conf")
            main()
    except UserError as error:
        sys.exit(f"error: {error}")
