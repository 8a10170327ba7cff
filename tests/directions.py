"""What the tests of natural steps share: the dense direction of a step, from the same seed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import reference
import torch
from cases import Case, exponent_of, make_rule
from solving import covariance_of, shared_blocks
from torch import Tensor

from nws.learning import NaturalMetric, RowOptions, WakeSleep
from nws.models import BeliefNetwork, HelmholtzMachine
from nws.natural import Damping
from nws.natural.metrics import Adaptive, Diagonal, Empirical, Fisher, Kronecker, Mean
from nws.natural.solvers import Cholesky

SEED = 11
ALPHA = 1 / 16
CASE = Case((3, 4, 2, 3), 3, 4, "bipolar")  # B = 4 images, K = 3, so n = 12 rows
BOTH = (0, 1)  # generator, recognition: positions in machine.networks
# Cholesky's error against LU's, times a condition number of (d + alpha) / alpha ~ 100 at most.
SOLVED = 1e-8

METRICS: dict[str, Callable[[], Any]] = {  # with exact solves
    "fisher": partial(Fisher, Cholesky), "empirical": partial(Empirical, Cholesky),
    "diagonal": Diagonal, "kronecker": Kronecker, "mean": Mean,
}  # fmt: skip
KINDS = [kind for kind in METRICS if kind != "mean"]  # whose matrix has the rows that are kept
ALL = METRICS | {"adaptive": Adaptive}  # which is no matrix of rows


def natural_metrics(
    machine: HelmholtzMachine, alpha: float = ALPHA, schedule: Any = None, kind: str = "fisher",
    make: Callable[[], Any] | None = None, **options: Any,
) -> list[NaturalMetric]:  # fmt: skip
    """A metric for each network: of a kind, or one that `make` makes."""
    new, rows = make or ALL[kind], RowOptions(**options)
    return [NaturalMetric(net, new(), Damping(alpha, schedule), rows) for net in machine.networks]


def learner(case: Case, machine: HelmholtzMachine, rule: str = "rws", **options: Any) -> WakeSleep:
    metrics = natural_metrics(machine, **options)
    return WakeSleep(machine, make_rule(rule, case.samples), case.rng(SEED), metrics)


def directions(machine: HelmholtzMachine) -> list[Tensor]:
    """`.grad` of each network, flat."""
    return [reference.flatten(network.layers, gradients=True) for network in machine.networks]


def joined(network: BeliefNetwork) -> list[Tensor]:
    """`.grad` of each layer as one matrix (m, d)."""
    return [torch.cat([each.weight.grad, each.bias.grad[:, None]], 1) for each in network.layers]


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


# --- what the direction should be -----------------------------------------------------------------


@dataclass(frozen=True)
class StepRows:
    """The states that a step seeded as above works with, and its importance weights, sum 1."""

    wake: reference.Bits
    dream: reference.Bits
    importance: Tensor  # (n,)
    uniform: Tensor  # (n,)

    @staticmethod
    def draw(
        machine: HelmholtzMachine, x: Tensor, samples: int, rng: Any, exponent: float = 1,
        parts: int = 1,
    ) -> "StepRows":  # fmt: skip
        phases = []
        for part in x.chunk(parts):
            wake = machine.wake(part, samples, rng)
            phases.append((wake, machine.dream(len(wake.values), rng)))
        bits, dream = (
            [torch.cat(layer) for layer in zip(*map(reference.bits_of, each), strict=True)]
            for each in zip(*phases, strict=True)
        )
        weights = reference.importance_weights(machine, bits, samples, exponent).flatten() / len(x)
        uniform = torch.full_like(weights, 1 / len(weights))
        return StepRows(bits, dream, weights, uniform)

    def of_network(self, which: int, rows: str = "model") -> tuple[reference.Bits, Tensor]:
        """States and row weights of one network's Fisher matrix."""
        if which == 1:
            return self.wake, self.uniform
        if rows == "model":
            return self.dream, self.uniform
        return self.wake, self.importance


def network_of(machine: HelmholtzMachine, which: int) -> reference.Network:
    return reference.recognition(machine) if which else reference.generator(machine)


