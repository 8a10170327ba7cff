"""Poisson units against scipy's distribution, and on the command line."""

from __future__ import annotations

import pytest
import torch
from cases import EXACT, assert_close
from conftest import Command, checkpoint
from scipy.stats import poisson

from nws.errors import UserError
from nws.models import Poisson
from nws.models.poisson import LARGE


def test_log_probabilities_are_those_of_counts() -> None:
    units = Poisson(1 / 255)
    counts = torch.arange(256, dtype=torch.float64)
    logits = torch.linspace(-2, 6, 256, dtype=torch.float64)
    found = units.log_prob(units.from_data(counts / 255), logits, units.mean(logits))
    expected = poisson.logpmf(counts.numpy(), logits.exp().numpy())
    assert_close(found, torch.from_numpy(expected), EXACT)


@pytest.mark.parametrize("rate", [1e-3, 0.7, 12.0, 300.0, LARGE])
def test_samples_are_quantiles_of_their_noise(rate: float) -> None:
    """The cumulative sums lose some eps: the noise is kept a little off the steps."""
    noise = torch.rand(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    steps = poisson.cdf(poisson.ppf(noise.numpy(), rate) - [[0], [1]], rate)
    clear = (abs(steps - noise.numpy()) > 1e-9).all(0)
    expected = torch.from_numpy(poisson.ppf(noise.numpy(), rate))
    found = Poisson().sample_(noise.clone(), torch.full((2000,), rate, dtype=torch.float64))
    assert clear.mean() > 0.99 and torch.equal(found[clear], expected[clear])


def test_samples_of_large_means_are_off_by_less_than_one_count() -> None:
    rate = 10 * LARGE
    noise = torch.rand(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = torch.from_numpy(poisson.ppf(noise.numpy(), rate))
    found = Poisson().sample_(noise.clone(), torch.full((2000,), rate, dtype=torch.float64))
    assert (found - expected).abs().max() <= 1


def test_noise_above_all_sums_does_not_hang() -> None:
    """Rounding leaves the sum of all probabilities a little below 1."""
    noise = torch.full((1,), 1 - 2**-53, dtype=torch.float64)
    found = Poisson().sample_(noise, torch.full((1,), 9000.0, dtype=torch.float64))
    assert poisson.ppf(1 - 1e-9, 9000) < float(found) < poisson.ppf(1 - 1e-11, 9000)


def test_means_that_are_not_finite_do_not_hang() -> None:
    means = torch.tensor([float("nan"), float("inf"), 1e30])
    assert not Poisson().sample_(torch.full((3,), 0.5), means)[:2].isfinite().any()


def test_a_wrong_scale_is_refused() -> None:
    with pytest.raises(UserError, match="scale of Poisson units must be a number above 0"):
        Poisson(0.0)


@pytest.mark.parametrize("algorithm", ["rws", "nrws"])
def test_a_run_on_counts(train: Command, algorithm: str) -> None:
    options = ("model/visible=poisson", "model.visible.scale=0.0625", "data.binarize=none")
    outcome = train(f"algorithm={algorithm}", *options, "optimizer.lr=0.001")
    assert outcome.code == 0 and outcome.err == "", outcome.err
    state = checkpoint(outcome.run)["machine"]
    assert all(value.isfinite().all() for value in state.values())
