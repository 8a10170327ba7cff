"""nws: natural wake-sleep. Helmholtz machines trained by (reweighted) wake-sleep with the exact natural gradient."""

from nws.belief_network import SigmoidBeliefNetwork, SigmoidLayer
from nws.helmholtz import HelmholtzMachine, Trace
from nws.likelihood import exact_log_likelihood, log_likelihood
from nws.wake_sleep import Rule, WakeSleep

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
