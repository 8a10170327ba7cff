"""A family of units that nws does not know learns: steps, Fisher blocks and natural directions."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from cases import EXACT, STANDARD_ERRORS, assert_close, random_machine, seeded
from families import MIXED, Pair, small_machine
from torch import Tensor

from nws.learning.rows import layer_rows
from nws.models import BeliefNetwork, Trace
from nws.natural import UnitFisher

families = pytest.mark.parametrize("units", MIXED.values(), ids=MIXED)


def data(rows: int = 5) -> Tensor:
    return torch.rand(rows, 4, generator=seeded(2)).double()


def row_gradients(network: BeliefNetwork, trace: Trace) -> list[list[Tensor]]:
    """Gradients of each row's log-probability by unit j of layer i: [i][j] of (n, d).

    (y - A'(a)) (h, 1), which the test of a step compares with autograd.
    """
    layers: list[list[Tensor]] = [[] for _ in network.edges]
    for edge in network.edges:
        states = trace.state_blocks
        parents = states[0][:, :0] if edge.parent is None else states[edge.parent]
        inputs = torch.cat([parents, torch.ones_like(states[0][:, :1])], dim=1)
        errors = -trace.errors(network).split(network.widths, dim=1)[edge.position]
        layers[edge.position] = [error[:, None] * inputs for error in errors.T]
    return layers


def autograd_rows(network: BeliefNetwork, states: list[Tensor]) -> Tensor:
    """The gradient of each row's log-probability by all parameters, by autograd: (n, P)."""
    rows = []
    for row in zip(*states, strict=True):
        log_prob = network.log_prob([state[None] for state in row]).sum()
        gradients = torch.autograd.grad(log_prob, list(network.parameters()))
        pairs = zip(gradients[::2], gradients[1::2], strict=True)  # weight, bias
        layers = [torch.cat([weight, bias[:, None]], dim=1).flatten() for weight, bias in pairs]
        rows.append(torch.cat(layers))
    return torch.stack(rows)


@pytest.mark.parametrize("which", [0, 1], ids=["generator", "recognition"])
def test_blocks_of_pairs_are_the_joint_fisher_matrix_by_enumeration(which: int) -> None:
    """E[grad log p grad log p^T] by autograd over all 3^4 states has these blocks and no others."""
    machine = random_machine((2, 1, 1), Pair())
    network = machine.networks[which]
    table = torch.tensor(list(itertools.product([-1.0, 0.0, 1.0], repeat=4))).double()
    states = list(table.split((2, 1, 1), dim=1))
    probabilities = network.log_prob(states).exp().detach()
    if which:  # of x, which recognition does not explain: any
        probabilities = probabilities * (1 + table[:, :2].sum(1) / 4) / 9
    assert_close(probabilities.sum(), torch.tensor(1.0))
    gradients = autograd_rows(network, states)
    joint = torch.einsum("n,np,nr->pr", probabilities, gradients, gradients)
    trace = machine.evaluate(states)
    blocks = [
        block
        for rows in layer_rows(network, [(trace, probabilities)])
        for block in UnitFisher(rows.inputs, rows.curvature).blocks()
    ]
    assert_close(joint, torch.block_diag(*blocks))
    # negative control: other states' weights leave entries between units
    uniform = torch.full_like(probabilities, 1 / len(probabilities))
    other = torch.einsum("n,np,nr->pr", uniform, gradients, gradients)
    assert (other - torch.block_diag(*blocks)).abs().max() > 1e-2


@pytest.mark.parametrize("which", [0, 1], ids=["generator", "recognition"])
@families
def test_blocks_are_the_second_moment_of_gradients_at_the_networks_own_samples(
    units: tuple[Any, Any], which: int
) -> None:
    """Monte Carlo: (y - A')^2 h h^T - A'' h h^T has mean 0, within its standard error."""
    machine, rows = small_machine(units, scale=0.4), 40_000
    network = machine.networks[which]
    x = data().repeat_interleave(rows // 5, dim=0)
    trace = machine.wake(x, 1, seeded(1)) if which else machine.dream(rows, seeded(1))
    weights = torch.full((rows,), 1 / rows, dtype=torch.float64)
    worst = wrong = 0.0
    for layer, gradients in zip(
        layer_rows(network, [(trace, weights)]), row_gradients(network, trace), strict=True
    ):
        blocks = UnitFisher(layer.inputs, layer.curvature).blocks()
        for block, rows_of_unit in zip(blocks, gradients, strict=True):
            outer = torch.einsum("nd,ne->nde", rows_of_unit, rows_of_unit)
            error = outer.std(0) / rows**0.5 + EXACT
            worst = max(worst, float(((outer.mean(0) - block).abs() / error).max()))
            wrong = max(wrong, float(((outer.mean(0) - 1.2 * block).abs() / error).max()))
    assert worst < STANDARD_ERRORS
    assert wrong > 2 * STANDARD_ERRORS  # the control: blocks of a fifth more
