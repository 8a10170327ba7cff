"""Rows of a phase, as a metric takes them in: the states of each layer's parents, and curvature."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import pad

from nws import distributed
from nws.learning.gradients import Term
from nws.models import BeliefNetwork, Edge, Trace
from nws.natural import Rows


def layer_rows(
    network: BeliefNetwork, terms: Sequence[Term], max_rows: int | None = None
) -> list[Rows]:
    """The rows of each layer of a network, ordered as `network.layers`.

    What a metric does not ask for is not made. A layer without parents needs no rows: its block
    A''(b_j) is exact. Of a trace that is a part of several processes' the rows are those of all:
    rows are joined, and means summed, when a metric asks for them.

    Args:
        network: The network that explains the traces.
        terms: The parts of a phase: the trace of each, and its row weights w_k, (n,). Those of all
            parts and processes sum to 1.
        max_rows: At most so many rows a layer, evenly spaced; None for all. The K rows that share x
            in the first layer of recognition are one. The mean row is of all rows in any case.
    """
    phase = _Phase(network, terms, max_rows)
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


Made = Callable[["_Part"], Iterable[Tensor]]  # makes a tensor of rows for each of some layers


class _Phase:
    """What the layers of one network take from a phase, made when it is asked for."""

    def __init__(self, network: BeliefNetwork, terms: Sequence[Term], max_rows: int | None) -> None:
        self.network = network
        self.edges = [edge for edge in network.edges if edge.parent is not None]
        self.parts = [_Part(network, *term) for term in terms]
        *starts, rows = accumulate((part.rows for part in self.parts), initial=0)
        for part, start in zip(self.parts, starts, strict=True):
            part.stand(start, rows, max_rows)
        # With one process there is nothing to join, and the numbers stay as they are.
        self.several = any(part.several for part in self.parts)

    def inputs(self, edge: Edge) -> Tensor:
        """H (n, d), the bias column included."""
        return pad(self._states[edge.position], (0, 1), value=1.0)

    def weights(self, edge: Edge) -> Tensor:
        """w_k (n,), which sum to 1."""
        return _to_sum_one(self._join([edge], lambda part: [part.weights(edge)])[edge.position])

    def curvature(self, edge: Edge) -> Tensor:
        """S (n, m), w_k A''(a_kj)."""
        return self._curvature[edge.position]

    def squared_errors(self, edge: Edge) -> Tensor:
        """w_k (y_kj - A'(a_kj))^2, (n, m)."""
        if edge.parent is not None:
            return self._reduce([edge], lambda part: [part.squared_errors(edge)])[edge.position]
        # all rows have the same parent, the bias
        blocks = [part.squared_errors(edge).sum(0, keepdim=True) for part in self.parts]
        (block,) = self._total([torch.cat(blocks).sum(0, keepdim=True)])
        return block

    def means(self, edge: Edge) -> tuple[Tensor, Tensor]:
        """c = sum_k w_k h_k (d,), and s_j = sum_k w_k A''(a_kj) (m,)."""
        states, curvature = self._means
        assert edge.parent is not None
        return states[edge.parent], curvature[edge.position]

    @cached_property
    def _states(self) -> dict[int, Tensor]:
        """States of each layer's parents, by the layer's position."""
        return self._join(self.edges, lambda part: map(part.trace.inputs, self.edges))

    @cached_property
    def _curvature(self) -> dict[int, Tensor]:
        """w_k A''(a_kj) of each layer, by its position."""
        return self._reduce(self.edges, lambda part: part.curvature(self.edges))

    @cached_property
    def _means(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Weighted means over rows: of h^0 .. h^L, each with a 1 at its end, and of all A''."""
        sums = zip(*(part.sums() for part in self.parts), strict=True)
        states, curvature, weight = self._total([torch.stack(each).sum(0) for each in sums])
        one = weight.new_ones(1)
        parts = states.split(self.network.sizes)
        joined = torch.cat([part for mean in parts for part in (mean, one)])
        sizes = [size + 1 for size in self.network.sizes]
        return joined.split(sizes), (curvature / weight).split(self.network.widths)

    def _reduce(self, edges: Sequence[Edge], made: Made) -> dict[int, Tensor]:
        """Weighted terms (n, m) of layers, for as many rows as each has, by their positions."""
        joined = self._join(edges, made)
        for edge in edges:
            if self.parts[0].stride(edge) > 1:  # fewer rows, which weigh as much as all
                sums = torch.stack([part.kept(edge) for part in self.parts]).sum(0)
                ((every, some),) = self._total([sums])
                joined[edge.position] = joined[edge.position] * (every / some)
        return joined

    def _join(self, edges: Sequence[Edge], made: Made) -> dict[int, Tensor]:
        """Evenly spaced rows of each layer, those of all parts and processes, by its position."""
        parts = [part.join(edges, made(part)) for part in self.parts]
        return {
            edge.position: torch.cat(blocks) if len(blocks) > 1 else blocks[0]
            for edge, *blocks in zip(edges, *parts, strict=True)
        }

    def _total(self, sums: list[Tensor]) -> list[Tensor]:
        """Sums over the processes."""
        if self.several:
            distributed.sum_(sums)
        return sums


class _Part:
    """A part of a phase: its rows, and where they stand among those of the phase."""

    def __init__(self, network: BeliefNetwork, trace: Trace, row_weights: Tensor) -> None:
        self.network, self.trace, self.row_weights = network, trace, row_weights
        self.several = trace.part is not None and distributed.size() > 1
        self.rows = self._places(row_weights)[-1]  # of all processes

    def stand(self, start: int, rows: int, max_rows: int | None) -> None:
        """Say how many rows of the phase are before this part, how many there are, and the cap."""
        self._start, self._all, self._max_rows = start, rows, max_rows

    def stride(self, edge: Edge | None) -> int:
        """One row in so many is taken; of no layer in particular for None."""
        rows = self._all // self._shared(edge)
        return 1 if self._max_rows is None else math.ceil(rows / self._max_rows)

    def weights(self, edge: Edge) -> Tensor:
        """w_k of the rows of a layer."""
        return self._join_samples(edge, self.row_weights)

    def curvature(self, edges: Sequence[Edge]) -> list[Tensor]:
        """w_k A''(a_kj) of layers, for the rows of each."""
        weighted = self._curvatures(self.trace.means(self.network)).mul(self.row_weights[:, None])
        blocks = weighted.split(self.network.widths, dim=1)
        return [self._join_samples(edge, blocks[edge.position]) for edge in edges]

    def squared_errors(self, edge: Edge) -> Tensor:
        """w_k (y_kj - A'(a_kj))^2 of a layer, for its rows."""
        errors = self.trace.errors(self.network).split(self.network.widths, dim=1)[edge.position]
        return self._join_samples(edge, errors.square_().mul_(self.row_weights[:, None]))

    def sums(self) -> tuple[Tensor, Tensor, Tensor]:
        """Weighted sums of all states and, over the rows that are kept, of all A'' and of 1."""
        weights = self._space(self.row_weights)
        total = _total(weights)
        means = self._curvatures(self._space(self.trace.means(self.network)))
        return self.row_weights @ self.trace.states, (weights / total) @ means * total, total

    def kept(self, edge: Edge) -> Tensor:
        """The weight of all rows of a layer, and of those that are kept."""
        weights = self.weights(edge)
        return torch.stack([weights.sum(), _total(self._space(weights, edge))])

    def join(self, edges: Sequence[Edge], blocks: Iterable[Tensor]) -> list[Tensor]:
        """Evenly spaced rows of a block for each layer, those of all processes."""
        blocks = list(blocks)
        spaced = [self._space(block, edge) for edge, block in zip(edges, blocks, strict=True)]
        if not self.several:
            return spaced
        places = []
        for edge, block in zip(edges, blocks, strict=True):
            start, stride = self._start // self._shared(edge), self.stride(edge)
            kept = [-(-(start + place) // stride) for place in self._places(block)]
            places.append([each - kept[0] for each in kept])
        return distributed.gather(spaced, places)

    def _space(self, rows: Tensor, edge: Edge | None = None) -> Tensor:
        """Evenly spaced rows, of those that are here."""
        rank = distributed.rank() if self.several else 0
        first, last = self._places(rows)[rank : rank + 2]  # alike where no data point is here
        first, here = first + self._start // self._shared(edge), last - first
        stride = self.stride(edge)
        return rows[:here][-first % stride :: stride]

    def _places(self, rows: Tensor) -> list[int]:
        """Where the rows of each process begin, and the end."""
        part = self.trace.part
        return [0, len(rows)] if part is None or not self.several else part.bounds(len(rows))

    def _shared(self, edge: Edge | None) -> int:
        """How many rows of the phase are one for a layer: the K that share x."""
        return self.trace.samples if edge is not None and edge.parent == 0 else 1

    def _join_samples(self, edge: Edge, terms: Tensor) -> Tensor:
        """Sum the terms of rows that share their parents: (B, ..) for x, else (n, ..)."""
        return terms.unflatten(0, (-1, self.trace.samples)).sum(1) if edge.parent == 0 else terms

    def _curvatures(self, means: Tensor) -> Tensor:
        """A''(a_kj) of all layers from A'(a_kj)."""
        parts = [units.curvature(means[:, columns]) for units, columns, _ in self.network.spans]
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


def _total(weights: Tensor) -> Tensor:
    """The sum of weights, above 0 also where all of them are too small for the dtype."""
    return weights.sum().clamp_min(torch.finfo(weights.dtype).tiny)


def _to_sum_one(weights: Tensor) -> Tensor:
    return weights / _total(weights)
