"""The natural gradient of any `torch.nn.Module`. Read `optimizer.py` first."""

from nws.natural.modules.curvature import Linearized, ModelCurvature
from nws.natural.modules.families import (
    BernoulliLogits,
    CategoricalLogits,
    GaussianMean,
    OutputFamily,
)
from nws.natural.modules.optimizer import NaturalGradient
from nws.natural.modules.sampled import Sampled

__all__ = [
    "BernoulliLogits", "CategoricalLogits", "GaussianMean", "Linearized", "ModelCurvature",
    "NaturalGradient", "OutputFamily", "Sampled",
]  # fmt: skip
