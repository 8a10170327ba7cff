"""Rows of a phase, as a metric takes them in: the states of each layer's parents, and curvature."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from itertools import product
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
    return [phase.rows(edge) for edge in sorted(network.edges, key=lambda edge: edge.position)]


class Piece(NamedTuple):
    """A part of a phase, and how many rows of the phase are before it."""

    trace: Trace
    weights: Tensor  # (n,)
    start: int


class Phase:
    """What the layers of one network take from a phase: each tensor is made when it is asked for.

    Tensors of single layers are by the layer's position.
    """

    def __init__(self, network: BeliefNetwork, terms: Sequence[Term], max_rows: int | None) -> None:
        self.network, self.max_rows = network, max_rows
        self.edges = [edge for edge in network.edges if edge.parents]
        self.parts: list[Piece] = []
        self.count = 0  # rows of all parts and processes
        for trace, weights in terms:
            some = trace.share
            self.parts.append(Piece(trace, weights, self.count + (some.start if some else 0)))
            self.count += some.total if some else len(weights)

    def rows(self, edge: Edge) -> Rows:
        """The rows of one layer."""
        at, name = edge.position, f"{self.network.name} layer {edge.position}"
        low = edge.layer.rounded
        if not edge.parents:  # at once: the bias is about to change
            units, bias = self.network.units[edge.child], edge.layer.bias.detach()
            block = units.curvature(units.mean(bias))[None]
            return Rows(bias.new_ones(1, 1), block, partial(self._bias_errors, edge), name)
        return Rows(
            lambda: pad(self._states[at].to(self.parts[0].weights), (0, 1), value=1.0),
            lambda: self._curvature[at],
            lambda: self._squared_errors[at], name,
            lambda: self._weights[at] / _total(self._weights[at]),
            lambda: (self._means[0][at], self._means[1][at]),
            edge.layer.mask_with_bias, None if low is None else low.dtype,
        )  # fmt: skip

    @cached_property
    def _states(self) -> dict[int, Tensor]:
        """States of the parents, (n, d - 1)."""
        return self._join(lambda part, edge: part.trace.inputs(edge))

    @cached_property
    def _weights(self) -> dict[int, Tensor]:
        """w_k (n,) of the rows that are kept."""
        return self._join(lambda part, edge: part.weights)

    @cached_property
    def _curvature(self) -> dict[int, Tensor]:
        """w_k A''(a_kj), (n, m)."""

        def make(trace: Trace, edge: Edge) -> Tensor:
            units = self.network.units[edge.child]
            return units.curvature(self._block(trace.means(self.network), edge))

        return self._weigh(make)

    @cached_property
    def _squared_errors(self) -> dict[int, Tensor]:
        """w_k (y_kj - A'(a_kj))^2, (n, m)."""
        return self._weigh(self._squares)

    def _bias_errors(self, edge: Edge) -> Tensor:
        """The same of a layer without parents, summed over all rows: (1, m)."""
        squares = (self._squares(part.trace, edge) * part.weights[:, None] for part in self.parts)
        return self._sum([each.sum(0)] for each in squares)[0][None]

    def _squares(self, trace: Trace, edge: Edge) -> Tensor:
        tensors = trace.means(self.network), trace.targets(self.network)
        mean, target = (self._block(each, edge) for each in tensors)
        return (mean - target).square()

    def _block(self, tensor: Tensor, edge: Edge) -> Tensor:
        """The columns of one layer."""
        return tensor.split(self.network.widths, dim=1)[edge.position]

    @cached_property
    def _means(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Sums over the rows of w_k times each layer's parents and a 1; and times each A''."""

        def make(part: Piece) -> tuple[Tensor, Tensor, Tensor]:
            kept = self._kept(part, 1)
            weights, means = part.weights[kept], part.trace.means(self.network)[kept]
            curvatures = [units.curvature(means[:, at]) for units, at, _ in self.network.spans]
            scales = weights @ torch.cat(curvatures, dim=1)
            return part.weights @ part.trace.states, scales, _total(weights)

        states, curvature, weight = self._sum(map(make, self.parts))
        one, edges = weight.new_ones(1), sorted(self.network.edges, key=lambda edge: edge.position)
        joined = torch.cat([part for edge in edges for part in (states[edge.columns], one)])
        scales = (curvature / weight).split(self.network.widths)
        return joined.split([edge.layer.weight.shape[1] + 1 for edge in edges]), scales

    def _weigh(self, make: Callable[[Trace, Edge], Tensor]) -> dict[int, Tensor]:
        """Terms (n, m) times w_k; those that are kept are scaled to the weight of all."""
        found = self._join(lambda part, edge: make(part.trace, edge) * part.weights[:, None])
        if self.max_rows is None:
            return found
        return {at: terms / _total(self._weights[at]) for at, terms in found.items()}

    def _join(self, make: Callable[[Piece, Edge], Tensor]) -> dict[int, Tensor]:
        """Rows of each layer that are kept, those of all parts and processes."""
        found = []
        for edge, part in product(self.edges, self.parts):
            rows, shared = make(part, edge), part.trace.samples if edge.parents == (0,) else 1
            if shared > 1 and len(rows) == len(part.weights):  # the K that share x are one row
                rows = rows.unflatten(0, (-1, shared)).sum(1)
            found.append(rows[self._kept(part, shared)])
        every, parts = gather(found), len(self.parts)
        if parts > 1:
            every = [torch.cat(every[i : i + parts]) for i in range(0, len(every), parts)]
        return {edge.position: rows for edge, rows in zip(self.edges, every, strict=True)}

    def _kept(self, part: Piece, shared: int) -> slice:
        """Which rows of a part are kept, evenly spaced, where so many are one."""
        stride = math.ceil(self.count // shared / self.max_rows) if self.max_rows else 1
        return slice(-(part.start // shared) % stride, None, stride)

    def _sum(self, parts: Iterable[Iterable[Tensor]]) -> list[Tensor]:
        """Sums over the parts and processes."""
        sums = [torch.stack(each).sum(0)[None] for each in zip(*parts, strict=True)]
        return [rows.sum(0) for rows in gather(sums)]


def _total(weights: Tensor) -> Tensor:
    """The sum of weights, above 0 also where all of them are too small for the dtype."""
    return weights.sum().clamp_min(torch.finfo(weights.dtype).tiny)
