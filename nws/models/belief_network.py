"""Belief networks: the one kind of network, used downward to generate and upward to recognise.

Symbols, here and everywhere: n_0 .. n_L layer sizes (0 is the visible layer), h^0 .. h^L states,
n rows (samples), m units of a layer, a = W h + b its logits.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nws.errors import UserError
from nws.models.units import NAMED, Units, find_spans


class Layer(nn.Module):
    """m units, independent given their parents, with logits a_j = w_j . h + b_j.

    `weight` is (m, parents) and `bias` (m,), shaped as `nn.Linear`'s. A layer without parents
    (parents = 0) has its biases as logits.

    Attributes:
        rounded: The weight in a lower precision, or None: see `HelmholtzMachine.products_in`.
    """

    def __init__(self, parents: int, units: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(units, parents))
        self.bias = nn.Parameter(torch.zeros(units))
        self.rounded: Tensor | None = None

    def forward(self, parents: Tensor, out: Tensor | None = None) -> Tensor:
        """Logits (n, m) of parents' states (n, parents).

        Args:
            parents: States of the parents, (n, parents).
            out: Where to write the logits, (n, m); not differentiable then.
        """
        if self.rounded is not None and parents.dtype == self.rounded.dtype:
            return torch.add(product(parents, self.rounded.T), self.bias, out=out)
        return torch.addmm(self.bias, parents, self.weight.T, out=out)

    def extra_repr(self) -> str:
        """Numbers of parents and units, for `print`."""
        return f"parents={self.weight.shape[1]}, units={self.weight.shape[0]}"


def product(first: Tensor, second: Tensor) -> Tensor:
    """The product of two matrices of a lower precision, summed in float32.

    On CUDA the result is float32 too; on a CPU it is rounded once, at the end.
    """
    if first.is_cuda:
        return torch.mm(first, second, out_dtype=torch.float32)
    return torch.mm(first, second)


class Edge(NamedTuple):
    """One layer and the states that it connects: h^child has its distribution given h^parent."""

    layer: Layer
    position: int  # of the layer in its network
    parent: int | None  # None: the layer has no parents
    child: int


class BeliefNetwork(nn.Module):
    """A chain of layers over the states h^0 .. h^L, in one of two directions.

    Downward (the generator p): `layers[i]` gives h^i its distribution given h^{i+1}, and
    `layers[L]` has no parents. Upward (recognition q): `layers[i]` gives h^{i+1} its distribution
    given h^i, and h^0 is given. With binary units it is a sigmoid belief network.

    Sources: Neal 1992 (sigmoid belief networks); Dayan et al. 1995 (two of them make a Helmholtz
    machine).

    Args:
        sizes: n_0 .. n_L.
        upward: The direction.
        units: The family of each of the L + 1 layers; all binary where left out.
    """

    def __init__(
        self, sizes: Sequence[int], upward: bool, units: Sequence[Units] | None = None
    ) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.upward = upward
        self.units = tuple(units) if units else (NAMED["binary"],) * len(self.sizes)
        below, above = self.sizes[:-1], self.sizes[1:]
        shapes = list(zip(below, above, strict=True))
        if not upward:
            shapes = [*((parents, children) for children, parents in shapes), (0, self.sizes[-1])]
        layers = [Layer(parents, width) for parents, width in shapes]
        self.layers = nn.ModuleList(layers)
        self.widths = [width for _, width in shapes]  # units of each layer
        self.spans = find_spans(self.units[upward:], self.widths)
        #: the layers in sampling order, each parent before its child
        self.edges = tuple(_edges(layers, upward))

    @property
    def name(self) -> str:
        """What the network does: "recognition" (upward) or "generator"."""
        return "recognition" if self.upward else "generator"

    def logits(self, states: Sequence[Tensor]) -> list[Tensor]:
        """Logits of every layer given its parents' states: (n, m) each, ordered as `layers`.

        Differentiable. `states` are h^0 .. h^L, each (n, n_i).
        """
        found = {edge.position: edge.layer(_parents(states, edge.parent)) for edge in self.edges}
        return [found[position] for position in range(len(found))]

    def fill_noise(self, out: Tensor, rng: torch.Generator | None) -> None:
        """Fill `out` (n, units) with the noise of which each family of units makes its values."""
        for units, columns, _ in self.spans:
            units.fill_noise(out[:, columns], rng)

    def log_prob(self, states: Sequence[Tensor]) -> Tensor:
        """log p(h^0 .. h^L), or log q(h^1 .. h^L | h^0) upward: (n,), in nats. Differentiable.

        `states` are h^0 .. h^L, each (n, n_i).
        """
        start = int(self.upward)
        total = states[0].new_zeros(len(states[0]))
        for units, h, a in zip(
            self.units[start:], states[start:], self.logits(states), strict=True
        ):
            values = units.decode(h)
            density = values * a - units.log_partition(a) + units.log_base(values)
            total = total + density.sum(-1)
        return total


def _edges(layers: Sequence[Layer], upward: bool) -> list[Edge]:
    if upward:
        return [Edge(layer, i, i, i + 1) for i, layer in enumerate(layers)]
    parents = [*range(1, len(layers)), None]
    return [Edge(layer, i, parents[i], i) for i, layer in enumerate(layers)][::-1]


def _parents(states: Sequence[Tensor], parent: int | None) -> Tensor:
    return states[0][:, :0] if parent is None else states[parent]


def check_sizes(sizes: Sequence[object]) -> tuple[int, ...]:
    """Layer sizes as a tuple of ints.

    Raises:
        UserError: Unless there are at least two, all of them whole and positive.
    """
    good = all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes)
    if not good or len(sizes) < 2:
        raise UserError(
            "layer sizes must be whole numbers of at least 1, the visible layer and one or more"
            f" hidden ones, got {list(sizes)}; set model.layers=[200,100], say"
        )
    return tuple(int(size) for size in sizes)  # type: ignore[call-overload]
