"""Rows of a phase, as a metric takes them in: the states of each layer's parents, and curvature."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from nws.learning.gradients import Term
from nws.learning.together import gather
from nws.models import BeliefNetwork, Edge, Trace
from nws.natural import Rows


def layer_rows(
    network: BeliefNetwork, terms: Sequence[Term], max_rows: int | None = None
) -> list[Rows]:
    """The rows of each layer of a network, ordered as `network.layers`.

    What a metric does not ask for is not made. A layer without parents needs no rows: its block
    A''(b_j) is exact. The rows of several processes are gathered when a metric first asks for them,
    so all processes have to ask alike.

    Args:
        network: The network that explains the traces.
        terms: The parts of a phase: the trace of each, and its row weights w_k, (n,). Those of all
            parts and processes sum to 1.
        max_rows: At most so many rows a layer, evenly spaced; None for all. The K rows that share x
            in the first layer of recognition are one. The mean row is of all rows in any case.
    """
    phase = Phase(network, terms, max_rows)
    rows = []
    for edge in sorted(network.edges, key=lambda edge: edge.position):
        name = f"{network.name} layer {edge.position}"
        errors = partial(phase.squared_errors, edge)
        if edge.parent is None:  # at once: the bias is about to change
            units, bias = network.units[edge.child], edge.layer.bias.detach()
            block = units.curvature(units.mean(bias))[None]
            rows.append(Rows(bias.new_ones(1, 1), block, errors, name))
        else:
            inputs, curvature = partial(phase.inputs, edge), partial(phase.curvature, edge)
            weights, means = partial(phase.weights, edge), partial(phase.means, edge)
            rows.append(Rows(inputs, curvature, errors, name, weights, means))
    return rows


class Part(NamedTuple):
    """A part of a phase, and how many rows of the phase are before it."""

    trace: Trace
    row_weights: Tensor  # (n,)
    start: int

    def group(self, edge: Edge, terms: Tensor) -> Tensor:
        """Sums over rows that share their parents: (B, ..) for x, else (n, ..)."""
        return terms.unflatten(0, (-1, self.trace.samples)).sum(1) if edge.parent == 0 else terms


class Phase:
    """What the layers of one network take from a phase, made when it is asked for."""

    def __init__(self, network: BeliefNetwork, terms: Sequence[Term], max_rows: int | None) -> None:
        self.network, self.max_rows = network, max_rows
        self.edges = [edge for edge in network.edges if edge.parent is not None]
        self.parts: list[Part] = []
        self.rows = 0  # of all parts and processes
        for trace, weights in terms:
            some = trace.part
            self.parts.append(Part(trace, weights, self.rows + (some.start if some else 0)))
            self.rows += some.total if some else len(weights)

    def inputs(self, edge: Edge) -> Tensor:
        """H (n, d), the bias column included."""
        return pad(self._states[edge.position], (0, 1), value=1.0)

    def weights(self, edge: Edge) -> Tensor:
        """w_k (n,), which sum to 1."""
        (weights,) = self._keep([edge], lambda part: [part.group(edge, part.row_weights)])
        return weights / _total(weights)

    def curvature(self, edge: Edge) -> Tensor:
        """S (n, m), w_k A''(a_kj)."""
        return self._curvature[edge.position]

    def squared_errors(self, edge: Edge) -> Tensor:
        """w_k (y_kj - A'(a_kj))^2, (n, m); summed over the rows where their parent is the bias."""

        def squares(part: Part) -> Tensor:
            errors = part.trace.errors(self.network).split(self.network.widths, dim=1)
            return errors[edge.position].square_().mul_(part.row_weights[:, None])

        if edge.parent is None:
            return self._sum(lambda part: [squares(part).sum(0)])[0][None]
        return self._weigh([edge], lambda part: [part.group(edge, squares(part))])[edge.position]

    def means(self, edge: Edge) -> tuple[Tensor, Tensor]:
        """c = sum_k w_k h_k (d,), and s_j = sum_k w_k A''(a_kj) (m,)."""
        states, curvature = self._means
        assert edge.parent is not None
        return states[edge.parent], curvature[edge.position]

    @cached_property
    def _states(self) -> dict[int, Tensor]:
        """States of each layer's parents, by the layer's position."""
        states = self._keep(self.edges, lambda part: map(part.trace.inputs, self.edges))
        return {edge.position: each for edge, each in zip(self.edges, states, strict=True)}

    @cached_property
    def _curvature(self) -> dict[int, Tensor]:
        """w_k A''(a_kj) of each layer, by its position."""

        def make(part: Part) -> list[Tensor]:
            weighted = self._curvatures(part.trace.means(self.network))
            blocks = weighted.mul(part.row_weights[:, None]).split(self.network.widths, dim=1)
            return [part.group(edge, blocks[edge.position]) for edge in self.edges]

        return self._weigh(self.edges, make)

    @cached_property
    def _means(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Weighted means over rows: of h^0 .. h^L, each with a 1 at its end, and of all A''."""

        def make(part: Part) -> tuple[Tensor, Tensor, Tensor]:
            weights = self._space(part, part.row_weights)
            total = _total(weights)
            means = self._curvatures(self._space(part, part.trace.means(self.network)))
            return part.row_weights @ part.trace.states, (weights / total) @ means * total, total

        states, curvature, weight = self._sum(make)
        one, sizes = weight.new_ones(1), self.network.sizes
        joined = torch.cat([part for mean in states.split(sizes) for part in (mean, one)])
        widths = [size + 1 for size in sizes]
        return joined.split(widths), (curvature / weight).split(self.network.widths)

    def _weigh(
        self, edges: Sequence[Edge], make: Callable[[Part], Iterable[Tensor]]
    ) -> dict[int, Tensor]:
        """Terms (n, m) of layers, of which as many are kept as rows, by the layers' positions."""
        found = dict(zip([edge.position for edge in edges], self._keep(edges, make), strict=True))
        for edge in edges:
            if self._stride(edge) > 1:  # fewer rows, which weigh as much as all
                every, some = self._sum(partial(self._kept_weight, edge))
                found[edge.position] = found[edge.position] * (every / some)
        return found

    def _kept_weight(self, edge: Edge, part: Part) -> tuple[Tensor, Tensor]:
        """The weight of all rows of a layer, and of those that are kept."""
        weights = part.group(edge, part.row_weights)
        return weights.sum(), _total(self._space(part, weights, edge))

    def _keep(
        self, edges: Sequence[Edge], make: Callable[[Part], Iterable[Tensor]]
    ) -> list[Tensor]:
        """Evenly spaced rows of a tensor for each layer, those of all parts and processes."""
        return self._join(lambda part: map(partial(self._space, part), make(part), edges))

    def _sum(self, make: Callable[[Part], Iterable[Tensor]]) -> list[Tensor]:
        """Sums over the parts and processes."""
        parts = zip(*(make(part) for part in self.parts), strict=True)
        return [rows.sum(0) for rows in gather([torch.stack(each).sum(0)[None] for each in parts])]

    def _join(self, make: Callable[[Part], Iterable[Tensor]]) -> list[Tensor]:
        """Rows of all parts and processes."""
        made = gather([each for part in self.parts for each in make(part)])
        count = len(made) // len(self.parts)
        if len(self.parts) == 1:
            return made
        return [torch.cat(made[number::count]) for number in range(count)]

    def _space(self, part: Part, rows: Tensor, edge: Edge | None = None) -> Tensor:
        """The rows of a part that are kept."""
        shared = self._shared(edge)
        return rows[-(part.start // shared) % self._stride(edge) :: self._stride(edge)]

    def _stride(self, edge: Edge | None) -> int:
        """One row in so many is kept; of no layer in particular for None."""
        rows = self.rows // self._shared(edge)
        return 1 if self.max_rows is None else math.ceil(rows / self.max_rows)

    def _shared(self, edge: Edge | None) -> int:
        """How many rows of the phase are one for a layer: the K that share x."""
        return self.parts[0].trace.samples if edge is not None and edge.parent == 0 else 1

    def _curvatures(self, means: Tensor) -> Tensor:
        """A''(a_kj) of all layers from A'(a_kj)."""
        parts = [units.curvature(means[:, columns]) for units, columns, _ in self.network.spans]
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


def _total(weights: Tensor) -> Tensor:
    """The sum of weights, above 0 also where all of them are too small for the dtype."""
    return weights.sum().clamp_min(torch.finfo(weights.dtype).tiny)
