"""Machines of families that nws does not know: what they say is what their formulas say."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from cases import EXACT, STANDARD_ERRORS, assert_close, assert_frequencies, random_machine, seeded
from families import Counts, Gauss, Pair, counted
from torch import Tensor

from nws.errors import UserError
from nws.models import HelmholtzMachine, Units, exact_log_likelihood, log_likelihood
from nws.models.sampling import GibbsChain, ResamplingChain, generate, reconstruct, walk

MIXED: dict[str, tuple[Any, Any]] = {  # hidden units, visible units
    "pairs": (Pair(), None),
    "counts": (Counts(), None),
    "gauss": (Gauss(), None),
    "binary under gauss": ("binary", Gauss()),
    "bipolar under counts": ("bipolar", Counts()),
    "pairs under gauss": (Pair(), Gauss()),
    "gauss under bipolar": (Gauss(), "bipolar"),
}
machines = pytest.mark.parametrize("units", MIXED.values(), ids=MIXED)


def make(units: tuple[Any, Any], sizes: tuple[int, ...] = (4, 3, 2)) -> HelmholtzMachine:
    machine = random_machine(sizes, units[0], visible=units[1])
    for parameter in machine.parameters():
        parameter.data.mul_(0.5)  # so that counts stay small
    return machine


def every_state(machine: HelmholtzMachine) -> list[Tensor]:
    """States of every layer, for each joint configuration of values; by itertools alone."""
    supports = [
        units.support for units, size in zip(machine.units, machine.sizes, strict=True)
        for _ in range(size)
    ]  # fmt: skip
    table = torch.tensor(list(itertools.product(*supports)), dtype=torch.float64)
    blocks = table.split(machine.sizes, dim=1)
    return [units.encode(y) for units, y in zip(machine.units, blocks, strict=True)]


@machines
def test_log_probs_of_a_trace_are_those_of_the_networks(units: tuple[Any, Any]) -> None:
    machine = make(units)
    x = torch.rand(5, 4, generator=seeded(3)).double()
    for trace in (machine.wake(x, 3, seeded(1)), machine.dream(6, seeded(1))):
        for network in machine.networks:
            log_prob = network.log_prob(trace.state_blocks)
            assert_close(trace.layer_log_probs(network).sum(0), log_prob)
            logits = torch.cat(network.logits(trace.state_blocks), dim=1)
            assert_close(trace.logits(network), logits)
            means = torch.cat(
                [
                    family.mean(block)
                    for family, block in zip(
                        network.units[network.upward :],
                        logits.split(network.widths, dim=1),
                        strict=True,
                    )
                ],
                dim=1,
            )
            assert_close(trace.means(network), means)
            assert_close(trace.errors(network), means - trace.targets(network))
    clamped = machine.wake(x, 3, seeded(1))
    assert_close(clamped.pixels, x.repeat_interleave(3, dim=0))
    assert_close(clamped.value_blocks[0][::3], machine.units[0].from_data(x))
    again = machine.evaluate(clamped.state_blocks, 3)
    assert_close(again.values, clamped.values)
    assert_close(again.recognition_means, clamped.recognition_means)


def test_dreams_of_pairs_have_the_frequencies_of_their_formula() -> None:
    machine, rows = random_machine((2, 1, 1), Pair()), 20_000
    p = machine.generator.log_prob(every_state(machine)).exp()
    assert_close(p.sum(), torch.tensor(1.0))
    values = machine.dream(rows, seeded(1)).values.long()
    counts = torch.bincount(values @ 3 ** torch.arange(3, -1, -1), minlength=3**4).double()
    assert_frequencies(counts, p.detach(), rows)


def test_wake_samples_of_pairs_have_the_frequencies_of_recognition() -> None:
    machine, rows = random_machine((2, 1, 1), Pair()), 20_000
    x = torch.tensor([[0.5, 1.0]]).double()
    states = [
        torch.zeros(9, 2) + torch.tensor([0.0, 1.0]),
        torch.tensor([-1.0, 0, 1]).repeat_interleave(3)[:, None],
        torch.tensor([-1.0, 0, 1]).repeat(3)[:, None],
    ]
    q = machine.recognition.log_prob([each.double() for each in states]).exp().detach()
    hidden = machine.wake(x, rows, seeded(1)).values[:, 2:].long()
    counts = torch.bincount(hidden @ torch.tensor([3, 1]), minlength=9).double()
    assert_frequencies(counts, q, rows)
    with pytest.raises(AssertionError):  # negative control
        assert_frequencies(counts, q.flip(0), rows)


@pytest.mark.parametrize("visible", [None, Gauss(), Counts(), "binary"])
def test_exact_and_sampled_log_likelihood_agree_with_brute_force(visible: Any) -> None:
    machine = make((Pair(), visible), (3, 2, 2))
    x = torch.rand(4, 3, generator=seeded(3)).round().double()
    hidden = every_state(random_machine((2, 2), Pair()))
    state = machine.units[0].encode(machine.units[0].from_data(x))
    p, q = (
        torch.stack(
            [network.log_prob([row.expand(81, -1), *hidden]).exp() for row in state]
        ).detach()
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
    assert log_likelihood(make((Pair(), Gauss())), x, 5, seeded(0)).mean < 0
    with pytest.raises(UserError, match=r"intensities in \[0, 1\]"):
        log_likelihood(make(("binary", Pair())), x, 5)


@pytest.mark.parametrize("visible", [None, Gauss()])
def test_elementwise_work_is_one_call_for_all_layers_of_a_family(visible: Units | None) -> None:
    calls: Counter[str] = Counter()
    machine = random_machine((4, 3, 2, 2), counted(Pair(), calls), visible=visible)
    calls.clear()  # of the check where the machine is made
    trace = machine.wake(torch.zeros(2, 4).double(), 3, seeded(0))
    # three hidden layers drawn one after the other, and evaluated at once
    assert calls == {"fill_noise": 1, "mean": 3 + 1, "sample_": 3}
    calls.clear()
    for network in machine.networks:
        trace.layer_log_probs(network)
    assert calls == {"log_prob": 2}
    calls.clear()
    machine.evaluate(trace.state_blocks, 3)
    assert calls == {"mean": 2}


# --- images ---------------------------------------------------------------------------------------


@machines
def test_images_are_data_of_the_visible_family(units: tuple[Any, Any]) -> None:
    machine, count = make(units), 4_000
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


@machines
def test_resampling_chains_hold_pixels_of_any_family(units: tuple[Any, Any]) -> None:
    machine = make(units)
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


def test_a_walk_ends_in_the_visible_familys_data() -> None:
    machine = random_machine((4, 3, 2), "bipolar", visible=Gauss())
    images = walk(machine, 3, 4, seeded(1))
    states = torch.tensor([[a, b, c] for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)]).double()
    possible = Gauss().to_data(machine.generator.layers[0](states)).detach()
    gaps = (images.flatten(0, 1)[:, None] - possible).abs().amax(2).amin(1)
    assert images.shape == (3, 4, 4) and gaps.max() < 1e-12
