"""Wake-sleep and its kin: one step, from a batch to the gradients of both networks.

Sources: Hinton et al. 1995 (wake-sleep); Bornschein & Bengio 2015 (reweighted wake-sleep, RWS).
"""

import copy
import math
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from nws.learning.gradients import Term, write_gradients
from nws.learning.natural import NaturalMetric
from nws.learning.rules import Rule
from nws.learning.together import own_points, sum_
from nws.models import BeliefNetwork, HelmholtzMachine, Trace
from nws.models.likelihood import effective_sample_size
from nws.models.noise import Part, Rng

STATISTICS = ("wake_loss", "dream_loss", "log_likelihood", "ess")
AT_ONCE = 2**22  # about so many unit states of a phase a CPU works on: tensors of 16 MiB

Terms = dict[BeliefNetwork, list[Term]]  # of the gradient of each network


class StepResult(NamedTuple):
    """What one step saw, as tensors on the device; reading them is a synchronisation."""

    # (4,) as STATISTICS says; losses and the K-sample bound in nats a data point. The dream loss is
    # nan where q does not learn from dreams.
    statistics: Tensor
    # (layers of p, then of q): shares of the wake and of the dream loss. Where q does not learn
    # from dreams, its shares are those of -log q in wake.
    layer_losses: Tensor


class MetricRows(NamedTuple):
    """For each choice of rows that a metric can take: the traces and row weights (n,) of a phase.

    A phase that comes in parts has one for each.
    """

    recognition: list[Term]  # wake rows, all alike
    model: list[Term]  # dreams, all alike; none where no metric takes them in this step
    posterior: list[Term]  # wake rows by the rule's weights for p


class Phases(NamedTuple):
    """What the phases of a part of a batch give."""

    terms: Terms
    rows: MetricRows
    result: StepResult


def parts_of(states: int, weights: int) -> int:
    """In how many parts a step on a CPU takes a batch with so many unit states a phase.

    Each part passes over all weights, so a part has no fewer states than about the weights.
    """
    return max(1, round(states / max(AT_ONCE, weights)))


