"""nws: natural wake-sleep. Helmholtz machines trained by (reweighted) wake-sleep with the exact natural gradient."""

from nws.learning.wake_sleep import Rule, WakeSleep
from nws.models.belief_network import SigmoidBeliefNetwork, SigmoidLayer
from nws.models.helmholtz import HelmholtzMachine, Trace
from nws.models.likelihood import exact_log_likelihood, log_likelihood

__all__ = [
    "HelmholtzMachine",
    "Rule",
    "SigmoidBeliefNetwork",
    "SigmoidLayer",
    "Trace",
    "WakeSleep",
    "exact_log_likelihood",
    "log_likelihood",
]
