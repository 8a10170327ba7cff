"""Optimizers: the rates of the two networks, several as one, and how a run goes on with them."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from nws.models import HelmholtzMachine

#: What some optimizers gather in their groups: SOAP, and those without a schedule.
COUNTS = ("step", "k", "weight_sum", "lr_max")


class Together(Optimizer):
    """Optimizers of different parameters as one: Muon of the matrices, and Adam of the biases.

    It has the groups and states of its `parts`, for schedulers, rates and checkpoints.
    """

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Take the step of each part. `closure` writes the gradients, once."""
        loss, groups = None if closure is None else closure(), iter(self.param_groups)
        for part in self.parts:
            part.state, part.param_groups = self.state, [next(groups) for _ in part.param_groups]
            part.step()
        return loss


def title(optimizer: Optimizer) -> str:
    """Return what an optimizer is called: its class, or those of its parts."""
    parts = optimizer.parts if isinstance(optimizer, Together) else [optimizer]
    return " and ".join(type(each).__name__ for each in parts)


def starting_rates(optimizer: Optimizer) -> list[str]:
    """Return the different rates of an optimizer's groups, before the schedule."""
    rates = [group.get("initial_lr", group["lr"]) for group in optimizer.param_groups]
    return list(dict.fromkeys(f"{rate:g}" for rate in rates))


@contextmanager
def training(optimizer: Any) -> Iterator[None]:
    """Have the parameters where gradients are taken, and afterwards where they are evaluated.

    Schedule-free optimizers (Defazio et al. 2024) move them by `train` to y and by `eval` to x, an
    average. The way back is not exact, so their state keeps y; the machine of a checkpoint is x.
    """
    moves = hasattr(optimizer, "train") and hasattr(optimizer, "eval")
    if moves:
        optimizer.train()
        for parameter, state in optimizer.state.items():
            if "y" in state:
                parameter.data.copy_(state.pop("y"))
    try:
        yield
    finally:
        if moves:
            for parameter, state in optimizer.state.items():
                state["y"] = parameter.detach().clone()
            optimizer.eval()


def parameter_groups(machine: HelmholtzMachine, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what an optimizer takes: a group of all parameters, or one for each network.

    `generator_lr` and `recognition_lr` are taken out of the options; one rate for both is `lr`.
    """
    given = [options.pop(name, None) for name in ("generator_lr", "recognition_lr")]
    rates = [options.get("lr") if rate is None else rate for rate in given]
    modules: list[torch.nn.Module] = [*machine.networks]
    if rates[0] == rates[1]:
        options |= {} if rates[0] is None else {"lr": rates[0]}
        modules, rates = [machine], [None]
    # The top layer has only biases, so its weight is empty.
    parts = [[each for each in module.parameters() if each.numel()] for module in modules]
    own = [{} if rate is None else {"lr": rate} for rate in rates]
    return [{"params": part} | lr for part, lr in zip(parts, own, strict=True)]


def restore(
    optimizer: Optimizer, scheduler: LRScheduler, state: dict[str, Any], steps: int | None
) -> None:
    """Go on with what an optimizer and a scheduler were in the `state` of a checkpoint.

    With a number of `steps`, the schedule is followed again from step 0, with the rates and
    options of here. What was gathered stays, unless it is another optimizer.
    """
    saved = dict(state["optimizer"])
    if steps is None:
        scheduler.load_state_dict(state["scheduler"])
    else:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # no step was taken
            for _ in range(steps):
                scheduler.step()  # type: ignore[call-arg]
        counts = {k: v for k, v in saved["param_groups"][0].items() if k in COUNTS}
        saved["param_groups"] = [g | counts for g in optimizer.state_dict()["param_groups"]]
    if state["optimizer_class"] == title(optimizer):
        optimizer.load_state_dict(saved)
        _check_gathered(optimizer)
        for each in optimizer.state.values():  # on the device each step of NAdam would wait for it
            if "mu_product" in each and not optimizer.defaults.get("capturable"):
                each["mu_product"] = each["mu_product"].cpu()


def _check_gathered(optimizer: Optimizer) -> None:
    """Raise `ValueError` where a fused step would read beyond what an optimizer has gathered."""
    fused = [group["params"] for group in optimizer.param_groups if group.get("fused")]
    for parameter in chain.from_iterable(fused):
        for name, each in optimizer.state.get(parameter, {}).items():
            expected = () if name == "step" else parameter.shape
            if isinstance(each, Tensor) and each.shape != expected:
                raise ValueError(f"{name} of the optimizer does not fit its parameter")
