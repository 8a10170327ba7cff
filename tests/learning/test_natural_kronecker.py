"""Whole steps with the Kronecker metric: where it is the exact one, and what it looks at."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from cases import assert_close
from directions import BOTH, CASE, SOLVED, directions, learner, relative_error
from torch import Tensor

from nws.models import HelmholtzMachine
from nws.natural import Metric, Rows
from nws.natural.metrics import Kronecker

EXACT_METRIC = partial(Kronecker, memory=1, rank="full", refresh_every=1)


def machine_of(weight: float) -> HelmholtzMachine:
    """Weights times a factor; at 0 the curvature of a unit is that of its bias, in all rows."""
    machine = CASE.machine()
    for network in machine.networks:
        for layer in network.layers:
            layer.weight.data.mul_(weight)
    return machine


@pytest.mark.parametrize("rows", ["model", "posterior"])
@pytest.mark.parametrize(("weight", "same"), [(0.0, True), (1.0, False)])
def test_it_is_the_exact_metric_where_curvature_does_not_depend_on_parents(
    weight: float, same: bool, rows: str
) -> None:
    """E[A'' h h^T] = E[A''] E[h h^T] where A'' is constant; elsewhere it is not (the control)."""
    machine, found = machine_of(weight), []
    options: dict[str, Any] = {"generator_rows": rows}
    for settings in ({"make": EXACT_METRIC}, {"kind": "fisher"}):
        learning = learner(CASE, machine, **settings, **options)
        for seed in range(3):  # no step of the optimizer: the machine stays as it is
            learning.step(CASE.data(seed=seed))
        found.append(directions(machine))
    for which in BOTH:
        far = relative_error(found[0][which], found[1][which])
        assert (far < SOLVED) if same else (far > 1e-3), far


class ByDirection(Metric):
    """The metric without its method in place."""

    def __init__(self, metric: Kronecker) -> None:
        self.metric = metric

    def update(self, rows: Sequence[Rows], alpha: Tensor) -> None:
        self.metric.update(rows, alpha)

    def direction(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        return self.metric.direction(gradients)


@pytest.mark.parametrize("options", [{}, {"max_kl": 1e9}], ids=["in place", "max_kl"])
def test_in_place_or_by_directions_a_step_is_the_same(options: dict[str, Any]) -> None:
    machine, found = CASE.machine(), []
    for make in (Kronecker, lambda: ByDirection(Kronecker())):
        learner(CASE, machine, make=make, **options).step(CASE.data())
        found.append(directions(machine))
    for one, other in zip(*found, strict=True):
        assert_close(one, other)
