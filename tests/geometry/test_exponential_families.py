"""Exponential families: dual coordinates, Fisher matrices and divergences against autograd, sums
and integrals.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from cases import STANDARD_ERRORS, assert_close, seeded
from torch import Tensor
from torch.func import grad, hessian, jacrev

from nws.errors import UserError
from nws.geometry import families as families_module
from nws.geometry.families import Categorical, ExponentialFamily, IndependentUnits, Interactions
from nws.geometry.gaussian import Moments, MultivariateGaussian
from nws.models.gaussian import Gaussian
from nws.models.poisson import Poisson

DRAWS = 20_000


class Case(NamedTuple):
    """A family, two of its points, every x with its weight (None: too many), and T(x)."""

    family: ExponentialFamily
    theta: Tensor
    other: Tensor
    nodes: tuple[Tensor, Tensor] | None
    statistics: Callable[[Tensor], Tensor]


def points(size: int, *shape: int) -> Tensor:
    return torch.randn(size, *shape, generator=seeded(size + sum(shape)), dtype=torch.float64) * 0.8


def every(values: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Every vector of these values, each with the weight 1."""
    table = torch.stack([torch.stack(row) for row in itertools.product(values, repeat=size)])
    return table, torch.ones(len(table), dtype=torch.float64)


def interval(end: float, count: int, size: int) -> tuple[Tensor, Tensor]:
    """The trapezoidal rule on [-end, end]^size, which is exact to rounding for these densities."""
    line = torch.linspace(-end, end, count, dtype=torch.float64)
    table, weights = every(line, size)
    return table, weights * (2 * end / (count - 1)) ** size


def gaussian(size: int, pairs: list[tuple[int, int]] | None = None) -> Case:
    family = MultivariateGaussian(size, pairs)
    root = points(2, size, size) / 2
    moments = Moments(points(2, size), root @ root.mT + 0.6 * torch.eye(size).double())
    whole = MultivariateGaussian(size)
    places = [*itertools.combinations_with_replacement(range(size), 2)]
    kept = [i == j or pairs is None or (i, j) in pairs for i, j in places]
    theta, other = whole.from_moments(moments)[:, [True] * size + kept]

    def statistics(x: Tensor) -> Tensor:
        products = [x[..., i] * x[..., j] for i, j in itertools.compress(places, kept)]
        return torch.cat([x, torch.stack(products, dim=-1)], dim=-1)

    nodes = {1: interval(16, 801, 1), 2: interval(13, 161, 2)}.get(size)
    return Case(family, theta, other, nodes, statistics)


def units(family: IndependentUnits, nodes: tuple[Tensor, Tensor]) -> Case:
    return Case(family, *points(2, family.dimension), nodes, lambda x: x)


BITS, COUNTS = torch.tensor([0.0, 1.0]).double(), torch.arange(40).double()
STATES, SPINS = every(torch.arange(4).double(), 1), torch.tensor([-1.0, 1.0]).double()
CASES = {
    "Bernoulli": units(IndependentUnits("binary"), every(BITS, 1)),
    "three bits": units(IndependentUnits("bipolar", 3), every(BITS, 3)),
    "Gaussian means": units(IndependentUnits(Gaussian(), 2), interval(12, 161, 2)),
    "Gaussian mean, another scale": Case(
        IndependentUnits(Gaussian(0.5)), *points(2, 1), interval(9, 801, 1), lambda x: 2 * x),
    "Poisson": units(IndependentUnits(Poisson(), 2), every(COUNTS, 2)),
    "categorical": Case(
        Categorical(4), *points(2, 3), STATES,
        lambda x: torch.nn.functional.one_hot(x[..., 0].long(), 4)[..., 1:].double()),
    "Gaussian": gaussian(1), "Gaussian in two dimensions": gaussian(2),
    "Gaussian in three dimensions": gaussian(3), "Gaussian chain": gaussian(3, [(0, 1), (1, 2)]),
    "Gaussian without the pair (0, 1)": gaussian(2, []),
    "interactions": Case(
        Interactions(3, [(0,), (2,), (0, 1), (2, 1, 0)]), *points(2, 4), every(SPINS, 3),
        lambda x: torch.stack([x[..., 0], x[..., 2], x[..., 0] * x[..., 1], x.prod(-1)], dim=-1)),
}  # fmt: skip
families = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@families
def test_coordinates_are_dual_and_fisher_matrices_their_derivatives(case: Case) -> None:
    """So natural gradients in one system are plain ones in the other, and online natural steps of
    1 / k on log p are running means of T(x).
    """
    family, theta = case.family, case.theta
    eta, x = family.expectation(theta), family.sample(theta, 5, seeded(2))
    assert_close(family.natural(eta), theta)
    assert_close(grad(family.log_partition)(theta), eta)
    assert_close(grad(family.dual)(eta), theta)
    assert_close(family.log_partition(theta) + family.dual(eta), (theta * eta).sum())
    for derivative in (hessian(family.log_partition), jacrev(family.expectation)):
        assert_close(derivative(theta), family.fisher(theta))
    for derivative in (hessian(family.dual), jacrev(family.natural)):
        assert_close(derivative(eta), family.dual_fisher(eta))
    assert_close(family.fisher(theta) @ family.dual_fisher(eta), torch.eye(len(theta)))
    slopes = jacrev(lambda point: family.log_prob(x, point))(theta)
    assert_close(slopes, case.statistics(x) - eta)
    with pytest.raises(AssertionError):  # negative control
        assert_close(slopes, case.statistics(x) - family.expectation(case.other))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.nodes])
