"""The Gaussian family in three coordinate systems: theta, eta, and (mu, Sigma).

T(x) = (x, x_i x_j for i <= j), so n = d + d (d + 1) / 2. With P = Sigma^{-1},

    theta = (P mu, -P_ii / 2 and -P_ij),   eta = (mu, Sigma_ij + mu_i mu_j)

Each is a vector: the mean first, then the upper triangle of a matrix, row by row. Source: Malagò &
Pistone 2015, *Information geometry of the Gaussian distribution in view of stochastic
optimization*, FOGA.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nws.errors import UserError, positive_int
from nws.geometry.families import ExponentialFamily, newton


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
        pairs: Those (i, j), i < j, whose P_ij may differ from 0; by default all. Others have no
            theta and no eta: x_i and x_j are independent given the rest.

    Examples:
        >>> family = MultivariateGaussian(1)
        >>> standard = Moments(torch.zeros(1), torch.eye(1))
        >>> family.from_moments(standard)
        tensor([ 0.0000, -0.5000])
    """

    coordinates = (*ExponentialFamily.coordinates, "moments")

    def __init__(self, size: int = 1, pairs: Sequence[tuple[int, int]] | None = None) -> None:
        self.size = positive_int("size", size)
        kept = torch.ones(self.size, self.size) if pairs is None else torch.eye(self.size)
        for i, j in pairs or ():
            if not 0 <= i < j < self.size:
                raise UserError(f"pairs must be (i, j), 0 <= i < j < {size}, got {(i, j)}")
            kept[i, j] = 1
        self.rows, self.columns = kept.triu().nonzero().mT
        self.dimension, count = self.size + len(self.rows), len(self.rows)
        where = torch.full((self.size, self.size), count)  # the number of the pair (i, j), if kept
        where[self.rows, self.columns] = where[self.columns, self.rows] = torch.arange(count)
        self.where, self.sparse = where, count < self.size * (self.size + 1) // 2

    def _split(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """A vector of d, and a symmetric matrix from its upper triangle; 0 for other pairs."""
        padded = torch.cat([point, torch.zeros_like(point[..., :1])], dim=-1)
        return point[..., : self.size], padded[..., self.size :][..., self.where]

    def _join(self, vector: Tensor, matrix: Tensor) -> Tensor:
        return torch.cat([vector, matrix[..., self.rows, self.columns]], dim=-1)

    def _information(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """P mu and P."""
        vector, matrix = self._split(theta)  # P_ii is -2 theta_ii, and P_ij is -theta_ij
        return vector, -matrix - _diagonal(matrix)

    def moments(self, theta: Tensor) -> Moments:
        """mu and Sigma of natural parameters."""
        vector, precision = self._information(theta)
        covariance = torch.linalg.inv_ex(precision)[0]  # not finite where singular
        return Moments((covariance @ vector[..., None]).squeeze(-1), covariance)

    def from_moments(self, moments: Moments) -> Tensor:
        """theta of mu and Sigma; with `pairs`, Sigma^{-1} must be 0 at all others."""
        precision = torch.linalg.inv_ex(moments.covariance)[0]
        vector = (precision @ moments.mean[..., None]).squeeze(-1)
        return self._join(vector, _diagonal(precision) / 2 - precision)

    def expected_moments(self, eta: Tensor) -> Moments:
        """mu and Sigma of expectation parameters; of Sigma the `pairs` that are kept."""
        mean, second = self._split(eta)
        return Moments(mean, second - mean[..., :, None] * mean[..., None, :])

    def statistics(self, x: Tensor) -> Tensor:
        return torch.cat([x, x[..., self.rows] * x[..., self.columns]], dim=-1)

    def contains(self, theta: Tensor) -> Tensor:
        precision = self._information(theta)[1]
        return super().contains(theta) & (torch.linalg.cholesky_ex(precision)[1] == 0)

    def expectation(self, theta: Tensor) -> Tensor:
        mean, covariance = self.moments(theta)
        return self._join(mean, covariance + mean[..., :, None] * mean[..., None, :])

    def natural(self, eta: Tensor) -> Tensor:
        mean, covariance = self.expected_moments(eta)
        if not self.sparse:
            return self.from_moments(Moments(mean, covariance))
        return newton(self, eta, self.from_moments(Moments(mean, _diagonal(covariance))))

    def moved(self, theta: Tensor, move: Tensor, coordinates: str = "theta") -> Tensor:
        """In "moments" mu and Sigma change in proportion to the step; in eta mu mu^T bends it."""
        if coordinates == "moments":
            d, bent = self.size, move + self.statistics(move[..., : self.size])
            move = torch.cat([move[..., :d], bent[..., d:]], dim=-1)
        return super().moved(theta, move, coordinates)

    def log_partition(self, theta: Tensor) -> Tensor:
        mean, covariance = self.moments(theta)
        logs = torch.linalg.slogdet(math.tau * covariance)[1]
        found = ((theta[..., : self.size] * mean).sum(-1) + logs) / 2
        return found.where(self.contains(theta), math.inf)

    def sample(self, theta: Tensor, count: int, rng: torch.Generator | None = None) -> Tensor:
        """Points, (count, d); torch's `LinAlgError` where theta belongs to no Gaussian."""
        vector, precision = self._information(theta)
        root = torch.linalg.cholesky(precision)
        whitened = torch.randn(self.size, count, dtype=theta.dtype, generator=rng)
        whitened += torch.linalg.solve_triangular(root, vector[:, None], upper=False)
        return torch.linalg.solve_triangular(root.mT, whitened, upper=True).mT
