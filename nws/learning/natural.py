"""The one place where rows of a phase meet a metric: from `.grad` to a natural direction.

For unit j of a layer with gradient g_j the direction is (1 + alpha) (C_j + alpha I)^{-1} g_j, so
that a large alpha gives the plain gradient.
Sources: Amari 1998 (natural gradient); Martens 2010 and Pascanu & Bengio 2014 (damping, metric on
other data); Varady, Volpi, Malago & Ay 2022 (natural reweighted wake-sleep).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nws.errors import UserError, number, one_of, positive_int
from nws.learning.gradients import Term
from nws.learning.rows import layer_rows
from nws.learning.together import sum_
from nws.models import BeliefNetwork, HelmholtzMachine, Layer
from nws.natural import Damping
from nws.natural.metrics import Metric
from nws.natural.operators import Rows, Tensors, UnitFisher
from nws.natural.solvers.solver import move, says_itself


@dataclass(frozen=True)
class RowOptions:
    """Which rows a metric takes in, and how often: the options that all metrics share.

    Args:
        generator_rows: Rows of the generator: "model" (dreams, the definition) or "posterior"
            (wake rows by the rule's weights for p: none negative, their sum 1 for a data point).
        batch: Whose rows: the batch of the gradient ("same"), another one ("other"), or for the
            recognition network unlabelled data ("unlabeled").
        max_rows: At most so many rows a layer, evenly spaced; None for all.
        refresh_every: Steps between updates of the metric.
        max_kl: Trust region: half the squared Fisher length of a step, in nats; None for no bound.
    """

    generator_rows: str = "model"
    batch: str = "same"
    max_rows: int | None = None
    refresh_every: int = 1
    max_kl: float | None = None

    def __post_init__(self) -> None:
        one_of("metric.generator_rows", self.generator_rows, ("model", "posterior"))
        one_of("metric.batch", self.batch, ("same", "other", "unlabeled"))
        every = positive_int("metric.refresh_every", self.refresh_every)
        object.__setattr__(self, "refresh_every", every)
        if self.max_rows is not None:
            positive_int("metric.max_rows", self.max_rows)
        if self.max_kl is not None:
            nats = number("metric.max_kl", self.max_kl, above=0, more=" nats, or null")
            object.__setattr__(self, "max_kl", nats)


class NaturalMetric:
    """A metric at work on one network: it turns the network's `.grad` into directions.

    Args:
        network: Whose `.grad` is preconditioned.
        metric: A class of nws/natural/metrics/, or one of your own.
        damping: alpha.
        options: Which rows the metric takes in.

    Attributes:
        learning_rate: Of the optimizer that follows; the trust region reads it.
        rows: Of the last update, ordered as `network.layers`, while a later step may need them:
            with `refresh_every` above 1. Else they and their phase go when the step is over.
    """

    def __init__(
        self, network: BeliefNetwork, metric: Metric, damping: Damping,
        options: RowOptions | None = None,
    ) -> None:  # fmt: skip
        self.network, self.metric = network, metric
        self.options = options or RowOptions()
        self.damping = damping.to(next(network.parameters()))
        self.learning_rate = torch.zeros_like(self.damping.alpha)
        self.rows: list[Rows] = []
        self._layers: list[Layer] = list(network.layers)  # type: ignore[arg-type]
        self._alpha = self.damping.alpha.clone()  # of the last update
        self._now = self._alpha.clone()  # of this step, always in the same place
        self._step = self._loads = 0  # of steps, and of loaded states, which end a graph
        kinds = ({"direction", "precondition_"} & vars(each).keys() for each in type(metric).mro())
        self._in_place = "precondition_" in next(filter(None, kinds))  # no older than `direction`
        # Of a step to measure: its terms, gradients of minus the objective, parameters before it.
        self._measured: tuple[Sequence[Term], list[Tensor], list[Tensor]] | None = None

    @property
    def refreshes(self) -> bool:
        """Whether this step updates the metric."""
        return self._step % self.options.refresh_every == 0 or not self.rows

    @property
    def takes_other(self) -> bool:
        """Whether its rows are those of another batch than the gradient's."""
        batches = ("other", "unlabeled") if self.network.upward else ("other",)
        return self.options.batch in batches

    @property
    def looks(self) -> bool:
        """Whether this step looks at new rows: for the metric, or for a length."""
        if not self.refreshes or self.metric.due or self.options.max_kl is not None:
            return self.refreshes
        served = range(self._step, self._step + self.options.refresh_every)  # by these rows
        return any(map(self.damping.measures, served))

    @property
    def measures(self) -> bool:
        """Whether the damping asks what this step gains."""
        return self.damping.measures(self._step)

    @property
    def graph_key(self) -> Any:
        """As `Metric.graph_key`, of this step."""
        every = self.options.refresh_every
        seldom = every > 1 and self.refreshes
        if seldom or self.measures or not says_itself(self.metric):
            return None
        key = self.metric.graph_key(every == 1)
        return (key, every > 1 and self._step // every, self._loads) if key else None

    def start(self) -> None:
        """Bring the damping to this step."""
        self.damping.start_step(self._step)
        self._now.copy_(self.damping.alpha)

    def skip(self) -> None:
        """Count a step that a graph did, without `precondition`."""
        self.metric.skip(self.options.refresh_every == 1)
        self._step += 1

    @torch.no_grad()
    def precondition(self, rows: Sequence[Term], terms: Sequence[Term]) -> None:
        """Update the metric where it is due, and write the direction to `.grad`.

        Args:
            rows: The traces and row weights (n,) that the metric is estimated from, its parts.
            terms: The traces and row weights of the objective whose gradient `.grad` is.

        Raises:
            UserError: Where the metric cannot be inverted.
        """
        if self.refreshes:
            self._alpha.copy_(self._now)
            self.rows = layer_rows(self.network, rows, self.options.max_rows)
            self.metric.update(self.rows, self._alpha)
        asks = self.measures or self.options.max_kl is not None or not self._in_place
        if asks or not self.metric.precondition_(*self._gradients(), 1 + self._alpha):
            self._write_directions(terms)
        for layer in self._layers:
            if layer.mask is not None and layer.weight.grad is not None:
                layer.weight.grad.mul_(layer.mask)  # a metric of one's own need not know of masks
        self._step += 1
        self._let_go()

    def _let_go(self) -> None:
        """Keep no rows that nothing needs: their phase is as large as that of the next step."""
        if self.options.refresh_every == 1 and self._measured is None:
            self.rows = []

    def _gradients(self) -> tuple[list[Tensor], list[Tensor]]:
        """`.grad` of the weights and of the biases, of each layer."""
        parts = [(layer.weight.grad, layer.bias.grad) for layer in self._layers]
        weights, biases = zip(*parts, strict=True)
        return list(weights), list(biases)

    def _write_directions(self, terms: Sequence[Term]) -> None:
        weights, biases = self._gradients()
        gradients = [_join(*parts) for parts in zip(weights, biases, strict=True)]
        directions = self.metric.direction(gradients)  # which may work in place, without own_length
        found, expected = ([tuple(each.shape) for each in part] for part in (directions, gradients))
        if found != expected:
            what = f"a tensor (m, d) for each layer of the {self.network.name}, {expected}"
            name = type(self.metric).__name__
            raise UserError(f"{name}.direction must return {what}; got {found}")
        if self.measures:
            again = [_join(*each) for each in zip(weights, biases, strict=True)]
            self._measured = terms, again, self._parameters()
        scale = 1 + self._alpha
        if self.options.max_kl is not None:
            scale = scale * self._shorten(scale, gradients, directions)
        for weight, bias, direction in zip(weights, biases, directions, strict=True):
            torch.mul(direction[:, :-1], scale, out=weight)
            torch.mul(direction[:, -1], scale, out=bias)

    def _parameters(self) -> list[Tensor]:
        return [_join(layer.weight.detach(), layer.bias.detach()) for layer in self._layers]

    def _shorten(self, scale: Tensor, gradients: Tensors, directions: Tensors) -> Tensor:
        """The factor that keeps directions, times a scale, in the trust region.

        The largest squared length in it is 2 max_kl / lr^2. With the metric's own matrices a
        squared length is d . C d = d . (g - alpha d).
        """
        assert self.options.max_kl is not None
        longest = 2 * self.options.max_kl / self.learning_rate.square()
        if self.metric.own_length:
            d, g = (torch.cat([x.flatten() for x in each]) for each in (directions, gradients))
            length = (d @ g - self._alpha * (d @ d)).clamp_min(0)
        else:
            length = self._square_length(directions)
        return (longest / (scale.square() * length)).sqrt().clamp(max=1)

    def _square_length(self, vectors: Tensors) -> Tensor:
        """The squared length of (m, d) a layer, by the exact Fisher matrix."""
        pairs = zip(self.rows, vectors, strict=True)
        squares = [UnitFisher(x.inputs, x.curvature, mask=x.mask).quadratic(v) for x, v in pairs]
        return torch.stack(squares).sum()

    @torch.no_grad()
    def after_step(self, machine: HelmholtzMachine) -> None:
        """Measure the ratio of actual to predicted gain, where the damping asks for it.

        The gain is that of the objective sum_k w_k log p over the step's own rows, predicted by
        g . delta - delta . F delta / 2.
        """
        if self._measured is None:
            return
        (terms, gradients, before), self._measured = self._measured, None
        steps = [new - old for new, old in zip(self._parameters(), before, strict=True)]
        slopes = [-(g * step).sum() for g, step in zip(gradients, steps, strict=True)]
        predicted = torch.stack(slopes).sum() - self._square_length(steps) / 2
        actual = torch.zeros_like(predicted)
        for trace, row_weights in terms:
            after = machine.evaluate(trace.state_blocks, trace.samples)
            change = after.layer_log_probs(self.network) - trace.layer_log_probs(self.network)
            actual += change.sum(0) @ row_weights
        sum_([actual])
        self.damping.compare(*torch.stack([actual, predicted]).tolist())  # one synchronisation
        self._let_go()

    def report(self) -> dict[str, float]:
        """What damping and metric say of the last step, named for the log (synchronises)."""
        numbers = self.damping.report() | self.metric.report()
        return {f"{self.network.name}/{key}": value for key, value in numbers.items()}

    def state_dict(self) -> dict[str, Any]:
        """Everything that later directions depend on; rows only where they outlive a step."""
        state: dict[str, Any] = {
            "step": self._step,
            "damping": self.damping.state_dict(),
            "metric": self.metric.state_dict(),
        }
        if self.options.refresh_every > 1:
            state["alpha"] = self._alpha
            state["rows"] = [
                (each.inputs, each.curvature, each.squared_errors(), each.name, each.weights,
                 list(each.means), each.low)
                for each in self.rows
            ]  # fmt: skip
        return state

    def load_state_dict(
        self, state: dict[str, Any], fresh_damping: bool = False, fresh_metric: bool = False
    ) -> None:
        """Go on from a state.

        Args:
            state: From `state_dict`; where all else is fresh, the run's `step` from 0 is enough.
            fresh_damping: Whether to keep the damping as it is here.
            fresh_metric: Whether to keep the metric, its solvers and rows as they are here.
        """
        self._step, self._loads = state["step"], self._loads + 1
        if fresh_damping:
            self.damping.start_step(max(0, self._step - 1))  # a run that is over has no next one
        else:
            self.damping.load_state_dict(state["damping"])
        if fresh_metric:
            return
        if "rows" in state and self.options.refresh_every > 1:
            self._alpha.copy_(self.damping.alpha if fresh_damping else state["alpha"])
            pairs = zip(move(state["rows"], self._alpha), self._layers, strict=False)
            self.rows = [_restore(saved, layer.mask_with_bias) for saved, layer in pairs]
            if self.rows:
                self.metric.update(self.rows, self._alpha)
        self.metric.load_state_dict(move(state["metric"], self._alpha))
        if fresh_damping:
            self.metric.redamp(self.damping.alpha)


def _join(weight: Tensor, bias: Tensor) -> Tensor:
    """Weights and biases as one matrix (m, d)."""
    return torch.cat([weight, bias[:, None]], dim=1)


def _restore(saved: Any, mask: Tensor | None) -> Rows:
    inputs, curvature, errors, name, weights, means, *low = saved
    return Rows(inputs, curvature, lambda: errors, name, weights, lambda: means, mask, *low)
