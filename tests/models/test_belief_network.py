"""Belief networks: log-probabilities and gradients, and the Fisher reference that they imply."""

from __future__ import annotations

import pytest
import reference
import torch
from cases import (
    CASES,
    EACH_UNITS,
    EXACT,
    Case,
    assert_close,
    encode_layers,
    random_machine,
    seeded,
)
from torch import Tensor

from nws.errors import UserError
from nws.models import BeliefNetwork, Binary, Bipolar
from nws.models.belief_network import check_sizes


def random_bits(case: Case, rows: int = 6) -> list[Tensor]:
    return [torch.randint(2, (rows, size), generator=seeded(3)).double() for size in case.sizes]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("upward", [False, True], ids=["generator", "recognition"])
def test_log_prob_and_its_gradient_are_the_plain_bernoulli_formulas(
    case: Case, upward: bool
) -> None:
    machine, bits = case.machine(), random_bits(case)
    network = machine.recognition if upward else machine.generator
    expected = reference.recognition(machine) if upward else reference.generator(machine)
    states = encode_layers(machine, bits)

    for logits, expected_logits in zip(network.logits(states), expected.logits(bits), strict=True):
        assert_close(logits, expected_logits, case.tolerance)
    log_prob = network.log_prob(states)
    assert_close(log_prob, expected.log_prob(bits), case.tolerance)
    log_prob.sum().backward()
    gradient = expected.gradient(bits, torch.ones(len(bits[0]), dtype=torch.float64))
    assert_close(reference.flatten(network.layers, gradients=True), gradient, case.tolerance)


@pytest.mark.parametrize("units", EACH_UNITS)
def test_probabilities_of_all_states_sum_to_one(units: str) -> None:
    machine = random_machine((3, 2, 2), units)
    states = encode_layers(machine, reference.every_state(machine.sizes))
    assert_close(machine.generator.log_prob(states).exp().sum(), torch.tensor(1.0))
    # 1 for each x
    assert_close(machine.recognition.log_prob(states).exp().sum(), torch.tensor(8.0))


@pytest.mark.parametrize("units", EACH_UNITS)
def test_networks_with_extreme_biases_have_finite_log_probs(units: str) -> None:
    machine = random_machine((3, 2), units).float()
    for network in machine.networks:
        for layer in network.layers:
            torch.nn.init.constant_(layer.weight, 0.0)
            torch.nn.init.constant_(layer.bias, 1e4)
    ones = [torch.ones(1, 3), torch.ones(1, 2)]
    zeros = encode_layers(machine, [torch.zeros_like(y) for y in ones])
    assert machine.generator.log_prob(ones).item() == 0
    assert machine.generator.log_prob(zeros).item() == -5e4
    assert machine.recognition.log_prob(zeros).item() == -2e4


def test_shapes_are_those_of_linear_layers_and_edges_go_parents_first() -> None:
    down, up = (BeliefNetwork((5, 3, 2), upward=upward) for upward in (False, True))
    assert [tuple(layer.weight.shape) for layer in down.layers] == [(5, 3), (3, 2), (2, 0)]
    assert [tuple(layer.weight.shape) for layer in up.layers] == [(3, 5), (2, 3)]
    assert [(edge.parent, edge.child) for edge in down.edges] == [(None, 2), (2, 1), (1, 0)]
    assert [(edge.parent, edge.child) for edge in up.edges] == [(0, 1), (1, 2)]
    for network in (down, up):
        assert all(network.layers[edge.position] is edge.layer for edge in network.edges)
        assert network.widths == [layer.weight.shape[0] for layer in network.layers]
        assert all(isinstance(units, Binary) for units in network.units)
    assert (down.name, up.name) == ("generator", "recognition")
    assert repr(up.layers[0]) == "Layer(parents=5, units=3)"


def test_spans_are_the_neighbouring_layers_of_one_family() -> None:
    one, other = Binary(), Bipolar()
    down = BeliefNetwork((5, 3, 2), upward=False, units=(one, other, other))
    up = BeliefNetwork((5, 3, 2), upward=True, units=(one, other, other))
    mixed = BeliefNetwork((5, 3, 2), upward=False, units=(one, other, one))
    assert down.spans == [(one, slice(0, 5), [5]), (other, slice(5, 10), [3, 2])]
    assert up.spans == [(other, slice(0, 5), [3, 2])]  # the visible layer is none of its own
    assert [span.units for span in mixed.spans] == [one, other, one]
    assert BeliefNetwork((5, 3, 2), upward=False).spans[0].columns == slice(0, 10)


@pytest.mark.parametrize(
    "sizes", [[], [3], [3, 0], [0, 3], [3, -1], [3, 2.5], [3, "2"], [3, True], [3, None]]
)
def test_bad_sizes_are_refused_with_the_sizes_that_came(sizes: list[object]) -> None:
    with pytest.raises(UserError, match="whole numbers") as refusal:
        check_sizes(sizes)
    assert str(list(sizes)) in str(refusal.value)


# --- the Fisher reference, which tests of the natural gradient stand on ---------------------------


@pytest.mark.parametrize("units", EACH_UNITS)
@pytest.mark.parametrize("upward", [False, True], ids=["generator", "recognition"])
def test_joint_fisher_matrix_has_one_block_for_each_unit(upward: bool, units: str) -> None:
    """Ay 2002: cross-unit entries vanish; the block of unit j is E[sigma'(a_j) h h^T]."""
    machine = random_machine((3, 2, 2), units)
    x = torch.tensor([[0.0, 1, 1], [1, 0, 1], [0.2, 0.7, 0.4]])
    data = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    if upward:
        network = reference.recognition(machine)
        outer, hessian = (
            reference.recognition_fisher(machine, x, data, form) for form in ("outer", "hessian")
        )
        states = [reference.every_hidden_state(machine, row) for row in x]
        bits = [torch.cat(layer) for layer in zip(*states, strict=True)]
        weights = data.repeat_interleave(len(states[0][0])) * network.log_prob(bits).exp()
    else:
        network = reference.generator(machine)
        outer, hessian = (
            reference.generator_fisher(machine, form) for form in ("outer", "hessian")
        )
        bits = reference.every_state(machine.sizes)
        weights = network.log_prob(bits).exp()
    assert_close(weights.sum(), torch.tensor(1.0))

    blocks = torch.zeros_like(outer.matrix)
    for inputs, logits, units_of_layer in zip(
        network.parents(bits), network.logits(bits), outer.units, strict=True
    ):
        for a, unit in zip(logits.T, units_of_layer, strict=True):
            slope = torch.exp(-a) / (1 + torch.exp(-a)) ** 2
            blocks[unit, unit] = inputs.T @ ((weights * slope)[:, None] * inputs)
    assert_close(outer.matrix, blocks, EXACT)
    assert_close(hessian.matrix, blocks, EXACT)
    assert sum(unit.stop - unit.start for layer in outer.units for unit in layer) == len(
        outer.matrix
    )


def test_empirical_fisher_is_another_matrix() -> None:
    """Negative control: gradients at other states than the model's own mix the units."""
    machine = random_machine((3, 2))
    network, bits = reference.generator(machine), reference.every_state((3, 2))
    uniform = torch.full((32,), 1 / 32, dtype=torch.float64)
    empirical = reference.fisher_matrix(network, bits, uniform)
    assert (empirical - reference.generator_fisher(machine).matrix).abs().max() > 1e-2
