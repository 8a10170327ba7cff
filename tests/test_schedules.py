"""Schedules: values at the start, in the middle, at the end, after it, and in a warm-up."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from nws.schedules import constant, cosine, exponential, linear, warmup_stable_decay

Schedule = Callable[[int], float]


@pytest.mark.parametrize(("schedule", "values"), [
    (constant, {0: 1, 7: 1, 10**9: 1}),
    (partial(linear, total_steps=100), {0: 1, 25: 0.75, 50: 0.5, 100: 0, 101: 0, 10**9: 0}),
    (partial(linear, total_steps=100, final=0.2), {0: 1, 50: 0.6, 100: 0.2, 1000: 0.2}),
    (partial(cosine, total_steps=100),
     {0: 1, 25: (1 + 0.5**0.5) / 2, 50: 0.5, 75: (1 - 0.5**0.5) / 2, 100: 0, 500: 0}),
    (partial(cosine, total_steps=100, final=0.2), {0: 1, 50: 0.6, 100: 0.2, 1000: 0.2}),
    (partial(warmup_stable_decay, total_steps=100),
     {0: 1, 50: 1, 80: 1, 85: 0.75, 90: 0.5, 99: 0.05, 100: 0, 10**9: 0}),
    (partial(warmup_stable_decay, total_steps=100, decay=0.5, final=0.2),
     {0: 1, 50: 1, 75: 0.6, 100: 0.2, 10**9: 0.2}),
    (partial(warmup_stable_decay, total_steps=100, decay=0), {0: 1, 99: 1, 100: 1, 101: 1}),
    (partial(exponential, half_life=10), {0: 1, 10: 0.5, 20: 0.25, 40: 0.0625}),
    (partial(exponential, half_life=10, final=0.2), {0: 1, 10: 0.6, 20: 0.4, 10**6: 0.2}),
])  # fmt: skip
def test_values(schedule: Schedule, values: dict[int, float]) -> None:
    assert {step: schedule(step) for step in values} == pytest.approx(values, abs=1e-12)


@pytest.mark.parametrize(
    "schedule",
    [constant, *(partial(each, total_steps=100) for each in (linear, cosine, warmup_stable_decay))],
)
def test_warm_up_rises_in_equal_steps_to_the_schedule_itself(schedule: Any) -> None:
    for step in range(4):
        assert schedule(step, warmup_steps=4) == pytest.approx((step + 1) / 5 * schedule(step))
    for step in (4, 5, 50, 100, 200):
        assert schedule(step, warmup_steps=4) == pytest.approx(schedule(step))
