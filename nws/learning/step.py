"""Wake-sleep and its kin: one step, from a batch to the gradients of both networks.

Sources: Hinton et al. 1995 (wake-sleep); Bornschein & Bengio 2015 (reweighted wake-sleep, RWS).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nws.learning.gradients import Term, write_gradients
from nws.learning.natural import NaturalMetric
from nws.learning.rules import Rule
from nws.models import BeliefNetwork, HelmholtzMachine, Trace
from nws.models.likelihood import effective_sample_size

STATISTICS = ("wake_loss", "dream_loss", "log_likelihood", "ess")


class StepResult(NamedTuple):
    """What one step saw, as tensors on the device; reading them is a synchronisation."""

    statistics: (
        Tensor  # (4,) as STATISTICS says; losses and the K-sample bound in nats a data point
    )
    layer_losses: Tensor  # (layers of p, then of q): shares of the wake and of the dream loss


class MetricRows(NamedTuple):
    """For each choice of rows that a metric can take: a trace, and its row weights (n,)."""

    recognition: Term  # wake rows, all alike
    model: Term  # dreams, all alike
    posterior: Term  # wake rows by their importance


class WakeSleep:
    """One learning rule on one machine: `step` turns a batch into gradients.

    `.grad` of every parameter is written (not added to) with minus the rule's ascent direction, a
    mean over the batch. Any torch optimizer can follow it.

    Args:
        machine: The machine.
        rule: The learning rule.
        rng: Generator of all draws.
        metrics: One for each network, for the natural gradient; none for the plain one.

    Example:
        >>> rng = torch.Generator().manual_seed(0)
        >>> machine = HelmholtzMachine([4, 3, 2], rng=rng)
        >>> learner = WakeSleep(machine, Rule("rws", samples=5), rng)
        >>> learner.step(torch.ones(8, 4)).statistics.shape
        torch.Size([4])
    """

    def __init__(
        self,
        machine: HelmholtzMachine,
        rule: Rule,
        rng: torch.Generator,
        metrics: Sequence[NaturalMetric] = (),
    ) -> None:
        self.machine, self.rule, self.rng, self.metrics = machine, rule, rng, tuple(metrics)
        self.start_step(0)
        # glibc returns large freed blocks to the system, and page faults then cost as much as the
        # arithmetic. It keeps them once a block of nearly 32 MiB, its limit, has been freed.
        torch.empty(31 * 2**20, dtype=torch.uint8)

    def start_step(self, step: int) -> None:
        """Take the next batch as that of a step, counted from 0: it says how many samples to draw.

        Needed where the rule has a `samples_schedule`, without which it changes nothing.
        """
        self.samples = self.rule.samples_at(step)

    @torch.no_grad()
    def step(self, x: Tensor, other: Tensor | None = None) -> StepResult:
        """Write the gradients of one batch to `.grad`.

        Reads nothing from the device, but for a metric's solver where it looks at numbers.

        Args:
            x: Data in [0, 1], (B, n_0).
            other: Another batch, from which metrics take their rows: those of both networks
                (metric.batch=other), or of recognition alone (metric.batch=unlabeled).

        Returns:
            Losses, the K-sample bound and the effective sample size.
        """
        rule, (p, q) = self.rule, self.machine.networks
        wake = self.machine.wake(x, self.samples, self.rng)
        dream = self.machine.dream(len(wake.values), self.rng)
        wake_p, wake_q, dream_q = (
            trace.layer_log_probs(network) for trace, network in ((wake, p), (wake, q), (dream, q))
        )
        log_p, log_q = (part.sum(0).unflatten(0, (-1, self.samples)) for part in (wake_p, wake_q))
        weights_p, weights_q = (part.flatten() / len(x) for part in rule.weighting(log_p, log_q))
        uniform = torch.full_like(weights_p, 1 / len(weights_p))

        terms: dict[BeliefNetwork, list[Term]] = {p: [(wake, rule.generator_wake * weights_p)]}
        terms[q] = []
        if rule.recognition_wake:
            centred = weights_q - uniform if rule.baseline else weights_q
            terms[q].append((wake, rule.recognition_wake * centred))
        if rule.recognition_dream:
            terms[q].append((dream, rule.recognition_dream * uniform))
        for network, parts in terms.items():
            write_gradients(network, parts)
        if self.metrics:
            rows = MetricRows((wake, uniform), (dream, uniform), (wake, weights_p))
            self._precondition(terms, rows, other)
        return _result(log_p - log_q, wake_p @ weights_p, dream_q.mean(1))

    @torch.no_grad()
    def after_step(self) -> None:
        """To be called after the optimizer's step: an adaptive damping sees what it gained."""
        for metric in self.metrics:
            metric.after_step(self.machine)

    def report(self) -> dict[str, float]:
        """What the metrics say of the last step, for the log; and K where it is on a schedule."""
        own = {"train/samples": float(self.samples)} if self.rule.samples_schedule else {}
        return own | {key: value for each in self.metrics for key, value in each.report().items()}

    def _precondition(
        self, terms: dict[BeliefNetwork, list[Term]], rows: MetricRows, other: Tensor | None
    ) -> None:
        if other is not None and any(metric.refreshes for metric in self.metrics):
            rows = self._other_rows(rows, other)
        for metric in self.metrics:
            dreams = metric.options.generator_rows == "model"
            generator = rows.model if dreams else rows.posterior
            network = metric.network
            metric.precondition(rows.recognition if network.upward else generator, terms[network])

    def _other_rows(self, own: MetricRows, x: Tensor) -> MetricRows:
        """Rows from another batch than the gradient's, `own` where they stay."""
        rule = self.rule
        wake = self.machine.wake(x, self.samples, self.rng)
        uniform = own.model[1].new_full((len(wake.values),), 1 / len(wake.values))
        if any(metric.options.batch == "unlabeled" for metric in self.metrics):
            return own._replace(recognition=(wake, uniform))
        dream = self.machine.dream(len(wake.values), self.rng)
        weights = rule.weighting(*self._log_probs(wake))[0].flatten() / len(x)
        return MetricRows((wake, uniform), (dream, uniform), (wake, weights))

    def _log_probs(self, wake: Trace) -> tuple[Tensor, Tensor]:
        """log p(x, h_k) and log q(h_k | x), (B, K) each."""
        p, q = (wake.layer_log_probs(network).sum(0) for network in self.machine.networks)
        return p.unflatten(0, (-1, wake.samples)), q.unflatten(0, (-1, wake.samples))


def _result(log_weights: Tensor, wake_p: Tensor, dream_q: Tensor) -> StepResult:
    """From log weights (B, K) and each layer's weighted log-probability in wake and in dreams."""
    bound = (torch.logsumexp(log_weights, dim=1) - math.log(log_weights.shape[1])).mean()
    ess = effective_sample_size(log_weights).mean()
    statistics = torch.stack([-wake_p.sum(), -dream_q.sum(), bound, ess])
    return StepResult(statistics, -torch.cat([wake_p, dream_q]))
