"""One run as Hydra starts it, by itself or as a job of a sweep: its errors, output and end."""

import logging
import math
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException
from hydra.types import RunMode
from omegaconf import DictConfig

from nws.errors import Diverged
from nws.experiment.launch.sweeps import PARENT, STOPPED, Sweep, in_process
from nws.experiment.process.boundary import end_program, explain, say_error
from nws.experiment.process.invocation import command_line
from nws.experiment.process.processes import meet_tasks
from nws.experiment.process.signals import end_with, lower_shield
from nws.experiment.process.terminal import Terminal, silence_warnings, write_line
from nws.experiment.storage.directory import RunDirectory
from nws.experiment.storage.lock import Taken
from nws.experiment.storage.sweep_record import read_record

log = logging.getLogger(__name__)


def remove_empty(directory: Path) -> None:
    """Remove a directory that holds nothing, and those above it, up to the working directory."""
    here = Path.cwd()
    with suppress(OSError):  # one that holds something
        while directory != here and here in directory.parents:
            directory.rmdir()
            directory = directory.parent


class Job:
    """One run of train.py as Hydra sees it: by itself, or a job of a sweep."""

    def __init__(self) -> None:
        self.hydra = HydraConfig.get()
        self.best = -math.inf  # the run's result in nats; it stays so where the run diverged
        self.sweep = self.hydra.mode == RunMode.MULTIRUN
        self.in_worker = self.sweep and not in_process(self.hydra.launcher)
        # The choices of experiment and debug are among those of the groups.
        self.choices = {
            name: choice
            for name, choice in self.hydra.runtime.choices.items()
            if not name.startswith("hydra/") and name not in ("experiment", "debug") and choice
        }

    @property
    def goes_on(self) -> bool:
        """Whether the job takes part in what was started before: resume=auto."""
        return "resume=auto" in self.hydra.overrides.task

    @property
    def shares_output(self) -> bool:
        """Whether other jobs write to the same terminal or file at the same time."""
        return self.in_worker and "joblib" in str(self.hydra.launcher._target_)

    def title(self, name: str) -> str:
        """Return an experiment's name; in a sweep with the job's number and its own overrides."""
        if not self.sweep:
            return name
        shared = [*read_record(Path(self.hydra.sweep.dir)).get("overrides", []), "resume=auto"]
        own = [text for text in self.hydra.overrides.task if text not in shared]
        return f"{name}, job {self.hydra.job.num}: {' '.join(own)}"

    def terminal(self, config: DictConfig) -> Terminal:
        """Return what the run shows itself on, as the configuration asks for it."""
        verbosity = config.get("verbosity", "normal")  # runs of version 0.2 have none
        if verbosity == "quiet":
            silence_warnings()
        name = str(self.hydra.job.num) if self.shares_output else None
        return Terminal(verbosity, config.progress, name)

    @property
    def origin(self) -> dict[str, Any]:
        """What this run was asked for by: command line, overrides and experiment."""
        command = Sweep.command
        if self.in_worker:  # another process than that of the command
            command = read_record(Path(self.hydra.sweep.dir)).get("command", [])
        experiment = self.hydra.runtime.choices.get("experiment")
        overrides = [str(text) for text in self.hydra.overrides.task]
        return {"command": command, "overrides": overrides, "experiment": experiment}

    @contextmanager
    def reports_errors(self) -> Iterator[None]:
        """Turn an error into one message, without a traceback.

        It ends a single run, which then leaves no empty directory. In a sweep the other jobs go
        on, and Hydra repeats the message at the end. A search goes on after a run that diverged.
        """
        logging.raiseExceptions = False  # a log on a full disk is no reason for a traceback
        try:
            with self._interrupts():
                yield
        except CompactHydraException:  # of this class, which Hydra reports
            raise
        except BrokenPipeError as error:
            end_program(error)
        except Exception as error:
            directory = Path(self.hydra.runtime.output_dir)
            message, status = explain(error, directory / f"{self.hydra.job.name}.log")
            if self.sweep:
                self._fail(error, message)
                return
            remove_empty(directory)
            if directory.exists():
                log.info("error: %s", message)  # for the log file
            say_error(message)
            sys.exit(status)

    def _fail(self, error: Exception, message: str) -> None:
        """End a job of a sweep over an error, for Hydra to report at the end of the sweep."""
        searches = "direction" in self.hydra.sweeper  # Optuna's, which wants a result
        if isinstance(error, Taken) and not searches and self.goes_on:
            write_line(f"job {self.hydra.job.num} is left out: {message}")
            return
        log.error(message)
        if not (isinstance(error, Diverged) and searches):
            raise CompactHydraException(f"error: {message}") from None

    @contextmanager
    def _interrupts(self) -> Iterator[None]:
        """In a process of its own, do not start in a stopped sweep; Ctrl-C ends this job alone."""
        if not self.in_worker:
            yield
            return
        try:
            if self.shares_output:
                end_with(int(os.environ[PARENT]))
            if (Path(self.hydra.sweep.dir) / STOPPED).exists():
                raise CompactHydraException("not started: the sweep was stopped; use resume=auto")
            if "submitit" in str(self.hydra.launcher._target_):  # else each task is a job by itself
                meet_tasks()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            lower_shield()
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
