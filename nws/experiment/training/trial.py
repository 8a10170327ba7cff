"""Trial steps of an optimizer and a scheduler: what cannot work is found before a run is written.

Classes of the user's own are left alone: their errors name the file and the line.
"""

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from nws.errors import UserError
from nws.experiment.process.boundary import out_of_memory
from nws.experiment.process.own_code import is_library, own_place
from nws.experiment.training.rates import Scheduler

SMALL = 1e-3  # the gradients of a trial step

Parameters = list[Tensor] | list[dict[str, Any]]


def is_tried(made_by: Callable[..., Any]) -> bool:
    """Return whether a class or function is one of a library's: those alone are tried."""
    try:
        return is_library(Path(inspect.getfile(made_by)).resolve())
    except TypeError:  # a builtin, which makes no optimizer
        return False


def small(parameters: Parameters) -> Parameters:
    """Return parameters, or groups of them, with one number in place of each tensor."""
    return [
        each | {"params": [_small(tensor) for tensor in each["params"]]}
        if isinstance(each, dict)
        else _small(each)
        for each in parameters
    ]  # type: ignore[return-value]


def _small(tensor: Tensor) -> Tensor:
    made = torch.zeros([1] * tensor.ndim, dtype=tensor.dtype, device=tensor.device)
    return made.requires_grad_(tensor.requires_grad)


def try_optimizer(optimizer: Optimizer, options: Mapping[str, Any]) -> None:
    """Take one step of an optimizer of `small` parameters.

    Raises:
        UserError: The step fails. The message names the class and its options.
    """
    parameters = [each for group in optimizer.param_groups for each in group["params"]]

    def closure() -> Tensor:
        for each in parameters:
            each.grad = torch.full_like(each, SMALL)
        return torch.stack([SMALL * each.detach().sum() for each in parameters]).sum()

    with _failures("optimizer", options, "the first step"):
        optimizer.step(closure)  # type: ignore[arg-type]


def beside(optimizer: Optimizer) -> Optimizer:
    """Return a copy of an optimizer with the same parameters, whose rates may change apart."""
    made = copy.copy(optimizer)
    made.param_groups = [
        {name: each if name == "params" else copy.deepcopy(each) for name, each in group.items()}
        for group in optimizer.param_groups
    ]
    return made


def try_scheduler(scheduler: Scheduler, options: Mapping[str, Any], total_steps: int) -> None:
    """Take the first step of a scheduler and the last one of the run.

    Args:
        scheduler: Of an optimizer that is thrown away.
        options: Those of the group.
        total_steps: The run's number of steps.

    Raises:
        UserError: A step fails. The message names the class and its options.
    """
    number = [0.0] if isinstance(scheduler, ReduceLROnPlateau) else []
    for step in sorted({1, total_steps}):
        scheduler.last_epoch = step - 1
        with _failures("scheduler", options, f"step {step}"):
            scheduler.step(*number)  # type: ignore[arg-type]


@contextmanager
def _failures(group: str, options: Mapping[str, Any], what: str) -> Iterator[None]:
    """Turn an error inside into one that names the class of a group and its options."""
    try:
        with warnings.catch_warnings():  # torch warns of a scheduler that steps alone
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        if isinstance(error, UserError) or own_place(error) or out_of_memory(error):
            raise
        own = {name: value for name, value in options.items() if name != "_target_"}
        reason = (str(error).strip().splitlines() or ["no message"])[0]
        raise UserError(
            f"{group}._target_={options['_target_']} fails at {what} with the options {own}:"
            f" {type(error).__name__}: {reason}; change these options, or take another {group}"
        ) from error
