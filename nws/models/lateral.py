"""Drawing a layer, also one whose units see each other."""

import torch
from torch import Tensor

from nws.models.belief_network import Edge
from nws.models.units import Units

BLOCK = 56  # units that are drawn between two products with all units before them, on a CPU


def draw_layer(
    edge: Edge, units: Units, values: Tensor, logits: Tensor, means: Tensor | None = None
) -> Tensor:
    """Turn noise into values of a layer, (n, m), in place; return their means, in `means` if given.

    Logits, (n, m), are of the other layers alone at first; those of a lateral layer are completed.
    """
    if edge.lateral:
        _draw_in_rounds(edge, units, values, logits)
    means = units.mean(logits, out=means)
    if not edge.lateral:
        units.sample_(values, means)
    return means


def _draw_in_rounds(edge: Edge, units: Units, values: Tensor, logits: Tensor) -> None:
    """a_j += sum_i<j V_ji h_i, V (m, m) the weights between a layer's own units.

    Units before a block enter its logits by one product. Within it all are drawn at once, from the
    same noise, until no state changes. After k rounds the first k are final (Song et al. 2021).
    """
    own, order, m = edge.layer.weight[:, edge.own], edge.layer.order, values.shape[1]
    if order is None:
        order = torch.arange(m, device=values.device)
    else:
        own = own[order][:, order]
    states = torch.zeros(m, len(values), dtype=values.dtype, device=values.device)
    width = BLOCK if values.device.type == "cpu" else m  # a GPU waits for launches above all
    for start in range(0, m, width):
        at, rows = order[start : start + width], slice(start, start + width)
        noise, outer = (each[:, at].T.contiguous() for each in (values, logits))  # (block, n)
        outer.addmm_(own[rows, :start], states[:start])
        inner, found = own[rows, rows].contiguous(), states[rows]
        for _ in range(len(at)):
            a = torch.addmm(outer, inner, found)
            drawn = units.sample_(noise.clone(), units.mean(a))
            if torch.equal(state := units.encode(drawn), found):
                break
            found.copy_(state.nan_to_num())  # 0 times infinity is not 0
        values[:, at], logits[:, at] = drawn.T, a.T
