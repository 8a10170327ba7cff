"""The bidirectional machine: log p~*, Z and p* from their streamed sums, against enumeration."""

import math
from typing import Any

import pytest
import reference
import torch
from cases import EACH_UNITS, EXACT, random_machine, seeded
from test_likelihood import with_exact_recognition
from torch import Tensor

from nws.models import HelmholtzMachine, Trace
from nws.models.likelihood import (
    Z_INNER,
    LogPStar,
    log_sums,
    log_z_sums,
    resolves,
    rows_at_once,
    summarise_p_star,
)


def log_p_star(
    machine: HelmholtzMachine, x: Tensor, samples: int, rng: torch.Generator, dreams: int,
    max_rows: int = 10**6,
) -> LogPStar:  # fmt: skip
    """The pieces put together as an evaluation does: chunks of data points, then of dreams."""
    parts = x.split(max(1, max_rows // samples))
    roots = [log_sums(machine, part, samples, rng, (0.5,), max_rows)[0] for part in parts]
    sums = torch.full((2,), -math.inf, dtype=torch.float64)
    at_once = max(1, max_rows // Z_INNER)
    for start in range(0, dreams, at_once):
        count = min(at_once, dreams - start)
        sums = torch.logaddexp(sums, log_z_sums(machine, count, rng, max_rows))
    return summarise_p_star(torch.cat(roots), samples, sums, dreams)


@pytest.mark.parametrize("units", EACH_UNITS)
@pytest.mark.parametrize("max_rows", [1, 7, 1000])
def test_with_exact_recognition_p_star_is_p_and_z_is_one_in_chunks_of_any_size(
    max_rows: int, units: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no more rows are in flight than are allowed; none is lost."""
    machine = with_exact_recognition(random_machine((4, 1), units))
    x, rows = torch.rand(5, 4, generator=seeded(3)).round().double(), []
    allocate = HelmholtzMachine._allocate

    def recording(self: HelmholtzMachine, count: int, *arguments: Any) -> Trace:
        rows.append(count)
        return allocate(self, count, *arguments)

    monkeypatch.setattr(HelmholtzMachine, "_allocate", recording)
    estimate = log_p_star(machine, x, 30, seeded(0), 40, max_rows)
    assert max(rows) <= max_rows and sum(rows) == 5 * 30 + 40 + 40 * Z_INNER
    assert rows_at_once(machine, max_rows * sum(machine.sizes) + 1) == max_rows
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
    assert not resolves(log_p_star(machine, torch.zeros(1, 40), 2, seeded(0), 1000).log_z, 1000)


def test_extreme_terms_of_z_neither_overflow_nor_vanish() -> None:
    # sums of roots of two data points; Z's sums of t and t^2 are e^-5000, e^-10000
    sums = torch.tensor([-2e4, 1e4]).double()
    estimate = summarise_p_star(sums, 1, torch.tensor([-5e3, -1e4]).double(), 1)
    assert (estimate.mean, estimate.log_z) == (pytest.approx(-1e4 + 5e3), pytest.approx(-5e3))
