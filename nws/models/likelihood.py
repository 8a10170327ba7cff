"""Log-likelihoods in nats per data point: importance-sampled in bounded memory, exact by enumeration; effective sample size.

Symbols: N data points, K samples, w_k = p(x, h_k) / q(h_k | x) for h_k ~ q(h | x), M dreams (x, h) ~ p.
Sources: Bornschein & Bengio 2015, eq. 4 (the importance-sampled estimate); Bornschein, Shabanian, Fischer & Bengio 2016
(bidirectional Helmholtz machines: p*, p~* and its normaliser).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nws.errors import UserError, positive_int
from nws.models.belief_network import encode
from nws.models.helmholtz import HelmholtzMachine

MAX_ELEMENTS = 2**23  # unit states (data points x samples x units) in flight at once when sampling
MAX_STATES = 2**24  # largest table of log-probabilities that enumeration may build
Z_SAMPLES = 100_000  # dreams for log Z
Z_INNER = 10  # samples of q for each of them


class LogLikelihood(NamedTuple):
    """An importance-sampled log-likelihood: mean over the data and its standard error, in nats per data point."""

    mean: float
    standard_error: float  # over the data points, not over the samples
    ess: float  # mean effective sample size of the importance weights, 1 .. samples
    samples: int
    data_points: int


class LogPStar(NamedTuple):
    """The log-likelihood of the bidirectional machine, log p*(x) = log p~*(x) - log Z, in nats per data point."""

    mean: float
    standard_error: float  # of the mean over the data points and of log Z, as independent errors
    log_z: float
    log_z_standard_error: float  # over the dreams, by the delta method: standard error of Z over Z
    samples: int
    z_samples: int  # M
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
    samples, max_rows = (
        positive_int("evaluation.samples", samples),
        rows_at_once(machine, max_elements),
    )
    return summarise(_all_log_sums(machine, x, samples, rng, (1, 2), max_rows), samples)


@torch.no_grad()
def log_p_star(
    machine: HelmholtzMachine,
    x: Tensor,
    samples: int,
    rng: torch.Generator | None = None,
    z_samples: int = Z_SAMPLES,
    max_elements: int = MAX_ELEMENTS,
) -> LogPStar:
    """log p*(x) = log p~*(x) - log Z of the bidirectional machine, averaged over the rows of x (N, n_0).

        p~*(x) = (sum_h sqrt(p(x, h) q(h | x)))^2 = (E_q sqrt(w))^2,      log p~*(x) ~ 2 log (1/K) sum_k sqrt(w_k)
        Z      = sum_x p~*(x)                                             (the paper's Z^2), see `log_z_sums`

    p~*(x) <= p(x) by Cauchy and Schwarz, so Z <= 1, with equality where q is the posterior. Both logarithms of a mean are too
    low in expectation, as the importance-sampled log p is: log p~* by about 2 times its relative variance over K, which lowers
    log p*, and log Z by half its squared standard error, which raises it. Memory and errors as in `log_likelihood`.
    """
    samples, z_samples = (
        positive_int("evaluation.samples", samples),
        positive_int("evaluation.z_samples", z_samples),
    )
    max_rows = rows_at_once(machine, max_elements)
    log_sum_of_roots = _all_log_sums(machine, x, samples, rng, (0.5,), max_rows)[0]
    z_sums = torch.full((2,), -math.inf, dtype=torch.float64, device=x.device)
    for start in range(0, z_samples, dreams_at_once(max_rows)):
        dreams = min(dreams_at_once(max_rows), z_samples - start)
        z_sums = torch.logaddexp(z_sums, log_z_sums(machine, dreams, rng, max_rows))
    return summarise_p_star(log_sum_of_roots, samples, z_sums, z_samples)


def rows_at_once(machine: HelmholtzMachine, max_elements: int = MAX_ELEMENTS) -> int:
    """How many rows (data points x samples) have at most `max_elements` unit states; one at least."""
    return max(1, max_elements // sum(machine.sizes))


def dreams_at_once(max_rows: int) -> int:
    """How many dreams, with Z_INNER samples of each, are within `max_rows` rows; one at least."""
    return max(1, max_rows // Z_INNER)


def _all_log_sums(
    machine: HelmholtzMachine,
    x: Tensor,
    samples: int,
    rng: torch.Generator | None,
    exponents: Sequence[float],
    max_rows: int,
) -> Tensor:
    """`log_sums` of all rows of x, as many at once as `max_rows` allows with all their samples: (exponents, N)."""
    if len(x) == 0:
        raise UserError("a log-likelihood needs at least one data point, got none")
    if not ((x >= 0) & (x <= 1)).all():
        raise UserError(
            f"data points must be bits or intensities in [0, 1], got {float(x.min()):g} .. {float(x.max()):g}; divide bytes"
            " by 255"
        )
    parts = x.split(max(1, max_rows // samples))
    return torch.cat(
        [log_sums(machine, rows, samples, rng, exponents, max_rows) for rows in parts], dim=1
    )


@torch.no_grad()
def log_sums(
    machine: HelmholtzMachine,
    x: Tensor,
    samples: int,
    rng: torch.Generator | None,
    exponents: Sequence[float],
    max_rows: int,
) -> Tensor:
    """log sum_k w_k^e of each row of x (B, n_0) and each exponent e: (exponents, B), float64.

    Streamed over chunks of the samples, so that no more than `max_rows` rows (or B, if that is more) are in flight at once.
    """
    sums = torch.full((len(exponents), len(x)), -math.inf, device=x.device, dtype=torch.float64)
    left = samples
    while left:
        chunk = min(left, max(1, max_rows // len(x)))
        log_weights = machine.log_weights(machine.wake(x, chunk, rng)).double()
        sums = torch.logaddexp(
            sums, torch.stack([(e * log_weights).logsumexp(1) for e in exponents])
        )
        left -= chunk
    return sums


@torch.no_grad()
def log_z_sums(
    machine: HelmholtzMachine, dreams: int, rng: torch.Generator | None, max_rows: int
) -> Tensor:
    """log sum_m t_m and log sum_m t_m^2 over `dreams` draws (x_m, h_m) ~ p: (2,), float64. The mean of t is unbiased for Z:

        Z = sum_x (sum_h sqrt(p(x, h) q(h | x))) (sum_h' sqrt(p(x, h') q(h' | x)))
          = E_{(x, h) ~ p}[ sqrt(q(h | x) / p(x, h)) E_{h' ~ q(. | x)} sqrt(p(x, h') / q(h' | x)) ]

    with J = Z_INNER draws of h' for each dream. Its variance is (1 - Z) (Z + 1/J), as E_p[q(h | x) / p(x, h) f(x)] = sum_x f(x)
    and Var_q sqrt(w) = p(x) - p~*(x). So M dreams resolve a Z well above 1 / sqrt(J M); of a smaller one the sample seldom
    holds the rare large terms, and estimate and sample standard error both come out too low (`resolves`).
    """
    dream = machine.dream(dreams, rng)
    inner = log_sums(machine, dream.bit_blocks[0], Z_INNER, rng, (0.5,), max_rows)[0] - math.log(
        Z_INNER
    )
    terms = inner - machine.log_weights(dream)[:, 0].double() / 2
    return torch.stack([terms.logsumexp(0), (2 * terms).logsumexp(0)])


def summarise(sums: Tensor, samples: int) -> LogLikelihood:
    """The log-likelihood from `log_sums` of exponents 1 and 2: sums (2, N)."""
    log_sum, log_sum_of_squares = sums
    mean, error = _mean_and_error(log_sum - math.log(samples))
    ess = (2 * log_sum - log_sum_of_squares).exp().mean()
    return LogLikelihood(mean, error, float(ess), samples, len(log_sum))


def summarise_p_star(
    log_sum_of_roots: Tensor, samples: int, z_sums: Tensor, z_samples: int
) -> LogPStar:
    """log p* from `log_sums` of exponent 1/2 (N,) and from `log_z_sums` over all dreams, z_sums (2,)."""
    mean, error = _mean_and_error(2 * (log_sum_of_roots - math.log(samples)))
    log_z = float(z_sums[0]) - math.log(z_samples)
    z_error = math.nan
    if z_samples > 1:
        spread = (
            z_samples * math.exp(float(z_sums[1] - 2 * z_sums[0])) - 1
        )  # Var[t] / Z^2, with M in place of M - 1
        z_error = math.sqrt(max(0.0, spread) / (z_samples - 1))
    return LogPStar(
        mean - log_z,
        math.hypot(error, z_error),
        log_z,
        z_error,
        samples,
        z_samples,
        len(log_sum_of_roots),
    )


def resolves(log_z: float, z_samples: int) -> bool:
    """Whether so many dreams are enough for a Z of this size: the variance that `log_z_sums` states leaves Z above its error."""
    return log_z > -0.5 * math.log(Z_INNER * z_samples)


def _mean_and_error(values: Tensor) -> tuple[float, float]:
    """Mean of values (N,) and its standard error, which one value does not have (nan)."""
    return float(values.mean()), float(values.std() / len(values) ** 0.5) if len(
        values
    ) > 1 else math.nan


@torch.no_grad()
def exact_log_likelihood(
    machine: HelmholtzMachine, x: Tensor, max_states: int = MAX_STATES
) -> Tensor:
    """log p(x) of each row of x (B, n_0) by enumerating every hidden state: (B,), in nats.

    Layer by layer from the top, log p(h^i) = logsumexp over h^{i+1} of log p(h^{i+1}) + log p(h^i | h^{i+1}), so the cost is
    one table of 2^{n_i} x 2^{n_{i+1}} for each pair of neighbours, not one state of the whole network after the other.
    Raises `UserError`, with the count, where a table would have more than `max_states` entries.
    """
    hidden = machine.sizes[1:]
    powers = [sum(pair) for pair in zip(hidden, (*hidden[1:], 0), strict=True)]
    if 2 ** max(powers) > max_states or len(x) * 2 ** hidden[0] > max_states:
        needed = (
            f"2^{max(powers)}" if 2 ** max(powers) > max_states else f"{len(x)} x 2^{hidden[0]}"
        )
        raise UserError(
            f"exact log-likelihoods of layers {list(machine.sizes)} on {len(x)} data points need a table of {needed} states, "
            f"the limit is {max_states}; use the importance-sampled log_likelihood instead"
        )
    x = x.to(next(machine.parameters()))
    above, log_above = x.new_zeros(1, 0), x.new_zeros(1)
    for i in reversed(range(len(machine.sizes))):
        here = all_states(machine.sizes[i]).to(x) if i else x
        logits = machine.generator.edges[-1 - i].layer(above)  # (above, n_i)
        log_conditional = here @ logits.T - torch.logaddexp(logits, torch.zeros_like(logits)).sum(
            1
        )  # (here, above)
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
