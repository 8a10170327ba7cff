"""Log-likelihoods: exact against brute force, sampled against exact, in chunks; divergences."""

import math

import pytest
import reference
import torch
from cases import CASES, EACH_UNITS, EXACT, Case, assert_close, random_machine, recorded, seeded
from families import Gauss, Pair
from torch import Tensor

from nws.errors import UserError
from nws.models import HelmholtzMachine, exact_log_likelihood, kl_divergence, log_likelihood
from nws.models.likelihood import all_values, can_enumerate
from nws.models.units import NAMED


@pytest.mark.parametrize("soft", [False, True], ids=["bits", "intensities"])
@pytest.mark.parametrize("case", CASES)
def test_exact_log_likelihood_is_brute_force_enumeration(case: Case, soft: bool) -> None:
    machine, x = case.machine(), case.data(soft)
    expected = reference.exact_log_prob(machine, x)
    assert_close(exact_log_likelihood(machine, x), expected, case.tolerance)


def test_enumeration_of_units_with_three_values_or_endless_ones() -> None:
    """Probabilities of all images sum to 1, and tables count 3^n states."""
    machine = random_machine((3, 2, 2), Pair(), visible="binary")
    x = all_values(NAMED["binary"], 3).double()
    assert_close(exact_log_likelihood(machine, x, 3**4).exp().sum(), torch.tensor(1.0))
    with pytest.raises(UserError, match=r"a table of 2\^6\.3 states, the limit is 80; use the imp"):
        exact_log_likelihood(machine, x, 3**4 - 1)
    with pytest.raises(UserError, match=r"on 80 data points need a table of 2\^9\.5 states"):
        exact_log_likelihood(machine, x.repeat(10, 1), 3**4)
    endless = random_machine((3, 2), Gauss())
    machines = [(machine, True), (HelmholtzMachine((4, 20)), False), (endless, False)]
    assert all(can_enumerate(each, 8) == possible for each, possible in machines)


def with_exact_recognition(machine: HelmholtzMachine) -> HelmholtzMachine:
    """The posterior of one hidden unit is a sigmoid unit: its log odds are affine in x.

    They are read off at x = 0 and the unit vectors.
    """

    def log_odds(x: Tensor) -> float:
        joint = reference.generator(machine).log_prob(reference.every_hidden_state(machine, x))
        return (joint[1] - joint[0]).item()

    pixels = machine.sizes[0]
    zero, units = torch.zeros(pixels), torch.eye(pixels)
    slopes = torch.tensor([log_odds(unit) - log_odds(zero) for unit in units], dtype=torch.float64)
    layer = machine.recognition.layers[0]
    with torch.no_grad():
        if machine.units[0].encode(zero) is zero:
            layer.weight[0], layer.bias[0] = slopes, log_odds(zero)
        else:
            layer.weight[0], layer.bias[0] = slopes / 2, log_odds(zero) + slopes.sum().item() / 2
    return machine


@pytest.mark.parametrize("units", EACH_UNITS)
@pytest.mark.parametrize("samples", [1, 50])
@pytest.mark.parametrize("max_rows", [1, 7, 60, 10**6])
def test_with_exact_recognition_every_estimate_is_exact_in_chunks_of_any_size(
    max_rows: int, samples: int, units: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All weights are p(x): no variance over samples, ESS = K, and the error is only the data's."""
    calls = recorded(monkeypatch, HelmholtzMachine, "wake")
    machine = with_exact_recognition(random_machine((5, 1), units))
    x = torch.rand(9, 5, generator=seeded(3)).round().double()
    exact = reference.exact_log_prob(machine, x)
    estimate = log_likelihood(machine, x, samples, seeded(0), max_elements=max_rows * 6)
    assert estimate.mean == pytest.approx(exact.mean().item(), abs=EXACT)
    assert estimate.standard_error == pytest.approx(exact.std().item() / 3, abs=EXACT)
    assert estimate.ess == pytest.approx(samples, abs=EXACT)
    assert (estimate.samples, estimate.data_points) == (samples, 9)
    rows = [len(some) * count for _, some, count, _ in calls]
    assert max(rows) <= max_rows and sum(rows) == 9 * samples  # none lost, none twice


@pytest.mark.parametrize("samples", [1, 8])
def test_one_chunk_is_the_plain_formula(samples: int) -> None:
    """Its standard error is the deviation of the data points' estimates over the root of N."""
    machine = random_machine((4, 3, 2), "bipolar")
    x = torch.rand(50, 4, generator=seeded(3)).round()
    weights = machine.log_weights(machine.wake(x, samples, seeded(0))).exp()
    values, estimate = weights.mean(1).log(), log_likelihood(machine, x, samples, seeded(0))
    assert estimate.mean == pytest.approx(values.mean().item(), abs=EXACT)
    assert estimate.standard_error == pytest.approx(values.std().item() / math.sqrt(50), abs=EXACT)
    ess = weights.sum(1) ** 2 / (weights**2).sum(1)
    assert estimate.ess == pytest.approx(ess.mean().item(), abs=EXACT)
    assert math.isnan(log_likelihood(machine, x[:1], 3, seeded(0)).standard_error)  # no spread


def test_extreme_log_weights_neither_overflow_nor_vanish() -> None:
    machine = random_machine((3, 2)).float()
    # Here log p = -2e4 for the hidden states that q is sure of.
    for network, sign in zip(machine.networks, (-1, 1), strict=True):
        for layer in network.layers:
            torch.nn.init.constant_(layer.weight, 0.0)
            torch.nn.init.constant_(layer.bias, sign * 1e4)
    estimate = log_likelihood(machine, torch.zeros(2, 3), 10, seeded(0), max_elements=15)
    assert (estimate.mean, estimate.standard_error) == (pytest.approx(-2e4), 0)
    assert estimate.ess == pytest.approx(10, rel=1e-6)


@pytest.mark.parametrize("pixel", [255.0, -1.0, math.nan])
def test_data_that_are_no_intensities_are_refused(pixel: float) -> None:
    with pytest.raises(UserError, match="intensities in .*divide bytes by 255"):
        log_likelihood(HelmholtzMachine([4, 3]), torch.full((2, 4), pixel), 3)


@pytest.mark.parametrize("seed", range(5))
def test_divergence_is_its_formula_and_not_negative(seed: int) -> None:
    machine, images = random_machine((3, 2), seed=seed), all_values(NAMED["binary"], 3).double()[1:]
    p_data = torch.rand(7, generator=seeded(seed), dtype=torch.float64)
    p_data /= p_data.sum()
    log_p = reference.exact_log_prob(machine, images)
    expected = sum(p.item() * (math.log(p) - q.item()) for p, q in zip(p_data, log_p, strict=True))
    assert kl_divergence(machine, images, p_data) == pytest.approx(expected, abs=EXACT)
    assert expected > 0
    own = log_p.exp() / log_p.exp().sum()  # of these images alone
    left_out = float(-log_p.exp().sum().log())
    assert kl_divergence(machine, images, own) == pytest.approx(left_out, abs=EXACT)
