"""Information geometry on any space of parameters: families, metrics, descent and geodesics.

Exponential families with their dual coordinates, metrics on a space, steepest descent and exact
flows in them, geodesics and curvature. `examples/worlds.py` shows it at work on small worlds.
"""

from torch.func import hessian  # of a convex function: the metric of mirror descent's flow

from nws.geometry.descent import descend, flow, gradient_in, proximal_step
from nws.geometry.families import Categorical, ExponentialFamily, IndependentUnits, bregman
from nws.geometry.gaussian import Moments, MultivariateGaussian
from nws.geometry.geodesics import (
    christoffel,
    fisher_rao_distance,
    fisher_rao_geodesic,
    gaussian_curvature,
    geodesics,
)
from nws.geometry.metrics import euclidean, fisher, mahalanobis, pullback

__all__ = [
    "Categorical", "ExponentialFamily", "IndependentUnits", "Moments", "MultivariateGaussian",
    "bregman", "christoffel", "descend", "euclidean", "fisher", "fisher_rao_distance",
    "fisher_rao_geodesic", "flow", "gaussian_curvature", "geodesics", "gradient_in", "hessian",
    "mahalanobis", "proximal_step", "pullback",
]  # fmt: skip
