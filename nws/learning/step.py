"""Wake-sleep and its kin: one step, from a batch to the gradients of both networks.

Sources: Hinton et al. 1995 (wake-sleep); Bornschein & Bengio 2015 (reweighted wake-sleep, RWS).
"""

import copy
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nws.errors import UserError
from nws.learning.gradients import Term, write_gradients
from nws.learning.natural import NaturalMetric
from nws.learning.rules import Rule
from nws.learning.together import own_points, sum_
from nws.learning.weighting import Weighting
from nws.models import BeliefNetwork, HelmholtzMachine, Trace
from nws.models.likelihood import check_data, effective_sample_size
from nws.models.noise import Share

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


class Phases(NamedTuple):
    """The phases of some of a batch's data points; weights are shares of the whole batch's."""

    wake: Trace | None  # none once nothing needs it any more
    uniform: Tensor  # (n,) of wake rows, all alike
    weights_p: Tensor  # (n,) of wake rows by the rule, for p
    weights_q: Tensor  # (n,) for q
    log_p: Tensor  # (layers, n) of wake rows
    log_q: Tensor
    dream: Term | None  # dreams, all alike; none where nothing needs them

    def rows(self, metric: NaturalMetric) -> Term:
        """The rows that a metric takes in, of those that are there."""
        assert self.wake is not None
        if metric.network.upward:
            return self.wake, self.uniform
        model = metric.options.generator_rows == "model"
        return self.dream if model and self.dream else (self.wake, self.weights_p)


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
        precision: Of the products with states: None for that of the parameters; or bfloat16, where
            they are summed in float32.

    Examples:
        >>> rng = torch.Generator().manual_seed(0)
        >>> machine = HelmholtzMachine([4, 3, 2], rng=rng)
        >>> learner = WakeSleep(machine, Rule("rws", samples=5), rng)
        >>> learner.step(torch.ones(8, 4)).statistics.shape
        torch.Size([4])
    """

    def __init__(
        self, machine: HelmholtzMachine, rule: Rule, rng: torch.Generator,
        metrics: Sequence[NaturalMetric] = (), precision: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        self.machine, self.rule, self.rng, self.metrics = machine, rule, rng, tuple(metrics)
        self.precision = precision
        weights = sum(each.numel() for each in machine.parameters())
        # In bfloat16 parts of a sixteenth take no longer than larger ones, and less memory.
        self._weights = weights // (16 if precision == torch.bfloat16 else 1)
        self.samples = rule.samples
        self.dreams = rule.samples if rule.dreams is None else rule.dreams

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
        if x.device.type == "cpu":  # on others looking at the data waits
            for batch in (x,) if other is None else (x, other):
                check_data(self.machine, batch)
        if other is None and any(each.options.batch != "same" for each in self.metrics):
            raise UserError("metric.batch=other or unlabeled takes another batch: step(x, other)")
        self.start()
        return self.compute(x, other)

    def start(self) -> None:
        """Bring schedules to this step."""
        for metric in self.metrics:
            metric.start()

    @torch.no_grad()
    def compute(self, x: Tensor, other: Tensor | None = None) -> StepResult:
        """What of a step is done on the device, of numbers that are there."""
        measures = any(each.measures for each in self.metrics)  # a gain that rounding would hide
        with self.machine.products_in(None if measures else self.precision):
            return self._compute(x, other)

    def _compute(self, x: Tensor, other: Tensor | None) -> StepResult:
        dreams = self._takes_dreams(False) or bool(self.rule.recognition_dream)
        results: list[StepResult] = []
        kept: list[tuple[Phases, Terms]] = []  # for the metrics
        for part in x.chunk(self._parts(x)):
            results.append(self._learn(part, len(x), dreams, bool(results), kept))
        result = StepResult(*(torch.stack(each).sum(0) for each in zip(*results, strict=True)))
        gradients = [each.grad for each in self.machine.parameters() if each.grad is not None]
        sum_([*gradients, *result])
        if self.metrics:
            self._precondition(kept, self._other_phases(other))
        return result

    def _learn(
        self, x: Tensor, points: int, dreams: bool, add: bool, kept: list[tuple[Phases, Terms]]
    ) -> StepResult:
        """Write the gradients of a part of a batch's `points`, or add them."""
        share, (_, q) = self.rule.recognition_dream, self.machine.networks
        phases = self._wake(x, points, self.rule.weighting)
        terms = self._terms(phases)
        for network in self.machine.networks:
            write_gradients(network, terms[network], add)
        if not self.metrics:  # the memory of the wake phase is free for dreams
            phases, terms = phases._replace(wake=None), {q: []}
        if dreams:
            phases = phases._replace(dream=self._dream(x, points, bool(share)))
        if share and phases.dream is not None:
            terms[q].append((phases.dream[0], share * phases.dream[1]))
            write_gradients(q, terms[q][-1:], add=True)
        if self.metrics:
            kept.append((phases, terms))
        return self._result(phases, points)

    def _other_phases(self, other: Tensor | None) -> Phases | None:
        """The phases of another batch than the gradient's, where a metric takes rows of it now."""
        if other is None or not any(each.looks and each.takes_other for each in self.metrics):
            return None
        weighting = copy.deepcopy(self.rule.weighting)  # one with a state has seen this step
        takes = self._takes_dreams(True)
        phases = self._wake(other, len(other), weighting)
        return phases._replace(dream=self._dream(other, len(other), False)) if takes else phases

    def _precondition(self, kept: Sequence[tuple[Phases, Terms]], others: Phases | None) -> None:
        """Turn `.grad` into directions, by the rows of the parts of a batch or of another one."""
        for metric in self.metrics:
            rows = [phases.rows(metric) for phases, _ in kept]
            if others is not None and metric.takes_other:
                rows = [others.rows(metric)]
            metric.precondition(rows, [term for _, each in kept for term in each[metric.network]])

    @torch.no_grad()
    def after_step(self) -> None:
        """To be called after the optimizer's step: an adaptive damping sees what it gained.

        Weights that a mask hides are 0 again, whatever an optimizer such as Muon made of them.
        """
        self.machine.hide_()
        for metric in self.metrics:
            metric.after_step(self.machine)

    def report(self) -> dict[str, float]:
        """What the metrics say of the last step, for the log."""
        return {key: value for each in self.metrics for key, value in each.report().items()}

    def _takes_dreams(self, other: bool) -> bool:
        """Whether a metric takes in dreams at this step: this batch's own, or those of another."""
        takers = (each for each in self.metrics if not each.network.upward and each.looks)
        return any((e.options.generator_rows, e.takes_other) == ("model", other) for e in takers)

    def _parts(self, x: Tensor) -> int:
        """In how many parts a batch comes."""
        if x.device.type != "cpu":
            return 1
        rows = len(x) * max(self.samples, self.dreams)
        return parts_of(rows * sum(self.machine.sizes), self._weights)

    def _wake(self, x: Tensor, points: int, weighting: Weighting) -> Phases:
        """Run the wake phase of some of a batch's `points`: of this process's share of them."""
        x, rng = own_points(x, self.rng)
        wake = self.machine.wake(x, self.samples, rng)
        log_p, log_q = (wake.layer_log_probs(network) for network in self.machine.networks)
        joint = (each.sum(0).unflatten(0, (-1, self.samples)) for each in (log_p, log_q))
        weights_p, weights_q = (each.flatten() / points for each in weighting(*joint))
        uniform = torch.full_like(log_p[0], 1 / (points * self.samples))
        return Phases(wake, uniform, weights_p, weights_q, log_p, log_q, None)

    def _dream(self, x: Tensor, points: int, evaluate: bool) -> Term:
        """Draw the dreams of some of a batch's `points`; `evaluate` for recognition to learn."""
        x, rng = own_points(x, self.rng)
        rng = rng.times(self.dreams) if isinstance(rng, Share) else rng
        trace = self.machine.dream(len(x) * self.dreams, rng, evaluate)
        return trace, trace.values.new_full((len(trace.values),), 1 / (points * self.dreams))

    def _terms(self, phases: Phases) -> Terms:
        """What the gradient of each network is made of in the wake phase."""
        rule, (p, q) = self.rule, self.machine.networks
        assert phases.wake is not None
        of_q: list[Term] = []
        if rule.recognition_wake:
            weights = phases.weights_q - phases.uniform if rule.baseline else phases.weights_q
            of_q.append((phases.wake, rule.recognition_wake * weights))
        return {p: [(phases.wake, rule.generator_wake * phases.weights_p)], q: of_q}

    def _result(self, phases: Phases, points: int) -> StepResult:
        """What is seen of a part of a batch's `points`."""
        losses, dream_loss = -phases.log_q @ phases.uniform, phases.log_p.new_full((), math.nan)
        if self.rule.recognition_dream and phases.dream is not None:
            trace, shares = phases.dream
            losses = -trace.layer_log_probs(self.machine.recognition) @ shares
            dream_loss = losses.sum()
        wake_losses = -phases.log_p @ phases.weights_p
        log_p, log_q = (each.sum(0) for each in (phases.log_p, phases.log_q))
        log_weights = (log_p - log_q).unflatten(0, (-1, self.samples))
        bound = torch.logsumexp(log_weights, dim=1) - math.log(self.samples)
        ess = effective_sample_size(log_weights)
        means = bound.sum() / points, ess.sum() / points
        statistics = torch.stack([wake_losses.sum(), dream_loss, *means])
        return StepResult(statistics, torch.cat([wake_losses, losses]))
