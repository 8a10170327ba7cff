"""Several optimizers as one; and those that train at one point and are evaluated at another."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.optim import Optimizer


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
