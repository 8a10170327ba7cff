"""Learning: rules, weights of the samples, one step, and where rows of a phase meet a metric."""

from nws.learning.captured import CapturedStep
from nws.learning.natural import NaturalMetric, RowOptions
from nws.learning.rules import Rule
from nws.learning.step import StepResult, WakeSleep
from nws.learning.weighting import tempered

__all__ = [
    "CapturedStep", "NaturalMetric", "RowOptions", "Rule", "StepResult", "WakeSleep", "tempered",
]  # fmt: skip
