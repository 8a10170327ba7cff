"""Traces: what is clamped, what is sampled from what, and what both networks say of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import reference
import torch
from cases import (
    CASES,
    EACH_UNITS,
    Case,
    assert_close,
    assert_frequencies,
    encode_layers,
    random_machine,
    seeded,
)
from torch import Tensor

from nws.errors import UserError
from nws.models import Bipolar, HelmholtzMachine, Trace

LOGITS = ("generator_logits", "recognition_logits")
PUBLIC = ("values", "states", *LOGITS, "generator_means", "recognition_means")


def wake(case: Case, machine: HelmholtzMachine, seed: int = 1) -> Trace:
    return machine.wake(case.data(), case.samples, case.rng(seed))


def dream(case: Case, machine: HelmholtzMachine, seed: int = 1) -> Trace:
    return machine.dream(case.batch * case.samples, case.rng(seed))


PHASES = pytest.mark.parametrize("phase", [wake, dream])
Phase = Callable[..., Trace]


def content(trace: Trace) -> list[Tensor]:
    return [getattr(trace, name).clone() for name in PUBLIC]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def assert_consistent(machine: HelmholtzMachine, trace: Trace, bound: float) -> None:
    """States encode values; logits, means, errors and log-probabilities are the reference's."""
    bits = reference.bits_of(trace)
    assert [y.shape[1] for y in bits] == list(machine.sizes)
    for state, expected in zip(trace.state_blocks, encode_layers(machine, bits), strict=True):
        assert_close(state, expected, bound)
    for network, expected_network in [
        (machine.generator, reference.generator(machine)),
        (machine.recognition, reference.recognition(machine)),
    ]:
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
    pixels = 1 / (1 + torch.exp(-reference.generator(machine).logits(bits)[0]))
    assert_close(trace.pixel_means, pixels, bound)


@pytest.mark.parametrize("soft", [False, True], ids=["bits", "intensities"])
@pytest.mark.parametrize("case", CASES)
def test_wake_clamps_x_in_the_rows_of_its_data_point_and_evaluates_both_networks(
    case: Case, soft: bool
) -> None:
    machine, x = case.machine(), case.data(soft)
    trace = machine.wake(x, case.samples, case.rng())
    assert trace.samples == case.samples and len(trace.values) == case.batch * case.samples
    assert torch.equal(trace.value_blocks[0], x.repeat_interleave(case.samples, dim=0))
    assert torch.equal(trace.visible_states, machine.units[0].encode(x))
    hidden = torch.cat(trace.value_blocks[1:], dim=1)
    assert ((hidden == 0) | (hidden == 1)).all()
    assert_consistent(machine, trace, case.tolerance)


@pytest.mark.parametrize("case", CASES)
def test_dream_samples_bits_and_evaluates_both_networks(case: Case) -> None:
    machine = case.machine()
    trace = machine.dream(7, case.rng())
    assert trace.samples == 1 and len(trace.values) == 7
    assert ((trace.values == 0) | (trace.values == 1)).all()
    assert_consistent(machine, trace, case.tolerance)


@pytest.mark.parametrize("case", CASES)
def test_evaluation_of_given_states_is_of_both_networks(case: Case) -> None:
    machine = case.machine()
    source = wake(case, machine)
    trace = machine.evaluate([block.clone() for block in source.state_blocks], case.samples)
    assert torch.equal(trace.values, source.values)
    assert_consistent(machine, trace, case.tolerance)


@pytest.mark.parametrize("case", CASES)
def test_log_weights_are_log_p_minus_log_q_with_a_row_for_each_data_point(case: Case) -> None:
    machine = case.machine()
    trace = wake(case, machine)
    bits = reference.bits_of(trace)
    expected = reference.generator(machine).log_prob(bits) - reference.recognition(
        machine
    ).log_prob(bits)
    assert_close(
        machine.log_weights(trace), expected.view(case.batch, case.samples), case.tolerance
    )


# --- sampling: 20,000 rows on machines small enough to count every joint state --------------------


def counts(bits: list[Tensor]) -> Tensor:
    """How often each joint state occurs, in the order of `reference.every_state`."""
    table = torch.cat(bits, dim=1).long()
    powers = 2 ** torch.arange(table.shape[1] - 1, -1, -1)
    return torch.bincount(table @ powers, minlength=2 ** table.shape[1]).double()


