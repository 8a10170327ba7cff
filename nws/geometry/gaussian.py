"""The Gaussian family in three coordinate systems: theta, eta, and (mu, Sigma).

T(x) = (x, x_i x_j for i <= j), so n = d + d (d + 1) / 2. With P = Sigma^{-1},

    theta = (P mu, -P_ii / 2 and -P_ij),   eta = (mu, Sigma_ij + mu_i mu_j)

Each is a vector: the mean first, then the upper triangle of a matrix, row by row. Source: Malagò &
Pistone 2015, *Information geometry of the Gaussian distribution in view of stochastic
optimization*, FOGA.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from nws.errors import positive_int
from nws.geometry.families import ExponentialFamily


class Moments(NamedTuple):
    """The mean mu (..., d) and the covariance Sigma (..., d, d)."""

    mean: Tensor
    covariance: Tensor


def _diagonal(matrix: Tensor) -> Tensor:
    """The matrix without its other elements."""
    return torch.diag_embed(matrix.diagonal(dim1=-2, dim2=-1))


class MultivariateGaussian(ExponentialFamily):
    """All Gaussian distributions on R^d; d = 1 is the univariate family.

    Args:
        size: d, the dimension of x.

    Examples:
        >>> family = MultivariateGaussian(1)
        >>> standard = Moments(torch.zeros(1), torch.eye(1))
        >>> family.from_moments(standard)
        tensor([ 0.0000, -0.5000])
    """

    def __init__(self, size: int = 1) -> None:
        self.size = positive_int("size", size)
        self.rows, self.columns = torch.triu_indices(self.size, self.size)
        self.dimension = self.size + len(self.rows)
        pairs = torch.arange(len(self.rows))
        where = torch.zeros(self.size, self.size, dtype=torch.long)
        where[self.rows, self.columns] = where[self.columns, self.rows] = pairs
        self.where = where  # the number of the pair (i, j) in the upper triangle

    def _split(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """A vector of d, and a symmetric matrix from its upper triangle."""
        return point[..., : self.size], point[..., self.size :][..., self.where]

    def _join(self, vector: Tensor, matrix: Tensor) -> Tensor:
        return torch.cat([vector, matrix[..., self.rows, self.columns]], dim=-1)

    def moments(self, theta: Tensor) -> Moments:
        """mu and Sigma of natural parameters."""
        vector, matrix = self._split(theta)  # P_ii is -2 theta_ii, and P_ij is -theta_ij
        covariance = torch.linalg.inv(-matrix - _diagonal(matrix))
        return Moments((covariance @ vector[..., None]).squeeze(-1), covariance)

    def from_moments(self, moments: Moments) -> Tensor:
        """theta of mu and Sigma."""
        precision = torch.linalg.inv(moments.covariance)
        vector = (precision @ moments.mean[..., None]).squeeze(-1)
        return self._join(vector, _diagonal(precision) / 2 - precision)

    def expected_moments(self, eta: Tensor) -> Moments:
        """mu and Sigma of expectation parameters."""
        mean, second = self._split(eta)
        return Moments(mean, second - mean[..., :, None] * mean[..., None, :])

    def expectation(self, theta: Tensor) -> Tensor:
        """(mu, Sigma + mu mu^T)."""
        mean, covariance = self.moments(theta)
        return self._join(mean, covariance + mean[..., :, None] * mean[..., None, :])

    def natural(self, eta: Tensor) -> Tensor:
        """theta of (mu, Sigma + mu mu^T)."""
        return self.from_moments(self.expected_moments(eta))

    def log_partition(self, theta: Tensor) -> Tensor:
        """(mu^T P mu + log det Sigma) / 2, and d log(2 pi) / 2."""
        mean, covariance = self.moments(theta)
        normal = self.size * math.log(2 * math.pi) + torch.linalg.slogdet(covariance)[1]
        return ((theta[..., : self.size] * mean).sum(-1) + normal) / 2

    def log_prob(self, x: Tensor, theta: Tensor) -> Tensor:
        """theta . T(x) - A(theta), the log-density of x, (..., d)."""
        pairs = x[..., self.rows] * x[..., self.columns]
        statistics = torch.cat([x, pairs], dim=-1)
        return (statistics * theta).sum(-1) - self.log_partition(theta)

    def sample(self, theta: Tensor, count: int, rng: torch.Generator | None = None) -> Tensor:
        """Points, (count, d); torch's `LinAlgError` where theta belongs to no Gaussian."""
        mean, covariance = self.moments(theta)
        root = torch.linalg.cholesky(covariance)
        noise = torch.randn(count, self.size, dtype=theta.dtype, generator=rng)
        return mean + noise @ root.mT
