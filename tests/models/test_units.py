"""Units, one contract for every family: against autograd of A, sums or integrals, and samples."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import EXACT, STANDARD_ERRORS, assert_close, seeded
from families import Counts, Gauss, Odds, Pair
from scipy.stats import norm, poisson
from torch import Tensor

from nws import HelmholtzMachine
from nws.errors import UserError
from nws.models import Bipolar, Gaussian, Poisson
from nws.models.poisson import COUNTED
from nws.models.units import Binary, Units

FAMILIES = [Binary(), Bipolar(), Gaussian(), Poisson(), Gauss(), Pair(), Counts(), Odds()]
LOGITS = torch.linspace(-4, 4, 33, dtype=torch.float64)
DRAWS = 40_000
families = pytest.mark.parametrize("units", FAMILIES, ids=lambda units: type(units).__name__)


def cumulant(units: Units, order: int) -> Tensor:
    """The derivative of A of this order, by autograd."""
    logits = LOGITS.clone().requires_grad_()
    value = units.log_partition(logits)
    for _ in range(order):
        (value,) = torch.autograd.grad(value.sum(), logits, create_graph=True)
    return value.detach()


def log_prob(units: Units, values: Tensor, logits: Tensor) -> Tensor:
    return units.log_prob(values, logits, units.mean(logits))


def draw(units: Units, means: Tensor, seed: int = 0) -> Tensor:
    noise = torch.empty_like(means)
    units.fill_noise(noise, seeded(seed))
    return units.sample_(noise, means)


def grid(units: Units, logit: float) -> tuple[Tensor, Tensor]:
    """Values to sum over and their weights: the support, or all counts, or a fine grid."""
    if units.support is not None:
        values = torch.tensor(units.support, dtype=torch.float64)
        return values, torch.ones_like(values)
    centre = float(units.mean(torch.tensor(logit, dtype=torch.float64)))
    spread = float(units.curvature(torch.tensor(centre, dtype=torch.float64))) ** 0.5
    if draw(units, torch.full((50,), centre + 0.3).double()).frac().abs().max() == 0:
        values = torch.arange(int(centre + 30 * spread + 60), dtype=torch.float64)
        return values, torch.ones_like(values)
    values = torch.linspace(centre - 12 * spread, centre + 12 * spread, 20_001, dtype=torch.float64)
    return values, torch.full_like(values, float(values[1] - values[0]))


@families
def test_mean_and_curvature_are_the_derivatives_of_the_log_partition(units: Units) -> None:
    mean = units.mean(LOGITS)
    assert_close(mean, cumulant(units, 1))
    assert_close(units.curvature(mean), cumulant(units, 2))
    assert (units.curvature(mean) > 0).all()
    assert_close(units.link(mean), LOGITS)
    out = torch.empty_like(LOGITS)
    assert torch.equal(units.mean(LOGITS, out=out), mean) and torch.equal(out, mean)


@families
@pytest.mark.parametrize("logit", [-3.0, -0.4, 0.0, 1.5, 3.0])
def test_probabilities_sum_to_one_with_the_mean_and_curvature(units: Units, logit: float) -> None:
    values, widths = grid(units, logit)
    a = torch.full_like(values, logit)
    p = log_prob(units, values, a).exp() * widths
    mean, bound = units.mean(a[:1])[0], 1e-8
    assert float(p.sum()) == pytest.approx(1, abs=bound)
    assert float(p @ values) == pytest.approx(float(mean), abs=bound)
    variance = float(p @ (values - mean).square())
    assert variance == pytest.approx(float(units.curvature(mean)), rel=bound)


@families
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_give_finite_numbers(units: Units, dtype: torch.dtype) -> None:
    logits = torch.tensor([-40.0, 40.0], dtype=dtype)
    means = units.mean(logits)
    values = draw(units, means)
    for found in (means, units.curvature(means), units.log_partition(logits), values):
        assert found.isfinite().all() and found.dtype == dtype
    assert log_prob(units, values, logits).isfinite().all()
    assert log_prob(units, values, logits.flip(0)).isfinite().all()


@families
@pytest.mark.parametrize("logit", [-2.0, 0.0, 0.7, 2.0])
def test_samples_have_the_mean_and_the_variance(units: Units, logit: float) -> None:
    logits = torch.full((DRAWS,), logit, dtype=torch.float64)
    samples, mean = draw(units, units.mean(logits)), units.mean(logits[0])
    squares = (samples - mean).square()
    for found, expected in ((samples, mean), (squares, units.curvature(mean))):
        error = float(found.std()) / DRAWS**0.5 + EXACT
        assert abs(float(found.mean() - expected)) < STANDARD_ERRORS * error
    error = float(samples.std()) / DRAWS**0.5  # the control: the mean of a nearby logit
    assert abs(float(samples.mean() - units.mean(logits[0] + 0.3))) > STANDARD_ERRORS * error


@families
def test_the_same_noise_gives_the_same_values_and_encodings_have_inverses(units: Units) -> None:
    logits, means = LOGITS.clone(), units.mean(LOGITS)
    values, again, other = draw(units, means, 1), draw(units, means, 1), draw(units, means, 2)
    assert torch.equal(values, again) and not torch.equal(values, other)
    assert units.support is None or set(values.tolist()) <= set(units.support)
    assert_close(units.decode(units.encode(values)), values)
    x = torch.linspace(0, 1, 11, dtype=torch.float64)
    assert_close(units.to_data(units.from_data(x)), x)
    kept = [each.clone() for each in (logits, means, values)]
    units.log_prob(values, logits, means)
    for method, argument in ((units.curvature, means), (units.log_base, values)):
        assert method(argument).shape == argument.shape
    assert all(map(torch.equal, kept, (logits, means, values)))  # left alone
    whole = torch.full((5, 6), 7.0)
    units.fill_noise(whole[:, 2:4], seeded(1))
    assert (whole[:, :2] == 7).all() and (whole[:, 4:] == 7).all() and (whole[:, 2:4] != 7).all()


# --- Bernoulli units at any logit -----------------------------------------------------------------


@pytest.mark.parametrize("method", [Units.layer_log_probs, Binary.layer_log_probs])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_prob_is_right_at_any_logit(dtype: torch.dtype, method: Any) -> None:
    """Exact where log(1 + e^a) is 0 or a; else two roundings of up to 40, and the logarithm's."""

    def log_probs(y: Tensor, a: Tensor) -> Tensor:
        return method(Binary(), y[:, None], a[:, None], a[:, None].sigmoid(), widths=[1])[0]

    bits = torch.tensor([1, 0, 1, 0, 0.25, 0.25], dtype=dtype)
    logits = torch.tensor([1e4, -1e4, -1e4, 1e4, 1e4, -1e4], dtype=dtype)
    assert log_probs(bits, logits).tolist() == [0, 0, -1e4, -1e4, -7.5e3, -2.5e3]
    logits = torch.linspace(-40, 40, 801, dtype=torch.float64).to(dtype)
    for bit in (0.0, 1.0):
        expected = -torch.log1p(torch.exp(logits.double() * (1 - 2 * bit)))
        error = (log_probs(torch.full_like(logits, bit), logits).double() - expected).abs().max()
        assert error <= 4 * 40 * torch.finfo(dtype).eps


