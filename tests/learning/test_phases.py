"""Which phases a step runs: those that a gradient, a metric or a logged number of it needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from cases import Case, make_rule
from directions import learner

from nws.learning import WakeSleep
from nws.learning.step import STATISTICS
from nws.models import HelmholtzMachine

CASE = Case((4, 3, 2), 3, 4, "binary")
OTHER = Case((4, 3, 2), 1, 6, "binary").data(seed=5)
Phase = tuple[str, int]  # its name and its rows


@pytest.fixture
def phases(monkeypatch: pytest.MonkeyPatch) -> list[Phase]:
    """The phases that are run from now on; a dream that q does not see is a "half dream"."""
    run: list[Phase] = []

    def watch(name: str) -> None:
        original: Callable[..., Any] = getattr(HelmholtzMachine, name)

        def recording(*arguments: Any) -> Any:
            trace = original(*arguments)
            seen = len(trace.recognition_logits) == len(trace.values)
            run.append((name if seen else f"half {name}", len(trace.values)))
            return trace

        monkeypatch.setattr(HelmholtzMachine, name, recording)

    watch("wake")
    watch("dream")
    return run


@pytest.mark.parametrize(
    ("rule_name", "options", "expected"),
    [
        ("rws", {}, [("wake", 12), ("dream", 12)]),
        ("rws", {"dreams": 2}, [("wake", 12), ("dream", 8)]),
        ("bihm", {}, [("wake", 12)]),
        ("bihm", {"dreams": 2}, [("wake", 12)]),
        ("bihm", {"recognition_dream": 0.1}, [("wake", 12), ("dream", 12)]),
    ],
)
def test_a_plain_step_dreams_where_its_gradient_does(
    rule_name: str, options: dict[str, Any], expected: list[Phase], phases: list[Phase]
) -> None:
    rule = make_rule(rule_name, CASE.samples, **options)
    result = WakeSleep(CASE.machine(), rule, CASE.rng()).step(CASE.data())
    assert phases == expected
    loss = float(result.statistics[STATISTICS.index("dream_loss")])
    assert math.isnan(loss) == (len(expected) == 1)
    assert result.layer_losses.isfinite().all() and len(result.layer_losses) == 5


OWN, HALF, ELSE = ("wake", 12), ("half dream", 12), ("wake", 18)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [OWN, HALF, OWN, HALF]),
        ({"generator_rows": "posterior"}, [OWN, OWN]),
        ({"refresh_every": 2}, [OWN, HALF, OWN]),
        ({"batch": "unlabeled"}, [OWN, HALF, ELSE] * 2),
        ({"batch": "unlabeled", "refresh_every": 2}, [OWN, HALF, ELSE, OWN]),
        ({"batch": "other"}, [OWN, ELSE, ("half dream", 18)] * 2),
        ({"batch": "other", "generator_rows": "posterior"}, [OWN, ELSE] * 2),
        ({"batch": "other", "refresh_every": 2}, [OWN, ELSE, ("half dream", 18), OWN]),
    ],
    ids=str,
)
def test_a_rule_without_dreams_dreams_where_a_metric_takes_them_in(
    options: dict[str, Any], expected: list[Phase], phases: list[Phase]
) -> None:
    learning = learner(CASE, CASE.machine(), rule="bihm", **options)
    other = OTHER if options.get("batch", "same") != "same" else None
    for _ in range(2):
        learning.step(CASE.data(), other)
    assert phases == expected
