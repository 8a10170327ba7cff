"""The Kronecker preconditioner: never another solution, and fewer iterations where it pays."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from dense import CASES, DENSE, FAMILIES, make_case
from torch import Tensor, nn

from nws.errors import UserError
from nws.natural import GaussianMean, UnitFisher
from nws.natural.modules import KroneckerPreconditioner, Linearized, ModelCurvature, OutputMetric
from nws.natural.modules.families import OutputFamily
from nws.natural.preconditioners import Unpreconditioned
from nws.natural.solvers import ConjugateGradient

ALPHA = torch.tensor(0.01, dtype=torch.float64)
SOLVED = 1e-8  # float64, a relative residual of 1e-12


def operator_of(model: nn.Module, inputs: Tensor, family: OutputFamily) -> ModelCurvature:
    linear = Linearized(model, list(model.parameters()), inputs)
    return ModelCurvature(linear, OutputMetric("fisher", family))


def iterations(operator: ModelCurvature, right: Tensor, solver: ConjugateGradient) -> int:
    solver.factor(operator, ALPHA)
    solver.solve(right)
    return solver.used_iterations


@pytest.mark.parametrize("metric", DENSE)
@pytest.mark.parametrize("name", CASES)
def test_the_solution_is_that_of_the_dense_matrix(name: str, metric: str) -> None:
    case = make_case(name)
    linear = Linearized(case.model, case.parameters, case.inputs)
    operator = ModelCurvature(linear, OutputMetric(metric, FAMILIES[case.family]), case.targets)
    solver = ConjugateGradient(200, tolerance=1e-12, preconditioner=KroneckerPreconditioner())
    right = torch.randn(1, operator.shape[1], dtype=torch.float64)
    solver.factor(operator, ALPHA)
    matrix = DENSE[metric](case)
    matrix = matrix + ALPHA * torch.eye(len(matrix), dtype=torch.float64)
    expected = torch.linalg.solve(matrix, right[0])
    assert (solver.solve(right)[0] - expected).norm() < SOLVED * expected.norm()


def test_it_is_exact_for_one_linear_output() -> None:
    """There g is 1 / sigma with either sign, so that the product of factors is the matrix."""
    torch.manual_seed(0)
    model = nn.Linear(6, 1, dtype=torch.float64)
    operator = operator_of(model, torch.randn(20, 6, dtype=torch.float64), GaussianMean(0.5))
    right = torch.randn(1, 7, dtype=torch.float64)
    solver = ConjugateGradient(50, tolerance=1e-10, preconditioner=KroneckerPreconditioner())
    assert iterations(operator, right, solver) == 1
    plain = ConjugateGradient(50, tolerance=1e-10, preconditioner=Unpreconditioned())
    assert iterations(operator, right, plain) > 5


def test_it_is_symmetric_and_positive_definite() -> None:
    case = make_case("categorical")
    linear = Linearized(case.model, case.parameters, case.inputs)
    operator = ModelCurvature(linear, OutputMetric("fisher", FAMILIES[case.family]))
    precondition = KroneckerPreconditioner()
    precondition.update(operator, ALPHA)
    identity = torch.eye(operator.shape[1], dtype=torch.float64)
    matrix = torch.cat([precondition(each[None]) for each in identity])
    assert (matrix - matrix.T).abs().max() < SOLVED
    assert torch.linalg.eigvalsh(matrix).min() > 0


def test_a_deep_autoencoder_takes_half_the_iterations() -> None:
    """Inputs of unlike scales behind a bottleneck: what it is for."""
    torch.manual_seed(0)
    sizes = (30, 20, 4, 20, 30)
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU(inplace=True)]
    model = nn.Sequential(*layers[:-1]).double()
    inputs = torch.randn(200, 30, dtype=torch.float64) * torch.logspace(-1, 1, 30).double()
    operator = operator_of(model, inputs, GaussianMean())
    right = operator.linear.pull(operator.linear.outputs - inputs)[None]
    counts = [
        iterations(operator, right, ConjugateGradient(500, tolerance=0.1, preconditioner=each))
        for each in (KroneckerPreconditioner(), Unpreconditioned())
    ]
    assert counts[0] < counts[1] / 2


@pytest.mark.parametrize("metric", ["fisher", "covariance"])
def test_random_rows_have_the_curvature_as_their_second_moment(metric: str) -> None:
    """Each entry's mean over 400 draws, within five of its standard errors."""
    case = make_case("tied")
    linear = Linearized(case.model, case.parameters, case.inputs)
    operator = ModelCurvature(linear, OutputMetric(metric, FAMILIES[case.family]), case.targets)
    rows = torch.stack([linear.pull(operator.draw(seed)) for seed in range(400)])
    products = rows[:, :, None] * rows[:, None, :] / operator.rows
    error = products.std(0) / 400**0.5
    assert ((products.mean(0) - DENSE[metric](case)).abs() <= 5 * error + 1e-12).all()


def test_units_have_another_preconditioner() -> None:
    with pytest.raises(UserError, match="layers of units have SharedPreconditioner"):
        KroneckerPreconditioner().update(UnitFisher(torch.ones(4, 3), torch.ones(4, 2)), ALPHA)
