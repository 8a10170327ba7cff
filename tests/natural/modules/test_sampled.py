"""The sampled metric against the exact Fisher matrix: unbiased, averaged, and solved as it says."""

import copy

import pytest
import torch
from cases import STANDARD_ERRORS
from dense import DENSE, FAMILIES, Case, dense_gradient, make_case
from solving import saved
from torch import Tensor

from nws.errors import UserError
from nws.natural import LevenbergMarquardt, NaturalGradient
from nws.natural.modules import Linearized, Sampled
from nws.natural.solvers import Cholesky, Woodbury

EXACT = 1e-10  # float64, by a direct solver
DRAWS = 3000


def drawn(case: Case, metric: Sampled) -> Tensor:
    """Its next matrix (d, d), or its diagonal (d,)."""
    linear = Linearized(case.model, case.parameters, case.inputs)
    with torch.no_grad():
        blocks = metric.update(linear, FAMILIES[case.family]).blocks()
    return blocks[:, 0, 0] if metric.diagonal else blocks[0]


def scores(found: Tensor, expected: Tensor) -> Tensor:
    """How many standard errors the mean of draws (N, ...) is away; rounding alone is none."""
    gap, error = found.mean(0) - expected, found.std(0) / len(found) ** 0.5
    return (gap / error.clamp_min(EXACT)).abs()


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("name", ["categorical", "several", "tied", "two inputs"])
def test_the_estimate_is_unbiased(name: str, diagonal: bool) -> None:
    case, metric = make_case(name), Sampled(1, diagonal=diagonal)
    found = torch.stack([drawn(case, metric) for _ in range(DRAWS)])
    fisher, empirical = (DENSE[each](case) for each in ("fisher", "empirical"))
    if diagonal:
        fisher, empirical = fisher.diagonal(), empirical.diagonal()
    assert scores(found, fisher).max() < STANDARD_ERRORS
    assert scores(found, empirical).max() > 2 * STANDARD_ERRORS  # the control


def test_samples_are_a_mean_and_the_memory_is_of_the_last_steps() -> None:
    case, steps = make_case("tied"), range(5)

    def each_step(metric: Sampled, passes: int = 1) -> Tensor:
        found = []
        for step in steps:
            torch.manual_seed(step)
            found.append(torch.stack([drawn(case, metric) for _ in range(passes)]).mean(0))
        return torch.stack(found)

    newest, diagonal = each_step(Sampled(2)), each_step(Sampled(2, diagonal=True))
    assert (each_step(Sampled(1), 2) - newest).abs().max() < EXACT
    assert (each_step(Sampled(2, 3))[-1] - newest[-3:].mean(0)).abs().max() < EXACT
    weights = (2 / 3) ** torch.arange(4.0, -1, -1).double()
    mean = weights @ diagonal / weights.sum()
    assert (each_step(Sampled(2, 3, diagonal=True))[-1] - mean).abs().max() < EXACT
    assert (diagonal[-1] - mean).abs().max() > 1e-3  # the control


@pytest.mark.parametrize("kl", [None, 1e-3])
@pytest.mark.parametrize("solver", [Woodbury, Cholesky, lambda: None])
@pytest.mark.parametrize("diagonal", [False, True])
def test_a_step_is_the_dense_solution(diagonal: bool, solver: type, kl: float | None) -> None:
    """The usual solver is as accurate as it says: a tenth."""
    case, alpha = make_case("categorical"), 0.05
    torch.manual_seed(1)
    matrix = drawn(case, Sampled(8, diagonal=diagonal))
    matrix = matrix.diag() if diagonal else matrix
    damped = matrix + alpha * torch.eye(len(matrix), dtype=torch.float64)
    expected = -(1 + alpha) * torch.linalg.solve(damped, dense_gradient(case))
    if kl is not None:
        expected *= (2 * kl / (expected @ matrix @ expected)).sqrt()
    before = torch.cat([each.detach().flatten() for each in case.parameters])
    torch.manual_seed(1)
    metric = Sampled(8, diagonal=diagonal)
    optimizer = NaturalGradient(
        case.model, FAMILIES[case.family], damping=alpha, metric=metric, solver=solver(), kl=kl
    )
    optimizer.step(case.inputs, case.targets)
    moved = torch.cat([each.detach().flatten() for each in case.parameters]) - before
    bound = EXACT if optimizer.solver.__class__ in (Woodbury, Cholesky) else 0.1
    assert (moved - expected).norm() < bound * expected.norm()


@pytest.mark.parametrize("diagonal", [False, True])
def test_it_goes_on_bit_for_bit(diagonal: bool) -> None:
    def make(case: Case) -> NaturalGradient:
        metric, damping = Sampled(2, 3, diagonal), LevenbergMarquardt(0.1, every=2)
        return NaturalGradient(case.model, FAMILIES[case.family], damping=damping, metric=metric)

    def loss_after(optimizer: NaturalGradient, case: Case) -> Tensor:
        torch.manual_seed(7)
        optimizer.step(case.inputs, case.targets)
        return optimizer.step(case.inputs, case.targets)

    case = make_case("tied")
    optimizer = make(case)
    optimizer.step(case.inputs, case.targets)
    state, model = saved(optimizer), copy.deepcopy(case.model.state_dict())
    again, fresh = make_case("tied"), make_case("tied")
    for each in (again, fresh):
        each.model.load_state_dict(model)
    other = make(again)
    other.load_state_dict(state)
    expected = loss_after(optimizer, case)
    assert torch.equal(loss_after(other, again), expected)
    assert not torch.equal(loss_after(make(fresh), fresh), expected)  # the control


def test_its_name_is_enough_and_mistakes_have_messages() -> None:
    case = make_case("tied")
    optimizer = NaturalGradient(case.model, FAMILIES[case.family], metric="sampled")
    assert optimizer.step(case.inputs, case.targets) > optimizer.step(case.inputs, case.targets)
    with pytest.raises(UserError, match="samples must be"):
        Sampled(0)
    with pytest.raises(UserError, match="covariance, sampled, got"):
        NaturalGradient(case.model, FAMILIES[case.family], metric="exact")
