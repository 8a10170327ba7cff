"""Units: every family against autograd of A, by sums or integrals, and by samples."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable

import pytest
import torch
from cases import EXACT, STANDARD_ERRORS, assert_close, seeded
from families import Counts, Gauss, Pair
from torch import Tensor

import nws.models
from nws.errors import UserError
from nws.models.units import NAMED, Binary, Bipolar, Units, find_spans, find_units


def shipped() -> list[Units]:
    """One of each class of units in nws/models/: a new family is tested once its file is there."""
    modules = [
        importlib.import_module(f"nws.models.{m.name}")
        for m in pkgutil.iter_modules(nws.models.__path__)
    ]
    found = {each for module in modules for each in vars(module).values() if inspect.isclass(each)}
    kinds = [each for each in found if issubclass(each, Units) and not inspect.isabstract(each)]
    return [each() for each in sorted(kinds, key=lambda each: each.__name__)]


FAMILIES: list[Units] = [*shipped(), Gauss(), Pair(), Counts()]

LOGITS = torch.linspace(-4, 4, 33, dtype=torch.float64)
DRAWS = 40_000
families = pytest.mark.parametrize("units", FAMILIES, ids=lambda units: type(units).__name__)


def cumulant(units: Units, order: int, logits: Tensor = LOGITS) -> Tensor:
    """The derivative of A of this order, by autograd."""
    logits = logits.clone().requires_grad_()
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
    """Values to sum over and their weights: the support, or all counts, or a fine grid.

    Values between the whole numbers have a density where log_base is finite there.
    """
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


# --- the formulas ---------------------------------------------------------------------------------


@families
def test_mean_and_curvature_are_the_derivatives_of_the_log_partition(units: Units) -> None:
    mean = units.mean(LOGITS)
    assert_close(mean, cumulant(units, 1))
    assert_close(units.curvature(mean), cumulant(units, 2))
    assert (units.curvature(mean) > 0).all()
    out = torch.empty_like(LOGITS)
    assert torch.equal(units.mean(LOGITS, out=out), mean) and torch.equal(out, mean)


@families
def test_link_is_the_inverse_of_mean(units: Units) -> None:
    assert_close(units.link(units.mean(LOGITS)), LOGITS)


@families
@pytest.mark.parametrize("logit", [-3.0, -0.4, 0.0, 1.5, 3.0])
def test_probabilities_sum_to_one_and_have_the_mean_and_the_curvature(
    units: Units, logit: float
) -> None:
    values, widths = grid(units, logit)
    a = torch.full_like(values, logit)
    p = log_prob(units, values, a).exp() * widths
    mean, bound = units.mean(a[:1])[0], 1e-8
    assert float(p.sum()) == pytest.approx(1, abs=bound)
    assert float(p @ values) == pytest.approx(float(mean), abs=bound)
    variance = float(p @ (values - mean).square())
    assert variance == pytest.approx(float(units.curvature(mean)), rel=bound)


@families
def test_log_prob_is_linear_in_the_value_and_its_gradient_is_value_minus_mean(units: Units) -> None:
    values = draw(units, units.mean(LOGITS))
    logits = LOGITS.clone().requires_grad_()
    formula = values * logits - units.log_partition(logits) + units.log_base(values)
    (gradient,) = torch.autograd.grad(formula.sum(), logits)
    assert_close(gradient, values - units.mean(LOGITS))
    assert_close(log_prob(units, values, LOGITS), formula)
    one, other = (log_prob(units, values, each) for each in (LOGITS, LOGITS + 0.5))
    # the control: another logit gives another probability
    assert (one - other).abs().max() > 1e-3


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


# --- samples --------------------------------------------------------------------------------------


@families
@pytest.mark.parametrize("logit", [-2.0, 0.0, 0.7, 2.0])
def test_samples_have_the_mean_and_the_variance(units: Units, logit: float) -> None:
    logits = torch.full((DRAWS,), logit, dtype=torch.float64)
    samples = draw(units, units.mean(logits))
    mean = units.mean(logits[0])
    squares = (samples - mean).square()
    for found, expected in ((samples, mean), (squares, units.curvature(mean))):
        error = float(found.std()) / DRAWS**0.5 + EXACT
        assert abs(float(found.mean() - expected)) < STANDARD_ERRORS * error
    # the control: the mean of a nearby logit does not pass
    error = float(samples.std()) / DRAWS**0.5
    assert abs(float(samples.mean() - units.mean(logits[0] + 0.3))) > STANDARD_ERRORS * error


@families
def test_the_same_noise_gives_the_same_sample_in_place(units: Units) -> None:
    means = units.mean(LOGITS)
    one, two, other = draw(units, means, 1), draw(units, means, 1), draw(units, means, 2)
    assert torch.equal(one, two) and not torch.equal(one, other)
    noise = torch.empty_like(means)
    units.fill_noise(noise, seeded(1))
    before = means.clone()
    assert units.sample_(noise, means).data_ptr() == noise.data_ptr()
    assert torch.equal(noise, one) and torch.equal(means, before)
    if units.support is not None:
        assert set(one.tolist()) <= set(units.support)


@families
def test_noise_fills_a_part_of_a_tensor_and_no_more(units: Units) -> None:
    noise = torch.full((5, 6), 7.0)
    units.fill_noise(noise[:, 2:4], seeded(1))
    assert (noise[:, :2] == 7).all() and (noise[:, 4:] == 7).all()
    assert (noise[:, 2:4] != 7).all()


# --- encodings ------------------------------------------------------------------------------------


@families
def test_states_and_data_have_inverses(units: Units) -> None:
    values = draw(units, units.mean(LOGITS))
    assert_close(units.decode(units.encode(values)), values)
    x = torch.linspace(0, 1, 11, dtype=torch.float64)
    assert_close(units.to_data(units.from_data(x)), x)


@families
def test_methods_leave_their_arguments_alone(units: Units) -> None:
    logits, means = LOGITS.clone(), units.mean(LOGITS)
    values = draw(units, means)
    kept = [each.clone() for each in (logits, means, values)]
    units.log_prob(values, logits, means)
    for method in (units.curvature, units.link, units.to_data):
        method(means)
    for method in (units.encode, units.decode, units.log_base):
        method(values)
    units.log_partition(logits)
    for before, after in zip(kept, (logits, means, values), strict=True):
        assert torch.equal(before, after)


def test_states_of_bits_and_of_intensities() -> None:
    y = torch.tensor([0.0, 0.25, 1.0])
    assert Binary().encode(y) is y and Binary().decode(y) is y
    assert Bipolar().encode(y).tolist() == [-1, -0.5, 1]
    assert Bipolar().decode(Bipolar().encode(y)).tolist() == y.tolist()
    assert Bipolar().from_data(y) is y and Bipolar().to_data(y) is y


# --- Bernoulli units at any logit -----------------------------------------------------------------


def by_formula(values: Tensor, logits: Tensor) -> Tensor:
    """y a - A(a), which autograd goes through."""
    return values * logits - Binary().log_partition(logits)


LOG_PROBS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "by means": lambda y, a: log_prob(Binary(), y, a),
    "by formula": by_formula,
    "base class": lambda y, a: Units.log_prob(Binary(), y, a, torch.sigmoid(a)),
}
each_log_prob = pytest.mark.parametrize("function", LOG_PROBS.values(), ids=LOG_PROBS)


@each_log_prob
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("bit", "logit", "expected"),
    [
        (1, 1e4, 0),
        (0, -1e4, 0),
        (1, -1e4, -1e4),
        (0, 1e4, -1e4),
        (0.25, 1e4, -7.5e3),
        (0.25, -1e4, -2.5e3),
    ],
)
def test_log_prob_of_extreme_logits_is_finite_and_right(
    bit: float,
    logit: float,
    expected: float,
    dtype: torch.dtype,
    function: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Exact: log(1 + e^a) is 0 or a here."""
    found = function(torch.tensor([bit], dtype=dtype), torch.tensor([logit], dtype=dtype))
    assert found.tolist() == [expected]


