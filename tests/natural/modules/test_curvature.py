"""The curvature of modules against dense matrices, by autograd and the enumeration of targets."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from cases import SolverCase, flat_gradient, seeded
from dense import CASES, DENSE, FAMILIES, Case, make_case
from solving import apply
from torch.autograd.functional import hessian

from nws.natural.modules import Linearized, ModelCurvature, OutputFamily
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


def test_minres_comes_to_the_shortest_least_squares_solution_where_it_is_asked_to() -> None:
    """Blocks of rank 10: 11 iterations, but for the second unit, whose system has a solution."""
    blocks = SolverCase(10, 16, 3, 0.0).fisher().blocks()
    right = torch.randn(3, 16, generator=seeded(3), dtype=torch.float64)
    right[1] = blocks[1] @ right[1]
    pinv = torch.from_numpy(np.linalg.pinv(blocks.numpy(), rcond=1e-11, hermitian=True))
    matmul, best = partial(apply, blocks), apply(pinv, right)
    least = (right - matmul(best)).norm(dim=1)
    found, used = minres(matmul, right, 200, 1e-12, shortest=True)
    assert used < 30 and ((found - best).norm(dim=1) < 1e-8 * best.norm(dim=1)).all()
    plain, _ = minres(matmul, right, 11, 1e-12)  # as good, and longer but where there is a solution
    for each in (found, plain):
        assert (right - matmul(each)).norm(dim=1).sub(least).abs().max() < 1e-8
    assert (plain.norm(dim=1) > 1.01 * best.norm(dim=1)).tolist() == [True, False, True]


@pytest.mark.parametrize(("condition", "well"), [(1e4, True), (1e5, True), (1e7, False)])
def test_how_ill_conditioned_a_system_minres_solves(condition: float, well: bool) -> None:
    """Twenty eigenvalues down to 1 / condition, and ten zeros; MINRES-QLP is made for 1e7."""
    vectors = torch.linalg.qr(torch.randn(30, 30, generator=seeded(0), dtype=torch.float64))[0]
    values = torch.logspace(0, -math.log10(condition), 20, dtype=torch.float64)
    matrix = vectors[:, :20] * values @ vectors[:, :20].T
    right = torch.randn(5, 30, generator=seeded(1), dtype=torch.float64)
    least = (right @ vectors[:, 20:]).norm(dim=1)
    best = right @ vectors[:, :20] / values @ vectors[:, :20].T
    found, _ = minres(lambda v: v @ matrix, right, 2000, 1e-14, shortest=True)
    assert ((right - found @ matrix).norm(dim=1) < 1.01 * least).all() == well
    assert ((found - best).norm(dim=1) < 1e-3 * best.norm(dim=1)).all()


# --- Gauss and Newton -----------------------------------------------------------------------------


class Probit(OutputFamily):
    """A bit of probability Phi(z): z is no natural parameter."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        signs = 2 * targets - 1
        return -torch.special.log_ndtr(signs * outputs).flatten(1).sum(1)

    def root(self, outputs: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        p = torch.special.ndtr(outputs)
        density = torch.exp(-outputs.square() / 2) / (2 * torch.pi) ** 0.5
        return vectors * density / (p * (1 - p)).sqrt()


def gauss_newton(case: Case, family: OutputFamily) -> torch.Tensor:
    """J^T H J / n by autograd, with H the Hessian of the summed loss by all outputs: (d, d)."""
    z = case.model(*case.inputs)
    jacobian = torch.stack([flat_gradient(each, case.parameters) for each in z.flatten()])
    outer = hessian(lambda v: family.loss(v.view_as(z), case.targets).sum(), z.detach().flatten())
    return jacobian.T @ outer @ jacobian / len(z)


@pytest.mark.parametrize("name", ["categorical", "several", "tied", "two inputs"])
def test_the_gauss_newton_matrix_is_the_fisher_matrix_of_the_matching_output(name: str) -> None:
    """At any targets: the Hessian A''(z) of a loss A(z) - y . z does not know them."""
    case = make_case(name)
    fisher = products(curvature(case))
    assert (gauss_newton(case, FAMILIES[case.family]) - fisher).abs().max() < EXACT


def test_it_is_another_matrix_where_the_output_does_not_match() -> None:
    """The control: of a probit the Hessian knows the target, and only its mean is the Fisher."""
    case, family = make_case("tied"), Probit()
    linear = Linearized(case.model, case.parameters, case.inputs)
    fisher = products(ModelCurvature(linear, family))
    assert (gauss_newton(case, family) - fisher).norm() > 0.1 * fisher.norm()
    z, p = linear.outputs, torch.special.ndtr(linear.outputs)
    targets = torch.zeros_like(z), torch.ones_like(z)
    zero, one = (hessian(lambda v, y=y: family.loss(v, y).sum(), z).sum((2, 3)) for y in targets)
    assert (torch.lerp(zero, one, p) - family.root(z, targets[1]) ** 2).abs().max() < EXACT
