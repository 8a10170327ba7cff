"""What a run trains and trains with, built as one, so that a run can start afresh."""

from typing import NamedTuple

import torch
from omegaconf import DictConfig
from torch.optim import Optimizer

from nws.data import Dataset
from nws.experiment.averaging import Average
from nws.experiment.training.build import (
    build_average,
    build_machine,
    build_metrics,
    build_optimizer,
    build_rule,
    build_scheduler,
)
from nws.experiment.training.rates import Scheduler
from nws.experiment.training.seeds import derive_seed
from nws.learning import WakeSleep


class Parts(NamedTuple):
    """What changes with every step."""

    learner: WakeSleep  # with the machine, on the device of the data
    optimizer: Optimizer  # it follows the gradients that the learner writes
    scheduler: Scheduler  # stepped once a step; ReduceLROnPlateau once an evaluation
    average: Average | None = None  # of the weights, if any


def build_parts(config: DictConfig, data: Dataset, total_steps: int) -> Parts:
    """Return the parts of a configuration at step 0. Every call returns the same, bit for bit."""
    device = data.train.device
    rule = build_rule(config, total_steps)
    machine = build_machine(config, data).to(device)
    rng = torch.Generator(device).manual_seed(derive_seed(config.seed, 1))
    metrics = build_metrics(config, total_steps, machine)
    learner = WakeSleep(machine, rule, rng, metrics)
    optimizer = build_optimizer(config, total_steps, machine)
    scheduler = build_scheduler(config, total_steps, optimizer)
    return Parts(learner, optimizer, scheduler, build_average(config, total_steps, machine))
