"""The geometry: curvature operators, solvers, preconditioners, damping, metrics.

Read `reference.py` first. Nothing here knows of networks or phases: rows come in, directions go
out.
"""

from nws.natural.damping import Damping, LevenbergMarquardt
from nws.natural.modules import BernoulliLogits, CategoricalLogits, GaussianMean, NaturalGradient
from nws.natural.operators import CurvatureOperator, Rows, UnitFisher
from nws.natural.reference import natural_direction

__all__ = [
    "BernoulliLogits",
    "CategoricalLogits",
    "CurvatureOperator",
    "Damping",
    "GaussianMean",
    "LevenbergMarquardt",
    "NaturalGradient",
    "Rows",
    "UnitFisher",
    "natural_direction",
]
