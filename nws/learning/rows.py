"""Rows of a phase, as a metric takes them in: the states of each layer's parents, and curvature."""

import math
from collections.abc import Sequence
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from nws import distributed
from nws.models import BeliefNetwork, Edge, Trace
from nws.natural import Rows


def layer_rows(
    network: BeliefNetwork, trace: Trace, row_weights: Tensor, max_rows: int | None = None
) -> list[Rows]:
    """The rows of each layer of a network, ordered as `network.layers`.

    What a metric does not ask for is not made. A layer without parents needs no rows: its block
    A''(b_j) is exact. Of a trace that is a part of several processes' the rows are those of all:
    rows are joined, and means summed, when a metric asks for them.

    Args:
        network: The network that explains the trace.
        trace: Of a phase.
        row_weights: w_k, (n,), which sum to 1, over all processes.
        max_rows: At most so many rows a layer, evenly spaced; None for all. The K rows that share x
            in the first layer of recognition are one. The mean row is of all rows in any case.
    """
    phase = _Phase(network, trace, row_weights, max_rows)
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


class _Phase:
    """What the layers of one network take from a phase, made when it is asked for."""

    def __init__(
        self, network: BeliefNetwork, trace: Trace, row_weights: Tensor, max_rows: int | None
    ) -> None:
        self.network, self.trace, self.row_weights = network, trace, row_weights
        self.max_rows = max_rows
        self.edges = [edge for edge in network.edges if edge.parent is not None]
        # With one process there is nothing to join, and the numbers stay as they are.
        self.several = trace.part is not None and distributed.size() > 1

    def inputs(self, edge: Edge) -> Tensor:
        """H (n, d), the bias column included."""
        return pad(self._states[edge.position], (0, 1), value=1.0)

    def weights(self, edge: Edge) -> Tensor:
        """w_k (n,), which sum to 1."""
        return _to_sum_one(self._join([self._join_samples(edge, self.row_weights)])[0])

    def curvature(self, edge: Edge) -> Tensor:
        """S (n, m), w_k A''(a_kj)."""
        return self._curvature[edge.position]

    def squared_errors(self, edge: Edge) -> Tensor:
        """w_k (y_kj - A'(a_kj))^2, (n, m)."""
        errors = self.trace.errors(self.network).split(self.network.widths, dim=1)[edge.position]
        errors.square_().mul_(self.row_weights[:, None])
        if edge.parent is None:  # all rows have the same parent, the bias
            block = errors.sum(0, keepdim=True)
            return distributed.total(block) if self.several else block
        return self._reduce([edge], [errors])[edge.position]

    def means(self, edge: Edge) -> tuple[Tensor, Tensor]:
        """c = sum_k w_k h_k (d,), and s_j = sum_k w_k A''(a_kj) (m,)."""
        states, curvature = self._means
        assert edge.parent is not None
        return states[edge.parent], curvature[edge.position]

    @cached_property
    def _states(self) -> dict[int, Tensor]:
        """States of each layer's parents, by the layer's position."""
        joined = self._join([self.trace.inputs(edge) for edge in self.edges])
        return {edge.position: each for edge, each in zip(self.edges, joined, strict=True)}

    @cached_property
    def _curvature(self) -> dict[int, Tensor]:
        """w_k A''(a_kj) of each layer, by its position."""
        weighted = self._curvatures(self.trace.means(self.network)).mul(self.row_weights[:, None])
        blocks = weighted.split(self.network.widths, dim=1)
        return self._reduce(self.edges, [blocks[edge.position] for edge in self.edges])

    @cached_property
    def _means(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Weighted means over rows: of h^0 .. h^L, each with a 1 at its end, and of all A''."""
        states = self.row_weights @ self.trace.states
        weights = self._space(self.row_weights)
        total = _total(weights)
        curvature = (weights / total) @ self._curvatures(
            self._space(self.trace.means(self.network))
        )
        if self.several:
            distributed.sum_([states, curvature.mul_(total), total])
            curvature /= total
        one = weights.new_ones(1)
        parts = states.split(self.network.sizes)
        joined = torch.cat([part for mean in parts for part in (mean, one)])
        sizes = [size + 1 for size in self.network.sizes]
        return joined.split(sizes), curvature.split(self.network.widths)

    def _curvatures(self, means: Tensor) -> Tensor:
        """A''(a_kj) of all layers from A'(a_kj)."""
        parts = [units.curvature(means[:, columns]) for units, columns, _ in self.network.spans]
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def _reduce(self, edges: Sequence[Edge], blocks: Sequence[Tensor]) -> dict[int, Tensor]:
        """Weighted terms (n, m) of layers, for as many rows as each has, by their positions."""
        blocks = [self._join_samples(*pair) for pair in zip(edges, blocks, strict=True)]
        joined = dict(zip([edge.position for edge in edges], self._join(blocks), strict=True))
        for edge, block in zip(edges, blocks, strict=True):
            if self._stride(block) > 1:  # fewer rows, which weigh as much as all
                weights = self._join_samples(edge, self.row_weights)
                sums = torch.stack([weights.sum(), _total(self._space(weights))])
                every, some = distributed.total(sums) if self.several else sums
                joined[edge.position] = joined[edge.position] * (every / some)
        return joined

    def _join_samples(self, edge: Edge, terms: Tensor) -> Tensor:
        """Sum the terms of rows that share their parents: (B, ..) for x, else (n, ..)."""
        shared = edge.parent == 0
        return terms.unflatten(0, (-1, self.trace.samples)).sum(1) if shared else terms

    def _places(self, rows: Tensor) -> list[int]:
        """Where the rows of each process begin, and the end."""
        part = self.trace.part
        return [0, len(rows)] if part is None or not self.several else part.bounds(len(rows))

    def _stride(self, rows: Tensor) -> int:
        """One row in so many is taken."""
        return 1 if self.max_rows is None else math.ceil(self._places(rows)[-1] / self.max_rows)

    def _space(self, rows: Tensor) -> Tensor:
        """Evenly spaced rows, of those that are here."""
        stride = self._stride(rows)
        first = self._places(rows)[distributed.rank() if self.several else 0]
        return rows[-first % stride :: stride]

    def _join(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Evenly spaced rows of each tensor, those of all processes."""
        spaced = [self._space(each) for each in parts]
        if not self.several:
            return spaced
        strides = [self._stride(each) for each in parts]
        places = [
            [-(-at // stride) for at in self._places(each)]
            for each, stride in zip(parts, strides, strict=True)
        ]
        return distributed.gather(spaced, places)


def _total(weights: Tensor) -> Tensor:
    """The sum of weights, above 0 also where all of them are too small for the dtype."""
    return weights.sum().clamp_min(torch.finfo(weights.dtype).tiny)


def _to_sum_one(weights: Tensor) -> Tensor:
    return weights / _total(weights)