@families
def test_sums_over_layers_are_those_of_units(units: Units) -> None:
    widths, logits = [300, 99, 98, 1], torch.randn(7, 498, generator=seeded(0))
    values = draw(units, units.mean(logits))
    blocks = log_prob(units, values.double(), logits.double()).split(widths, dim=1)
    sums = units.layer_log_probs(values, logits, units.mean(logits), widths=widths)
    error = (sums / torch.stack([each.sum(-1) for each in blocks]) - 1).abs().max()
    assert float(error) < 1e-5  # some eps of float32, as each of up to 300 terms has


def test_sums_over_layers_follow_the_log_prob_of_a_class() -> None:
    class Twice(Binary):
        def log_prob(self, *parts: Tensor) -> Tensor:
            return 2 * super().log_prob(*parts)

    values, logits = torch.ones(2, 98), torch.zeros(2, 98)
    for units, log_p, dtype in ((Twice(), 2.0, torch.float32), (Binary(), 1.0, torch.float16)):
        parts = (each.to(dtype) for each in (values, logits, torch.sigmoid(logits)))
        sums = units.layer_log_probs(*parts, widths=[98])
        assert_close(sums.float(), torch.full((1, 2), -98 * log_p * math.log(2)), 1e-2)


# --- Gaussian and Poisson units, against scipy ----------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 0.2])
def test_log_densities_of_gaussian_units_are_those_of_the_data(scale: float) -> None:
    """x ~ N(scale a, scale^2): the density of x, not of x / scale."""
    units, x = Gaussian(scale), torch.linspace(-1, 2, 31, dtype=torch.float64)
    logits = torch.linspace(-3, 5, 31, dtype=torch.float64)
    expected = norm.logpdf(x.numpy(), loc=scale * logits.numpy(), scale=scale)
    assert_close(log_prob(units, units.from_data(x), logits), torch.from_numpy(expected))


