"""Small worlds in which the geometry of learning can be seen, and what they are made of.

Exponential families with their dual coordinates, metrics on a space, and steepest descent in them.
Each world is one file whose `facts` are numbers; `nws/worlds/figures/` draws it.
"""

from nws.worlds.descent import descend, flow, gradient_in, proximal_step
from nws.worlds.families import Categorical, ExponentialFamily, IndependentUnits, bregman
from nws.worlds.gaussian import Moments, MultivariateGaussian
from nws.worlds.metrics import euclidean, fisher, hessian, mahalanobis, pullback

__all__ = [
    "Categorical",
    "ExponentialFamily",
    "IndependentUnits",
    "Moments",
    "MultivariateGaussian",
    "bregman",
    "descend",
    "euclidean",
    "fisher",
    "flow",
    "gradient_in",
    "hessian",
    "mahalanobis",
    "proximal_step",
    "pullback",
]
