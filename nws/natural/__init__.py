"""The geometry: curvature operators, solvers, preconditioners, damping, metrics.

Read `reference.py` first. Nothing here knows networks or phases: rows come in, directions go out.
"""

from nws.natural.damping import Damping, LevenbergMarquardt
from nws.natural.metrics import Metric
from nws.natural.modules import BernoulliLogits, CategoricalLogits, GaussianMean, NaturalGradient
from nws.natural.operators import CurvatureOperator, Rows, UnitFisher
from nws.natural.reference import natural_direction
from nws.natural.solvers import Solver

__all__ = [
    "BernoulliLogits", "CategoricalLogits", "CurvatureOperator", "Damping", "GaussianMean",
    "LevenbergMarquardt", "Metric", "NaturalGradient", "Rows", "Solver", "UnitFisher",
    "natural_direction",
]  # fmt: skip
