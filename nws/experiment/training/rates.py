"""The learning rates of the two networks: one, or one for each; and how a run goes on with them."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from nws.models import HelmholtzMachine

#: What optimizers of torch gather for each number of a parameter.
ELEMENTWISE = (
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg",
    "grad_avg", "acc_delta", "sum", "prev", "step_size", "ax",
)  # fmt: skip

Scheduler = LRScheduler | ReduceLROnPlateau


class Rates(NamedTuple):
    """The learning rates of an optimizer at a step."""

    generator: float
    recognition: float

    def __str__(self) -> str:
        p, q = self
        return f"{p:g}" if p == q else f"{p:g} for the generator, {q:g} for recognition"


def parameter_groups(
    machine: HelmholtzMachine, options: dict[str, Any]
) -> list[Tensor] | list[dict[str, Any]]:
    """Return what an optimizer takes: all parameters, or a group of them for each network.

    Args:
        machine: Whose parameters are trained.
        options: Of the optimizer. `generator_lr` and `recognition_lr` are taken out of them; where
            both come to the same rate, this becomes `lr`.
    """
    rates = [_rate(name, options) for name in ("generator_lr", "recognition_lr")]
    # The top layer has only biases, so its weight is empty.
    parameters: list[Tensor] = [each for each in machine.parameters() if each.numel()]
    if rates[0] == rates[1]:  # one group, as checkpoints of earlier versions have it
        if rates[0] is not None:
            options["lr"] = rates[0]
        return parameters
    above = set(map(id, machine.recognition.parameters()))
    parts = [[each for each in parameters if (id(each) in above) == up] for up in (False, True)]
    groups: list[dict[str, Any]] = [{"params": part} for part in parts]
    for group, rate in zip(groups, rates, strict=True):
        if rate is not None:  # else the optimizer's own
            group["lr"] = rate
    return groups


def _rate(name: str, options: dict[str, Any]) -> Any:
    """Take a network's rate out of the options; that of both where it has none of its own."""
    rate = options.pop(name, None)
    if rate is None:
        return options.get("lr")
    return rate


def are_apart(optimizer: Optimizer) -> bool:
    """Return whether each network has a learning rate of its own."""
    return len(optimizer.param_groups) > 1


def learning_rates(optimizer: Optimizer, factor: float = 1.0) -> Rates:
    """Return the present rates, times a factor: of the first and of the last parameters."""
    groups = optimizer.param_groups
    return Rates(groups[0]["lr"] * factor, groups[-1]["lr"] * factor)


@contextmanager
def scaled(optimizer: Optimizer, factor: float) -> Iterator[None]:
    """Multiply all rates for the step inside; a scheduler sees them as they are without."""
    if factor == 1:
        yield
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * factor
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def restore(
    optimizer: Optimizer, scheduler: Scheduler, state: dict[str, Any], steps: int | None
) -> None:
    """Go on with what an optimizer and a scheduler were in the `state` of a checkpoint.

    With a number of `steps`, the schedule is followed again from step 0, with the rates and
    options that the optimizer has here. What the optimizer has gathered stays, unless it is
    another optimizer. The order of the parameters is the same in one group and in two.
    """
    saved = dict(state["optimizer"])
    if steps is None:
        here, there = scheduler.state_dict(), state["scheduler"]
        wrong = [name for name in there if callable(getattr(type(scheduler), name, None))]
        wrong += [name for name in here if name[0] != "_" and name not in there]
        if wrong:
            raise ValueError(f"the scheduler's {wrong[0]} is missing or of another kind")
        scheduler.load_state_dict(there)
    else:
        with warnings.catch_warnings():  # torch warns that the optimizer has not stepped
            warnings.simplefilter("ignore", UserWarning)
            for _ in range(steps):
                scheduler.step()  # type: ignore[call-arg]
        saved["param_groups"] = optimizer.state_dict()["param_groups"]
    if state["optimizer_class"] == type(optimizer).__name__:
        _check_gathered(optimizer, saved)
        optimizer.load_state_dict(saved)
        _bring_numbers_back(optimizer)


def _check_gathered(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Raise `ValueError` where what an optimizer has gathered has not the shape of its parameter.

    The fused kernels of torch read and write beyond such a tensor.
    """
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        for name, each in saved["state"].get(number, {}).items():
            if not _fits(name, each, parameter):
                raise ValueError(f"{name} of the optimizer does not fit its parameter")


def _fits(name: str, value: Any, parameter: Tensor) -> bool:
    """Return whether what an optimizer has gathered under a name has the shape that it should."""
    if name not in (*ELEMENTWISE, "step") or value is None:
        return True
    if not isinstance(value, Tensor):
        return name == "step" and type(value) in (int, float)
    shape = parameter.shape if name in ELEMENTWISE else ()
    return tuple(value.shape) == tuple(shape) and value.layout == parameter.layout


def _bring_numbers_back(optimizer: Optimizer) -> None:
    """Keep on the CPU what an optimizer reads in each step.

    Loading a state moves NAdam's `mu_product` to the device of the parameters. Unless the step is
    `capturable`, the host reads it: on a GPU it would wait for each of them.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            own = optimizer.state[parameter]
            if "mu_product" in own and not group.get("capturable"):
                own["mu_product"] = own["mu_product"].cpu()
