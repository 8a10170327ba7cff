"""What is learned: units, belief networks, the Helmholtz machine, its likelihood, its samples."""

from nws.models.belief_network import BeliefNetwork, Edge, Layer
from nws.models.gaussian import Gaussian
from nws.models.helmholtz import HelmholtzMachine
from nws.models.likelihood import exact_log_likelihood, kl_divergence, log_likelihood
from nws.models.poisson import Poisson
from nws.models.trace import Trace
from nws.models.units import Binary, Bipolar, Units

__all__ = [
    "BeliefNetwork", "Binary", "Bipolar", "Edge", "Gaussian", "HelmholtzMachine", "Layer",
    "Poisson", "Trace", "Units", "exact_log_likelihood", "kl_divergence", "log_likelihood",
]  # fmt: skip