class WakeSleep:
    """One learning rule on one machine: `step` turns a batch into gradients.

    `.grad` of every parameter is written (not added to) with minus the rule's ascent direction, a
    mean over the batch. Any torch optimizer can follow it.

    Args:
        machine: The machine.
        rule: The learning rule.
        rng: Generator of all draws.
        metrics: One for each network, for the natural gradient; none for the plain one.

    Examples:
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
        self._weights = sum(each.numel() for each in machine.parameters())
        self.start_step(0)

    def start_step(self, step: int) -> None:
        """Take the next batch as that of a step, counted from 0: it says how many samples to draw.

        Needed where the rule has a `samples_schedule`, without which it changes nothing.
        """
        self.samples = self.rule.samples_at(step)
        self.dreams = self.samples if self.rule.dreams is None else self.rule.dreams

    @torch.no_grad()
    def step(self, x: Tensor, other: Tensor | None = None) -> StepResult:
        """Write the gradients of one batch to `.grad`.

        A phase that nothing needs is not run. On a CPU a large batch comes in parts, whose
        memory is used again; each part is sampled and weighed by itself.

        Reads nothing from the device, but for a metric's solver where it looks at numbers.

        Args:
            x: Data in [0, 1], (B, n_0).
            other: Another batch, from which metrics take their rows: those of both networks
                (metric.batch=other), or of recognition alone (metric.batch=unlabeled).

        Returns:
            Losses, the K-sample bound and the effective sample size.
        """
        dreams = bool(self.rule.recognition_dream) or self._takes_dreams(other is None)
        results: list[StepResult] = []
        kept: list[Phases] = []  # for the metrics
        for part in x.chunk(self._parts(x)):
            phases = self._phases(part, len(x), dreams)
            for network, terms in phases.terms.items():
                write_gradients(network, terms, add=bool(results))
            results.append(phases.result)
            if self.metrics:
                kept.append(phases)
        statistics, layer_losses = zip(*results, strict=True)
        result = StepResult(torch.stack(statistics).sum(0), torch.stack(layer_losses).sum(0))
        gradients = [each.grad for each in self.machine.parameters() if each.grad is not None]
        sum_([*gradients, *result])
        if self.metrics:
            self._precondition(kept, other)
        return result

    @torch.no_grad()
    def after_step(self) -> None:
        """To be called after the optimizer's step: an adaptive damping sees what it gained."""
        for metric in self.metrics:
            metric.after_step(self.machine)

    def report(self) -> dict[str, float]:
        """What the metrics say of the last step, for the log; and K where it is on a schedule."""
        own = {"train/samples": float(self.samples)} if self.rule.samples_schedule else {}
        return own | {key: value for each in self.metrics for key, value in each.report().items()}

    def _takes_dreams(self, own: bool) -> bool:
        """Whether a metric takes in dreams at this step: this batch's own, or those of another."""
        own = own or any(metric.options.batch == "unlabeled" for metric in self.metrics)
        return own and any(_takes_dreams(metric) for metric in self.metrics)

    def _parts(self, x: Tensor) -> int:
        """In how many parts a batch comes."""
        if x.device.type != "cpu":
            return 1
        rows = len(x) * max(self.samples, self.dreams)
        return parts_of(rows * sum(self.machine.sizes), self._weights)

    def _phases(self, x: Tensor, points: int, dreams: bool) -> Phases:
        """Run the phases of some of a batch's `points`: terms, rows, and their shares of the sums.

        With `dreams`, dreams are drawn for the gradient or for a metric.
        """
        rule, (p, q) = self.rule, self.machine.networks
        x, rng = own_points(x, self.rng)
        wake = self.machine.wake(x, self.samples, rng)
        wake_p, wake_q = (wake.layer_log_probs(network) for network in (p, q))
        log_p, log_q = (part.sum(0).unflatten(0, (-1, self.samples)) for part in (wake_p, wake_q))
        weights_p, weights_q = (part.flatten() / points for part in rule.weighting(log_p, log_q))
        uniform = _uniform(wake, points * self.samples)
        terms: Terms = {p: [(wake, rule.generator_wake * weights_p)], q: []}
        if rule.recognition_wake:
            centred = weights_q - uniform if rule.baseline else weights_q
            terms[q].append((wake, rule.recognition_wake * centred))
        dream, losses, dream_loss = None, -wake_q @ uniform, wake_p.new_full((), math.nan)
        if dreams:
            dream = self._dream(len(x), points, rng)
        if dream is not None and rule.recognition_dream:
            trace, shares = dream
            terms[q].append((trace, rule.recognition_dream * shares))
            losses = -trace.layer_log_probs(q) @ shares
            dream_loss = losses.sum()
        wake_losses = -wake_p @ weights_p
        sums = torch.stack([wake_losses.sum(), dream_loss, *_bound_and_ess(log_p - log_q, points)])
        result = StepResult(sums, torch.cat([wake_losses, losses]))
        rows = MetricRows([(wake, uniform)], [dream] if dream else [], [(wake, weights_p)])
        return Phases(terms, rows, result)

    def _dream(self, count: int, points: int, rng: Rng, evaluate: bool | None = None) -> Term:
        """Dreams of `count` of a batch's `points`, all alike."""
        rng = rng.times(self.dreams) if isinstance(rng, Part) else rng
        evaluate = bool(self.rule.recognition_dream) if evaluate is None else evaluate
        trace = self.machine.dream(count * self.dreams, rng, evaluate)
        return trace, _uniform(trace, points * self.dreams)

    def _precondition(self, parts: Sequence[Phases], other: Tensor | None) -> None:
        every = zip(*(part.rows for part in parts), strict=True)
        rows = MetricRows(*([*chain(*each)] for each in every))
        if other is not None and any(metric.refreshes for metric in self.metrics):
            rows = self._other_rows(rows, other)
        for metric in self.metrics:
            terms = [term for part in parts for term in part.terms[metric.network]]
            metric.precondition(_taken_in(metric, rows), terms)

    def _other_rows(self, own: MetricRows, x: Tensor) -> MetricRows:
        """Rows from another batch than the gradient's, `own` where they stay."""
        weighting = copy.deepcopy(self.rule.weighting)  # one with a state has seen this step
        points, (x, rng) = len(x), own_points(x, self.rng)
        wake = self.machine.wake(x, self.samples, rng)
        uniform = _uniform(wake, points * self.samples)
        if any(metric.options.batch == "unlabeled" for metric in self.metrics):
            return own._replace(recognition=[(wake, uniform)])
        dreams = []
        if any(_takes_dreams(metric) for metric in self.metrics):
            dreams = [self._dream(len(x), points, rng, evaluate=False)]
        weights = weighting(*self._log_probs(wake))[0].flatten() / points
        return MetricRows([(wake, uniform)], dreams, [(wake, weights)])

    def _log_probs(self, wake: Trace) -> tuple[Tensor, Tensor]:
        """log p(x, h_k) and log q(h_k | x), (B, K) each."""
        p, q = (wake.layer_log_probs(network).sum(0) for network in self.machine.networks)
        return p.unflatten(0, (-1, wake.samples)), q.unflatten(0, (-1, wake.samples))


def _takes_dreams(metric: NaturalMetric) -> bool:
    """Whether a metric takes in dreams at this step."""
    dreams = metric.options.generator_rows == "model" and not metric.network.upward
    return dreams and metric.refreshes


def _taken_in(metric: NaturalMetric, rows: MetricRows) -> list[Term]:
    """The rows that a metric takes in, of those that are there."""
    if metric.network.upward:
        return rows.recognition
    model = metric.options.generator_rows == "model"
    return rows.model if model and rows.model else rows.posterior


def _uniform(trace: Trace, rows: int) -> Tensor:
    """The same weight for each row of a trace: 1 / rows."""
    return trace.values.new_full((len(trace.values),), 1 / rows)


def _bound_and_ess(log_weights: Tensor, points: int) -> tuple[Tensor, Tensor]:
    """Sums over data points of the K-sample bound and the effective sample size, over `points`.

    Args:
        log_weights: (B, K).
        points: What the sums are divided by.
    """
    bound = torch.logsumexp(log_weights, dim=1) - math.log(log_weights.shape[1])
    return bound.sum() / points, effective_sample_size(log_weights).sum() / points
