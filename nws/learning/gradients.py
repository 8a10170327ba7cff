"""Local gradients: products of errors and parents' states, no autograd.

Everything is conditionally independent given the states. For one layer with inputs H (n, d), values
Y (n, m), means P (n, m) and row weights w (n), the gradient of sum_k w_k log p(y_k | h_k) is

    G = ((Y - P) * w[:, None])^T H                                                    (m, d)
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nws.models import BeliefNetwork, Trace
from nws.models.belief_network import product

Term = tuple[Trace, Tensor]  # rows of a phase and their weights (n,) in a network's objective


def write_gradients(network: BeliefNetwork, terms: Sequence[Term], add: bool = False) -> None:
    """Write the gradient of -sum over terms of sum_k w_k log p(y_k | h_k) to `.grad`.

    Args:
        network: Whose parameters' `.grad` is written.
        terms: Traces and their row weights (n,).
        add: Whether to add to what `.grad` is, in place of writing over it.
    """
    for parameter in network.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    if not add:
        torch._foreach_zero_([each.grad for each in network.parameters()])  # type: ignore[misc]
    biases: list[Tensor] = [layer.bias.grad for layer in network.layers]  # type: ignore[misc]
    for trace, row_weights in terms:
        residual = trace.errors(network).mul_(row_weights[:, None])
        blocks = residual.split(network.widths, dim=1)
        torch._foreach_add_(biases, residual.sum(0).split(network.widths))  # of all layers
        for edge in network.edges:
            weight, mask = edge.layer.weight.grad, edge.layer.mask
            assert weight is not None
            for inputs, columns in trace.pieces(edge):
                block = blocks[edge.position]
                if len(inputs) < len(block):  # K rows share x: the sum over them comes first
                    block = block.unflatten(0, (-1, trace.samples)).sum(1)
                if inputs.dtype == weight.dtype:
                    weight[:, columns].addmm_(block.T, inputs)
                else:
                    weight[:, columns].add_(product(block.to(inputs).T, inputs))
            if mask is not None:
                weight.mul_(mask)
