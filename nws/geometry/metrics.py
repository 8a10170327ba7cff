"""Metrics on a space of parameters: functions from a point (n,) to a matrix G (n, n).

The length of a small step d at x is sqrt(d^T G(x) d). A matrix that is not positive definite is no
metric; where it is singular, steepest descent in it needs damping.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jacrev

from nws.errors import UserError
from nws.geometry.families import ExponentialFamily

Metric = Callable[[Tensor], Tensor]
Map = Callable[[Tensor], Tensor]


def euclidean(x: Tensor) -> Tensor:
    """The identity: steepest descent in it is gradient descent."""
    return torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)


def mahalanobis(matrix: Tensor) -> Metric:
    """The same matrix everywhere: d^T M d.

    Args:
        matrix: M, symmetric and positive definite, (n, n).
    """
    symmetric = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]
    symmetric = symmetric and torch.allclose(matrix, matrix.mT)
    if not symmetric or torch.linalg.cholesky_ex(matrix)[1]:
        need = "a Mahalanobis metric needs a symmetric and positive definite matrix"
        raise UserError(f"{need}, got {matrix.tolist()}")
    return lambda x: matrix


def pullback(outputs: Map, metric: Metric = euclidean) -> Metric:
    """J^T G(y) J, the metric of outputs y = f(x) seen in the parameters x.

    With the Euclidean metric of the outputs this is the Gauss-Newton matrix of a least-squares
    problem. With the Fisher metric of the outputs' family it is the Fisher matrix of the model
    (Martens 2020, section 9).

    Args:
        outputs: f, from (n,) to (m,).
        metric: G, of the outputs.

    Examples:
        >>> minutes = pullback(lambda seconds: seconds / 60)
        >>> minutes(torch.tensor([120.0], dtype=torch.float64)) * 3600
        tensor([[1.]], dtype=torch.float64)
    """

    def matrix(x: Tensor) -> Tensor:
        jacobian = jacrev(outputs)(x)
        return jacobian.mT @ metric(outputs(x)) @ jacobian

    return matrix


def fisher(family: ExponentialFamily, natural: Map | None = None) -> Metric:
    """The Fisher metric of a family, in theta; or in other coordinates x, theta = natural(x)."""
    return family.fisher if natural is None else pullback(natural, family.fisher)
