"""Information geometry on any space of parameters: families, metrics, descent and geodesics.

Exponential families with their dual coordinates, metrics on a space, steepest descent and exact
flows in them, relaxation from samples, geodesics. `examples/worlds.py` shows them at work.
"""

from torch.func import hessian  # of a convex function: the metric of mirror descent's flow

from nws.geometry.descent import descend, flow, gradient_in, proximal_step
from nws.geometry.families import (
    Categorical,
    ExponentialFamily,
    IndependentUnits,
    Interactions,
    bregman,
)
from nws.geometry.gaussian import Moments, MultivariateGaussian
from nws.geometry.geodesics import christoffel, gaussian_curvature, geodesics
from nws.geometry.metrics import euclidean, fisher, mahalanobis, pullback
from nws.geometry.relaxation import ranked, relax, sampled_gradient

__all__ = [
    "Categorical", "ExponentialFamily", "IndependentUnits", "Interactions", "Moments",
    "MultivariateGaussian", "bregman", "christoffel", "descend", "euclidean", "fisher", "flow",
    "gaussian_curvature", "geodesics", "gradient_in", "hessian", "mahalanobis", "proximal_step",
    "pullback", "ranked", "relax", "sampled_gradient",
]  # fmt: skip
