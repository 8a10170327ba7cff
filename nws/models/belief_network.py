"""Sigmoid belief networks: the one kind of network that nws has, used downwards to generate and upwards to recognise.

Symbols, here and everywhere: n_0 .. n_L layer sizes (0 is the visible layer), h^0 = x .. h^L states, n rows (samples),
m units of a layer, a = W h + b its logits, sigma the logistic function.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from nws.errors import UserError

Units = Literal["binary", "bipolar"]


def encode(bits: Tensor, units: Units) -> Tensor:
    """States in the units' encoding from bits (or intensities) in [0, 1]: h = y, or h = 2 y - 1 for bipolar units."""
    return 2 * bits - 1 if units == "bipolar" else bits


def decode(states: Tensor, units: Units) -> Tensor:
    """Bits y in [0, 1] from states in the units' encoding, the inverse of `encode`."""
    return (states + 1) / 2 if units == "bipolar" else states


def bernoulli_log_prob(bits: Tensor, logits: Tensor) -> Tensor:
    """log Bern(y; sigma(a)) = y a - log(1 + e^a), elementwise, in nats; y in [0, 1] (a soft target where it is between)."""
    return torch.addcmul(-torch.logaddexp(logits, torch.zeros_like(logits)), bits, logits)


class SigmoidLayer(nn.Module):
    """m units, independent given their parents: p(y_j = 1 | h) = sigma(w_j . h + b_j).

    `weight` is (m, parents) and `bias` (m,), shaped as `nn.Linear`'s. A layer without parents (parents = 0) is a product
    of Bernoullis, p(y_j = 1) = sigma(b_j).
    """

    def __init__(self, parents: int, units: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(units, parents))
        self.bias = nn.Parameter(torch.zeros(units))

    def forward(self, parents: Tensor, out: Tensor | None = None) -> Tensor:
        """Logits (n, m) of parents' states (n, parents); written to `out` when given (not differentiable then)."""
        return torch.addmm(self.bias, parents, self.weight.T, out=out)

    def extra_repr(self) -> str:
        return f"parents={self.weight.shape[1]}, units={self.weight.shape[0]}"


class Edge(NamedTuple):
    """One layer of a network and the states that it connects: `layer` gives h^child its distribution given h^parent."""

    layer: SigmoidLayer
    position: int  # of the layer in its network
    parent: int | None  # None: the layer has no parents
    child: int


class SigmoidBeliefNetwork(nn.Module):
    """A chain of sigmoid layers over the states h^0 .. h^L, in one of two directions.

    downward (the generator p):      `layers[i]` gives h^i its distribution given h^{i+1}; `layers[L]` has no parents.
    upward (the recogniser q):       `layers[i]` gives h^{i+1} its distribution given h^i; h^0 is given.

    Sources: Neal 1992 (sigmoid belief networks); Dayan et al. 1995 (two of them make a Helmholtz machine).
    """

    def __init__(self, sizes: Sequence[int], upward: bool) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.upward = upward
        below, above = self.sizes[:-1], self.sizes[1:]
        shapes = (
            list(zip(below, above, strict=True))
            if upward
            else [*zip(above, below, strict=True), (0, sizes[-1])]
        )
        layers = [SigmoidLayer(parents, units) for parents, units in shapes]
        self.layers = nn.ModuleList(layers)
        self.units = [units for _, units in shapes]  # of each layer
        #: the layers in sampling order, each parent before its child
        self.edges = tuple(_edges(layers, upward))

    @property
    def name(self) -> str:
        return "recognition" if self.upward else "generator"

    def logits(self, states: Sequence[Tensor]) -> list[Tensor]:
        """Logits of every layer given its parents' states: a list of (n, m), ordered as `layers`. Differentiable."""
        logits = [edge.layer(_parents(states, edge.parent)) for edge in self.edges]
        return logits if self.upward else logits[::-1]

    def log_prob(self, states: Sequence[Tensor], units: Units) -> Tensor:
        """log p(h^0 .. h^L), or log q(h^1 .. h^L | h^0) upward: (n,), in nats. Differentiable.

        `states` are L + 1 tensors (n, n_i) in the units' encoding.
        """
        targets = states[1:] if self.upward else states
        pairs = zip(targets, self.logits(states), strict=True)
        return torch.stack([bernoulli_log_prob(decode(h, units), a).sum(-1) for h, a in pairs]).sum(
            0
        )


def _edges(layers: Sequence[SigmoidLayer], upward: bool) -> list[Edge]:
    if upward:
        return [Edge(layer, i, i, i + 1) for i, layer in enumerate(layers)]
    parents = [*range(1, len(layers)), None]
    return [Edge(layer, i, parents[i], i) for i, layer in enumerate(layers)][::-1]


def _parents(states: Sequence[Tensor], parent: int | None) -> Tensor:
    return states[0][:, :0] if parent is None else states[parent]


def check_sizes(sizes: Sequence[object]) -> tuple[int, ...]:
    """Layer sizes as a tuple of ints. Raises `UserError` unless there are at least two, all whole and positive."""
    good = all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes)
    if not good or len(sizes) < 2:
        raise UserError(
            "layer sizes must be whole numbers of at least 1, the visible layer and one or more hidden ones, "
            f"got {list(sizes)}; set model.layers=[200,100], say"
        )
    return tuple(int(size) for size in sizes)  # type: ignore[call-overload]
