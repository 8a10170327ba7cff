"""A metric goes on bit for bit from its state, and keeps no phase that it does not need."""

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from cases import recorded
from directions import ALPHA, CASE, KINDS, METRICS, directions, learner, natural_metrics
from solving import saved
from torch import Tensor

from nws.learning import WakeSleep
from nws.models import HelmholtzMachine
from nws.natural import LevenbergMarquardt
from nws.natural.metrics import Adaptive, Diagonal, Empirical, Fisher, Kronecker
from nws.natural.solvers import Cholesky, ConjugateGradient, ShermanMorrison, Woodbury

SCHEDULE = lambda step: 0.9**step  # noqa: E731
FORGETFUL: dict[str, Callable[[], Any]] = {  # without a state of their own
    **{kind: METRICS[kind] for kind in ("fisher", "empirical", "mean")},
    "woodbury": partial(Fisher, Woodbury),
}
PCG = partial(ConjugateGradient, preconditioner_every=3)
MAKE: dict[str, Callable[[], Any]] = {
    **FORGETFUL, "diagonal of 4": partial(Diagonal, memory=4), "kronecker": METRICS["kronecker"],
    "kronecker of low rank": partial(Kronecker, 5, 2, refresh_every=3),
    "kronecker, full": partial(Kronecker, 50, "full", refresh_every=2),
    "adaptive": partial(Adaptive, 2, refresh_every=3),
    "adaptive, all": partial(Adaptive, 9, 2, mean_memory=10, measured=0.5),
    "fisher of 3": partial(Fisher, Cholesky, memory=3),
    "fisher of 2 by pcg": partial(Fisher, partial(PCG, 2), memory=2),
    "empirical by pcg": partial(Empirical, partial(PCG, 2)),
    "pcg": partial(Fisher, ConjugateGradient),
    "pcg, warm, old eigenvectors": partial(Fisher, partial(PCG, rank=2)),
    "running inverse": partial(Fisher, partial(ShermanMorrison, forgetting=0.7)),
}  # fmt: skip


def run(learning: WakeSleep, steps: range) -> Tensor:
    """The directions of each step, one a row; the optimizer has no state."""
    machine, found = learning.machine, []
    optimizer = torch.optim.SGD(machine.parameters(), lr=0.3)
    for step in steps:
        learning.step(CASE.data(seed=step), CASE.data(seed=step + 50))
        found.append(torch.cat(directions(machine)))
        optimizer.step()
        learning.after_step()
    return torch.stack(found)


def continued(
    learning: WakeSleep, make: Callable[[HelmholtzMachine], WakeSleep], fresh: bool = False
) -> WakeSleep:
    """A new learner, with the parameters, draws and metrics' state of another.

    With `fresh` only the step and the damping are taken over.
    """
    machine = CASE.machine(seed=9)
    machine.load_state_dict(learning.machine.state_dict())
    rest = make(machine)
    rest.rng.set_state(learning.rng.get_state())
    for metric, old in zip(rest.metrics, learning.metrics, strict=True):
        metric.load_state_dict(saved(old), fresh_metric=fresh)
    return rest


@pytest.mark.parametrize(("options", "stop"), [
    ({}, 4), ({"adapts": True}, 4), ({"refresh_every": 3}, 3), ({"refresh_every": 3}, 4),
    ({"refresh_every": 4, "max_rows": 5, "batch": "other"}, 5),
])  # fmt: skip
@pytest.mark.parametrize("name", MAKE)
def test_a_metric_goes_on_bit_for_bit_from_its_state(name: str, options: Any, stop: int) -> None:
    """Stopped at a refresh and between two, for three more steps."""
    options = dict(options)
    adapts = options.pop("adapts", False)

    def make(machine: HelmholtzMachine) -> WakeSleep:
        learning = learner(CASE, machine, schedule=SCHEDULE, make=MAKE[name], **options)
        for metric in learning.metrics if adapts else ():
            metric.damping = LevenbergMarquardt(0.1, every=2).to(metric.damping.alpha)
        return learning

    first = make(CASE.machine())
    whole = run(first, range(stop + 3))
    learning = make(CASE.machine())
    run(learning, range(stop))
    rest = continued(learning, make)
    assert torch.equal(whole[stop:], run(rest, range(stop, stop + 3)))
    assert rest.report() == first.report()
    # the control: a fresh metric, which takes in rows at once
    fresh = continued(learning, make, fresh=True)
    remembers = name not in FORGETFUL or stop % options.get("refresh_every", 1) > 0
    assert torch.equal(whole[stop:], run(fresh, range(stop, stop + 3))) != remembers