@pytest.mark.parametrize("units", EACH_UNITS)
@pytest.mark.parametrize("sizes", [(3, 3), (2, 2, 2)])
def test_wake_frequencies_are_the_recognition_probabilities(
    sizes: tuple[int, ...], units: str
) -> None:
    machine, samples = random_machine(sizes, units), 20_000
    x = torch.tensor([[0.0, 1, 1], [1.0, 0, 0.3]], dtype=torch.float64)[:, : sizes[0]]
    bits = reference.bits_of(machine.wake(x, samples, seeded(1)))
    for rows, image in zip(zip(*(y.split(samples) for y in bits), strict=True), x, strict=True):
        q = (
            reference.recognition(machine)
            .log_prob(reference.every_hidden_state(machine, image))
            .exp()
        )
        observed = counts(list(rows[1:]))
        assert_frequencies(observed, q, samples)
        # Negative control: the same probabilities of other states do not pass.
        with pytest.raises(AssertionError):
            assert_frequencies(observed, q.flip(0), samples)


@pytest.mark.parametrize("units", EACH_UNITS)
@pytest.mark.parametrize("sizes", [(3, 3), (2, 2, 2)])
def test_dream_frequencies_are_the_generators_probabilities(
    sizes: tuple[int, ...], units: str
) -> None:
    machine, rows = random_machine(sizes, units), 20_000
    p = reference.generator(machine).log_prob(reference.every_state(sizes)).exp()
    observed = counts(reference.bits_of(machine.dream(rows, seeded(1))))
    assert_frequencies(observed, p, rows)
    other = (
        reference.generator(random_machine(sizes, units, seed=9))
        .log_prob(reference.every_state(sizes))
        .exp()
    )
    # Negative control: another machine's probabilities do not pass.
    with pytest.raises(AssertionError):
        assert_frequencies(observed, other, rows)


def neighbours(phase: str, machine: HelmholtzMachine, pairs: int) -> tuple[Tensor, float]:
    """Whether a unit is on in pairs of neighbouring rows (pairs, 2), and its probability."""
    if phase == "dream":
        trace = machine.dream(2 * pairs, seeded(1))
        logits = machine.generator.layers[-1].bias.detach()
    else:
        x = torch.ones(pairs, 2).double()
        trace = machine.wake(x, 2, seeded(1))
        ones = [torch.ones(1, 2).double(), torch.ones(1, 1).double()]
        logits = reference.recognition(machine).logits(ones)[0]
    return trace.value_blocks[1].view(pairs, 2), torch.sigmoid(logits).item()


@pytest.mark.parametrize("phase", ["wake", "dream"])
def test_samples_of_one_data_point_and_successive_dreams_are_independent(phase: str) -> None:
    """Both rows of a pair are on with the square of the probability, if they are drawn apart."""
    pairs = 20_000
    on, p = neighbours(phase, random_machine((2, 1)), pairs)
    both = on.prod(1).sum()
    observed = torch.stack([both, pairs - both])
    assert_frequencies(observed, torch.tensor([p**2, 1 - p**2]), pairs)
    # Negative control: rows that are copies of each other are both on with the probability itself.
    with pytest.raises(AssertionError):
        assert_frequencies(observed, torch.tensor([p, 1 - p]), pairs)


# --- seeds ----------------------------------------------------------------------------------------


@PHASES
@pytest.mark.parametrize("case", CASES)
def test_the_same_rng_state_gives_the_same_trace(case: Case, phase: Phase) -> None:
    machine = case.machine()
    assert same(content(phase(case, machine)), content(phase(case, machine)))


@PHASES
@pytest.mark.parametrize("units", EACH_UNITS)
def test_another_seed_gives_another_trace(units: str, phase: Phase) -> None:
    case = Case((6, 5), 5, 5, units)
    assert not same(
        content(phase(case, case.machine())), content(phase(case, case.machine(), seed=2))
    )


@PHASES
def test_a_trace_is_the_callers_to_keep(phase: Phase) -> None:
    case = Case((4, 3), 2, 3, "bipolar")
    machine = case.machine()
    trace = phase(case, machine)
    kept = content(trace)
    phase(case, machine, seed=2)
    assert same(content(trace), kept)


@PHASES
def test_traces_carry_no_autograd_graph(phase: Phase) -> None:
    case = Case((4, 3, 2), 2, 3, "binary")
    trace = phase(case, case.machine())
    assert not any(getattr(trace, name).requires_grad for name in PUBLIC)


