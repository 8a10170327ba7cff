"""Rows of a phase, as a metric takes them in: the states of each layer's parents, and curvature."""

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from nws.models import BeliefNetwork, Edge, Trace
from nws.natural import Rows


def layer_rows(
    network: BeliefNetwork, trace: Trace, row_weights: Tensor, max_rows: int | None = None
) -> list[Rows]:
    """The rows of each layer of a network, ordered as `network.layers`.

    A layer without parents needs no rows: its block A''(b_j) is exact.

    Args:
        network: The network that explains the trace.
        trace: Of a phase.
        row_weights: w_k, (n,).
        max_rows: At most so many rows a layer, evenly spaced; None for all. The K rows that share x
            in the first layer of recognition are one.
    """
    means = trace.means(network)
    parts = [units.curvature(means[:, columns]) for units, columns, _ in network.spans]
    curvature = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
    curvature = curvature * row_weights[:, None]  # a family may return its argument: not in place
    blocks = curvature.split(network.widths, dim=1)

    def squared_errors(edge: Edge) -> Tensor:
        errors = trace.errors(network).split(network.widths, dim=1)[edge.position]
        return _reduce(
            edge, errors.square_().mul_(row_weights[:, None]), trace, row_weights, max_rows
        )

    rows = []
    for edge in sorted(network.edges, key=lambda edge: edge.position):
        if edge.parent is None:
            units = network.units[edge.child]
            inputs = edge.layer.bias.new_ones(1, 1)
            block = units.curvature(units.mean(edge.layer.bias.detach()))[None]
        else:
            block = _reduce(edge, blocks[edge.position], trace, row_weights, max_rows)
            states = trace.inputs(edge)
            inputs = pad(states[:: _stride(len(states), max_rows)], (0, 1), value=1.0)
        name = f"{network.name} layer {edge.position}"
        rows.append(Rows(inputs, block, partial(squared_errors, edge), name))
    return rows


def _reduce(
    edge: Edge, block: Tensor, trace: Trace, row_weights: Tensor, max_rows: int | None
) -> Tensor:
    """One layer's weighted terms (n, m), for as many rows as the layer has."""
    if edge.parent is None:  # all rows have the same parent, the bias
        return block.sum(0, keepdim=True)
    if edge.parent == 0:  # K rows share x: one row for all of them
        block = block.unflatten(0, (-1, trace.samples)).sum(1)
        row_weights = row_weights.unflatten(0, (-1, trace.samples)).sum(1)
    stride = _stride(len(block), max_rows)
    if stride == 1:
        return block
    return block[::stride] * (row_weights.sum() / row_weights[::stride].sum())


def _stride(rows: int, max_rows: int | None) -> int:
    return 1 if max_rows is None else math.ceil(rows / max_rows)