def dense_blocks(
    network: reference.Network, bits: reference.Bits, row_weights: Tensor, kind: str = "fisher"
) -> list[list[Tensor]]:
    """The block of each unit of each layer, row by row: sum_k w_k s_kj h_k h_k^T."""
    layers = []
    parts = zip(network.connections, network.parents(bits), network.logits(bits), strict=True)
    for (_, child), inputs, logits in parts:
        p = 1 / (1 + torch.exp(-logits))
        slopes = (bits[child] - p) ** 2 if kind == "empirical" else p * (1 - p)
        outer = torch.einsum("nd,ne->nde", inputs, inputs)
        blocks = [torch.einsum("n,n,nde->de", row_weights, slope, outer) for slope in slopes.T]
        if kind == "diagonal":
            blocks = [block.diagonal().diag() for block in blocks]
        if kind == "kronecker":  # one second moment for all, scaled by the units' mean curvatures
            shared = torch.einsum("n,nde->de", row_weights, outer)
            blocks = [(row_weights @ slope) * shared for slope in slopes.T]
        if kind == "mean":
            mean = row_weights @ inputs
            blocks = [(row_weights @ slope) * mean.outer(mean) for slope in slopes.T]
        layers.append(blocks)
    return layers


def kronecker_blocks(
    network: reference.Network, position: int, bits: reference.Bits, weights: Tensor,
    kept: Sequence[int], rows: Sequence[int],
) -> list[Tensor]:  # fmt: skip
    """Of a layer, where rows are left out: the mean row c is of all rows all the same.

    The mean curvatures are those of the `kept` rows, the covariance about c is that of `rows`.
    """
    inputs = network.parents(bits)[position]
    slopes = torch.sigmoid(network.logits(bits)[position])
    slopes = slopes * (1 - slopes)
    centre, scales = weights @ inputs, weights[kept] @ slopes[kept] / weights[kept].sum()
    covariance = covariance_of(inputs[rows], weights[rows] / weights[rows].sum(), centre)
    return list(shared_blocks(scales, centre, covariance))


def natural(
    network: reference.Network, blocks: list[list[Tensor]], gradient: Tensor, alpha: float = ALPHA
) -> Tensor:
    """(1 + alpha) (F_j + alpha I)^{-1} g_j of every unit of every layer, flat."""
    result = torch.full_like(gradient, torch.nan)
    for units, layer in zip(network.unit_ranges, blocks, strict=True):
        for unit, block in zip(units, layer, strict=True):
            damped = block + alpha * torch.eye(len(block), dtype=block.dtype)
            result[unit] = (1 + alpha) * torch.linalg.solve(damped, gradient[unit])
    return result


def blocks_of_some(
    network: reference.Network, bits: reference.Bits, weights: Tensor, kind: str, chosen: Any
) -> list[list[Tensor]]:
    """`dense_blocks` of the chosen rows, whose weights sum to 1 again."""
    kept = weights[chosen] / weights[chosen].sum()
    return dense_blocks(network, [y[chosen] for y in bits], kept, kind)


def expected_directions(
    case: Case, machine: HelmholtzMachine, x: Tensor, other: Tensor | None = None,
    rule_name: str = "rws", alpha: float = ALPHA, kind: str = "fisher",
    generator_rows: str = "model", kept: Sequence[int] | None = None,
    images: Sequence[int] | None = None,
) -> list[Tensor]:  # fmt: skip
    """The dense directions of a step of `learner`, from the `kept` rows (None: all).

    Recognition's first layer has the rows of `images` (None: all). The deepest generator layer,
    which has no parents, has all rows, whatever is kept elsewhere.
    """
    rule, rng = make_rule(rule_name, case.samples), case.rng(SEED)
    rows = StepRows.draw(machine, x, case.samples, rng, exponent_of(rule))
    gradients = reference.rule_gradients(machine, rule, rows.wake, rows.dream)
    if other is not None:
        rows = StepRows.draw(machine, other, case.samples, rng, exponent_of(rule))
    result = []
    for which, gradient in enumerate(gradients):
        bits, weights = rows.of_network(which, generator_rows)
        network, every = network_of(machine, which), range(len(weights))
        blocks_of = partial(blocks_of_some, network, bits, weights, kind)
        layers = blocks_of(every if kept is None else kept)
        if which == 0:
            layers[-1] = blocks_of(every)[-1]
        if which == 1:
            first = [k for k in every if images is None or k // case.samples in images]
            layers[0] = blocks_of(first)[0]
        if kind == "kronecker" and kept is not None:
            for position in range(len(layers) - (which == 0)):
                chosen = first if which == 1 and position == 0 else kept
                layers[position] = kronecker_blocks(network, position, bits, weights, kept, chosen)
        result.append(natural(network, layers, gradient, alpha))
    return result
