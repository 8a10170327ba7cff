"""Belief networks: the one kind of network, used downward to generate and upward to recognise.

Symbols, here and everywhere: n_0 .. n_L layer sizes (0 is the visible layer), h^0 .. h^L states,
n rows (samples), m units of a layer, a = W h + b its logits.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from nws.errors import one_of
from nws.models.masks import Mask, Order, check_functions, find_mask, find_order, lateral_layers
from nws.models.units import NAMED, Units, find_spans

TRUNCATED = 0.879625661  # standard deviation of a normal variable of 1 that stays within 2


class Layer(nn.Module):
    """m units with logits a_j = w_j . h + b_j, h the states of the layer's parents.

    `weight` is (m, parents) and `bias` (m,), shaped as `nn.Linear`'s. A layer without parents
    (parents = 0) has its biases as logits.

    Attributes:
        order: (m,) in which units are drawn that see each other; None for 0 .. m - 1.
        rounded: The weight in a lower precision, or None: see `HelmholtzMachine.products_in`.
    """

    mask_with_bias: Tensor | None
    order: Tensor | None

    def __init__(
        self, parents: int, units: int, mask: Tensor | None = None, order: Tensor | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(units, parents))
        self.bias = nn.Parameter(torch.zeros(units))
        whole = None if mask is None else pad(mask, (0, 1), value=1.0)
        self.register_buffer("mask_with_bias", whole)
        self.register_buffer("order", order)
        self.rounded: Tensor | None = None

    @property
    def mask(self) -> Tensor | None:
        """(m, parents), 0 where a unit does not see a parent, and its weight is 0; None: no such.

        `mask_with_bias` is (m, parents + 1), with ones for the biases.
        """
        return None if self.mask_with_bias is None else self.mask_with_bias[:, :-1]

    @torch.no_grad()
    def draw_weights_(
        self, scale: float, rng: torch.Generator | None, truncated: bool = False
    ) -> None:
        """Glorot-normal draws, times a scale: their variance is 2 / (fan in + fan out).

        Fans are means over units and over parents, of the weights that no mask hides. `truncated`
        draws are of a normal variable within two of its standard deviations.
        """
        seen = self.weight.numel() if self.mask is None else int(self.mask.sum())
        ends = sum(seen / max(1, size) for size in self.weight.shape)
        std = scale * (2 / max(1, ends)) ** 0.5
        if truncated:
            nn.init.trunc_normal_(self.weight, generator=rng)  # from -2 to 2
            self.weight.mul_(std / TRUNCATED)
        else:
            nn.init.normal_(self.weight, std=std, generator=rng)
        if self.mask is not None:
            self.weight.mul_(self.mask)

    def forward(
        self, parents: Tensor, columns: slice = slice(None), out: Tensor | None = None
    ) -> Tensor:
        """Logits (n, m) of parents' states (n, parents).

        Args:
            parents: States of the parents, or of some of them, (n, columns).
            columns: Of the weight, which these parents meet.
            out: Where to write the logits, (n, m); not differentiable then.
        """
        if self.rounded is not None and parents.dtype == self.rounded.dtype:
            return torch.add(self.weighted(parents, columns), self.bias, out=out)
        return torch.addmm(self.bias, parents, self.weight[:, columns].T, out=out)

    def weighted(self, parents: Tensor, columns: slice) -> Tensor:
        """The logits without the bias."""
        if self.rounded is not None and parents.dtype == self.rounded.dtype:
            return product(parents, self.rounded[:, columns].T)
        return torch.mm(parents, self.weight[:, columns].T)

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
    """One layer and the states that it connects: h^child has its distribution given its parents.

    Parents are neighbouring layers, so that their states are neighbouring columns of all states.
    """

    layer: Layer
    position: int  # of the layer in its network
    child: int
    parents: tuple[int, ...]  # lowest first; the child is one of them where it sees itself
    columns: slice  # of the parents' states among those of h^0 .. h^L
    outer: slice  # of those of other layers than the child
    own: slice  # of the layer's weight that meet its own units, where it is lateral

    @property
    def lateral(self) -> bool:
        """Whether the layer's units see each other."""
        return self.child in self.parents


