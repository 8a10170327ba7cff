"""The learning rates of the two networks, one or one for each; and how a run goes on with them."""

import warnings
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from nws.models import HelmholtzMachine

Scheduler = LRScheduler | ReduceLROnPlateau


def parameter_groups(
    machine: HelmholtzMachine, options: dict[str, Any]
) -> list[Tensor] | list[dict[str, Any]]:
    """Return what an optimizer takes: all parameters, or a group of them for each network.

    `generator_lr` and `recognition_lr` are taken out of the options; where both come to the same
    rate, this becomes `lr`.
    """
    own = [options.pop(name, None) for name in ("generator_lr", "recognition_lr")]
    rates = [options.get("lr") if rate is None else rate for rate in own]
    # The top layer has only biases, so its weight is empty.
    parameters: list[Tensor] = [each for each in machine.parameters() if each.numel()]
    if rates[0] == rates[1]:
        if rates[0] is not None:
            options["lr"] = rates[0]
        return parameters
    groups: list[dict[str, Any]] = []
    for network, rate in zip(machine.networks, rates, strict=True):
        part = [each for each in network.parameters() if each.numel()]
        groups.append({"params": part} | ({} if rate is None else {"lr": rate}))
    return groups


def restore(
    optimizer: Optimizer, scheduler: Scheduler, state: dict[str, Any], steps: int | None
) -> None:
    """Go on with what an optimizer and a scheduler were in the `state` of a checkpoint.

    With a number of `steps`, the schedule is followed again from step 0, with the rates and
    options of here. What was gathered stays, unless it is another optimizer.
    """
    saved = dict(state["optimizer"])
    if len(saved["state"]) != state["gathered"]:
        raise ValueError("it lacks what the optimizer has gathered")
    if steps is None:
        scheduler.load_state_dict(state["scheduler"])
    else:
        with warnings.catch_warnings():  # torch warns that the optimizer has not stepped
            warnings.simplefilter("ignore", UserWarning)
            for _ in range(steps):
                scheduler.step()  # type: ignore[call-arg]
        saved["param_groups"] = optimizer.state_dict()["param_groups"]
    if state["optimizer_class"] == type(optimizer).__name__:
        _check_gathered(optimizer, saved)
        optimizer.load_state_dict(saved)
        for each in optimizer.state.values():  # on the device each step of NAdam would wait for it
            if "mu_product" in each and not optimizer.defaults.get("capturable"):
                each["mu_product"] = each["mu_product"].cpu()


def _check_gathered(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Raise `ValueError` where a fused step would read beyond what an optimizer has gathered."""
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    fused = any(group.get("fused") for group in optimizer.param_groups)
    for number, parameter in zip(numbers, parameters, strict=True):
        for name, each in saved["state"].get(number, {}).items():
            expected = () if name == "step" else parameter.shape
            if fused and isinstance(each, Tensor) and each.shape != expected:
                raise ValueError(f"{name} of the optimizer does not fit its parameter")
