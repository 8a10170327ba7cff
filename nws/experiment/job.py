"""What surrounds a run: errors, signals and exit codes, of one run and of a job of a sweep."""

import logging
import math
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException

from nws.errors import Diverged, UserError
from nws.experiment.directory import RunDirectory
from nws.experiment.sweeps import STOPPED, Sweep, in_process

log = logging.getLogger(__name__)


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
            if "/" not in name and choice is not None and name not in ("experiment", "debug")
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
                log.error("%s", error)
                searching = "direction" in self.hydra.sweeper  # as Optuna's has
                if searching and isinstance(error, Diverged):
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
                raise CompactHydraException(
                    "not started: the sweep was stopped; go on with resume=auto"
                )
            signal.signal(signal.SIGINT, signal.default_int_handler)
            yield
        except KeyboardInterrupt:
            raise CompactHydraException("interrupted") from None
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # this process may wait for others

    def end(self, run: RunDirectory, stopped: int | None) -> None:
        """Print the run's directory, and end the program or the job where a signal stopped it."""
        if stopped is not None and not self.sweep:
            command = shlex.quote(f"resume={run.path}")
            print(f"stopped by signal {stopped}; go on with\n  python train.py {command}")
        print(run.path, flush=True)
        if stopped is not None and self.in_worker:
            raise CompactHydraException(f"stopped by signal {stopped}")
        if stopped is not None:
            Sweep.caught = stopped
            sys.exit(128 + stopped)


@contextmanager
def program(arguments: Sequence[str]) -> Iterator[None]:
    """Surround the program: one message for a user's error, and how to go on after a signal.

    Args:
        arguments: What the user gave after train.py, for the command that goes on with a sweep.
    """
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
        Sweep.end()
        if Sweep.directory is not None and Sweep.caught is not None:
            rest = [text for text in arguments if text.lstrip("+").split("=")[0] != "resume"]
            command = shlex.join(["python", "train.py", *rest, "resume=auto"])
            print(f"the sweep was stopped by signal {int(Sweep.caught)}; go on with\n  {command}")
            print(Sweep.directory)
            sys.exit(128 + Sweep.caught)
