"""Wake-sleep and reweighted wake-sleep: importance weights, local gradients, one step.

Everything is conditionally independent given the states, so no autograd is needed: for one layer with inputs H (n, d),
bits Y (n, m), probabilities P (n, m) and row weights w (n), the gradient of sum_k w_k log p(y_k | h_k) is

    G = ((Y - P) * w[:, None])^T H                                                    (m, d)

Sources: Hinton et al. 1995 (wake-sleep); Bornschein & Bengio 2015 (reweighted wake-sleep, RWS).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nws.errors import UserError, positive_int
from nws.learning.metrics import NaturalMetric
from nws.models.belief_network import SigmoidBeliefNetwork
from nws.models.helmholtz import HelmholtzMachine, Trace
from nws.models.likelihood import effective_sample_size


@dataclass(frozen=True)
class Rule:
    """A learning rule: one row of the table in conf/algorithm/.

    The K samples of a data point get the weights softmax_k(exponent (log p - log q)): uniform for exponent 0 (wake-sleep),
    the importance weights for 1 (RWS). The other numbers say how much of each phase's gradient each network follows.
    Raises `UserError` for K < 1 and for numbers that are negative or not finite.
    """

    name: str
    samples: int  # K
    exponent: float
    generator_wake: float
    recognition_wake: float
    recognition_dream: float
    baseline: bool  # subtract 1/K from the weights of the recognition network's wake gradient

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", positive_int("algorithm.samples", self.samples))
        for name in ("exponent", "generator_wake", "recognition_wake", "recognition_dream"):
            value = getattr(self, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0 <= value < math.inf
            ):
                raise UserError(f"algorithm.{name} must be a number of at least 0, got {value!r}")
        if self.recognition_wake + self.recognition_dream == 0:
            raise UserError(
                "algorithm.recognition_wake and recognition_dream are both 0: nothing would train recognition"
            )


STATISTICS = ("wake_loss", "dream_loss", "log_likelihood", "ess")


Terms = dict[
    SigmoidBeliefNetwork, list[tuple[Trace, Tensor]]
]  # of each network's objective: traces and row weights (n,)


class MetricRows(NamedTuple):
    """A trace and its row weights (n,), for each choice of rows that a Fisher matrix can be estimated from."""

    recognition: tuple[Trace, Tensor]  # wake rows, all alike
    model: tuple[Trace, Tensor]  # dreams, all alike
    posterior: tuple[Trace, Tensor]  # wake rows by their importance


class StepResult(NamedTuple):
    """What one step saw, as tensors on the device: reading them (a synchronisation) is left to whoever needs them."""

    statistics: Tensor  # (4,) in the order of STATISTICS; losses and the K-sample bound in nats per data point
    layer_losses: (
        Tensor  # (layers of p, then of q): each layer's share of the wake and of the dream loss
    )


def importance_weights(log_weights: Tensor, exponent: float = 1.0) -> Tensor:
    """Normalised weights softmax_k(exponent log w_k) of log weights (B, K): (B, K), each row sums to 1."""
    return torch.log_softmax(exponent * log_weights, dim=1).exp()


def residuals(network: SigmoidBeliefNetwork, trace: Trace, row_weights: Tensor) -> Tensor:
    """(P - Y) w, the gradient of -sum_k w_k log p(y_k | h_k) by the logits: (n, units of the network). row_weights: (n,)."""
    return (trace.probabilities(network) - trace.targets(network)).mul_(row_weights[:, None])


def write_gradients(network: SigmoidBeliefNetwork, terms: list[tuple[Trace, Tensor]]) -> None:
    """Write the sum of residual^T H over `terms`, pairs of a trace and its `residuals`, to `.grad` of every parameter."""
    for parameter in network.parameters():
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
    for term, (trace, residual) in enumerate(terms):
        sizes = network.units
        blocks, bias_blocks = residual.split(sizes, dim=1), residual.sum(0).split(sizes)
        for edge in network.edges:
            inputs, block = trace.inputs(edge), blocks[edge.position]
            if len(inputs) != len(block):  # K rows share x: the sum over them comes first
                block = block.unflatten(0, (-1, trace.samples)).sum(1)
            weight, bias = edge.layer.weight.grad, edge.layer.bias.grad
            assert weight is not None and bias is not None
            if term == 0:
                torch.mm(block.T, inputs, out=weight)
                bias.copy_(bias_blocks[edge.position])
            else:
                weight.addmm_(block.T, inputs)
                bias.add_(bias_blocks[edge.position])


class WakeSleep:
    """One learning rule on one machine: `step` turns a batch into gradients, which any torch optimizer can follow.

    `.grad` of every parameter is written (not added to) with minus the rule's ascent direction, a mean over the batch: the
    plain gradient, or with `metrics` (one `NaturalMetric` for each network) the natural one.
    """

    def __init__(
        self,
        machine: HelmholtzMachine,
        rule: Rule,
        rng: torch.Generator,
        metrics: Sequence[NaturalMetric] = (),
    ) -> None:
        self.machine = machine
        self.rule = rule
        self.rng = rng
        self.metrics = tuple(metrics)
        # glibc gives large freed blocks back to the system and faults their pages in anew at each use, as dear as the
        # arithmetic on them, until one block nearly as large as its limit of 32 MiB has been freed.
        torch.empty(31 * 2**20, dtype=torch.uint8)
        self._traces: list[Trace | None] = [None] * 4  # of the last step, filled anew by the next

    @torch.no_grad()
    def step(self, x: Tensor, other: Tensor | None = None) -> StepResult:
        """Gradients of one batch x (B, n_0), bits or intensities in [0, 1], into `.grad`.

        No device-to-host synchronisation, but for a metric's solver where it reads numbers (see nws.natural.conjugate_gradient).

        `other`: another batch, of which metrics take their rows instead: both networks' (metric.batch=other), or the
        recognition network's alone (metric.batch=unlabeled).
        """
        rule, p, q = self.rule, self.machine.generator, self.machine.recognition
        wake, dream = self._phases(x, 0)
        wake_p, wake_q, dream_q = (
            wake.layer_log_probs(p),
            wake.layer_log_probs(q),
            dream.layer_log_probs(q),
        )
        log_weights = (wake_p.sum(0) - wake_q.sum(0)).unflatten(0, (-1, rule.samples))
        row_weights = importance_weights(log_weights, rule.exponent).flatten() / len(x)
        uniform = torch.full_like(row_weights, 1 / len(row_weights))

        recognition_terms = []
        if rule.recognition_wake:
            centred = row_weights - uniform if rule.baseline else row_weights
            recognition_terms.append((wake, rule.recognition_wake * centred))
        if rule.recognition_dream:
            recognition_terms.append((dream, rule.recognition_dream * uniform))
        terms = {p: [(wake, rule.generator_wake * row_weights)], q: recognition_terms}
        for network, parts in terms.items():
            write_gradients(
                network, [(trace, residuals(network, trace, weights)) for trace, weights in parts]
            )
        if self.metrics:
            rows = MetricRows((wake, uniform), (dream, uniform), (wake, row_weights))
            if other is not None and any(metric.refreshes for metric in self.metrics):
                rows = self._other_rows(rows, other)
            self._precondition(terms, rows)

        layer_losses = -torch.cat([wake_p @ row_weights, dream_q.mean(1)])
        wake_loss, dream_loss = (
            part.sum() for part in layer_losses.split([len(wake_p), len(dream_q)])
        )
        bound = (torch.logsumexp(log_weights, dim=1) - math.log(rule.samples)).mean()
        statistics = torch.stack(
            [wake_loss, dream_loss, bound, effective_sample_size(log_weights).mean()]
        )
        return StepResult(statistics, layer_losses)

    @torch.no_grad()
    def after_step(self) -> None:
        """To be called after the optimizer's step: lets an adaptive damping see what the step gained."""
        for metric in self.metrics:
            metric.after_step(self.machine)

    def report(self) -> dict[str, float]:
        """What the metrics have to say of the last step, for the log."""
        return {key: value for metric in self.metrics for key, value in metric.report().items()}

    def _phases(self, x: Tensor, slot: int) -> tuple[Trace, Trace]:
        wake = self._wake(x, slot)
        self._traces[slot + 1] = dream = self.machine.dream(
            len(wake.bits), self.rng, out=self._traces[slot + 1]
        )
        return wake, dream

    def _wake(self, x: Tensor, slot: int) -> Trace:
        self._traces[slot] = wake = self.machine.wake(
            x, self.rule.samples, self.rng, out=self._traces[slot]
        )
        return wake

    def _other_rows(self, own: MetricRows, x: Tensor) -> MetricRows:
        """Rows from another batch than the gradient's, `own` where they stay."""
        uniform = own.model[1].new_full(
            (len(x) * self.rule.samples,), 1 / (len(x) * self.rule.samples)
        )
        if any(metric.settings.batch == "unlabeled" for metric in self.metrics):
            return own._replace(recognition=(self._wake(x, 2), uniform))
        wake, dream = self._phases(x, 2)
        weights = importance_weights(
            self.machine.log_weights(wake), self.rule.exponent
        ).flatten() / len(x)
        return MetricRows((wake, uniform), (dream, uniform), (wake, weights))

    def _precondition(self, terms: Terms, rows: MetricRows) -> None:
        for metric in self.metrics:
            generator_rows = (
                rows.model if metric.settings.generator_rows == "model" else rows.posterior
            )
            trace, row_weights = rows.recognition if metric.network.upward else generator_rows
            metric.precondition(trace, row_weights, terms[metric.network])