def test_probabilities_moments_and_kl_by_sums_and_integrals(name: str) -> None:
    family, theta, other, nodes, statistics = CASES[name]
    assert nodes is not None
    x, weights = nodes
    log_p, log_q = family.log_prob(x, theta), family.log_prob(x, other)
    p = weights * log_p.exp()
    assert_close(p.sum(), torch.tensor(1.0))
    eta, t = family.expectation(theta), statistics(x)
    assert_close(family.statistics(x), t)
    assert_close(p @ t, eta)
    assert_close((t - eta).mT @ (p[:, None] * (t - eta)), family.fisher(theta))
    kl = (p * (log_p - log_q)).sum()
    assert_close(family.kl(theta, other), kl)
    if not name.startswith("Gaussian mean"):  # negative control: KL is not symmetric elsewhere
        with pytest.raises(AssertionError):
            assert_close(family.kl(other, theta), kl)


@families
def test_draws_have_the_expectations(case: Case) -> None:
    family, theta = case.family, case.theta
    t = case.statistics(family.sample(theta, DRAWS, seeded(1)))
    errors = (family.fisher(theta).diagonal() / DRAWS).sqrt()  # exact standard errors
    gaps = (t.mean(0) - family.expectation(theta)) / errors
    assert gaps.abs().max() < STANDARD_ERRORS
    assert ((t.mean(0) - family.expectation(case.other)) / errors).abs().max() > STANDARD_ERRORS


@families
def test_a_batch_of_points_is_its_points(case: Case) -> None:
    family, batch = case.family, torch.stack([case.theta, case.other])
    eta = family.expectation(batch)
    for k, theta in enumerate(batch):
        assert_close(family.fisher(batch)[k], family.fisher(theta))
        assert_close(family.dual_fisher(eta)[k], family.dual_fisher(eta[k]))
        assert_close(family.natural(eta)[k], theta)
        assert_close(family.dual(eta)[k], family.dual(eta[k]))


def test_gibbs_sampling_has_the_exact_expectations(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["interactions"]
    exact, error = case.family.expectation(case.theta), (case.family.fisher(case.theta)).diagonal()
    monkeypatch.setattr(families_module, "ENUMERATED", 0)  # no sum over states
    gaps = []
    for sweeps in (30, 1):
        family = Interactions(3.0, [(0,), (2,), (0, 1), (2, 1, 0)], sweeps)
        t = case.statistics(family.sample(case.theta, DRAWS, seeded(2)))
        gaps.append(((t.mean(0) - exact) / (error / DRAWS).sqrt()).abs().max())
    assert gaps[0] < STANDARD_ERRORS < gaps[1]  # negative control: too few sweeps
    with pytest.raises(UserError, match="size, for exact sums, must be .* at most 0, got 3"):
        family.log_partition(case.theta)


def test_a_chain_has_no_precision_between_its_ends_and_newton_says_what_it_missed() -> None:
    family, theta = MultivariateGaussian(3, [(0, 1), (1, 2)]), CASES["Gaussian chain"].theta
    precision = torch.linalg.inv(family.moments(theta).covariance)
    assert abs(precision[0, 2]) < 1e-12 < 0.01 < abs(precision[0, 1])
    assert family.contains(theta) and not family.contains(-theta)
    family = Interactions(2, [(0,), (1,), (0, 1)])
    assert family.natural(torch.tensor([0.9, 0.9, -0.9]).double()).isnan().all()  # p < 0


def test_mistakes_have_messages() -> None:
    with pytest.raises(UserError, match="pairs must be .i, j., 0 <= i < j < 3, got .1, 0."):
        MultivariateGaussian(3, [(1, 0)])
    for groups in ([], [()], [(0,), (0,)], [(0, 1), (1, 0)], [(3,)], [(0, 0), (1,)]):
        with pytest.raises(UserError, match="groups must be distinct sets of spins below 3"):
            Interactions(3, groups)
    with pytest.raises(UserError, match="states must be a whole number of at least 2, got 1"):
        Categorical(1)
    with pytest.raises(UserError, match="count must be"):
        IndependentUnits("binary", 0)
    with pytest.raises(UserError, match="units must be binary or bipolar"):
        IndependentUnits("triangular")
    line, none = MultivariateGaussian(1), torch.tensor([0.0, 1.0])  # a negative variance
    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
        line.sample(none, 3)
    assert line.kl(-none, none) == torch.inf and line.kl(-none, -2 * none) < 1