@pytest.mark.parametrize("units", EACH_UNITS)
def test_saturated_units_are_certain_and_their_log_weights_finite(units: str) -> None:
    machine = random_machine((3, 2, 2), units).float()
    for network, sign in zip(machine.networks, (-1, 1), strict=True):  # p is sure of 0s, q of 1s
        for layer in network.layers:
            torch.nn.init.constant_(layer.weight, 0.0)
            torch.nn.init.constant_(layer.bias, sign * 1e4)
    trace = machine.wake(torch.zeros(2, 3), 3, seeded(1))
    assert (torch.cat(trace.value_blocks[1:], dim=1) == 1).all()
    assert (machine.log_weights(trace) == -4e4).all()
    assert (machine.dream(4, seeded(1)).values == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_probs_of_a_trace_are_right_at_any_logits(dtype: torch.dtype) -> None:
    """The bias of an unconnected pixel runs through all sizes; the error is in rounding units."""
    logits = torch.cat([torch.tensor([-1e4, -300, 300, 1e4]), torch.linspace(-40, 40, 161)]).to(
        dtype
    )
    machine = random_machine((1, 1)).to(dtype)
    torch.nn.init.zeros_(machine.generator.layers[0].weight)
    torch.nn.init.zeros_(machine.generator.layers[1].bias)
    for logit in logits:
        torch.nn.init.constant_(machine.generator.layers[0].bias, logit.item())
        x = torch.tensor([[0.0], [0.3], [1.0]], dtype=dtype)
        log_p = machine.evaluate([x, torch.ones_like(x)]).layer_log_probs(machine.generator)[0]
        a, y = logit.double(), x[:, 0].double()
        expected = y * a - a.clamp(min=0) - torch.log1p(torch.exp(-a.abs()))
        assert (
            (log_p.double() - expected).abs()
            <= 4 * max(1, abs(logit.item())) * torch.finfo(dtype).eps
        ).all()


# --- construction ---------------------------------------------------------------------------------


def test_initial_weights_are_glorot_normal_and_biases_where_asked() -> None:
    machine = HelmholtzMachine((300, 200, 100), weight_scale=0.5, hidden_bias=-1.0, rng=seeded(0))
    given = torch.linspace(-1, 1, 3)
    assert torch.equal(HelmholtzMachine((3, 2), visible_bias=given).generator.layers[0].bias, given)
    for network in machine.networks:
        for edge in network.edges:
            assert (edge.layer.bias == (-1 if edge.child else 0)).all()
            if edge.parent is not None:
                expected = 0.5 * (2 / sum(edge.layer.weight.shape)) ** 0.5
                # The relative error of a standard deviation.
                relative_error = (1 / (2 * edge.layer.weight.numel())) ** 0.5
                assert abs(edge.layer.weight.std() / expected - 1) < 5 * relative_error
    again = HelmholtzMachine((300, 200, 100), weight_scale=0.5, hidden_bias=-1.0, rng=seeded(0))
    assert all(
        torch.equal(a, b) for a, b in zip(machine.parameters(), again.parameters(), strict=True)
    )


def test_a_state_dict_restores_the_machine() -> None:
    machine, other = random_machine((4, 3, 2)), random_machine((4, 3, 2), seed=7)
    other.load_state_dict(machine.state_dict())
    assert same(content(machine.dream(5, seeded(1))), content(other.dream(5, seeded(1))))


@pytest.mark.parametrize("sizes", [[4], [4, 0], [4, -3], [4, 2.5], [0, 3], []])
def test_bad_sizes_are_refused(sizes: list[int]) -> None:
    with pytest.raises(
        UserError, match=r"layer sizes must be whole numbers of at least 1.*one or more hidden"
    ):
        HelmholtzMachine(sizes)


@pytest.mark.parametrize("units", ["ternary", "", None, 2])
def test_unknown_units_are_refused(units: Any) -> None:
    with pytest.raises(UserError, match=r"^model\.units must be binary or bipolar, got .*_target_"):
        HelmholtzMachine((3, 2), units)
    if units is not None:  # the visible layer's are those of the others where left out
        with pytest.raises(
            UserError, match=r"^model\.visible must be binary or bipolar, got .*_target_"
        ):
            HelmholtzMachine((3, 2), visible=units)


def test_units_are_named_or_given_and_the_visible_layer_has_its_own() -> None:
    named = HelmholtzMachine((4, 3, 2), "bipolar", visible="binary")
    assert [type(units).__name__ for units in named.units] == ["Binary", "Bipolar", "Bipolar"]
    given = Bipolar()
    assert HelmholtzMachine((4, 3, 2), given).units == (given,) * 3
    for network in named.networks:
        assert network.units == named.units
