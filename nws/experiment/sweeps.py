"""Runs and sweeps as Hydra starts them: their directories, errors, signals and exit codes.

A sweep's directory holds a run directory for each job (0, 1, ...), and `sweep.yaml`: the command
that started the sweep.
"""

import logging
import math
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import CompactHydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nws.errors import Diverged, UserError
from nws.experiment.directory import RunDirectory
from nws.experiment.invocation import command_line
from nws.experiment.signals import StopSignals, announce
from nws.experiment.terminal import write_line
from nws.files import write_atomically

log = logging.getLogger(__name__)

STOPPED = "stopped"  # the file that keeps the jobs of a sweep from starting


def sweep_name(name: str, data: str, algorithm: str, overrides: Sequence[str]) -> str:
    """Return the folder of a sweep in multirun/.

    It is the experiment's name without what the sweep varies, "sweep" where nothing is left.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    swept = {override.key_or_group for override in parsed if override.is_sweep_override()}
    if name.endswith(f"{data}_{algorithm}"):
        parts = [name.removesuffix(f"{data}_{algorithm}").strip("_")]
        for key, part in {"data": data, "algorithm": algorithm}.items():
            if not swept & {key, f"{key}.name"}:
                parts.append(part)
        name = "_".join(filter(None, parts))
    return "sweep" if swept & {"experiment", "name"} or not name else name


def sweep_directory(parent: str, time: str, resume: str | None, overrides: DictConfig) -> str:
    """Return a sweep's directory; for resume=auto the newest one of the same command, if any."""
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
    signals = StopSignals(lambda number: Sweep._stop(number))

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Note the sweep's directory and command, and take over the stopping signals."""
        Sweep.directory = directory = Path(config.hydra.sweep.dir).resolve()
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
            Sweep.signals.install()

    @classmethod
    def _stop(cls, number: int) -> None:
        cls.caught = number
        if cls.directory is not None:
            (cls.directory / STOPPED).touch()
        announce("the sweep", number)


def in_process(launcher: DictConfig) -> bool:
    """Return whether a launcher runs the jobs one after the other in its own process."""
    return str(launcher._target_).endswith(".BasicLauncher")


class Job:
    """One run of train.py as Hydra sees it: by itself, or a job of a sweep."""

    def __init__(self) -> None:
        self.hydra = HydraConfig.get()
        self.best = -math.inf  # the run's result in nats; it stays so where the run diverged
        self.sweep = self.hydra.mode == RunMode.MULTIRUN
        self.in_worker = self.sweep and not in_process(self.hydra.launcher)
        # The name that the jobs of a sweep share in Weights & Biases.
        self.group = "/".join(Path(self.hydra.sweep.dir).parts[-2:]) if self.sweep else None
        # The choices of experiment and debug are among those of the groups.
        self.choices = {
            name: choice
            for name, choice in self.hydra.runtime.choices.items()
            if not name.startswith("hydra/") and name not in ("experiment", "debug") and choice
        }

    @contextmanager
    def errors_for_people(self) -> Iterator[None]:
        """Turn a user's error into one message, without a traceback.

        It ends a single run, which then leaves no empty directory. In a sweep the other jobs go
        on, and Hydra repeats the message at the end. A search goes on after a run that diverged.
        """
        logging.raiseExceptions = False  # a log on a full disk is no reason for a traceback
        try:
            with self._interrupts():
                yield
        except (UserError, OmegaConfBaseException) as error:
            if self.sweep:
                log.error(error)
                if isinstance(error, Diverged) and "direction" in self.hydra.sweeper:  # Optuna's
                    return
                raise CompactHydraException(f"error: {error}") from None
            directory = Path(self.hydra.runtime.output_dir)
            if any(directory.iterdir()):
                log.info("error: %s", error)  # for the log file
            else:
                directory.rmdir()
            sys.exit(f"error: {error}")

    @contextmanager
    def _interrupts(self) -> Iterator[None]:
        """In a process of its own, do not start in a stopped sweep; Ctrl-C ends this job alone."""
        if not self.in_worker:
            yield
            return
        try:
            if (Path(self.hydra.sweep.dir) / STOPPED).exists():
                raise CompactHydraException("not started: the sweep was stopped; use resume=auto")
            signal.signal(signal.SIGINT, signal.default_int_handler)
            yield
        except KeyboardInterrupt:
            raise CompactHydraException("interrupted") from None
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # this process may wait for others

    def end(self, run: RunDirectory, stopped: int | None) -> None:
        """Print the run's directory, and end the program or the job where a signal stopped it."""
        if stopped is not None and not self.sweep and not run.is_finished():
            command = command_line("train", f"resume={run.path}")
            write_line(f"stopped by signal {stopped}; go on with\n  {command}")
        write_line(run.path)
        if stopped is not None and self.in_worker:
            raise CompactHydraException(f"stopped by signal {stopped}")
        if stopped is not None:
            Sweep.caught = stopped
            sys.exit(128 + stopped)


@contextmanager
def program(arguments: Sequence[str]) -> Iterator[None]:
    """Surround the program: one message for a user's error, and how to go on after a signal."""
    Sweep.directory, Sweep.caught = None, None
    try:
        yield
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        Sweep.caught = signal.SIGINT
        sys.exit(128 + signal.SIGINT)
    finally:
        Sweep.signals.restore()
        if Sweep.directory is not None and Sweep.caught is not None:
            rest = [text for text in arguments if text.lstrip("+").split("=")[0] != "resume"]
            command = command_line("train", *rest, "resume=auto")
            print(f"the sweep was stopped by signal {int(Sweep.caught)}; go on with\n  {command}")
            print(Sweep.directory)
            sys.exit(128 + Sweep.caught)
