"""What the natural direction means: the enumerated Fisher matrix, and invariance."""

import itertools

import pytest
import reference
import torch
from cases import EACH_UNITS, assert_close, encode_layers, random_machine, row_weights, seeded
from directions import BOTH, SOLVED, natural, natural_metrics, network_of, relative_error
from torch import Tensor

from nws.learning.gradients import write_gradients
from nws.learning.rows import layer_rows
from nws.models import HelmholtzMachine, Trace
from nws.natural import UnitFisher

# A few hundred products of two gradients cancel in each sum.
# Their entries are of size 1, so the error is a few hundred times 2e-16.
CROSS_UNIT = 1e-12
DATA = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)  # p_D of three images
each_units = pytest.mark.parametrize("units", EACH_UNITS)
each_network = pytest.mark.parametrize("which", BOTH, ids=["generator", "recognition"])


def every_row(machine: HelmholtzMachine, which: int) -> tuple[reference.Bits, Tensor]:
    """Every state, and its probability (rows,): the network's Fisher matrix is an expectation."""
    bits, data = reference.every_state(machine.sizes), torch.tensor(1.0)
    if which == 1:
        images = torch.rand(3, machine.sizes[0], generator=seeded(3), dtype=torch.float64).round()
        states = [reference.every_hidden_state(machine, x) for x in images]
        bits = [torch.cat(layer) for layer in zip(*states, strict=True)]
        data = DATA.repeat_interleave(len(states[0][0]))
    probabilities = data * network_of(machine, which).log_prob(bits).exp()
    assert_close(probabilities.sum(), torch.tensor(1.0))
    return bits, probabilities


@each_network
@each_units
@pytest.mark.parametrize("sizes", [(3, 2), (2, 3, 2), (3, 1, 2)], ids=str)
def test_the_joint_fisher_matrix_is_block_diagonal_with_one_block_per_unit(
    sizes: tuple[int, ...], units: str, which: int
) -> None:
    """The blocks are those of the rows that a metric takes in, if these are every state."""
    machine = random_machine(sizes, units)
    network, (bits, probabilities) = network_of(machine, which), every_row(machine, which)
    fisher = reference.fisher_matrix(network, bits, probabilities)
    outside = torch.ones_like(fisher, dtype=torch.bool)
    for unit in itertools.chain(*network.unit_ranges):
        outside[unit, unit] = False
    assert outside.any() and fisher[outside].abs().max() < CROSS_UNIT
    assert_close(reference.fisher_matrix(network, bits, probabilities, "hessian"), fisher)
    trace = machine.evaluate(encode_layers(machine, bits))
    found = layer_rows(machine.networks[which], [(trace, probabilities)])
    for rows, layer in zip(found, network.unit_ranges, strict=True):
        blocks = torch.stack([fisher[unit, unit] for unit in layer])
        assert_close(UnitFisher(rows.inputs, rows.curvature).blocks(), blocks)
    if which == 0:
        uniform = torch.full_like(probabilities, 1 / len(probabilities))  # the control: it mixes
        mixed = reference.fisher_matrix(network, bits, uniform)
        assert mixed[outside].abs().max() > 1e-2


@each_network
@each_units
def test_the_direction_of_every_state_is_that_of_the_joint_matrix(units: str, which: int) -> None:
    machine = random_machine((3, 2, 2), units, seed=3)
    network = network_of(machine, which)
    exact = reference.fisher_matrix(network, *every_row(machine, which))
    blocks = [[exact[unit, unit] for unit in layer] for layer in network.unit_ranges]
    gradient = torch.randn(len(network.theta), generator=seeded(7), dtype=torch.float64)
    expected = natural(network, blocks, gradient)
    for source in BOTH:
        metric = natural_metrics(machine)[which]
        for layer, units_of in zip(metric.network.layers, network.unit_ranges, strict=True):
            part = torch.stack([gradient[unit] for unit in units_of])
            layer.weight.grad, layer.bias.grad = part[:, :-1].clone(), part[:, -1].clone()
        bits, probabilities = every_row(machine, source)
        trace = machine.evaluate(encode_layers(machine, bits))
        metric.precondition([(trace, probabilities)], [])
        found = reference.flatten(metric.network.layers, gradients=True)
        if source == which:
            assert_close(found, expected, SOLVED)
        else:  # the control: the other phase's states
            assert relative_error(found, expected) > 0.01


# --- invariance -----------------------------------------------------------------------------------

# The damping is all that depends on the encoding: its share is alpha over the smallest eigenvalue
# of a block, ~1e-2 here.
TINY, INVARIANT = 1e-10, 1e-6


def as_binary(machine: HelmholtzMachine) -> HelmholtzMachine:
    """The same model with binary units as one with bipolar units: W' = 2 W, b' = b - sum of W."""
    binary = HelmholtzMachine(machine.sizes, "binary").double()
    for networks in zip(machine.networks, binary.networks, strict=True):
        for old, new in zip(*(network.layers for network in networks), strict=True):
            new.weight.data = 2 * old.weight.data
            new.bias.data = old.bias.data - old.weight.data.sum(1)
    return binary


def change_of_logits(
    machine: HelmholtzMachine, bits: reference.Bits, which: int, alpha: float | None
) -> Tensor:
    """What a natural step, or a plain one (alpha None), does to the logits of fixed states."""

    def trace() -> Trace:
        return machine.evaluate(encode_layers(machine, bits))

    network, before = machine.networks[which], trace()
    weights = row_weights(len(bits[0]), seed=9)
    write_gradients(network, [(before, weights)])
    if alpha is not None:
        natural_metrics(machine, alpha)[which].precondition([(before, weights)], [])
    torch.optim.SGD(network.parameters(), lr=0.1).step()
    return trace().logits(network) - before.logits(network)


@each_network
def test_the_natural_step_does_not_depend_on_the_encoding_of_the_units(which: int) -> None:
    sizes = (5, 4, 3, 2)
    draws = torch.rand(300, sum(sizes), generator=seeded(8), dtype=torch.float64)
    bits = list((draws < 0.4).double().split(sizes, 1))

    def difference(alpha: float | None) -> Tensor:
        bipolar = random_machine(sizes, "bipolar", seed=4)
        binary = as_binary(bipolar)
        pair = [machine.evaluate(encode_layers(machine, bits)) for machine in (bipolar, binary)]
        for i in BOTH:  # one model
            assert_close(pair[0].logits(bipolar.networks[i]), pair[1].logits(binary.networks[i]))
        widths = bipolar.networks[which].widths
        changes = (change_of_logits(each, bits, which, alpha) for each in (bipolar, binary))
        layers = zip(*(each.split(widths, 1) for each in changes), strict=True)
        return torch.tensor([relative_error(*layer) for layer in layers])

    assert difference(TINY).max() < INVARIANT
    # layers; the deepest of the generator has no parents, and is the same in both encodings
    with_parents = 3
    assert difference(None)[:with_parents].min() > 0.1  # the plain gradient
    # damping is where the encoding comes in
    assert difference(0.2)[:with_parents].min() > 1e3 * INVARIANT
