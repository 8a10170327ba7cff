"""Metrics: one file each; what they share is in metric.py."""

from nws.natural.metrics.adaptive import Adaptive
from nws.natural.metrics.diagonal import Diagonal
from nws.natural.metrics.empirical import Empirical
from nws.natural.metrics.fisher import Fisher
from nws.natural.metrics.kronecker import Kronecker
from nws.natural.metrics.mean import Mean
from nws.natural.metrics.metric import Metric

__all__ = ["Adaptive", "Diagonal", "Empirical", "Fisher", "Kronecker", "Mean", "Metric"]
