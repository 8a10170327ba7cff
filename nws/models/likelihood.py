"""Log-likelihoods in nats per data point: importance-sampled in bounded memory, or exact.

Symbols: N data points, K samples, w_k = p(x, h_k) / q(h_k | x) for h_k ~ q(h | x), M dreams
(x, h) ~ p.
Sources: Bornschein & Bengio 2015, eq. 4 (the importance-sampled estimate); Bornschein, Shabanian,
Fischer & Bengio 2016 (bidirectional Helmholtz machines: p*, p~* and its normaliser).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nws.errors import UserError, positive_int
from nws.models.helmholtz import HelmholtzMachine
from nws.models.noise import Rng, Share
from nws.models.units import Units

MAX_ELEMENTS = 2**23  # unit states (data points x samples x units) in flight at once when sampling
MAX_SAMPLES = 10**8  # importance samples of a data point: more would not end
MAX_STATES = 2**24  # largest table of log-probabilities that enumeration may build
Z_SAMPLES = 100_000  # dreams for log Z
Z_INNER = 10  # samples of q for each of them
# The effective sample size from which log p is trusted. The estimate is too low by
# (1 / ess - 1 / K) / 2 nats to first order, here by 0.05 at most. Below, few samples carry an
# image, and neither this nor the ess itself can be relied on.
TRUSTED_ESS = 10.0


class LogLikelihood(NamedTuple):
    """An importance-sampled log-likelihood, in nats per data point."""

    mean: float
    standard_error: float  # of the mean, over the data points (not over the samples)
    ess: float  # mean effective sample size of the importance weights, 1 .. samples
    samples: int
    data_points: int


class LogPStar(NamedTuple):
    """The log-likelihood of the bidirectional machine, log p* = log p~* - log Z, in nats."""

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
def log_sums(
    machine: HelmholtzMachine, x: Tensor, samples: int, rng: Rng, exponents: Sequence[float],
    max_rows: int,
) -> Tensor:  # fmt: skip
    """log sum_k w_k^e of each row of x and each exponent e.

    Args:
        machine: The machine.
        x: Data in [0, 1], (B, n_0).
        samples: K.
        rng: Generator of the draws; or the `Share` of some data points that x is.
        exponents: The exponents e.
        max_rows: Rows in flight at once; B of them where B is more.

    Returns:
        (exponents, B), float64.
    """
    sums = torch.full((len(exponents), len(x)), -math.inf, device=x.device, dtype=torch.float64)
    left, points = samples, rng.total if isinstance(rng, Share) else len(x)
    while left:
        chunk = min(left, max(1, max_rows // points))
        log_weights = machine.log_weights(machine.wake(x, chunk, rng)).double()
        new = torch.stack([(e * log_weights).logsumexp(1) for e in exponents])
        sums = torch.logaddexp(sums, new)
        left -= chunk
    return sums


@torch.no_grad()
def log_likelihood(
    machine: HelmholtzMachine, x: Tensor, samples: int, rng: torch.Generator | None = None,
    max_elements: int = MAX_ELEMENTS, sums: Callable[..., Tensor] = log_sums,
) -> LogLikelihood:  # fmt: skip
    """log p(x) ~ log (1/K) sum_k p(x, h_k) / q(h_k | x), averaged: a lower bound in expectation.

    The sums over samples are streamed in log space, so any number of samples fits in memory.

    Args:
        machine: The machine.
        x: Data in [0, 1], (N, n_0).
        samples: K, importance samples of each data point.
        rng: Generator of the draws.
        max_elements: Unit states in flight at once.
        sums: Computes the sums of a part: `log_sums`, or `nws.learning.together.log_sums`, which
            shares the data points among processes.

    Examples:
        >>> machine = HelmholtzMachine([4, 3])
        >>> log_likelihood(machine, torch.ones(2, 4), samples=5).samples
        5
    """
    samples = positive_int("evaluation.samples", samples, maximum=MAX_SAMPLES)
    max_rows = rows_at_once(machine, max_elements)
    check_data(machine, x)
    parts = x.split(max(1, max_rows // samples))
    found = [sums(machine, rows, samples, rng, (1, 2), max_rows) for rows in parts]
    return summarise(torch.cat(found, dim=1), samples)


def check_data(machine: HelmholtzMachine, x: Tensor) -> None:
    """Raise `UserError` where there are no data points, or units with a support get others."""
    if len(x) == 0:
        raise UserError("expected at least one data point, got none")
    if machine.units[0].support is not None and not ((x >= 0) & (x <= 1)).all():
        got = f"{float(x.min()):g} .. {float(x.max()):g}; divide bytes by 255"
        raise UserError(f"data points must be bits or intensities in [0, 1], got {got}")


def rows_at_once(machine: HelmholtzMachine, max_elements: int = MAX_ELEMENTS) -> int:
    """How many rows (data points x samples) have at most `max_elements` unit states; at least 1."""
    return max(1, max_elements // sum(machine.sizes))


@torch.no_grad()
def log_z_sums(
    machine: HelmholtzMachine, dreams: int, rng: torch.Generator | None, max_rows: int
) -> Tensor:
    """log sum_m t_m and log sum_m t_m^2 over dreams (x_m, h_m) ~ p.

    The mean of the t_m is unbiased for Z:

        Z = sum_x (sum_h sqrt(p(x, h) q(h | x))) (sum_h' sqrt(p(x, h') q(h' | x)))
          = E_{(x, h) ~ p}[ sqrt(q(h | x) / p(x, h)) E_{h' ~ q(. | x)} sqrt(p(x, h') / q(h' | x)) ]

    with J = Z_INNER draws of h' for each dream. Its variance is (1 - Z) (Z + 1/J), because
    E_p[q(h | x) / p(x, h) f(x)] = sum_x f(x) and Var_q sqrt(w) = p(x) - p~*(x). So M dreams resolve
    a Z well above 1 / sqrt(J M). For a smaller Z the sample rarely holds the large terms, and both
    the estimate and its sample standard error come out too low (see `resolves`).

    Returns:
        (2,), float64.
    """
    dream = machine.dream(dreams, rng)
    inner = log_sums(machine, dream.pixels, Z_INNER, rng, (0.5,), max_rows)[0] - math.log(Z_INNER)
    terms = inner - machine.log_weights(dream)[:, 0].double() / 2
    return torch.stack([terms.logsumexp(0), (2 * terms).logsumexp(0)])


def summarise(sums: Tensor, samples: int) -> LogLikelihood:
    """The log-likelihood from `log_sums` of exponents 1 and 2, sums (2, N)."""
    log_sum, log_sum_of_squares = sums
    mean, error = _mean_and_error(log_sum - math.log(samples))
    ess = (2 * log_sum - log_sum_of_squares).exp().mean()
    return LogLikelihood(mean, error, float(ess), samples, len(log_sum))


def summarise_p_star(
    log_sum_of_roots: Tensor, samples: int, z_sums: Tensor, z_samples: int
) -> LogPStar:
    """log p* from the sums over samples and over dreams.

        p~*(x) = (sum_h sqrt(p(x, h) q(h | x)))^2 = (E_q sqrt(w))^2
        log p~*(x) ~ 2 log (1/K) sum_k sqrt(w_k),     Z = sum_x p~*(x)   (the paper's Z^2)

    p~*(x) <= p(x) by Cauchy and Schwarz, so Z <= 1, with equality where q is the posterior. Both
    logarithms of a mean are too low in expectation. log p~* is low by about v / K, v =
    Var[sqrt(w)] / E[sqrt(w)]^2, which lowers log p*; log Z by half its squared error: it raises it.

    Args:
        log_sum_of_roots: `log_sums` of exponent 1/2, (N,).
        samples: K.
        z_sums: `log_z_sums` over all dreams, (2,).
        z_samples: M.
    """
    mean, error = _mean_and_error(2 * (log_sum_of_roots - math.log(samples)))
    log_z = float(z_sums[0]) - math.log(z_samples)
    z_error = math.nan
    if z_samples > 1:  # Var[t] / Z^2, with M in place of M - 1
        spread = z_samples * math.exp(float(z_sums[1] - 2 * z_sums[0])) - 1
        z_error = math.sqrt(max(0.0, spread) / (z_samples - 1))
    points = len(log_sum_of_roots)
    total_error = math.hypot(error, z_error)
    return LogPStar(mean - log_z, total_error, log_z, z_error, samples, z_samples, points)


def resolves(log_z: float, z_samples: int) -> bool:
    """Whether so many dreams are enough for a Z of this size.

    They are where Z is above the standard error that the variance in `log_z_sums` gives.
    """
    return log_z > -0.5 * math.log(Z_INNER * z_samples)


def _mean_and_error(values: Tensor) -> tuple[float, float]:
    """Mean of values (N,) and its standard error, nan for a single value."""
    error = float(values.std() / len(values) ** 0.5) if len(values) > 1 else math.nan
    return float(values.mean()), error


@torch.no_grad()
def exact_log_likelihood(
    machine: HelmholtzMachine, x: Tensor, max_states: int = MAX_STATES
) -> Tensor:
    """log p(x) of each row of x by enumerating every hidden state, in nats.

    In a chain layer by layer from the top, log p(h^i) = logsumexp over h^{i+1} of
    log p(h^{i+1}) + log p(h^i | h^{i+1}). So the cost is one table of 2^{n_i} x 2^{n_{i+1}} for
    each pair of neighbouring layers; in another graph of all hidden states for each data point.

    Args:
        machine: A machine whose hidden units have a support.
        x: Data in [0, 1], (B, n_0).
        max_states: Entries that a table may have.

    Returns:
        (B,).

    Raises:
        UserError: Where a table would be larger, with its size, or hidden units have no support.
    """
    if not can_enumerate(machine, len(x), max_states):
        what = f"exact log-likelihoods of layers {list(machine.sizes)} on {len(x)} data points"
        need = f"need a table of 2^{_largest_table(machine, len(x)):.1f} states"
        way = "use the importance-sampled log_likelihood instead"
        raise UserError(f"{what} {need}, the limit is {max_states}; {way}")
    check_data(machine, x)
    x = x.to(next(machine.parameters()))
    if not machine.generator.chain:
        return _sum_over_all(machine, x)
    above, log_above = x.new_zeros(1, 0), x.new_zeros(1)
    for i, units in reversed(list(enumerate(machine.units))):
        values = all_values(units, machine.sizes[i]).to(x) if i else units.from_data(x)
        logits = machine.generator.layers[i](above)  # (above, n_i)
        log_conditional = values @ logits.T - units.log_partition(logits).sum(1)  # (here, above)
        log_here = torch.logsumexp(log_conditional + log_above, dim=1)
        log_above = log_here + units.log_base(values).sum(1)
        above = units.encode(values)
    return log_above


def _sum_over_all(machine: HelmholtzMachine, x: Tensor) -> Tensor:
    """log p(x) of each row as a sum over all hidden states at once: (B,)."""
    hidden = all_values(machine.units[-1], sum(machine.sizes[1:])).to(x)
    states = machine.units[-1].encode(hidden).split(machine.sizes[1:], dim=1)
    visible = machine.units[0].encode(machine.units[0].from_data(x))
    rows = (row.expand(len(hidden), -1) for row in visible)
    return torch.stack([machine.generator.log_prob([row, *states]).logsumexp(0) for row in rows])


def can_enumerate(machine: HelmholtzMachine, points: int, max_states: int = MAX_STATES) -> bool:
    """Return whether `exact_log_likelihood` can sum over a machine's states for so many points."""
    return _largest_table(machine, points) <= math.log2(max_states)


def _largest_table(machine: HelmholtzMachine, points: int) -> float:
    """log2 of the entries of the largest table; inf where hidden units have no support."""
    support, (first, *rest) = machine.units[-1].support, machine.sizes[1:]
    if support is None:  # hidden layers are of one family
        return math.inf
    pairs = [sum(pair) for pair in zip((first, *rest), (*rest, 0), strict=True)]
    bits = math.log2(len(support))
    if not machine.generator.chain:
        return bits * sum(machine.sizes[1:]) + math.log2(sum(machine.sizes))
    values = bits * max(machine.sizes[1:]) + math.log2(max(machine.sizes))
    return max(bits * max(pairs), bits * first + math.log2(max(points, 1)), values)


def all_values(units: Units, count: int) -> Tensor:
    """Every combination of values of `count` units with a support of s values: (s^count, count)."""
    support = torch.tensor(units.support)
    states = torch.arange(len(support) ** count)[:, None]
    return support[states // len(support) ** torch.arange(count) % len(support)]


def kl_divergence(machine: HelmholtzMachine, images: Tensor, probabilities: Tensor) -> float:
    """Exact KL(p_D || p) in nats.

    Args:
        machine: A machine small enough for `exact_log_likelihood`.
        images: The support of the data distribution p_D, (S, n_0).
        probabilities: What p_D gives to each of them, (S,).
    """
    log_p = exact_log_likelihood(machine, images).double()
    weights = probabilities.to(log_p)
    return float((torch.xlogy(weights, weights) - weights * log_p).sum())
