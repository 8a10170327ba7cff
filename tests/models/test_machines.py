"""Machines: how they are made, and what a machine of any family of units can do."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from cases import EXACT, STANDARD_ERRORS, assert_close, seeded
from families import MIXED, Counts, Gauss, Pair, small_machine
from torch import Tensor

from nws.errors import UserError
from nws.models import HelmholtzMachine, exact_log_likelihood, log_likelihood
from nws.models.belief_network import check_sizes
from nws.models.sampling import GibbsChain, ResamplingChain, generate, reconstruct

families = pytest.mark.parametrize("units", MIXED.values(), ids=MIXED)


def test_initial_weights_are_glorot_normal_and_biases_where_asked() -> None:
    machines = [
        HelmholtzMachine((300, 200, 100), weight_scale=0.5, hidden_bias=-1.0, rng=seeded(0))
        for _ in range(2)
    ]
    assert all(map(torch.equal, *(machine.parameters() for machine in machines)))
    given = torch.linspace(-1, 1, 3)
    assert torch.equal(HelmholtzMachine((3, 2), visible_bias=given).generator.layers[0].bias, given)
    for edge in itertools.chain(*(network.edges for network in machines[0].networks)):
        assert (edge.layer.bias == (-1 if edge.child else 0)).all()
        if edge.parent is not None:
            expected = 0.5 * (2 / sum(edge.layer.weight.shape)) ** 0.5
            error = (1 / (2 * edge.layer.weight.numel())) ** 0.5  # relative, of a deviation
            assert abs(edge.layer.weight.std() / expected - 1) < STANDARD_ERRORS * error


NAN = float("nan")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"sizes": sizes}, r"layer sizes must be whole numbers of at least 1.*\[200,100\]")
          for sizes in ([], [3], [3, 0], [0, 3], [3, -1], [3, 2.5], [3, "2"], [3, True])),
        *(({"units": units}, r"^model\.units must be binary or bipolar, got .*_target_")
          for units in ("ternary", "", None, 2)),
        *(({"visible": units}, r"^model\.visible must be binary or bipolar, got .*_target_")
          for units in ("ternary", "", 2)),
        *(({"weight_scale": scale}, r"model\.weight_scale must be a number from 0 to 1e6, got")
          for scale in (-0.1, 2e6, NAN, "1", None)),
        *(({f"{name}_bias": bias}, rf"model\.{name}_bias must be a number from -1e6 to 1e6, got")
          for bias in (2e6, NAN, "1", None, torch.zeros(2)) for name in ("hidden", "visible")),
    ],
)  # fmt: skip
def test_bad_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        HelmholtzMachine(**({"sizes": (3, 2)} | options))
    assert str(next(iter(options.values()))) in str(refusal.value)
    if "sizes" in options:
        with pytest.raises(UserError, match="whole numbers"):
            check_sizes(options["sizes"])


@pytest.mark.parametrize("x", [torch.zeros(0, 3), torch.zeros(2, 4), torch.zeros(3)])
def test_x_of_another_shape_is_refused(x: Tensor) -> None:
    with pytest.raises(UserError, match=r"x must be \(B, 3\), one row a data point"):
        HelmholtzMachine((3, 2)).wake(x)


# --- likelihoods and images of any family ---------------------------------------------------------


@pytest.mark.parametrize("visible", [None, Gauss(), Counts(), "binary"])
def test_exact_and_sampled_log_likelihood_agree_with_brute_force(visible: Any) -> None:
    machine = small_machine((Pair(), visible), (3, 2, 2))
    x = torch.rand(4, 3, generator=seeded(3)).round().double()
    table = torch.tensor(list(itertools.product([-1.0, 0.0, 1.0], repeat=4))).double()
    state = machine.units[0].encode(machine.units[0].from_data(x))
    joint = [[row.expand(81, -1), *table.split(2, dim=1)] for row in state]
    p, q = (
        torch.stack([network.log_prob(each).exp() for each in joint]).detach()
        for network in machine.networks
    )
    exact = p.sum(1).log()
    assert_close(exact_log_likelihood(machine, x), exact)
    samples = 10_000
    variances = (p.square() / q).sum(1) / p.sum(1).square() - 1  # relative, of one weight
    error = float((variances / samples).sum().sqrt()) / len(x)
    assert 0 < error < 0.05
    estimate = log_likelihood(machine, x, samples, seeded(0))
    assert abs(estimate.mean - float(exact.mean())) < STANDARD_ERRORS * error


def test_data_of_units_with_endless_values_may_lie_anywhere() -> None:
    x = torch.full((2, 4), 1.5).double()
    assert log_likelihood(small_machine((Pair(), Gauss())), x, 5, seeded(0)).mean < 0
    with pytest.raises(UserError, match=r"intensities in \[0, 1\]"):
        log_likelihood(small_machine(("binary", Pair())), x, 5)


@families
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


@families
def test_resampling_chains_hold_pixels_of_any_family(units: tuple[Any, Any]) -> None:
    machine = small_machine(units)
    x = torch.rand(5, 4, generator=seeded(2)).double()
    observed = torch.tensor([True, False, True, False])
    chain = ResamplingChain(machine, x, seeded(1), observed, samples=3)
    for _ in range(3):
        means = chain.step()
        assert torch.equal(chain.x[:, observed], x[:, observed])
        assert torch.equal(means[:, observed], x[:, observed])
    free = ResamplingChain(machine, x.repeat(800, 1), seeded(1), samples=3)
    gap = free.step() - free.x  # pixels are draws with these means
    assert (gap.mean(0).abs() <= STANDARD_ERRORS * gap.std(0) / len(gap) ** 0.5).all()
    values = machine.units[0].from_data(chain.x[:, ~observed])
    if machine.units[0].support:
        assert set(values.flatten().tolist()) <= set(machine.units[0].support)
    if {units.support for units in machine.units} != {(0.0, 1.0)}:
        with pytest.raises(UserError, match="needs binary or bipolar units"):
            GibbsChain(machine, x)