@each_log_prob
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_prob_near_saturation_keeps_absolute_precision(
    dtype: torch.dtype, function: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """Two roundings of numbers of up to 40, and the logarithm's."""
    logits = torch.linspace(-40, 40, 801, dtype=torch.float64).to(dtype)
    for bit in (0.0, 1.0):
        expected = -torch.log1p(torch.exp(logits.double() * (1 - 2 * bit)))
        error = (function(torch.full_like(logits, bit), logits).double() - expected).abs().max()
        assert error <= 4 * 40 * torch.finfo(dtype).eps


# --- by name, and in spans ------------------------------------------------------------------------


def test_families_are_found_by_name_or_given() -> None:
    assert find_units("binary") is NAMED["binary"] and find_units("bipolar") is NAMED["bipolar"]
    for units in FAMILIES:
        assert find_units(units) is units
    refused = r"model\.visible must be binary or bipolar, got 'tristate'"
    with pytest.raises(UserError, match=refused):
        find_units("tristate", "model.visible")
    with pytest.raises(UserError, match=r"binary or bipolar, got <class"):
        find_units(Binary)  # type: ignore[arg-type]


def test_spans_join_neighbours_of_one_family() -> None:
    one, other = Binary(), Binary()
    found = find_spans([one, one, other, one], [3, 2, 4, 1])
    assert [span.columns for span in found] == [slice(0, 5), slice(5, 9), slice(9, 10)]
    assert [span.widths for span in found] == [[3, 2], [4], [1]]
    assert all(a is b for a, b in zip((s.units for s in found), (one, other, one), strict=True))
    assert find_spans([], []) == []
