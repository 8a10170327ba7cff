"""The Fisher matrix of a network: by autograd over every state, and by one block for each unit."""

from typing import Any, Literal

import pytest
import reference
import torch
from cases import EACH_UNITS, Units, assert_close, encode_layers, random_machine, seeded, with_bias
from solving import dense
from torch import Tensor

from nws.models import BeliefNetwork, HelmholtzMachine, Trace
from nws.natural import UnitFisher

# A few hundred products of two gradients cancel in each sum.
# Their entries are of size 1, so the error is a few hundred times 2e-16.
CROSS_UNIT = 1e-12
EACH_SIZES = [(3, 2), (2, 3, 2), (3, 1, 2)]
Which = Literal["generator", "recognition"]
EACH_NETWORK: list[Which] = ["generator", "recognition"]

IMAGES = 3  # of p_D, with unequal probabilities
DATA = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)

each_units = pytest.mark.parametrize("units", EACH_UNITS)
each_sizes = pytest.mark.parametrize(
    "sizes", EACH_SIZES, ids=lambda sizes: "-".join(map(str, sizes))
)
each_network = pytest.mark.parametrize("which", EACH_NETWORK)


def images(sizes: tuple[int, ...]) -> Tensor:
    """The images of p_D: (IMAGES, n_0) bits."""
    return torch.rand(IMAGES, sizes[0], generator=seeded(3), dtype=torch.float64).round()


def every_row(machine: HelmholtzMachine, which: Which) -> tuple[Trace, Tensor]:
    """Every state, and its probability (rows,): the network's Fisher matrix is an expectation."""
    if which == "generator":
        bits = reference.every_state(machine.sizes)
        probabilities = reference.generator(machine).log_prob(bits).exp()
    else:
        states = [reference.every_hidden_state(machine, x) for x in images(machine.sizes)]
        bits = [torch.cat(layer) for layer in zip(*states, strict=True)]
        data = DATA.repeat_interleave(len(states[0][0]))
        probabilities = data * reference.recognition(machine).log_prob(bits).exp()
    assert_close(probabilities.sum(), torch.tensor(1.0))
    return machine.evaluate(encode_layers(machine, bits)), probabilities


def joint_fisher(machine: HelmholtzMachine, which: Which, form: Any = "outer") -> reference.Fisher:
    if which == "generator":
        return reference.generator_fisher(machine, form)
    return reference.recognition_fisher(machine, images(machine.sizes), DATA, form)


def layer_fishers(
    network: BeliefNetwork, trace: Trace, row_weights: Tensor, empirical: bool = False
) -> list[UnitFisher]:
    """The formula: inputs H and weights w_k sigma'(a_kj), in the order of the network's layers.

    The empirical one has w_k (y_kj - p_kj)^2.
    """
    means, targets = trace.means(network), trace.targets(network)
    slopes = (targets - means).square() if empirical else means * (1 - means)
    weights = (row_weights[:, None] * slopes).split(network.widths, dim=1)
    return [
        UnitFisher(
            with_bias(trace.states[:, :0] if e.parent is None else trace.state_blocks[e.parent]),
            weights[e.position],
        )
        for e in sorted(network.edges, key=lambda edge: edge.position)
    ]


def expected_blocks(fisher: reference.Fisher) -> list[Tensor]:
    """The diagonal blocks of each layer's units: (m, d, d) each."""
    return [torch.stack([fisher.matrix[unit, unit] for unit in layer]) for layer in fisher.units]


# --- exactly --------------------------------------------------------------------------------------


@each_network
@each_units
@each_sizes
def test_the_joint_fisher_matrix_is_block_diagonal_with_one_block_per_unit(
    sizes: tuple[int, ...], units: Units, which: Which
) -> None:
    machine = random_machine(sizes, units)
    fisher = joint_fisher(machine, which)
    outside = torch.ones_like(fisher.matrix, dtype=torch.bool)
    for unit in (unit for layer in fisher.units for unit in layer):
        outside[unit, unit] = False
    assert outside.any() and fisher.matrix[outside].abs().max() < CROSS_UNIT
    assert_close(joint_fisher(machine, which, "hessian").matrix, fisher.matrix)

    network = getattr(machine, which)
    layers = layer_fishers(network, *every_row(machine, which))
    assert len(layers) == len(network.layers)
    for layer, blocks in zip(layers, expected_blocks(fisher), strict=True):
        assert_close(layer.blocks(), blocks)
    if which == "generator":
        bits = reference.every_state(sizes)  # the control: other states' gradients mix the units
        uniform = torch.full((len(bits[0]),), 1 / len(bits[0]), dtype=torch.float64)
        mixed = reference.fisher_matrix(reference.generator(machine), bits, uniform)
        assert mixed[outside].abs().max() > 1e-2


@each_network
@each_units
def test_the_empirical_fisher_is_the_true_one_only_where_the_rows_are_the_models(
    units: Units, which: Which
) -> None:
    """Negative control: weights (y - p)^2 instead of p (1 - p).

    They pass where the network itself draws the targets.
    They fail where the other network draws them: the generator on wake rows, recognition on dreams.
    """
    machine = random_machine((3, 2, 2), units)
    network = getattr(machine, which)
    for source in EACH_NETWORK:
        rows = every_row(machine, source)
        pairs = [layer_fishers(network, *rows, empirical) for empirical in (False, True)]
        for true, empirical in zip(*pairs, strict=True):
            if source == which:
                assert_close(empirical.blocks(), true.blocks())
            else:
                wrong = (empirical.blocks() - true.blocks()).norm()
                assert wrong > 0.05 * true.blocks().norm()


# --- the operator ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7, 4, 3), (3, 5, 2), (1, 1, 1), (4, 1, 6), (6, 3, 1)], ids=str)
def test_every_operation_is_that_of_the_dense_blocks(shape: tuple[int, int, int]) -> None:
    n, d, m = shape
    inputs, weights = (torch.rand(n, k, generator=seeded(k), dtype=torch.float64) for k in (d, m))
    fisher = UnitFisher(inputs - 0.5, weights)
    blocks, vectors = dense(fisher), torch.randn(m, d, generator=seeded(9), dtype=torch.float64)
    content = fisher.inputs.clone(), fisher.curvature.clone(), vectors.clone()
    assert fisher.shape == (m, d)
    assert_close(fisher.matmul(vectors), torch.einsum("mij,mj->mi", blocks, vectors))
    assert_close(fisher.diagonal(), torch.stack([block.diagonal() for block in blocks]))
    assert_close(fisher.blocks(), blocks)
    assert_close(fisher.quadratic(vectors), torch.einsum("mi,mij,mj->", vectors, blocks, vectors))
    for units in (slice(0, 1), slice(1, m), slice(0, m, 2), slice(m - 1, None)):
        assert_close(fisher.blocks(units), blocks[units])
    for before, after in zip(content, (fisher.inputs, fisher.curvature, vectors), strict=True):
        assert torch.equal(before, after)  # nothing is written in place
