"""Whole steps with the Kronecker metric: where it is the exact one, and what it looks at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from cases import assert_close, make_rule
from directions import ALPHA, BOTH, CASE, SEED, SOLVED, directions, learner, relative_error
from torch import Tensor

from nws.learning import WakeSleep
from nws.learning.rows import Phase
from nws.models import HelmholtzMachine
from nws.natural import LevenbergMarquardt, Metric, Rows
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


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"precondition_": 2}),
        ({"max_kl": 0.1}, {"precondition_": 2}),
        ({"damping": LevenbergMarquardt(0.1, every=1)}, {"direction": 2}),
        ({"kind": "fisher"}, {}),
    ],
    ids=["nothing", "max_kl", "damping that measures", "another metric"],
)
def test_gradients_change_in_place_where_nothing_asks_for_directions(
    options: dict[str, Any], expected: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()
    for name in ("direction", "precondition_"):
        original = getattr(Kronecker, name)

        def counted(*given: Any, original: Any = original, name: str = name) -> Any:
            calls[name] += 1
            return original(*given)

        monkeypatch.setattr(Kronecker, name, counted)
    options = {"kind": "kronecker"} | options
    damping = options.pop("damping", None)
    learning = learner(CASE, CASE.machine(), **options)
    for metric in learning.metrics:
        metric.damping = damping or metric.damping
    learning.step(CASE.data())
    assert dict(calls) == expected


class Halving(Metric):
    """A metric by the documented form of the method in place: it halves the gradients."""

    def __init__(self) -> None:
        self.longest: list[Tensor | None] = []  # squared length: where `shorten` begins to shorten

    def update(self, rows: Sequence[Rows], alpha: Tensor) -> None:
        pass

    def direction(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        raise AssertionError

    def precondition_(
        self, weights: Sequence[Tensor], biases: Sequence[Tensor], scale: Tensor,
        shorten: Callable[[Tensor], Tensor] | None = None,
    ) -> bool:  # fmt: skip
        long = scale.new_tensor(1e9)
        self.longest.append(None if shorten is None else shorten(long).square() * long)
        for weight, bias in zip(weights, biases, strict=True):
            assert bias.shape == weight.shape[:1]
            for gradient in (weight, bias):
                gradient.mul_(scale / 2)
        return True


@pytest.mark.parametrize("max_kl", [None, 0.3])
def test_a_metric_of_ones_own_may_change_gradients_in_place(max_kl: float | None) -> None:
    """Told the largest squared length, 2 max_kl / lr^2, where there is a trust region."""
    plain, machine = CASE.machine(), CASE.machine()
    WakeSleep(plain, make_rule("rws", CASE.samples), CASE.rng(SEED)).step(CASE.data())
    learning = learner(CASE, machine, make=Halving, max_kl=max_kl)
    for metric in learning.metrics:
        metric.learning_rate.fill_(0.5)
    learning.step(CASE.data())
    for one, other in zip(directions(machine), directions(plain), strict=True):
        assert_close(one, other * (1 + ALPHA) / 2)
    for metric in learning.metrics:
        (longest,) = metric.metric.longest  # type: ignore[attr-defined]
        if max_kl is None:
            assert longest is None
        else:
            assert_close(longest, torch.tensor(2 * max_kl / 0.5**2, dtype=longest.dtype))


def test_rows_are_copied_at_a_refresh_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary step makes no layer's inputs, weights or curvature, and no squared errors."""
    calls: list[str] = []
    for name in ("inputs", "curvature", "weights", "squared_errors"):
        original = getattr(Phase, name)

        def counted(*given: Any, original: Any = original, name: str = name) -> Any:
            calls.append(name)
            return original(*given)

        monkeypatch.setattr(Phase, name, counted)
    learning = learner(CASE, CASE.machine(), make=partial(Kronecker, refresh_every=3))
    layers = 3 + 3  # with parents
    for step in range(7):
        calls.clear()
        learning.step(CASE.data(seed=step))
        due = Counter(inputs=layers, weights=layers) if step % 3 == 0 else Counter()
        assert Counter(calls) == due, step
    learner(CASE, CASE.machine(), kind="fisher").step(CASE.data())
    assert Counter(calls)["curvature"] > 0  # the control: it sees what another metric makes
