"""Log-likelihoods in nats per data point: importance-sampled in bounded memory, exact by enumeration; effective sample size.

Symbols: N data points, K samples, log w_k = log p(x, h_k) - log q(h_k | x) for h_k ~ q(h | x).
Sources: Bornschein & Bengio 2015, eq. 4 (the importance-sampled estimate).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from nws.belief_network import encode
from nws.errors import UserError, positive_int
from nws.helmholtz import HelmholtzMachine

MAX_ELEMENTS = 2**23  # unit states (data points x samples x units) in flight at once when sampling
MAX_STATES = 2**24  # largest table of log-probabilities that enumeration may build


class LogLikelihood(NamedTuple):
    """An importance-sampled log-likelihood: mean over the data and its standard error, in nats per data point."""

    mean: float
    standard_error: float  # over the data points, not over the samples
    ess: float  # mean effective sample size of the importance weights, 1 .. samples
    samples: int
    data_points: int


def effective_sample_size(log_weights: Tensor) -> Tensor:
    """(sum_k w_k)^2 / sum_k w_k^2 of log weights (B, K): (B,), between 1 and K."""
    return torch.log_softmax(log_weights, dim=1).exp().square().sum(1).reciprocal()


@torch.no_grad()
def log_likelihood(
    machine: HelmholtzMachine,
    x: Tensor,
    samples: int,
    rng: torch.Generator | None = None,
    max_elements: int = MAX_ELEMENTS,
) -> LogLikelihood:
    """log p(x) ~ log (1/K) sum_k p(x, h_k) / q(h_k | x), averaged over the rows of x (N, n_0): a lower bound in expectation.

    Data points and samples are worked through in chunks of at most `max_elements` unit states; the sums over samples are
    streamed in log space, so any number of samples fits in the same memory. Raises `UserError` for no samples or no data.
    """
    samples = positive_int("evaluation.samples", samples)
    if len(x) == 0:
        raise UserError("a log-likelihood needs at least one data point, got none")
    max_rows = max(1, max_elements // sum(machine.sizes))
    parts = [_log_sums(machine, rows, samples, max_rows, rng) for rows in x.split(max(1, max_rows // samples))]
    log_sum, log_sum_of_squares = torch.cat(parts, dim=1)
    values = log_sum.double() - math.log(samples)
    error = float(values.std() / len(x) ** 0.5) if len(x) > 1 else math.nan
    ess = (2 * log_sum - log_sum_of_squares).exp().mean()
    return LogLikelihood(float(values.mean()), error, float(ess), samples, len(x))


def _log_sums(machine: HelmholtzMachine, x: Tensor, samples: int, max_rows: int, rng: torch.Generator | None) -> Tensor:
    """log sum_k w_k and log sum_k w_k^2 of each row of x: (2, B), streamed over chunks of the samples."""
    sums = torch.full((2, len(x)), -math.inf, device=x.device, dtype=torch.float64)
    left = samples
    while left:
        chunk = min(left, max(1, max_rows // len(x)))
        log_weights = machine.log_weights(machine.wake(x, chunk, rng)).double()
        sums = torch.logaddexp(sums, torch.stack([log_weights.logsumexp(1), (2 * log_weights).logsumexp(1)]))
        left -= chunk
    return sums


@torch.no_grad()
def exact_log_likelihood(machine: HelmholtzMachine, x: Tensor, max_states: int = MAX_STATES) -> Tensor:
    """log p(x) of each row of x (B, n_0) by enumerating every hidden state: (B,), in nats.

    Layer by layer from the top, log p(h^i) = logsumexp over h^{i+1} of log p(h^{i+1}) + log p(h^i | h^{i+1}), so the cost is
    one table of 2^{n_i} x 2^{n_{i+1}} for each pair of neighbours, not one state of the whole network after the other.
    Raises `UserError`, with the count, where a table would have more than `max_states` entries.
    """
    hidden = machine.sizes[1:]
    powers = [sum(pair) for pair in zip(hidden, (*hidden[1:], 0), strict=True)]
    if 2 ** max(powers) > max_states or len(x) * 2 ** hidden[0] > max_states:
        needed = f"2^{max(powers)}" if 2 ** max(powers) > max_states else f"{len(x)} x 2^{hidden[0]}"
        raise UserError(
            f"exact log-likelihoods of layers {list(machine.sizes)} on {len(x)} data points need a table of {needed} states, "
            f"the limit is {max_states}; use the importance-sampled log_likelihood instead"
        )
    x = x.to(next(machine.parameters()))
    above, log_above = x.new_zeros(1, 0), x.new_zeros(1)
    for i in reversed(range(len(machine.sizes))):
        here = all_states(machine.sizes[i]).to(x) if i else x
        logits = machine.generator.edges[-1 - i].layer(above)  # (above, n_i)
        log_conditional = here @ logits.T - torch.logaddexp(logits, torch.zeros_like(logits)).sum(1)  # (here, above)
        log_above = torch.logsumexp(log_conditional + log_above, dim=1)
        above = encode(here, machine.units)
    return log_above


def all_states(units: int) -> Tensor:
    """Every state of `units` bits: (2^units, units), counting in binary."""
    return (torch.arange(2**units)[:, None] >> torch.arange(units)) & 1


def kl_divergence(machine: HelmholtzMachine, images: Tensor, probabilities: Tensor) -> float:
    """Exact KL(p_D || p) in nats, of a data distribution that gives `images` (S, n_0) `probabilities` (S,)."""
    log_p = exact_log_likelihood(machine, images).double()
    weights = probabilities.to(log_p)
    return float((torch.xlogy(weights, weights) - weights * log_p).sum())
