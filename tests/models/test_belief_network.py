"""Sigmoid belief networks: log-probabilities and their gradients, extreme logits, and the Fisher reference they imply."""

from __future__ import annotations

import pytest
import reference
import torch
from cases import CASES, EACH_UNITS, EXACT, Case, assert_close, random_machine, seeded
from torch import Tensor

from nws.errors import UserError
from nws.models.belief_network import (
    SigmoidBeliefNetwork,
    bernoulli_log_prob,
    check_sizes,
    decode,
    encode,
)


def random_bits(case: Case, rows: int = 6) -> list[Tensor]:
    return [torch.randint(2, (rows, size), generator=seeded(3)).double() for size in case.sizes]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("upward", [False, True], ids=["generator", "recognition"])
def test_log_prob_and_its_gradient_are_the_plain_bernoulli_formulas(
    case: Case, upward: bool
) -> None:
    machine, bits = case.machine(), random_bits(case)
    network = machine.recognition if upward else machine.generator
    expected = reference.recogniser(machine) if upward else reference.generator(machine)
    states = [encode(y, case.units).to(case.device, case.dtype) for y in bits]

    for logits, expected_logits in zip(network.logits(states), expected.logits(bits), strict=True):
        assert_close(logits, expected_logits, case.tolerance)
    log_prob = network.log_prob(states, case.units)
    assert_close(log_prob, expected.log_prob(bits), case.tolerance)
    log_prob.sum().backward()
    gradient = expected.gradient(bits, torch.ones(len(bits[0]), dtype=torch.float64))
    assert_close(reference.flatten(network.layers, gradients=True), gradient, case.tolerance)


@pytest.mark.parametrize("units", EACH_UNITS)
def test_probabilities_of_all_states_sum_to_one(units: str) -> None:
    machine = random_machine((3, 2, 2), units)
    states = [encode(y, units) for y in reference.every_state(machine.sizes)]
    assert_close(machine.generator.log_prob(states, units).exp().sum(), torch.tensor(1.0))
    assert_close(
        machine.recognition.log_prob(states, units).exp().sum(), torch.tensor(8.0)
    )  # 1 for each x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("bit", "logit", "expected"),
    [
        (1, 1e4, 0),
        (0, -1e4, 0),
        (1, -1e4, -1e4),
        (0, 1e4, -1e4),
        (0.25, 1e4, -7.5e3),
        (0.25, -1e4, -2.5e3),
    ],
)
def test_log_prob_of_extreme_logits_is_finite_and_right(
    bit: float, logit: float, expected: float, dtype: torch.dtype
) -> None:
    bits, logits = torch.tensor([bit], dtype=dtype), torch.tensor([logit], dtype=dtype)
    assert bernoulli_log_prob(bits, logits).tolist() == [
        expected
    ]  # exact: log(1 + e^a) is 0 or a here


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_prob_near_saturation_keeps_absolute_precision(dtype: torch.dtype) -> None:
    logits = torch.linspace(-40, 40, 801, dtype=torch.float64).to(dtype)
    for bit in (0.0, 1.0):
        expected = -torch.log1p(torch.exp(logits.double() * (1 - 2 * bit)))
        error = (
            (bernoulli_log_prob(torch.full_like(logits, bit), logits).double() - expected)
            .abs()
            .max()
        )
        assert (
            error <= 4 * 40 * torch.finfo(dtype).eps
        )  # two roundings of numbers of up to 40, and the logarithm's


@pytest.mark.parametrize("units", EACH_UNITS)
def test_networks_with_extreme_biases_have_finite_log_probs(units: str) -> None:
    machine = random_machine((3, 2), units).float()
    for network in machine.networks:
        for layer in network.layers:
            torch.nn.init.constant_(layer.weight, 0.0)
            torch.nn.init.constant_(layer.bias, 1e4)
    ones = [torch.ones(1, 3), torch.ones(1, 2)]
    zeros = [encode(torch.zeros_like(y), units) for y in ones]
    assert machine.generator.log_prob(ones, units).item() == 0
    assert machine.generator.log_prob(zeros, units).item() == -5e4
    assert machine.recognition.log_prob(zeros, units).item() == -2e4


def test_encoding() -> None:
    bits = torch.tensor([0.0, 0.25, 1.0])
    assert encode(bits, "binary").tolist() == [0, 0.25, 1]
    assert encode(bits, "bipolar").tolist() == [-1, -0.5, 1]
    for units in EACH_UNITS:
        assert decode(encode(bits, units), units).tolist() == bits.tolist()


def test_shapes_are_those_of_linear_layers_and_edges_go_parents_first() -> None:
    down, up = (
        SigmoidBeliefNetwork((5, 3, 2), upward=False),
        SigmoidBeliefNetwork((5, 3, 2), upward=True),
    )
    assert [tuple(layer.weight.shape) for layer in down.layers] == [(5, 3), (3, 2), (2, 0)]
    assert [tuple(layer.weight.shape) for layer in up.layers] == [(3, 5), (2, 3)]
    assert [(edge.parent, edge.child) for edge in down.edges] == [(None, 2), (2, 1), (1, 0)]
    assert [(edge.parent, edge.child) for edge in up.edges] == [(0, 1), (1, 2)]
    for network in (down, up):
        assert all(network.layers[edge.position] is edge.layer for edge in network.edges)


@pytest.mark.parametrize(
    "sizes", [[], [3], [3, 0], [0, 3], [3, -1], [3, 2.5], [3, "2"], [3, True], [3, None]]
)
def test_bad_sizes_are_refused_with_the_sizes_that_came(sizes: list[object]) -> None:
    with pytest.raises(UserError, match="whole numbers") as refusal:
        check_sizes(sizes)
    assert str(list(sizes)) in str(refusal.value)


# --- the Fisher reference, which later tests of the natural gradient stand on -----------------------------------------


@pytest.mark.parametrize("units", EACH_UNITS)
@pytest.mark.parametrize("upward", [False, True], ids=["generator", "recognition"])
def test_joint_fisher_matrix_has_one_block_for_each_unit(upward: bool, units: str) -> None:
    """Ay 2002: cross-unit entries vanish, and the block of unit j is E[sigma'(a_j) h h^T] with the bias as a parent."""
    machine = random_machine((3, 2, 2), units)
    x = torch.tensor([[0.0, 1, 1], [1, 0, 1], [0.2, 0.7, 0.4]])
    data = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    if upward:
        network = reference.recogniser(machine)
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
    """Negative control: gradients at data instead of the model's own states leave entries between units."""
    machine = random_machine((3, 2))
    network, bits = reference.generator(machine), reference.every_state((3, 2))
    uniform = torch.full((32,), 1 / 32, dtype=torch.float64)
    empirical = reference.fisher_matrix(network, bits, uniform)
    assert (empirical - reference.generator_fisher(machine).matrix).abs().max() > 1e-2
