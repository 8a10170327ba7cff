"""The natural gradient: the gradient of each network in the Riemannian metric of its Fisher matrix, or an approximation.

For unit j of a layer with gradient g_j the direction is c (F_j + alpha I)^{-1} g_j with c = 1 + alpha, so that a large alpha
gives the plain gradient. Symbols: n rows, d parents with the bias, m units, as in nws.natural.operators.
Sources: Amari 1998 (natural gradient); Ay 2002 (its blocks here); Martens 2010 and Pascanu & Bengio 2014 (damping, metric on
other data); Varady, Volpi, Malago & Ay 2022 (natural reweighted wake-sleep).
"""

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nws.errors import UserError, positive_int
from nws.models.belief_network import Edge, SigmoidBeliefNetwork
from nws.models.helmholtz import HelmholtzMachine, Trace
from nws.natural.damping import Damping
from nws.natural.operators import FisherStack, UnitFisher, zeros
from nws.natural.solvers import Approximate, Solver

# Weights of a layer, by which small ones are solved together with neighbours of their size: alone, their calls cost more
# than their arithmetic; with much larger ones, the zeros around them would.
SMALL = (2048, 8192)
ALIGNED = 8  # sizes are rounded up to a multiple: products run up to a tenth faster where rows start at whole 32 bytes
SOLVED = ("fisher", "empirical")  # kinds that need a solver; the others are inverted in closed form
KINDS = (*SOLVED, "diagonal", "kronecker")


