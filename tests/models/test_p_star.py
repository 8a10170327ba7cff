"""The bidirectional machine: log p~*, Z and p* from their streamed sums, against enumeration."""

import math

import pytest
import reference
import torch
from cases import EACH_UNITS, EXACT, random_machine, recorded, seeded
from test_likelihood import with_exact_recognition
from torch import Tensor

from nws.analysis.evaluation import sums_of_dreams, sums_of_images
from nws.models import HelmholtzMachine, likelihood
from nws.models.likelihood import Z_INNER, LogPStar, resolves, summarise_p_star


def log_p_star(machine: HelmholtzMachine, x: Tensor, samples: int, dreams: int) -> LogPStar:
    """As an evaluation finds it."""
    sums = sums_of_images(machine, x, samples, 0)[2], sums_of_dreams(machine, dreams, 0)
    return summarise_p_star(sums[0], samples, sums[1], dreams)


@pytest.mark.parametrize("units", EACH_UNITS)
@pytest.mark.parametrize("max_rows", [1, 7, 1000])
def test_with_exact_recognition_p_star_is_p_and_z_is_one_in_chunks_of_any_size(
    max_rows: int, units: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no more rows are in flight than are allowed; none is lost."""
    machine = with_exact_recognition(random_machine((4, 1), units))
    x = torch.rand(5, 4, generator=seeded(3)).round().double()
    calls = recorded(monkeypatch, HelmholtzMachine, "_allocate")
    monkeypatch.setattr(likelihood, "MAX_ELEMENTS", max_rows * sum(machine.sizes) + 1)
    estimate = log_p_star(machine, x, 30, 40)
    rows = [count for _, count, *_ in calls]
    assert max(rows) <= max_rows and sum(rows) == 5 * 30 + 40 + 40 * Z_INNER
    exact = reference.exact_log_prob(machine, x).mean().item()
    assert estimate.mean == pytest.approx(exact, abs=EXACT)
    assert estimate.log_z == pytest.approx(0, abs=EXACT)
    # The tolerance is the root of a rounding error.
    assert estimate.log_z_standard_error == pytest.approx(0, abs=1e-6)


def test_a_z_far_below_what_the_dreams_resolve_is_found_out() -> None:
    """Recognition that knows nothing of a sharp generator: 1,000 dreams cannot tell Z ~ 2^-40."""
    bounds = [resolves(math.log(z), 1000) for z in (0.02, 0.005)]  # 1 / sqrt(J M) = 0.01
    assert bounds == [True, False]
    machine = HelmholtzMachine((40, 40), rng=seeded(0))
    for network, scale in zip(machine.networks, (20.0, 0.0), strict=True):
        torch.nn.init.eye_(network.layers[0].weight)
        with torch.no_grad():
            network.layers[0].weight.mul_(scale)
            network.layers[0].bias.fill_(-scale / 2)
    assert not resolves(log_p_star(machine, torch.zeros(1, 40), 2, 1000).log_z, 1000)


def test_extreme_terms_of_z_neither_overflow_nor_vanish() -> None:
    # sums of roots of two data points; Z's sums of t and t^2 are e^-5000, e^-10000
    sums = torch.tensor([-2e4, 1e4]).double()
    estimate = summarise_p_star(sums, 1, torch.tensor([-5e3, -1e4]).double(), 1)
    assert (estimate.mean, estimate.log_z) == (pytest.approx(-1e4 + 5e3), pytest.approx(-5e3))
    many = summarise_p_star(torch.tensor([0.0, 0.02]).double(), 1, torch.zeros(2).double(), 101)
    # of log p~* 0.02, of log Z 1: the error of log p* is that of both
    assert (many.log_z_standard_error, many.standard_error) == pytest.approx((1, 1.0004**0.5))
