"""Sweeps, and what Hydra does around runs: directories, signals, errors of its own.

A sweep's directory holds a run directory for each job (0, 1, ...), and `sweep.yaml`: the overrides
that make it this sweep, the command that started it, and the keys that it varies.
"""

import io
import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import CompactHydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nws import distributed
from nws.experiment.process.boundary import end_program, errors_for_people
from nws.experiment.process.invocation import command_line
from nws.experiment.process.signals import Shield, StopSignals, announce
from nws.experiment.process.terminal import Terminal, short_path
from nws.experiment.storage.sweep_record import RECORD, read_record
from nws.files import make_folder, remove_abandoned, write_atomically

log = logging.getLogger(__name__)

# Loggers that say what a run says itself; and Optuna's data base, even where there is none.
CHATTY = (
    "hydra._internal.core_plugins.basic_launcher", "hydra_plugins.hydra_joblib_launcher", "alembic",
)  # fmt: skip
FULL_ERROR = "HYDRA_FULL_ERROR"  # the variable that lets errors pass through Hydra
STOPPED = "stopped"  # the file that keeps the jobs of a sweep from starting
PARENT = "NWS_SWEEP_PROCESS"  # the variable by which workers know the process of their sweep


def sweep_name(name: str, data: str, algorithm: str, overrides: Sequence[str]) -> str:
    """Return the folder of a sweep in multirun/.

    It is the experiment's name without what the sweep varies, "sweep" where nothing is left.
    """
    name, data, algorithm = str(name), str(data), str(algorithm)  # 2026 is a name too
    swept = set(varied_keys(overrides))
    if name.endswith(f"{data}_{algorithm}"):
        parts = [name.removesuffix(f"{data}_{algorithm}").strip("_")]
        for key, part in {"data": data, "algorithm": algorithm}.items():
            if not swept & {key, f"{key}.name"}:
                parts.append(part)
        name = "_".join(filter(None, parts))
    return "sweep" if swept & {"experiment", "name"} or not name else name


def varied_keys(overrides: Sequence[str]) -> list[str]:
    """Return the keys, or groups, of those overrides that have several values."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return [each.key_or_group for each in parsed if each.is_sweep_override()]


def sweep_directory(parent: str, time: str, resume: str | None, overrides: DictConfig) -> str:
    """Return a sweep's directory; for resume=auto the newest one of the same command, if any."""
    if resume == "auto":
        for record in sorted(Path(parent).glob(f"*/{RECORD}"), reverse=True):
            if read_record(record.parent).get("overrides") == sweep_command(overrides):
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

    command: ClassVar[list[str]] = []  # that this process was started by
    directory: Path | None = None  # of the sweep that this process started
    caught: int | None = None  # the signal that stopped it
    full_error: str | None = None  # the user's HYDRA_FULL_ERROR
    signals = StopSignals(lambda number: Sweep._stop(number))
    shield = Shield()

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Make the run's directory. Hydra would answer a full disk with a traceback."""
        with errors_for_people():
            make_folder(Path(config.hydra.run.dir))

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Note the sweep's directory and command, and take over the stopping signals."""
        with errors_for_people():
            make_folder(Path(config.hydra.sweep.dir))
            self._start(config)

    def _start(self, config: DictConfig) -> None:
        Sweep.directory = directory = Path(config.hydra.sweep.dir).resolve()
        terminal = Terminal(config.verbosity)
        silenced = CHATTY if terminal.speaks else (*CHATTY, "hydra", "hydra_plugins", "optuna")
        for name in silenced:
            logging.getLogger(name).setLevel(logging.WARNING)
        os.environ[PARENT] = str(os.getpid())
        remove_abandoned(directory)
        if (directory / STOPPED).exists():
            (directory / STOPPED).unlink()
        record = directory / RECORD
        if config.resume == "auto":
            what = "going on with the sweep" if record.exists() else "a new sweep"
            terminal.line(f"resume=auto: {what} in {directory}")
        else:
            terminal.line(f"sweep in {short_path(directory)}")
        if config.resume != "auto" or not record.exists():
            # An experiment or a sweeper may have keys to vary too.
            params = config.hydra.sweeper.get("params") or {}
            listed = [f"{key}={params[key]}" for key in params]
            varies = dict.fromkeys(varied_keys([*config.hydra.overrides.task, *listed]))
            content = {
                "overrides": sweep_command(config.hydra.overrides), "command": Sweep.command,
                "varies": [*varies],
            }  # fmt: skip
            write_atomically(record, OmegaConf.to_yaml(content).encode())
        if not in_process(config.hydra.launcher):
            Sweep.signals.install()
            Sweep.shield.install()

    @classmethod
    def _stop(cls, number: int) -> None:
        cls.caught = number
        if cls.directory is not None:
            (cls.directory / STOPPED).touch()
        announce("the sweep", number)
        if not cls.full_error:
            sys.stderr = io.StringIO()  # see `stopped_jobs_unreported`


def in_process(launcher: DictConfig) -> bool:
    """Return whether a launcher runs the jobs one after the other in its own process."""
    return str(launcher._target_).endswith(".BasicLauncher")


@contextmanager
def stopped_jobs_unreported() -> Iterator[None]:
    """Drop what Hydra writes to stderr once the sweep was stopped: to it, a stopped job failed."""
    errors = sys.stderr
    try:
        yield
    finally:
        sys.stderr = errors


@contextmanager
def hydra_errors_for_people() -> Iterator[None]:
    """Print Hydra's own errors as it does. Others it would print as tracebacks: they pass."""
    Sweep.full_error = os.environ.get(FULL_ERROR)
    os.environ[FULL_ERROR] = "1"  # errors pass through Hydra
    try:
        yield
    except CompactHydraException as error:
        if Sweep.full_error:
            raise
        cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else None
        print(*filter(None, (error, cause)), sep="\n", file=sys.stderr)
        sys.exit(1)
    finally:
        del os.environ[FULL_ERROR]
        if Sweep.full_error is not None:
            os.environ[FULL_ERROR] = Sweep.full_error


@contextmanager
def program(arguments: Sequence[str], report: Callable[[Path], None]) -> Iterator[None]:
    """Surround the program: one message for a user's error, and how to go on after a signal.

    At the end of a sweep, however it ended, `report` is called with its directory.
    """
    Sweep.directory, Sweep.caught = None, None
    Sweep.command = shlex.split(command_line("train", *arguments))
    try:
        with stopped_jobs_unreported(), hydra_errors_for_people():
            yield
        distributed.stop()
    except (Exception, KeyboardInterrupt) as error:
        Sweep.caught = signal.SIGINT if isinstance(error, KeyboardInterrupt) else Sweep.caught
        end_program(error)
    finally:
        Sweep.shield.restore()
        Sweep.signals.restore()
        if Sweep.directory is not None:
            report(Sweep.directory)
        if Sweep.directory is not None and Sweep.caught is not None:
            rest = [text for text in arguments if text.lstrip("+").split("=")[0] != "resume"]
            command = command_line("train", *rest, "resume=auto")
            print(f"the sweep was stopped by signal {int(Sweep.caught)}; go on with\n  {command}")
            print(Sweep.directory)
            sys.exit(128 + Sweep.caught)
