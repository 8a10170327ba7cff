"""Averages of the weights along a run: evaluated and saved beside the weights themselves.

Sources: Polyak & Juditsky 1992 (the mean of the tail); Kingma & Ba 2015, section 3 (the correction
of an exponential average's start).
"""

import copy
from typing import Any

import torch

from nws.errors import number
from nws.experiment.callbacks.callback import Callback, Row, Trainer
from nws.models import HelmholtzMachine
from nws.natural.averages import share_of_newest


class Average(Callback):
    """The mean of the weights after each step, over the last part of a run or over all of it.

    With d = 1 - 1 / memory, the weights of k steps ago count d^k, over sum_k d^k. Without memory
    all count the same. The sum makes the average unbiased from its first step on. It is the mean of
    the weights that it has seen, and never of the starting point.

    Args:
        memory: Steps that an exponential average remembers; None for the plain mean.
        start: Share of the run before the first weights that count, 0 to 1.
    """

    def __init__(self, memory: float | None = None, start: float = 0.0) -> None:
        if memory is not None:
            memory = number("average.memory", memory, least=1, more=" step, or null")
        self.memory = memory
        self.after = number("average.start", start, least=0, below=1, more=", a share of the run")
        self.machine: HelmholtzMachine | None = None  # with the averaged weights, once a run starts
        self.count = 0  # steps in the average
        self._saved: dict[str, Any] | None = None

    def start(self, trainer: Trainer) -> None:
        """Make the machine that takes the mean; a resumed run's has what it had."""
        self.machine = copy.deepcopy(trainer.machine)
        if self._saved is not None:
            self.machine.load_state_dict(self._saved)

    def after_step(self, trainer: Trainer) -> None:
        if trainer.step <= self.after * trainer.total_steps or self.machine is None:
            self.count = 0  # a longer run may move the start
            return
        self.count += 1
        newest = share_of_newest(self.memory, self.count) if self.memory else 1 / self.count
        machines = self.machine, trainer.machine
        own, theirs = ([each.detach() for each in one.parameters()] for one in machines)
        torch._foreach_lerp_(own, theirs, newest)

    def row(self, trainer: Trainer) -> Row:
        if not self.count or self.machine is None:
            return {}
        found = trainer.validate(self.machine)
        del found["valid/samples"]
        return {f"average/{key.split('/')[1]}": value for key, value in found.items()}

    def state_dict(self) -> dict[str, Any]:
        machine = self.machine.state_dict() if self.machine is not None else self._saved
        return {"machine": machine, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._saved, self.count = state["machine"], int(state["count"])