@pytest.mark.parametrize("fresh", ["damping", "metric", "none"])
def test_what_is_asked_for_afresh_stays_as_it_is(fresh: str) -> None:
    learning = learner(CASE, CASE.machine(), alpha=0.5, refresh_every=3)
    run(learning, range(4))
    (metric, _) = natural_metrics(learning.machine, refresh_every=3)
    flags = {"fresh_damping": fresh == "damping", "fresh_metric": fresh == "metric"}
    metric.load_state_dict(saved(learning.metrics[0]), **flags)
    assert metric.state_dict()["step"] == 4
    assert float(metric.damping.alpha) == (ALPHA if fresh == "damping" else 0.5)
    assert metric.refreshes == (fresh == "metric")  # without rows the next step takes some in
    assert len(metric.rows) == (0 if fresh == "metric" else 4)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", ["adaptive", "diagonal of 4", "fisher of 3", "kronecker"])
def test_fresh_damping_is_at_work_in_the_next_step(name: str, every: int) -> None:
    """Between two refreshes; 1 + alpha times a direction is shorter where alpha is larger."""

    def learning(alpha: float) -> WakeSleep:
        return learner(CASE, CASE.machine(), alpha=alpha, make=MAKE[name], refresh_every=every)

    first, sizes = learning(0.2), []
    run(first, range(4))
    for alpha, flags in ((0.2, {}), (0.2, {"fresh_damping": True}), (5.0, {"fresh_damping": True})):
        rest = learning(alpha)
        rest.machine.load_state_dict(first.machine.state_dict())
        rest.rng.set_state(first.rng.get_state())
        for metric, old in zip(rest.metrics, first.metrics, strict=True):
            metric.load_state_dict(saved(old), **flags)
        sizes.append(float(run(rest, range(4, 5)).norm()))
    assert sizes[0] == sizes[1] and sizes[2] < 0.8 * sizes[0]


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (3, 2)])
def test_another_refresh_every_goes_on_from_the_state(before: int, after: int) -> None:
    learning = learner(CASE, CASE.machine(), refresh_every=before)
    run(learning, range(4))
    rest = continued(learning, lambda m: learner(CASE, m, refresh_every=after))
    assert all(metric.state_dict()["step"] == 4 for metric in rest.metrics)
    assert rest.metrics[0].refreshes == (before == 1 or 4 % after == 0)
    run(rest, range(4, 6))
    assert rest.metrics[0].state_dict()["step"] == 6


def test_a_metric_starts_at_a_runs_step() -> None:
    learning = learner(CASE, CASE.machine(), schedule=SCHEDULE, refresh_every=3)
    for each in learning.metrics:
        each.load_state_dict({"step": 8}, fresh_damping=True, fresh_metric=True)
        assert each.refreshes  # nothing to go on from
    learning.step(CASE.data())
    assert learning.report()["generator/damping"] == pytest.approx(ALPHA * SCHEDULE(8))
    assert learning.metrics[0].refreshes  # step 9


PHASE_KEPT = {  # whether a later step needs the rows
    **{kind: ({"kind": kind}, False) for kind in KINDS},
    "other batch": ({"batch": "other"}, False),
    "trust region": ({"max_kl": 1e-4}, False),
    "refreshed every 2 steps": ({"refresh_every": 2}, True),
}


@pytest.mark.parametrize("adapts", [False, True], ids=["fixed", "levenberg_marquardt"])
@pytest.mark.parametrize(("options", "kept"), PHASE_KEPT.values(), ids=PHASE_KEPT)
def test_a_phase_ends_with_its_step(
    options: dict[str, Any], kept: bool, adapts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a step would have two in memory. An adaptive damping measures the step after it."""
    wakes, dreams = (
        recorded(monkeypatch, HelmholtzMachine, name, lambda trace, *_: weakref.ref(trace))
        for name in ("wake", "dream")
    )
    learning = learner(CASE, CASE.machine(), **options)
    if adapts:
        for metric in learning.metrics:
            metric.damping = LevenbergMarquardt(ALPHA, every=1).to(metric.damping.alpha)
    gc.disable()  # what waits for it is in memory
    try:
        run(learning, range(3))
        alive = [phase for phase in wakes + dreams if phase() is not None]
    finally:
        gc.enable()
    assert min(len(wakes), len(dreams)) >= 3 and bool(alive) == kept
    assert bool(learning.metrics[0].rows) == kept
