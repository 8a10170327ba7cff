"""The trust region: no step is longer than max_kl allows, and others stay as they are."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from cases import EXACT, assert_close, make_rule
from directions import (
    BOTH,
    CASE,
    KINDS,
    SEED,
    StepRows,
    dense_blocks,
    directions,
    learner,
    natural_metrics,
    network_of,
)
from torch import Tensor

from nws.learning import WakeSleep
from nws.models import HelmholtzMachine

RATE = 0.7


def step_lengths(
    machine: HelmholtzMachine, x: Tensor, moves: list[Tensor], kind: str = "fisher"
) -> list[float]:
    """Half the squared length of RATE times each network's direction, from dense blocks."""
    rows, lengths = StepRows.draw(machine, x, CASE.samples, CASE.rng(SEED)), []
    for which, move in enumerate(moves):
        network = network_of(machine, which)
        blocks = dense_blocks(network, *rows.of_network(which), kind)
        pairs = zip(itertools.chain(*network.unit_ranges), itertools.chain(*blocks), strict=True)
        lengths.append(
            sum(float(move[unit] @ block @ move[unit]) for unit, block in pairs) * RATE**2 / 2
        )
    return lengths


def bounded(machine: HelmholtzMachine, x: Tensor, **settings: Any) -> list[Tensor]:
    learning = learner(CASE, machine, **settings)
    for metric in learning.metrics:
        metric.learning_rate.fill_(RATE)
    learning.step(x)
    return directions(machine)


@pytest.mark.parametrize("kind", KINDS)
def test_max_kl_bounds_the_length_of_the_step(kind: str) -> None:
    """The length is the exact Fisher one; that of kronecker is by its own matrix."""
    own = "kronecker" if kind == "kronecker" else "fisher"
    machine, x = CASE.machine(), CASE.data()
    free = bounded(machine, x, kind=kind)
    lengths = step_lengths(machine, x, free, own)
    for factor in (0.01, 0.999, 1.001, 100.0):
        for which in BOTH:
            moves = bounded(machine, x, kind=kind, max_kl=factor * lengths[which])
            length = step_lengths(machine, x, moves, own)[which]
            if factor > 1:
                assert torch.equal(moves[which], free[which])
            else:
                assert length == pytest.approx(factor * lengths[which], rel=EXACT)
                assert_close(moves[which], factor**0.5 * free[which])


def test_max_kl_of_a_step_that_goes_nowhere() -> None:
    machine = CASE.machine()
    rule = make_rule("recognition only", CASE.samples)  # the generator's gradient is 0
    WakeSleep(machine, rule, CASE.rng(), natural_metrics(machine, max_kl=0.1)).step(CASE.data())
    assert [bool(each.any()) for each in directions(machine)] == [False, True]
    assert all(each.isfinite().all() for each in directions(machine))