class BeliefNetwork(nn.Module):
    """A network of layers over the states h^0 .. h^L, in one of two directions.

    Downward (the generator p): `layers[i]` gives h^i its distribution given h^{i+1}, and
    `layers[L]` has no parents. Upward (recognition q): `layers[i]` gives h^{i+1} its distribution
    given h^i, and h^0 is given. With binary units it is a sigmoid belief network.

    With `skip` a layer sees all layers before it. A lateral layer sees its own earlier units, too:

        p(h^i | above) = prod_j p(h^i_j | h^i_1 .. h^i_{j-1}, above)

    With `mask` units see some of these parents: any directed acyclic graph is one of these.

    Sources: Neal 1992 (sigmoid belief networks); Dayan et al. 1995 (two of them make a Helmholtz
    machine); Gregor et al. 2014, Bornschein & Bengio 2015 (autoregressive layers).

    Args:
        sizes: n_0 .. n_L.
        upward: The direction.
        units: The family of each of the L + 1 layers; all binary where left out.
        lateral: Which layers see themselves: "none", "visible", "hidden", "all", or a truth value
            for each layer that the network explains, the lowest first.
        skip: Whether a layer sees all layers before it, in place of the one.
        mask: Which parents units see; see `nws.models.masks`.
        order: In which order the units of a lateral layer see each other.
        shape: Of an image of the visible layer, for `mask` and `order`.
    """

    def __init__(
        self, sizes: Sequence[int], upward: bool, units: Sequence[Units] | None = None,
        lateral: str | Sequence[bool] = "none", skip: bool = False, mask: Mask | None = None,
        order: Order | None = None, shape: Sequence[int] = (),
    ) -> None:  # fmt: skip
        super().__init__()
        check_functions(mask=mask, order=order)
        one_of("model.skip", skip, (True, False))
        self.sizes = tuple(sizes)
        self.upward = upward
        self.units = tuple(units) if units else (NAMED["binary"],) * len(self.sizes)
        self.widths = list(self.sizes[upward:])  # units of each layer
        self.spans = find_spans(self.units[upward:], self.widths)
        own = lateral_layers(lateral, len(self.sizes), upward)
        starts, above = [0, *accumulate(self.sizes)], len(self.sizes)
        edges = []
        for position, child in enumerate(range(upward, above)):
            others = range(child + 1, above if skip else min(child + 2, above))
            if upward:
                others = range(0 if skip else child - 1, child)
            seen, turn = others, None
            if child in own:
                seen = range(min(others.start, child), max(others.stop, child + 1))
                turn = find_order(order, self.sizes, child, shape)
            outer, columns = (slice(starts[r.start], starts[r.stop]) for r in (others, seen))
            parents = tuple(seen)
            masked = find_mask(mask, self.sizes, child, parents, shape, turn)
            layer = Layer(columns.stop - columns.start, self.sizes[child], masked, turn)
            first, last = (starts[at] - columns.start for at in (child, child + 1))
            edges.append(Edge(layer, position, child, parents, columns, outer, slice(first, last)))
        self.layers = nn.ModuleList(edge.layer for edge in edges)
        #: the layers in sampling order, each parent before its child
        self.edges = tuple(edges if upward else edges[::-1])

    @property
    def name(self) -> str:
        """What the network does: "recognition" (upward) or "generator"."""
        return "recognition" if self.upward else "generator"

    def logits(self, states: Sequence[Tensor]) -> list[Tensor]:
        """Logits of every layer given its parents' states: (n, m) each, ordered as `layers`.

        Differentiable. `states` are h^0 .. h^L, each (n, n_i).
        """
        every = torch.cat(list(states), dim=1)
        found = {edge.position: edge.layer(every[:, edge.columns]) for edge in self.edges}
        return [found[position] for position in range(len(found))]

    @property
    def chain(self) -> bool:
        """Whether each layer sees one other layer at most, and none sees itself."""
        return all(len(edge.parents) < 2 and not edge.lateral for edge in self.edges)

    def fill_noise(self, out: Tensor, rng: torch.Generator | None) -> None:
        """Fill `out` (n, units) with the noise of which each family of units makes its values."""
        for units, columns, _ in self.spans:
            units.fill_noise(out[:, columns], rng)

    def log_prob(self, states: Sequence[Tensor]) -> Tensor:
        """log p(h^0 .. h^L), or log q(h^1 .. h^L | h^0) upward: (n,), in nats. Differentiable.

        `states` are h^0 .. h^L, each (n, n_i).
        """
        start, total = int(self.upward), states[0].new_zeros(len(states[0]))
        parts = zip(self.units[start:], states[start:], self.logits(states), strict=True)
        for units, h, a in parts:
            total = total + Units.log_prob(units, units.decode(h), a, a).sum(-1)  # the formula
        return total
