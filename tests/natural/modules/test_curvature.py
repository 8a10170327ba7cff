"""The curvature of modules against dense matrices, by autograd and the enumeration of targets."""

import pytest
import torch
from dense import CASES, DENSE, FAMILIES, Case, make_case

from nws.natural.modules import Linearized, ModelCurvature
from nws.natural.solvers.minres import minres

EXACT = 1e-10  # float64; the references add some hundred products


def curvature(case: Case, metric: str = "fisher") -> ModelCurvature:
    linear = Linearized(case.model, case.parameters, case.inputs)
    return ModelCurvature(linear, FAMILIES[case.family], metric, case.targets)


def products(operator: ModelCurvature) -> torch.Tensor:
    """The whole matrix, by products with the unit vectors."""
    d = operator.shape[1]
    identity = torch.eye(d, dtype=torch.float64)
    return torch.cat([operator.matmul(each[None]) for each in identity]).T


@pytest.mark.parametrize("metric", DENSE)
@pytest.mark.parametrize("name", CASES)
def test_products_rows_and_diagonal_are_those_of_the_dense_matrix(name: str, metric: str) -> None:
    case = make_case(name)
    operator, expected = curvature(case, metric), DENSE[metric](case)
    assert (products(operator) - expected).abs().max() < EXACT
    rows = operator.with_rows()
    assert (rows.blocks()[0] - expected).abs().max() < EXACT
    assert (operator.diagonal()[0] - expected.diagonal()).abs().max() < EXACT
    vector = torch.randn(1, len(expected), dtype=torch.float64)
    assert operator.quadratic(vector) == pytest.approx(float(vector[0] @ expected @ vector[0]))


def test_the_three_matrices_differ() -> None:
    """The control: what is equal above is not equal by chance."""
    fisher, empirical, covariance = (each(make_case("categorical")) for each in DENSE.values())
    assert (fisher - empirical).norm() > 0.1 * fisher.norm()
    assert (covariance - empirical).norm() > 0.1 * empirical.norm()


def test_minres_without_damping_comes_to_the_shortest_solution() -> None:
    """The matrix is singular; a gradient of the same rows is in its range."""
    case = make_case("categorical")
    operator, matrix = curvature(case), DENSE["fisher"](case)
    assert torch.linalg.matrix_rank(matrix, hermitian=True) < len(matrix)
    right = matrix @ torch.randn(len(matrix), dtype=torch.float64)
    found, _ = minres(operator.matmul, right[None], 60, 1e-13)
    shortest = torch.linalg.pinv(matrix, hermitian=True, rtol=1e-10) @ right
    assert (found[0] - shortest).norm() < 1e-6 * shortest.norm()
    other = shortest + torch.linalg.eigh(matrix)[1][:, 0] * shortest.norm()
    assert (matrix @ other - right).norm() < EXACT and other.norm() > 1.01 * shortest.norm()
