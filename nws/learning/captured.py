"""Steps on a GPU as one CUDA graph: to launch its hundreds of kernels takes longer than their work.

Source: PyTorch's notes on CUDA graphs.
"""

from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from nws import distributed
from nws.errors import UserError
from nws.learning.step import StepResult, WakeSleep

MANY = 3  # replays, after which a new graph is worth its while


class CapturedStep:
    """`learner.step` on CUDA, with one graph for steps that are alike: the same, bit for bit.

    The first of such steps runs as it is, the second is captured, and the others replay it; after
    many replays the first of another kind is captured at once. Steps that refresh a metric or
    measure a gain run as they are. In a replay no Python runs. So all steps run as they are on a
    CPU, with several processes, with masks and layers that see themselves, with counts (Poisson),
    units that keep a state, and a weighting that is no plain function.

    Args:
        learner: Whose steps these are; `take = CapturedStep(learner)` is called as its `step`.
    """

    def __init__(self, learner: WakeSleep) -> None:
        self.learner = learner
        machine, weighting = learner.machine, learner.rule.weighting
        alone = learner.rng.device.type != "cpu" and distributed.size() == 1
        dense = all(layer.mask is None for network in machine.networks for layer in network.layers)
        plain = not any(each.waits or hasattr(each, "state_dict") for each in machine.units)
        stateless = isinstance(getattr(weighting, "func", weighting), FunctionType)
        self._never = not (alone and dense and plain and stateless)
        self._first: list[Any] = []  # keys and shapes of the last step that ran as it is
        self._key: list[Any] = []  # and those of the graph
        self._replays = 0  # of the graph
        self._graph: Any = None
        self._batches: list[Tensor] = []  # the graph's own, one or two
        self._places: list[tuple[int, Tensor | None]] = []  # of parameters, and their gradients
        self._result: StepResult

    def __call__(self, x: Tensor, other: Tensor | None = None) -> StepResult:
        """Take a step as `WakeSleep.step` does."""
        learner, batches = self.learner, [x] if other is None else [x, other]
        keys = [None] if self._never else [metric.graph_key for metric in learner.metrics]
        key = [keys, [each.shape for each in batches]]
        known = key == self._key and self._in_place()
        at_once = self._replays > MANY and key[1] == self._first[1]
        if None in keys or not (known or key == self._first or at_once):
            self._first = key
            return learner.step(x, other)
        learner.start()
        if not known:
            self._capture(batches, key)
        else:
            for metric in learner.metrics:
                metric.skip()
            for each, (_, grad) in zip(learner.machine.parameters(), self._places, strict=True):
                each.grad = grad  # after zero_grad()
        torch._foreach_copy_(self._batches, batches)
        self._graph.replay()
        self._replays += 1
        return StepResult(*map(torch.clone, self._result))

    def _in_place(self) -> bool:
        """Whether parameters and gradients are where they were at the capture."""
        pairs = zip(self._places, self.learner.machine.parameters(), strict=True)
        return all(
            at == p.data_ptr() and (p.grad is None or p.grad is grad) for (at, grad), p in pairs
        )

    def _capture(self, batches: list[Tensor], key: list[Any]) -> None:
        """Capture a step; the memory of the last graph is used again."""
        self._batches, graph = [each.clone() for each in batches], torch.cuda.CUDAGraph()
        graph.register_generator_state(self.learner.rng)
        try:
            with torch.cuda.graph(graph, None if self._graph is None else self._graph.pool()):
                self._result = self.learner.compute(*self._batches)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            what = f"a step cannot be captured as a CUDA graph ({str(error).splitlines()[0]})"
            raise UserError(f"{what}; take trainer.cuda_graph=false") from error
        self._graph, self._key, self._replays = graph, key, 0
        self._places = [(each.data_ptr(), each.grad) for each in self.learner.machine.parameters()]
