"""Sweeps: their directories, and what happens around one.

A sweep's directory holds a run directory for each job (0, 1, ...), and `sweep.yaml`: the command
that started the sweep.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from nws.experiment.signals import StopSignals, announce
from nws.files import write_atomically

STOPPED = "stopped"  # the file that keeps the jobs of a sweep from starting


def sweep_name(name: str, data: str, algorithm: str, overrides: Sequence[str]) -> str:
    """Return the folder of a sweep in multirun/.

    It is the experiment's name without what the sweep varies, "sweep" where nothing is left.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    swept = {override.key_or_group for override in parsed if override.is_sweep_override()}
    standard = f"{data}_{algorithm}"
    if name.endswith(standard):
        kept = [
            part
            for key, part in (("data", data), ("algorithm", algorithm))
            if not swept & {key, f"{key}.name"}
        ]
        name = "_".join([*filter(None, [name.removesuffix(standard).strip("_")]), *kept])
    return "sweep" if swept & {"experiment", "name"} or not name else name


def sweep_directory(parent: str, time: str, resume: str | None, overrides: DictConfig) -> str:
    """Return the directory of a sweep in `parent`.

    It is named by the time. With resume=auto it is the newest one of the same command, if any.
    """
    if resume == "auto":
        for record in sorted(Path(parent).glob("*/sweep.yaml"), reverse=True):
            if OmegaConf.load(record) == {"overrides": sweep_command(overrides)}:
                return str(record.parent)
    return f"{parent}/{time}"


def sweep_command(overrides: DictConfig) -> list[str]:
    """Return what makes two sweeps the same: the overrides of jobs and sweeper, no launcher."""
    ways = [text for text in overrides.hydra if text.startswith(("hydra/sweeper", "hydra.sweeper"))]
    return [text for text in overrides.task if text.lstrip("+").split("=")[0] != "resume"] + ways


# Cached, so that all jobs of a sweep share the folder that was named at its start.
OmegaConf.register_new_resolver("sweep_name", sweep_name, use_cache=True, replace=True)
OmegaConf.register_new_resolver("sweep_directory", sweep_directory, use_cache=True, replace=True)


class Sweep(Callback):
    """Hydra's callback at the start of a sweep: keeps its command, and lets a signal stop it.

    Jobs in this process save and end the sweep themselves. Where they run in other processes, the
    first signal keeps further jobs from starting and waits for those that run: Ctrl-C reaches
    these too, and they save. A second signal stops at once.
    """

    directory: Path | None = None  # of the sweep that this process started
    caught: int | None = None  # the signal that stopped it
    signals: StopSignals | None = None

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        directory = Path(config.hydra.sweep.dir).resolve()
        Sweep.directory, Sweep.caught = directory, None
        # Optuna's data base logs even where there is none.
        logging.getLogger("alembic").setLevel(logging.WARNING)
        (directory / STOPPED).unlink(missing_ok=True)
        record = directory / "sweep.yaml"
        if config.resume == "auto":
            what = "going on with the sweep" if record.exists() else "a new sweep"
            print(f"resume=auto: {what} in {directory}")
        if config.resume != "auto" or not record.exists():
            command = {"overrides": sweep_command(config.hydra.overrides)}
            write_atomically(record, OmegaConf.to_yaml(command).encode())
        if not in_process(config.hydra.launcher):
            Sweep.signals = StopSignals(self._stop).install()

    def _stop(self, number: int) -> None:
        Sweep.caught = number
        if Sweep.directory is not None:
            (Sweep.directory / STOPPED).touch()
        announce("the sweep", number)

    @classmethod
    def end(cls) -> None:
        """Give the signals back."""
        if cls.signals is not None:
            cls.signals.restore()
        cls.signals = None


def in_process(launcher: DictConfig) -> bool:
    """Return whether a launcher runs the jobs one after the other in its own process."""
    return str(launcher._target_).endswith(".BasicLauncher")


# TEMPORARY: old names until the merge; to be deleted.
PLUGINS = {
    "hydra/launcher=joblib": "hydra_joblib_launcher",
    "hydra/launcher=submitit_slurm": "hydra_submitit_launcher",
    "hydra/launcher=submitit_local": "hydra_submitit_launcher",
    "hydra/sweeper=optuna": "hydra_optuna_sweeper",
}
SETTINGS = {
    "hydra/launcher=submitit_slurm": "hydra/launcher=slurm",
    "hydra/sweeper=optuna": "hydra/sweeper=search",
}


def is_finished(state: dict[str, Any]) -> bool:
    return bool(state["step"] >= state["total_steps"])
