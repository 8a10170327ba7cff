"""A run of several processes: how they meet on SLURM, how they stop together, what is said."""

import logging
import os
import signal

from nws import distributed
from nws.experiment.process.signals import StopSignals


class AgreedStop:
    """A stop that all processes of a run see at the same step; of one process, its signals.

    Args:
        stop: The signals of this process.

    Attributes:
        caught: The number of the signal; None where none came to any process.
    """

    def __init__(self, stop: StopSignals) -> None:
        self._stop = stop
        self._agreed = False

    @property
    def caught(self) -> int | None:
        if distributed.size() == 1:
            return self._stop.caught
        return self.ask()

    def ask(self) -> int | None:
        """Ask all processes; return the number of a signal, if one came."""
        self._agreed = self._agreed or distributed.any_(self._stop.caught is not None)
        return (self._stop.caught or signal.SIGTERM) if self._agreed else None


def meet_tasks() -> None:
    """Meet the other tasks of a job of SLURM, where it has several: they train one run."""
    if int(os.environ.get("SLURM_NTASKS", 1)) > 1:
        from submitit.helpers import TorchDistributedEnvironment

        TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
        distributed.start()
        if not distributed.is_first():  # one of several processes speaks
            logging.disable()


def processes_text() -> str:
    """Return how many processes train, where there are several."""
    return f", {distributed.size()} processes" * (distributed.size() > 1)
