"""Rows of a phase, as a metric takes them in: the states of each layer's parents, and curvature."""

import math
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from nws.models import BeliefNetwork, Edge, Trace
from nws.natural import Rows


def layer_rows(
    network: BeliefNetwork, trace: Trace, row_weights: Tensor, max_rows: int | None = None
) -> list[Rows]:
    """The rows of each layer of a network, ordered as `network.layers`.

    What a metric does not ask for is not made. A layer without parents needs no rows: its block
    A''(b_j) is exact.

    Args:
        network: The network that explains the trace.
        trace: Of a phase.
        row_weights: w_k, (n,), which sum to 1.
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

    def inputs(self, edge: Edge) -> Tensor:
        """H (n, d), the bias column included."""
        states = self.trace.inputs(edge)
        return pad(states[:: self._stride(states)], (0, 1), value=1.0)

    def weights(self, edge: Edge) -> Tensor:
        """w_k (n,), which sum to 1."""
        weights = self._join_samples(edge, self.row_weights)
        return _to_sum_one(weights[:: self._stride(weights)])

    def curvature(self, edge: Edge) -> Tensor:
        """S (n, m), w_k A''(a_kj)."""
        return self._reduce(edge, self._curvature[edge.position])

    def squared_errors(self, edge: Edge) -> Tensor:
        """w_k (y_kj - A'(a_kj))^2, (n, m)."""
        errors = self.trace.errors(self.network).split(self.network.widths, dim=1)[edge.position]
        return self._reduce(edge, errors.square_().mul_(self.row_weights[:, None]))

    def means(self, edge: Edge) -> tuple[Tensor, Tensor]:
        """c = sum_k w_k h_k (d,), and s_j = sum_k w_k A''(a_kj) (m,)."""
        states, curvature = self._means
        assert edge.parent is not None
        return states[edge.parent], curvature[edge.position]

    @cached_property
    def _curvature(self) -> tuple[Tensor, ...]:
        """w_k A''(a_kj) of every layer, all rows."""
        return self._curvatures(1).mul(self.row_weights[:, None]).split(self.network.widths, dim=1)

    @cached_property
    def _means(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Weighted means over rows: of h^0 .. h^L, each with a 1 at its end, and of all A''."""
        states = (self.row_weights @ self.trace.states).split(self.network.sizes)
        stride = self._stride(self.row_weights)
        weights = _to_sum_one(self.row_weights[::stride])
        one = weights.new_ones(1)
        joined = torch.cat([part for mean in states for part in (mean, one)])
        curvature = weights @ self._curvatures(stride)
        sizes = [size + 1 for size in self.network.sizes]
        return joined.split(sizes), curvature.split(self.network.widths)

    def _curvatures(self, stride: int) -> Tensor:
        """A''(a_kj) of all layers, for one row in so many."""
        means = self.trace.means(self.network)[::stride]
        parts = [units.curvature(means[:, columns]) for units, columns, _ in self.network.spans]
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def _reduce(self, edge: Edge, block: Tensor) -> Tensor:
        """One layer's weighted terms (n, m), for as many rows as the layer has."""
        if edge.parent is None:  # all rows have the same parent, the bias
            return block.sum(0, keepdim=True)
        block = self._join_samples(edge, block)
        stride = self._stride(block)
        if stride == 1:
            return block
        weights = self._join_samples(edge, self.row_weights)
        return block[::stride] * (weights.sum() / _total(weights[::stride]))

    def _join_samples(self, edge: Edge, terms: Tensor) -> Tensor:
        """Sum the terms of rows that share their parents: (B, ..) for x, else (n, ..)."""
        shared = edge.parent == 0
        return terms.unflatten(0, (-1, self.trace.samples)).sum(1) if shared else terms

    def _stride(self, rows: Tensor) -> int:
        return 1 if self.max_rows is None else math.ceil(len(rows) / self.max_rows)


def _total(weights: Tensor) -> Tensor:
    """The sum of weights, above 0 also where all of them are too small for the dtype."""
    return weights.sum().clamp_min(torch.finfo(weights.dtype).tiny)


def _to_sum_one(weights: Tensor) -> Tensor:
    return weights / _total(weights)