@dataclass(frozen=True)
class MetricSettings:
    """The `metric` group. Raises `UserError` for what is not one of the choices.

    kind: fisher (exact blocks), empirical (the row gradients' (y - p)^2 in place of the model's curvature p (1 - p), which is
    often taken for the Fisher matrix), diagonal and kronecker (cheaper stand-ins for the exact blocks).
    """

    kind: str = "fisher"
    generator_rows: str = (
        "model"  # model: dreams, the definition; posterior: importance-weighted wake rows
    )
    batch: str = "same"  # rows from the batch of the gradient (same), another one (other), or unlabeled (recognition's)
    max_rows: int | None = (
        None  # at most so many rows a layer, evenly spaced (the K that share x are one); None: all
    )
    refresh_every: int = 1  # steps between new Fisher matrices (and factors)
    max_kl: float | None = (
        None  # half the squared Fisher length that a step may have; None: no bound
    )

    def __post_init__(self) -> None:
        choices = {
            "kind": KINDS,
            "generator_rows": ("model", "posterior"),
            "batch": ("same", "other", "unlabeled"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise UserError(
                    f"metric.{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}"
                )
        positive_int("metric.refresh_every", self.refresh_every)
        if self.max_rows is not None:
            positive_int("metric.max_rows", self.max_rows)
        numeric = isinstance(self.max_kl, int | float) and not isinstance(self.max_kl, bool)
        if self.max_kl is not None and not (numeric and self.max_kl > 0):
            raise UserError(
                f"metric.max_kl must be a number of nats above 0 or null, got {self.max_kl!r}"
            )


class NaturalMetric:
    """The metric of one network: turns its `.grad` into c (F_j + alpha I)^{-1} g_j, once a step.

    `solver` makes a new solver (`make_solver`) for each layer, or stack of small ones. `learning_rate` is the following
    optimizer's, a tensor that the trust region reads.
    """

    def __init__(
        self,
        network: SigmoidBeliefNetwork,
        settings: MetricSettings,
        solver: Callable[[], Solver],
        damping: Damping,
    ) -> None:
        like = next(network.parameters())
        self.network, self.settings, self.damping = network, settings, damping.to(like)
        self.learning_rate = torch.zeros_like(self.damping.alpha)
        make = solver if settings.kind in SOLVED else partial(Approximate, settings.kind)
        self._edges = sorted(network.edges, key=lambda edge: edge.position)
        self._groups = [
            _Group(network.name, edges, make()) for edges in _neighbours(self._edges, make().stacks)
        ]
        self._alpha = self.damping.alpha.clone()  # of the last refresh
        self._step = 0
        self._measured: _Step | None = None

    @property
    def fishers(self) -> list[UnitFisher]:
        """Of the last refresh, in memory that the next one fills anew; ordered as network.layers, empty before the first."""
        return [
            fisher
            for group in self._groups
            if group.fisher is not None
            for fisher in group.fisher.layers
        ]

    @property
    def solvers(self) -> list[Solver]:
        return [group.solver for group in self._groups]

    @property
    def refreshes(self) -> bool:
        """Whether this step estimates the Fisher matrix anew."""
        return self._step % self.settings.refresh_every == 0 or self._groups[0].fisher is None

    @torch.no_grad()
    def precondition(
        self, trace: Trace, row_weights: Tensor, terms: list[tuple[Trace, Tensor]]
    ) -> None:
        """Estimate the Fisher matrix from a trace whose rows weigh `row_weights` (n,), where it is due, and precondition `.grad`.

        `terms`: the traces and row weights of the objective whose gradient `.grad` is, for the reduction ratio.
        Raises `UserError` where a block cannot be factored.
        """
        self.damping.start_step(self._step)
        if self.refreshes:
            self._alpha.copy_(self.damping.alpha)
            self._estimate(trace, row_weights)
            self._factor()
        directions = [group.solve() for group in self._groups]
        if self.damping.measures(self._step):
            gradients = [gradient for group in self._groups for gradient in group.gradients]
            self._measured = _Step(terms, gradients, _parameters(self._edges))
        scale = 1 + self._alpha
        if self.settings.max_kl is not None:
            lengths = [
                fisher.quadratic(v) for fisher, v in zip(self._wholes, directions, strict=True)
            ]
            kl = 0.5 * (self.learning_rate * scale).square() * torch.stack(lengths).sum()
            scale = scale * (self.settings.max_kl / kl).sqrt().clamp(max=1)
        for group, direction in zip(self._groups, directions, strict=True):
            group.write(direction, scale)
        self._step += 1

    @torch.no_grad()
    def after_step(self, machine: HelmholtzMachine) -> None:
        """Take in what the optimizer's step did: the ratio of actual to predicted gain, where the damping asks for it.

        Gain of the objective sum_k w_k log p over the step's own rows, predicted by g . delta - delta . F delta / 2.
        """
        if self._measured is None:
            return
        terms, gradients, before = self._measured
        self._measured = None
        steps = [after - old for after, old in zip(_parameters(self._edges), before, strict=True)]
        slopes = [-(gradient * step).sum() for gradient, step in zip(gradients, steps, strict=True)]
        curvatures = [
            fisher.quadratic(step) for fisher, step in zip(self.fishers, steps, strict=True)
        ]
        predicted = torch.stack(slopes).sum() - torch.stack(curvatures).sum() / 2
        actual = torch.zeros_like(predicted)
        for trace, row_weights in terms:
            again = machine.trace(trace.state_blocks, trace.samples)
            change = again.layer_log_probs(self.network) - trace.layer_log_probs(self.network)
            actual += change.sum(0) @ row_weights
        if predicted > 0:
            self.damping.adapt(float(actual / predicted))
        elif actual < 0:  # too long a step for the model to say anything, and a bad one
            self.damping.adapt(-math.inf)

    @property
    def _wholes(self) -> list[UnitFisher]:
        return [group.fisher.whole for group in self._groups if group.fisher is not None]

    def _factor(self) -> None:
        for solver, fisher in zip(self.solvers, self._wholes, strict=True):
            solver.factor(fisher, self._alpha)

    def _estimate(self, trace: Trace, row_weights: Tensor) -> None:
        stride = self._stride(len(row_weights))
        blocks = self._weights(trace, _thinned(row_weights, stride), stride).split(
            self.network.units, dim=1
        )
        rows = [
            self._rows(trace, row_weights, edge, block)
            for edge, block in zip(self._edges, blocks, strict=True)
        ]
        self._fill(rows)

    def _stride(self, rows: int) -> int:
        return 1 if self.settings.max_rows is None else math.ceil(rows / self.settings.max_rows)

    def _weights(
        self, trace: Trace, row_weights: Tensor, stride: int, units: int | None = None
    ) -> Tensor:
        """s_kj = w_k sigma'(a_kj) of every row that counts, and of the network's first so many units (None: all)."""
        probabilities = trace.probabilities(self.network)[::stride, :units]
        if self.settings.kind == "empirical":
            curvature = (probabilities - trace.targets(self.network)[::stride, :units]).square_()
        else:
            curvature = torch.addcmul(probabilities, probabilities, probabilities, value=-1)
        return curvature.mul_(row_weights[:, None])

    def _rows(
        self, trace: Trace, row_weights: Tensor, edge: Edge, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Parents' states (n, d - 1) and row weights (n, m) of one layer."""
        stride = self._stride(len(row_weights))
        if edge.parent is None:  # F_j = sigma'(b_j) exactly, for any rows
            if self.settings.kind != "empirical":
                probabilities = torch.sigmoid(edge.layer.bias)
                weights = (probabilities * (1 - probabilities))[None]
            return weights[:, :0], weights
        if (
            edge.parent == 0
        ):  # K rows share x: one row for all of them, with their summed weight, and the cap is on these
            if stride > 1:
                weights = self._weights(trace, row_weights, 1, weights.shape[1])
            weights = weights.unflatten(0, (-1, trace.samples)).sum(1)
            stride = self._stride(len(weights))
            if stride > 1:
                shared = row_weights.unflatten(0, (-1, trace.samples)).sum(1)
                weights = weights[::stride] * (shared.sum() / shared[::stride].sum())
            return trace.visible[::stride], weights
        return trace.state_blocks[edge.parent][::stride], weights

    def _fill(self, rows: list[tuple[Tensor, Tensor]]) -> None:
        for group in self._groups:
            group.fill([rows[edge.position] for edge in group.edges])

    def report(self) -> dict[str, float]:
        """Damping, and of the solver the iterations and the worst layer's residual, named for the log (synchronises)."""
        solved = [solver.report() for solver in self.solvers]
        row = self.damping.report()
        for key in ("iterations", "residual"):
            values = [each[key] for each in solved if key in each]
            row |= {key: max(values)} if values else {}
        return {f"{self.network.name}/{key}": value for key, value in row.items()}

    def start_at(self, step: int) -> None:
        """Take the next step as the run's `step`, counted from 0, in the damping's schedule and for refreshes."""
        self._step = step

    def state_dict(self) -> dict[str, Any]:
        """Everything that later directions depend on. The rows are kept only where they outlive a step."""
        state: dict[str, Any] = {
            "step": self._step,
            "damping": self.damping.state_dict(),
            "solvers": [solver.state_dict() for solver in self.solvers],
        }
        if self.settings.refresh_every > 1:
            state["fishers"] = [
                (fisher.inputs.clone(), fisher.weights.clone(), fisher.name)
                for fisher in self.fishers
            ]
            state["alpha"] = self._alpha
        return state

    def load_state_dict(
        self, state: dict[str, Any], fresh_damping: bool = False, fresh_solvers: bool = False
    ) -> None:
        """Go on from a state; `fresh_..`: with the damping, or the solvers and rows, that are asked for now instead."""
        like = next(self.network.parameters())
        self._step = state["step"]
        if not fresh_damping:
            self.damping.load_state_dict(state["damping"])
        if fresh_solvers:
            return
        if len(state["solvers"]) != len(self.solvers):
            raise UserError(
                f"the checkpoint's {self.network.name} metric has {len(state['solvers'])} solvers, {len(self.solvers)} were "
                "expected: it was written by another version of nws; go on with another solver or metric, or start anew"
            )
        if "fishers" in state and self.settings.refresh_every > 1:
            self._alpha.copy_(state["alpha"])
            self._fill([(inputs[:, :-1], weights) for inputs, weights, _ in state["fishers"]])
            self._factor()
        for solver, solver_state in zip(self.solvers, state["solvers"], strict=True):
            solver.load_state_dict({key: _to(value, like) for key, value in solver_state.items()})


def _thinned(row_weights: Tensor, stride: int) -> Tensor:
    """The weights of evenly spaced rows, with the sum of all."""
    return (
        row_weights
        if stride == 1
        else row_weights[::stride] / row_weights[::stride].sum() * row_weights.sum()
    )


class _Step(NamedTuple):
    terms: list[tuple[Trace, Tensor]]
    gradients: list[Tensor]  # of minus the objective, (m, d) a layer
    parameters: list[Tensor]  # before the step, (m, d) a layer


class _Group:
    """Layers that one solver solves together, and the memory that every step fills anew: zeros around them stay zeros."""

    def __init__(self, network: str, edges: list[Edge], solver: Solver) -> None:
        self.edges, self.solver = edges, solver
        self._names = [f"{network} layer {edge.position}" for edge in edges]  # for messages
        self._multiple = ALIGNED if solver.stacks else 1
        weights = [edge.layer.weight for edge in edges]
        shapes = [(units, parents + 1) for units, parents in (weight.shape for weight in weights)]
        self._gradient, self.gradients = zeros(
            shapes, weights[0], self._multiple
        )  # `gradients`: (m, d) of each layer
        self._direction, directions = zeros(shapes, weights[0], self._multiple)
        self._parameters = [
            parameter for edge in edges for parameter in (edge.layer.weight, edge.layer.bias)
        ]
        self._gradient_parts = [
            part for each in self.gradients for part in (each[:, :-1], each[:, -1])
        ]
        self._direction_parts = [
            part for each in directions for part in (each[:, :-1], each[:, -1])
        ]
        self.fisher: FisherStack | None = None

    def fill(self, rows: list[tuple[Tensor, Tensor]]) -> None:
        shapes = [(len(weights), states.shape[1] + 1, weights.shape[1]) for states, weights in rows]
        if self.fisher is None or self.fisher.shapes != shapes:
            self.fisher = FisherStack(shapes, self._names, self._gradient, self._multiple)
        self.fisher.fill(rows)

    def solve(self) -> Tensor:
        """(F_j + alpha I)^{-1} g_j of every layer, in one tensor."""
        for part, parameter in zip(self._gradient_parts, self._parameters, strict=True):
            part.copy_(_gradient(parameter))
        return self.solver.solve(self._gradient)

    def write(self, direction: Tensor, scale: Tensor) -> None:
        torch.mul(direction, scale, out=self._direction)
        for part, parameter in zip(self._direction_parts, self._parameters, strict=True):
            _gradient(parameter).copy_(part)


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _neighbours(edges: list[Edge], stacks: bool) -> list[list[Edge]]:
    """Layers that are solved together: small neighbours of about one size form a stack, every other layer stands alone."""
    groups: list[list[Edge]] = []
    last = len(SMALL)
    for edge in edges:
        size = bisect.bisect_left(SMALL, edge.layer.weight.numel())
        if stacks and size == last < len(SMALL):
            groups[-1].append(edge)
        else:
            groups.append([edge])
        last = size
    return groups


def _parameters(edges: list[Edge]) -> list[Tensor]:
    return [
        torch.cat([edge.layer.weight.detach(), edge.layer.bias.detach()[:, None]], dim=1)
        for edge in edges
    ]


def _to(value: Tensor, like: Tensor) -> Tensor:
    return value.to(like) if value.is_floating_point() else value
