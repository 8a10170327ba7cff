"""The package's dense natural direction against the tests' own.

The references are dense blocks, and the joint Fisher matrix by enumeration.
"""

from __future__ import annotations

import pytest
import reference
import torch
from cases import (
    EACH_UNITS,
    EXACT,
    REALISTIC,
    SOLVER_CASES,
    SolverCase,
    Units,
    assert_close,
    encode_layers,
    random_machine,
    seeded,
    with_bias,
)
from solving import ROUNDING, condition, dense, errors, solve_dense

from nws.natural import natural_direction


@pytest.mark.parametrize("case", [c for c in SOLVER_CASES if c.values[0].device == "cpu"])
def test_it_is_the_damped_solution_of_each_units_block(case: SolverCase) -> None:
    fisher, gradient = case.fisher(), case.gradient()
    before = [tensor.clone() for tensor in (fisher.inputs, fisher.curvature, gradient)]
    direction = natural_direction(fisher.inputs, fisher.curvature, gradient, case.alpha)
    blocks = dense(fisher)
    expected = (1 + case.alpha) * solve_dense(blocks, case.alpha, gradient)
    assert direction.shape == gradient.shape and direction.dtype == case.dtype
    bound = ROUNDING * torch.finfo(case.dtype).eps * condition(blocks, case.alpha)
    assert (errors(direction, expected) <= bound).all()
    for old, new in zip(before, (fisher.inputs, fisher.curvature, gradient), strict=True):
        assert torch.equal(old, new)


@pytest.mark.parametrize("units", EACH_UNITS)
def test_layer_by_layer_it_is_the_direction_of_the_whole_network(units: Units) -> None:
    """(1 + alpha) (F + alpha I)^{-1} g, where F is the Fisher matrix of all parameters.

    F is an expectation over every state (x, h).
    """
    machine, alpha = random_machine((3, 2, 2), units), 0.1
    network, fisher = reference.generator(machine), reference.generator_fisher(machine)
    bits = reference.every_state(machine.sizes)
    probabilities = network.log_prob(bits).exp()
    g = torch.randn(len(network.theta), generator=seeded(4), dtype=torch.float64)
    damped = fisher.matrix + alpha * torch.eye(len(g), dtype=torch.float64)
    expected = (1 + alpha) * torch.linalg.solve(damped, g)

    trace = machine.evaluate(encode_layers(machine, bits))
    means = trace.means(machine.generator).split(machine.generator.widths, dim=1)
    for edge in machine.generator.edges:
        p, ranges = means[edge.position], fisher.units[edge.position]
        inputs = with_bias(
            trace.states[:, :0] if edge.parent is None else trace.state_blocks[edge.parent]
        )
        curvature = probabilities[:, None] * p * (1 - p)
        gradient = torch.stack([g[unit] for unit in ranges])
        direction = natural_direction(inputs, curvature, gradient, alpha)
        assert_close(direction, torch.stack([expected[unit] for unit in ranges]), EXACT)


def test_a_large_damping_gives_back_the_gradient_and_a_small_one_does_not() -> None:
    fisher, gradient = REALISTIC.fisher(), REALISTIC.gradient()
    large, small = (
        natural_direction(fisher.inputs, fisher.curvature, gradient, alpha) for alpha in (1e9, 1e-3)
    )
    assert_close(large, gradient, 1e-7)  # the largest eigenvalue, about 10, over alpha
    assert (small - gradient).norm() > gradient.norm()
