"""Machines: how they are made, and what a machine of any family of units can do."""

import itertools
from typing import Any

import pytest
import torch
from cases import EXACT, STANDARD_ERRORS, assert_close, seeded
from families import MIXED, Counts, Gauss, Pair, small_machine
from torch import Tensor

from nws.errors import UserError
from nws.models import HelmholtzMachine, exact_log_likelihood, log_likelihood
from nws.models.belief_network import TRUNCATED, Layer
from nws.models.sampling import generate, reconstruct


def test_initial_weights_are_glorot_normal_and_biases_where_asked() -> None:
    options = {"weight_scale": 0.5, "hidden_bias": -1.0}
    machines = [HelmholtzMachine((300, 200, 100), **options, rng=seeded(0)) for _ in range(2)]
    assert all(map(torch.equal, *(machine.parameters() for machine in machines)))
    given = torch.linspace(-1, 1, 3)
    assert torch.equal(HelmholtzMachine((3, 2), visible_bias=given).generator.layers[0].bias, given)
    for edge in itertools.chain(*(network.edges for network in machines[0].networks)):
        assert (edge.layer.bias == (-1 if edge.child else 0)).all()
        if edge.parents:
            expected = 0.5 * (2 / sum(edge.layer.weight.shape)) ** 0.5
            error = (1 / (2 * edge.layer.weight.numel())) ** 0.5  # relative, of a deviation
            assert abs(edge.layer.weight.std() / expected - 1) < STANDARD_ERRORS * error


def test_truncated_weights_have_the_variance_of_others_within_two_deviations() -> None:
    machines = [HelmholtzMachine((300, 200), truncated=cut, rng=seeded(0)) for cut in (False, True)]
    plain, cut = (machine.generator.layers[0].weight for machine in machines)
    expected = (2 / 500) ** 0.5
    edge = 2 * expected / TRUNCATED
    assert cut.abs().max() <= edge < plain.abs().max()
    assert abs(cut.std() / expected - 1) < STANDARD_ERRORS / (2 * cut.numel()) ** 0.5


def test_a_mask_narrows_the_fans() -> None:
    mask = torch.rand(300, 200, generator=seeded(1)) < 0.25
    layer = Layer(200, 300, mask.float())
    layer.draw_weights_(0.5, seeded(0))
    seen = layer.weight[mask]
    expected = 0.5 * (2 / (len(seen) / 300 + len(seen) / 200)) ** 0.5
    assert abs(seen.std() / expected - 1) < STANDARD_ERRORS / (2 * len(seen)) ** 0.5
    assert not layer.weight[~mask].any()


@pytest.mark.parametrize("x", [torch.zeros(0, 3), torch.zeros(2, 4), torch.zeros(3)])
def test_x_of_another_shape_is_refused(x: Tensor) -> None:
    with pytest.raises(UserError, match=r"x must be \(B, 3\), one row a data point"):
        HelmholtzMachine((3, 2)).wake(x)
    with pytest.raises(UserError, match="samples must be a whole number of at least 1, got 0"):
        HelmholtzMachine((3, 2)).wake(torch.zeros(2, 3), samples=0)


@pytest.mark.parametrize("visible", [None, Gauss(), Counts(), "binary"])
def test_the_exact_log_likelihood_of_any_family_is_brute_force(visible: Any) -> None:
    machine = small_machine((Pair(), visible), (3, 2, 2))
    x = torch.rand(4, 3, generator=seeded(3)).round().double()
    table = torch.tensor(list(itertools.product([-1.0, 0.0, 1.0], repeat=4))).double()
    state = machine.units[0].encode(machine.units[0].from_data(x))
    joint = [[row.expand(81, -1), *table.split(2, dim=1)] for row in state]
    p = torch.stack([machine.generator.log_prob(each).exp() for each in joint]).detach()
    assert_close(exact_log_likelihood(machine, x), p.sum(1).log())


def test_data_of_units_with_endless_values_may_lie_anywhere() -> None:
    x = torch.full((2, 4), 1.5).double()
    assert log_likelihood(small_machine((Pair(), Gauss())), x, 5, seeded(0)).mean < 0
    with pytest.raises(UserError, match=r"intensities in \[0, 1\]"):
        log_likelihood(small_machine(("binary", Pair())), x, 5)


@pytest.mark.parametrize("units", MIXED.values(), ids=MIXED)
def test_images_are_data_of_the_visible_family(units: tuple[Any, Any]) -> None:
    machine, count = small_machine(units), 4_000
    visible, (to_pixels, *_) = machine.units[0], machine.generator.layers
    trace = machine.dream(count, seeded(1))
    expected = visible.to_data(visible.mean(to_pixels(trace.state_blocks[1]))).detach()
    assert_close(generate(machine, count, seeded(1)), expected)
    draws = generate(machine, count, seeded(1), probabilities=False)
    assert_close(draws, visible.to_data(trace.value_blocks[0]))
    gap = draws - expected  # draws have these means
    assert (gap.mean(0).abs() <= STANDARD_ERRORS * gap.std(0) / count**0.5 + EXACT).all()
    x = torch.rand(3, 4, generator=seeded(2)).double()
    assert reconstruct(machine, x, seeded(1)).isfinite().all()
