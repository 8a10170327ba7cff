"""How many operations a training step dispatches: on a GPU each is at least one kernel to launch.

Counts, not seconds: they are the same on every machine.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

# Operations that only look at memory in another way, or allocate it.
NO_KERNEL = {
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "detach", "diagonal", "empty",
    "empty_like", "empty_strided", "expand", "new_empty", "new_empty_strided", "permute", "select",
    "slice", "split", "split_with_sizes", "squeeze", "squeeze_", "t", "transpose", "unbind",
    "unflatten", "unsqueeze", "view", "_local_scalar_dense",
}  # fmt: skip


class Launches(TorchDispatchMode):
    """Counts the operations that do work while it is entered.

    Attributes:
        counts: Of each operation, by its name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        self.counts[name] += name not in NO_KERNEL
        return func(*args, **(kwargs or {}))


def count_launches(step: Callable[[], object]) -> int:
    """Return how many operations a call dispatches that do work."""
    with Launches() as found:
        step()
    return found.counts.total()


def count_steps(step: Callable[[], object]) -> dict[str, int]:
    """Return the launches of a first step, and of the 8th: one of those that look at nothing."""
    counts = [count_launches(step) for _ in range(8)]
    return {"first_step": counts[0], "ordinary_step": counts[-1]}
