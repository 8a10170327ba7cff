"""What the natural direction means: the enumerated Fisher matrix, and invariance."""

from typing import Literal

import pytest
import reference
import torch
from cases import (
    EACH_UNITS,
    EXACT,
    STANDARD_ERRORS,
    assert_close,
    encode_layers,
    random_machine,
    seeded,
)
from directions import ALPHA, BOTH, natural, natural_metrics, network_of, relative_error, write
from torch import Tensor

from nws.learning.gradients import write_gradients
from nws.models import HelmholtzMachine, Trace

SMALL = (3, 2, 2)
DATA = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
ROWS = 40_000
Source = Literal["own", "other"]


def images() -> Tensor:
    return torch.tensor([[0, 1, 1], [1, 0, 0], [1, 1, 0]], dtype=torch.float64)


def deviations(units: str, which: int, source: Source) -> Tensor:
    """How far the direction from ROWS sampled rows is from the enumerated one.

    In standard errors of its entries.
    """
    machine = random_machine(SMALL, units, seed=3)
    rng = seeded(7)
    x = images().repeat_interleave((DATA * ROWS / 4).long(), dim=0)
    wake, dream = machine.wake(x, 4, rng), machine.dream(ROWS, rng)
    network, metric = network_of(machine, which), natural_metrics(machine)[which]
    own = (images(), DATA)
    fisher = reference.recognition_fisher if which else reference.generator_fisher
    exact = fisher(machine, *(own if which else ()))
    blocks = [[exact.matrix[unit, unit] for unit in layer] for layer in exact.units]
    gradient = torch.randn(len(network.theta), generator=rng, dtype=torch.float64)
    write(metric, gradient)
    trace = wake if (which == 1) == (source == "own") else dream
    rows = torch.full((ROWS,), 1 / ROWS, dtype=torch.float64)
    metric.precondition([(trace, rows)], [])
    expected = natural(network, blocks, gradient)

    # To first order the error is minus the mean of (F + alpha I)^{-1} (s h h^T - F) v over rows.
    # Its next order is 1 / n.
    errors, bits = torch.full_like(expected, torch.nan), reference.bits_of(trace)
    for units_, layer, inputs, logits in zip(
        network.unit_ranges, blocks, network.parents(bits), network.logits(bits), strict=True
    ):
        p = 1 / (1 + torch.exp(-logits))
        for j, (unit, block) in enumerate(zip(units_, layer, strict=True)):
            rows = (p * (1 - p))[:, j, None] * inputs * (inputs @ expected[unit])[:, None]
            inverse = torch.linalg.inv(block + ALPHA * torch.eye(len(block), dtype=block.dtype))
            errors[unit] = (rows @ inverse).std(0) / ROWS**0.5
    deviation = reference.flatten(metric.network.layers, gradients=True) - expected
    # The deviation is so small that first order is enough.
    assert source == "other" or deviation.norm() < 0.05 * expected.norm()
    return deviation.abs() / (errors + EXACT)  # what is exact, the deepest layer, has no error


@pytest.mark.parametrize("which", BOTH, ids=["generator", "recognition"])
@pytest.mark.parametrize("units", EACH_UNITS)
def test_many_rows_give_the_direction_of_the_enumerated_fisher_matrix(
    units: str, which: int
) -> None:
    assert deviations(units, which, "own").max() < STANDARD_ERRORS
    # The control: the other phase's rows.
    assert deviations(units, which, "other").max() > 2 * STANDARD_ERRORS


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
    weights = torch.rand(len(bits[0]), generator=seeded(9), dtype=torch.float64)
    weights /= weights.sum()
    write_gradients(network, [(before, weights)])
    if alpha is not None:
        natural_metrics(machine, alpha)[which].precondition([(before, weights)], [])
    torch.optim.SGD(network.parameters(), lr=0.1).step()
    return trace().logits(network) - before.logits(network)


@pytest.mark.parametrize("which", BOTH, ids=["generator", "recognition"])
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
