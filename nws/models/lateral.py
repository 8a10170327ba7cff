"""Drawing a layer; where its units see each other one unit after the other, in blocks."""

import torch
from torch import Tensor

from nws.models.belief_network import Edge
from nws.models.units import Units

BLOCK = 28  # units that are drawn between two products with all units before them


def draw_layer(
    edge: Edge, units: Units, values: Tensor, logits: Tensor, means: Tensor | None = None
) -> Tensor:
    """Turn noise into values of a layer, and complete the logits of a lateral one, in place.

    Args:
        edge: The layer.
        units: The family of its units.
        values: Noise (n, m), which becomes values.
        logits: (n, m), of the other layers alone at first; complete in the end.
        means: Where to write the means, (n, m).

    Returns:
        The means.
    """
    if edge.lateral:
        _draw_in_turn(edge, units, values, logits)
    means = units.mean(logits, out=means)
    if not edge.lateral:
        units.sample_(values, means)
    return means


def _draw_in_turn(edge: Edge, units: Units, values: Tensor, logits: Tensor) -> None:
    """a_j += sum_i<j V_ji h_i, V (m, m) the weights between a layer's own units.

    Units before a block enter its logits by one product, units within it one by one.
    """
    own, order, m = edge.layer.weight[:, edge.own], edge.layer.order, values.shape[1]
    if order is None:
        order = torch.arange(m, device=values.device)
    else:
        own = own[order][:, order]
    states = torch.empty(m, len(values), dtype=values.dtype, device=values.device)
    for start in range(0, m, BLOCK):
        at = order[start : start + BLOCK]
        noise, a = (each[:, at].T.contiguous() for each in (values, logits))  # (block, n)
        block = own[start : start + BLOCK]
        a.addmm_(block[:, :start], states[:start])
        inner = block[:, start : start + BLOCK].T.contiguous()
        later = states[start : start + BLOCK]
        for j, (noise_j, a_j, state) in enumerate(zip(noise, a, later, strict=True)):
            state.copy_(units.encode(units.sample_(noise_j, units.mean(a_j))))
            a[j + 1 :].addr_(inner[j, j + 1 :], state)
        values[:, at], logits[:, at] = noise.T, a.T