def test_log_probabilities_of_poisson_units_are_those_of_counts() -> None:
    units = Poisson(1 / 255)
    counts = torch.arange(256, dtype=torch.float64)
    logits = torch.linspace(-2, 6, 256, dtype=torch.float64)
    expected = poisson.logpmf(counts.numpy(), logits.exp().numpy())
    assert_close(log_prob(units, units.from_data(counts / 255), logits), torch.from_numpy(expected))


@pytest.mark.parametrize("rate", [1e-3, 0.7, 12.0, 300.0, COUNTED, 10 * COUNTED])
def test_counts_are_quantiles_of_their_noise(rate: float) -> None:
    """The cumulative sums lose some eps, so the noise is kept a little off the steps.

    Above `COUNTED` the quantile is off by one count at most.
    """
    noise = torch.rand(2000, generator=seeded(), dtype=torch.float64)
    steps = poisson.cdf(poisson.ppf(noise.numpy(), rate) - [[0], [1]], rate)
    clear = (abs(steps - noise.numpy()) > 1e-9).all(0)
    expected = torch.from_numpy(poisson.ppf(noise.numpy(), rate))
    found = Poisson().sample_(noise.clone(), torch.full((2000,), rate, dtype=torch.float64))
    assert (found - expected).abs().max() <= 1
    assert rate > COUNTED or (clear.mean() > 0.99 and torch.equal(found[clear], expected[clear]))


def test_counting_ends() -> None:
    """Also where rounding leaves all sums below the noise, and for means that are no numbers."""
    noise = torch.full((1,), 1 - 2**-53, dtype=torch.float64)
    found = Poisson().sample_(noise, torch.full((1,), 9000.0, dtype=torch.float64))
    assert poisson.ppf(1 - 1e-9, 9000) < float(found) < poisson.ppf(1 - 1e-11, 9000)
    means = torch.tensor([float("nan"), float("inf"), 1e30])
    assert not Poisson().sample_(torch.full((3,), 0.5), means)[:2].isfinite().any()


def spoiled(base: type[Units], **methods: Callable[..., Any]) -> Units:
    """A family with other methods."""
    return type("Spoiled", (base,), methods)()


WRONG: dict[str, Units] = {
    # a negative binomial's: its logits must be below 0
    "log_partition must be finite for every real logit":
        spoiled(Gauss, log_partition=lambda self, a: -(1 - a.exp()).log()),
    "mean must be the derivative of log_partition":
        spoiled(Gauss, log_partition=lambda self, a: a.square()),
    "mean must write its result to out":
        spoiled(Binary, mean=lambda self, a, out=None: torch.sigmoid(a)),
    "curvature must be the second derivative": spoiled(Binary, curvature=lambda self, mean: mean),
    "curvature must be the second deriv": spoiled(Gauss, curvature=lambda *given: torch.ones(())),
    "link must be the inverse of mean": spoiled(Binary, link=lambda self, mean: mean),
    "decode must be the inverse of encode": spoiled(Binary, encode=lambda self, values: 3 * values),
    "sample_ must change the noise": spoiled(Gauss, sample_=lambda self, noise, mean: noise + mean),
    "log_prob must be y a - A": spoiled(Binary, log_prob=lambda self, y, a, p: y * a),
}  # fmt: skip


@pytest.mark.parametrize(("message", "family"), WRONG.items(), ids=range(len(WRONG)))
def test_a_mistake_in_a_family_is_found_when_a_machine_is_made(message: str, family: Units) -> None:
    for units in ((family, None), ("binary", family)):
        with pytest.raises(UserError, match=f"units of the class Spoiled: {message}"):
            HelmholtzMachine([4, 3], *units)
    with torch.no_grad():
        for right in (Gauss(), Pair(), Counts()):
            HelmholtzMachine([4, 3], visible=right)
