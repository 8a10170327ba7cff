"""Networks and phases: what is clamped, what is drawn from what, what both networks say of it."""

from typing import Any

import cases
import pytest
import reference
import torch
from cases import Case, assert_close, assert_frequencies, encode_layers, random_machine, seeded
from families import MIXED, small_machine
from torch import Tensor

from nws.models import HelmholtzMachine, Trace

PUBLIC = (
    "values", "states", "generator_logits", "recognition_logits", "generator_means",
    "recognition_means",
)  # fmt: skip
each_case = pytest.mark.parametrize("case", cases.CASES)


def assert_consistent(machine: HelmholtzMachine, trace: Trace, bound: float) -> None:
    """States encode values; logits, means, errors and log-probabilities are the reference's."""
    bits = reference.bits_of(trace)
    assert [y.shape[1] for y in bits] == list(machine.sizes)
    for state, expected in zip(trace.state_blocks, encode_layers(machine, bits), strict=True):
        assert_close(state, expected, bound)
    plain = (reference.generator(machine), reference.recognition(machine))
    for network, expected_network in zip(machine.networks, plain, strict=True):
        logits = torch.cat(expected_network.logits(bits), dim=1)
        targets = torch.cat(bits[1:] if network.upward else bits, dim=1)
        means = 1 / (1 + torch.exp(-logits))
        assert_close(trace.logits(network), logits, bound)
        assert_close(trace.means(network), means, bound)
        assert_close(trace.targets(network), targets, bound)
        assert_close(trace.errors(network), means - targets, bound)
        log_probs = expected_network.layer_log_probs(bits)
        assert_close(trace.layer_log_probs(network), log_probs, bound)
    assert_close(trace.pixels, bits[0], bound)
    assert_close(trace.pixel_means, 1 / (1 + torch.exp(-plain[0].logits(bits)[0])), bound)
    log_weights = plain[0].log_prob(bits) - plain[1].log_prob(bits)
    assert_close(machine.log_weights(trace), log_weights.view(-1, trace.samples), bound)


@pytest.mark.parametrize("soft", [False, True], ids=["bits", "intensities"])
@each_case
def test_a_trace_is_clamped_or_drawn_and_both_networks_see_it(case: Case, soft: bool) -> None:
    machine, x = case.machine(), case.data(soft)
    clamped = machine.wake(x, case.samples, case.rng())
    assert clamped.samples == case.samples and len(clamped.values) == case.batch * case.samples
    assert torch.equal(clamped.value_blocks[0], x.repeat_interleave(case.samples, dim=0))
    assert torch.equal(clamped.inputs(machine.recognition.edges[0]), machine.units[0].encode(x))
    hidden = torch.cat(clamped.value_blocks[1:], dim=1)
    assert ((hidden == 0) | (hidden == 1)).all()
    drawn = machine.dream(7, case.rng())
    assert drawn.samples == 1 and len(drawn.values) == 7
    assert ((drawn.values == 0) | (drawn.values == 1)).all()
    given = machine.evaluate([block.clone() for block in clamped.state_blocks], case.samples)
    assert_close(given.values, clamped.values, case.tolerance)
    for trace in (clamped, drawn, given):
        assert_consistent(machine, trace, case.tolerance)
        assert not any(getattr(trace, name).requires_grad for name in PUBLIC)


@pytest.mark.parametrize("units", MIXED.values(), ids=MIXED)
def test_a_trace_of_any_family_says_what_its_networks_say(units: tuple[Any, Any]) -> None:
    machine = small_machine(units)
    x = torch.rand(5, 4, generator=seeded(3)).double()
    clamped = machine.wake(x, 3, seeded(1))
    for trace in (clamped, machine.dream(6, seeded(1))):
        for network in machine.networks:
            log_prob = network.log_prob(trace.state_blocks)
            assert_close(trace.layer_log_probs(network).sum(0), log_prob)
            logits = network.logits(trace.state_blocks)
            assert_close(trace.logits(network), torch.cat(logits, dim=1))
            pairs = zip(network.units[network.upward :], logits, strict=True)
            means = torch.cat([family.mean(block) for family, block in pairs], dim=1)
            assert_close(trace.means(network), means)
            assert_close(trace.errors(network), means - trace.targets(network))
    assert_close(clamped.pixels, x.repeat_interleave(3, dim=0))
    assert_close(clamped.value_blocks[0][::3], machine.units[0].from_data(x))
    again = machine.evaluate(clamped.state_blocks, 3)
    assert_close(again.values, clamped.values)
    assert_close(again.recognition_means, clamped.recognition_means)


# --- sampling: 20,000 rows on machines small enough to count every joint state --------------------


def counts(values: Tensor) -> Tensor:
    """How often each joint state occurs, in the order of `itertools.product`."""
    powers = 2 ** torch.arange(values.shape[1] - 1, -1, -1)
    return torch.bincount(values.long() @ powers, minlength=2 ** values.shape[1]).double()


@pytest.mark.parametrize("units", cases.EACH_UNITS)
@pytest.mark.parametrize("sizes", [(3, 3), (2, 2, 2)])
def test_frequencies_are_the_networks_probabilities(sizes: tuple[int, ...], units: str) -> None:
    machine, rows = random_machine(sizes, units), 20_000
    p = reference.generator(machine).log_prob(reference.every_state(sizes)).exp()
    drawn = counts(machine.dream(rows, seeded(1)).values)
    x = torch.tensor([[0.0, 1, 1], [1.0, 0, 0.3]], dtype=torch.float64)[:, : sizes[0]]
    hidden = machine.wake(x, rows, seeded(1)).values[:, sizes[0] :].split(rows)
    states = [reference.every_hidden_state(machine, image) for image in x]
    of_x = [reference.recognition(machine).log_prob(each).exp() for each in states]
    observed = [drawn, *map(counts, hidden)]
    for found, expected in zip(observed, [p, *of_x], strict=True):
        assert_frequencies(found, expected, rows)
        with pytest.raises(AssertionError):  # the control: probabilities of other states
            assert_frequencies(found, expected.flip(0), rows)


@pytest.mark.parametrize("phase", ["wake", "dream"])
def test_samples_of_one_data_point_and_successive_dreams_are_independent(phase: str) -> None:
    """Both rows of a pair are on with the square of the probability, if they are drawn apart."""
    pairs, machine = 20_000, random_machine((2, 1))
    if phase == "dream":
        trace = machine.dream(2 * pairs, seeded(1))
        logits = machine.generator.layers[-1].bias.detach()
    else:
        trace = machine.wake(torch.ones(pairs, 2).double(), 2, seeded(1))
        ones = [torch.ones(1, 2).double(), torch.ones(1, 1).double()]
        logits = reference.recognition(machine).logits(ones)[0]
    p, both = torch.sigmoid(logits).item(), trace.value_blocks[1].view(pairs, 2).prod(1).sum()
    observed = torch.stack([both, pairs - both])
    assert_frequencies(observed, torch.tensor([p**2, 1 - p**2]), pairs)
    with pytest.raises(AssertionError):  # the control: rows that are copies of each other
        assert_frequencies(observed, torch.tensor([p, 1 - p]), pairs)
