"""Products in bfloat16: what is rounded, what is not, and by how much gradients differ."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from directions import ALPHA, joined, natural_metrics, relative_error
from torch import Tensor

from nws.learning import NaturalMetric, Rule, WakeSleep
from nws.learning.gradients import write_gradients
from nws.models import HelmholtzMachine
from nws.models.belief_network import product
from nws.models.gaussian import Gaussian
from nws.natural import LevenbergMarquardt, natural_direction
from nws.natural.metrics import Fisher, Kronecker
from nws.natural.solvers import ConjugateGradient

LOW = torch.bfloat16
SIZES, POINTS = [96, 64, 20], 64  # products of the last two layers are too small to be rounded
#: Of a gradient: logits, errors and the product are rounded, by 2^-9 of each number at most.
NEAR = 2.0**-6
ACCURATE = 1e-2  # of a natural direction: what solver.accuracy asks for


def learner(precision: torch.dtype, sizes: Sequence[int] = SIZES, **options: Any) -> WakeSleep:
    rng = torch.Generator().manual_seed(0)
    machine = HelmholtzMachine(sizes, rng=rng, **options)
    return WakeSleep(machine, Rule("rws", 5), rng, precision=precision)


def images() -> Tensor:
    return (torch.rand(POINTS, SIZES[0], generator=torch.Generator().manual_seed(1)) < 0.3).float()


def given(precision: torch.dtype, units: Any, **graph: Any) -> list[Tensor]:
    """Gradients on the same states, which sampling by rounded logits would not give."""
    made = learner(precision, units=units, **graph)
    full = made.machine.wake(images(), 5, torch.Generator().manual_seed(2))
    weights = torch.full((len(full.values),), 1 / len(full.values))
    with made.machine.products_in(precision), torch.no_grad():
        trace = made.machine.evaluate(full.state_blocks, 5)
        for network in made.machine.networks:
            write_gradients(network, [(trace, weights)])
    return [each.grad for each in made.machine.parameters() if each.grad is not None]


WIDE: dict[str, Any] = {"sizes": [96, 80, 70]}
ALL = {"lateral": "all"}  # x that rows share, and the states beside it, are pieces of one product


@pytest.mark.parametrize(("units", "graph"), [
    ("binary", {}), ("bipolar", {}), ("binary", WIDE),
    ("binary", WIDE | {"generator": ALL, "recognition": ALL, "skip": True}),
])  # fmt: skip
def test_gradients_are_near_those_of_float32(units: str, graph: dict[str, Any]) -> None:
    pair = (given(precision, units, **graph) for precision in (LOW, torch.float32))
    for low, full in zip(*pair, strict=True):
        assert low.dtype == torch.float32
        assert float((low - full).norm()) <= NEAR * float(full.norm())
        if low.ndim == 2:  # the control: what is large is rounded
            assert torch.equal(low, full) == (low.numel() < 4096)


def test_products_are_summed_in_float32() -> None:
    ones = torch.ones(1, 1000, dtype=LOW)
    assert float(product(ones, ones.T)) == 1000
    total = torch.zeros((), dtype=LOW)
    for _ in range(1000):
        total = total + ones[0, 0]
    assert float(total) == 256  # the control: a sum in bfloat16 stands still there


@pytest.mark.parametrize("units", ["binary", "bipolar"])
def test_states_are_exact_and_nothing_is_rounded_outside_of_a_step(units: str) -> None:
    made, x = learner(LOW, units=units), images()
    with made.machine.products_in(LOW):
        trace = made.machine.wake(x, 3, torch.Generator().manual_seed(0))
    assert trace.states.dtype == trace.values.dtype == torch.float32
    for network, at in zip(made.machine.networks, (-1, 0), strict=True):
        with made.machine.products_in(LOW):
            low = trace.inputs(network.edges[at])
        assert low.dtype == LOW and torch.equal(low.float(), trace.inputs(network.edges[at]))
    other = learner(torch.float32, units=units)
    made.step(x)
    made.machine.load_state_dict(other.machine.state_dict())
    found = [each.machine.wake(x, 3, torch.Generator().manual_seed(0)) for each in (made, other)]
    assert torch.equal(found[0].generator_logits, found[1].generator_logits)
    assert all(each.layer.rounded is None for net in made.machine.networks for each in net.edges)


def test_values_without_a_support_are_not_rounded() -> None:
    made = learner(LOW, visible=Gaussian())
    x = torch.rand(POINTS, SIZES[0], generator=torch.Generator().manual_seed(1))
    with made.machine.products_in(LOW):
        trace = made.machine.wake(x, 2, torch.Generator().manual_seed(0))
        found = trace.inputs(edge := made.machine.recognition.edges[0])
        logits = edge.layer(found).repeat_interleave(2, 0)
    assert torch.equal(found, made.machine.units[0].encode(x)) and found.dtype == torch.float32
    assert torch.equal(trace.recognition_logits[:, : SIZES[1]], logits)


@pytest.mark.parametrize("precision", [LOW, torch.float32])
def test_natural_directions_stay_accurate(precision: torch.dtype) -> None:
    """Of many iterations, so that what is left is rounding alone; two are the control."""
    plain, low = learner(precision), LOW if precision == LOW else None
    plain.step(images())
    gradients = [each for network in plain.machine.networks for each in joined(network)]
    for iterations in (2, 20):
        made, make = learner(precision), partial(Fisher, partial(ConjugateGradient, iterations))
        made.metrics = (*natural_metrics(made.machine, make=make, refresh_every=2),)
        made.step(images())
        rows = [each for metric in made.metrics for each in metric.rows]
        found, errors = [each for net in made.machine.networks for each in joined(net)], []
        for r, g, direction in zip(rows, gradients, found, strict=True):
            given = (each.double() for each in (r.inputs, r.curvature, g))
            errors.append(relative_error(direction, natural_direction(*given, ALPHA)))
        assert (max(errors) < ACCURATE) == (iterations == 20)
    assert [each.low for each in rows] == [low, None, None, low, None]
    assert [error > 1e-5 for error in errors] == [each.low is not None for each in rows]


def test_a_gain_is_measured_without_rounding() -> None:
    """A short step gains what its model predicts; rounded, log p differs by more than it gains."""
    made, damping = learner(LOW), partial(LevenbergMarquardt, every=1)
    both = made.machine.networks
    made.metrics = tuple(NaturalMetric(each, Kronecker(), damping()) for each in both)
    optimizer = torch.optim.SGD(made.machine.parameters(), lr=1e-4)
    for _ in range(3):
        made.step(images())
        optimizer.step()
        made.after_step()
        assert all(abs(each.damping.ratio - 1) < 0.1 for each in made.metrics)
