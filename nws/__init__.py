"""nws: natural wake-sleep. Helmholtz machines trained by (reweighted) wake-sleep with the exact
natural gradient."""

from nws.learning import NaturalMetric, RowOptions, Rule, WakeSleep
from nws.models import (
    BeliefNetwork,
    HelmholtzMachine,
    Layer,
    Trace,
    exact_log_likelihood,
    log_likelihood,
)
from nws.natural import Damping, UnitFisher, natural_direction

__all__ = [
    "BeliefNetwork",
    "Damping",
    "HelmholtzMachine",
    "Layer",
    "NaturalMetric",
    "RowOptions",
    "Rule",
    "Trace",
    "UnitFisher",
    "WakeSleep",
    "exact_log_likelihood",
    "log_likelihood",
    "natural_direction",
]
