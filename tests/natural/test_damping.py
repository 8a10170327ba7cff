"""Tikhonov damping: constant, on a schedule, and adapted by Levenberg-Marquardt."""

import itertools
import math
from functools import partial
from typing import Any

import pytest
import reference
import torch
from cases import EACH_UNITS, EXACT, RULES, Case, Units, exponent_of
from directions import BOTH, SEED, StepRows, dense_blocks, directions, learner, network_of
from torch import Tensor

from nws.errors import UserError
from nws.learning import WakeSleep
from nws.models import HelmholtzMachine
from nws.natural import Damping, LevenbergMarquardt
from nws.schedules import exponential, linear

# alpha is kept as float64 until it meets a network: a unit in its last place, relative.
ROUNDED = 2**-52
CASE = Case((3, 4, 2), 3, 4, "binary")
Rows = tuple[reference.Bits, Tensor]  # states, and their weights


def alphas(damping: Damping, steps: int) -> list[float]:
    values = []
    for step in range(steps):
        damping.start_step(step)
        values.append(damping.report()["damping"])
    return values


@pytest.mark.parametrize(("schedule", "expected"), [
    (None, [0.5, 0.5, 0.5]),
    (partial(exponential, half_life=2), [0.5, 0.5 * 0.5**0.5, 0.25, 0.5 * 0.5**1.5, 0.125]),
    (partial(linear, total_steps=2, final=3.0), [0.5, 1.0, 1.5]),  # upwards
])  # fmt: skip
def test_schedules_multiply_the_value(schedule: Any, expected: list[float]) -> None:
    assert alphas(Damping(0.5, schedule), len(expected)) == pytest.approx(expected, rel=2 * ROUNDED)
    last, again = Damping(0.5, schedule), Damping(0.3)
    last.start_step(len(expected) - 1)  # in closed form: no step needs those before it
    assert last.report()["damping"] == pytest.approx(expected[-1], rel=2 * ROUNDED)
    again.load_state_dict(last.state_dict())
    assert again.report() == last.report()


def test_alpha_must_stay_above_zero_and_has_the_dtype_of_the_network() -> None:
    damping = Damping(0.5, partial(linear, total_steps=4))
    assert alphas(damping, 4) == [0.5, 0.375, 0.25, 0.125]
    with pytest.raises(UserError, match=r"damping at step 4 must be a number above 0 .*, got 0\.0"):
        damping.start_step(4)
    assert float(Damping(0.2).to(torch.zeros(1, dtype=torch.float64)).alpha) == 0.2
    assert Damping(0.5).to(torch.zeros(1)).alpha.dtype == torch.float32


# --- Levenberg-Marquardt --------------------------------------------------------------------------


@pytest.mark.parametrize(("ratio", "expected"), [
    (0.76, 0.4), (5.0, 0.4), (0.75, 0.5), (0.5, 0.5), (0.25, 0.5), (0.24, 0.625),
    (0.0, 0.625), (-3.0, 0.625), (math.inf, 0.4), (-math.inf, 0.625),
])  # fmt: skip
def test_alpha_shrinks_at_good_ratios_and_grows_at_bad_ones(ratio: float, expected: float) -> None:
    damping, again = LevenbergMarquardt(0.5, factor=0.8), LevenbergMarquardt(0.3)
    damping.adapt(ratio)
    alpha = pytest.approx(expected, rel=2 * ROUNDED)
    assert damping.report() == {"damping": alpha, "reduction_ratio": ratio}
    again.load_state_dict(damping.state_dict())
    assert again.report() == damping.report() and torch.equal(again.alpha, damping.alpha)


def test_gains_make_a_ratio_where_they_say_something_and_alpha_stays_within_its_bounds() -> None:
    gains = {(0.3, 0.6): [0.5], (-0.3, 0.6): [-0.5], (-0.3, -0.1): [-math.inf], (0.3, -0.1): []}
    for given, ratios in gains.items():
        damping = Recorded(0.5)
        damping.compare(*given)
        assert damping.ratios == ratios
    damping = Recorded(0.5, factor=0.5, minimum=0.2, maximum=1.5)
    for ratio, values in {1.0: [0.25, 0.2, 0.2], 0.0: [0.4, 0.8, 1.5, 1.5]}.items():
        for value in values:
            damping.adapt(ratio)
            assert damping.report()["damping"] == pytest.approx(value, rel=2 * ROUNDED)


class Recorded(LevenbergMarquardt):
    """Keeps the ratios that it is given."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.ratios: list[float] = []

    def adapt(self, ratio: float) -> None:
        self.ratios.append(ratio)
        super().adapt(ratio)


def adaptive(
    case: Case, rule: str = "rws", **options: Any
) -> tuple[HelmholtzMachine, WakeSleep, list[Recorded]]:
    """A learner whose two networks have a recording damping each."""
    learning = learner(case, machine := case.machine(), rule)
    for metric in learning.metrics:
        damping = Recorded(0.25, **{"every": 1, **options})
        metric.damping = damping.to(metric.damping.alpha)
    return machine, learning, [metric.damping for metric in learning.metrics]


def one_step(machine: HelmholtzMachine, learning: WakeSleep, x: Tensor, rate: float) -> None:
    learning.step(x)
    torch.optim.SGD(machine.parameters(), lr=rate).step()
    learning.after_step()


def expected_ratio(
    old: reference.Network, new: reference.Network, terms: list[Rows], fisher_rows: Rows
) -> float:
    """(J(new) - J(old)) / (g . delta - delta . F delta / 2), J = sum_k w_k log p(rows_k)."""
    actual = sum(float((new.log_prob(bits) - old.log_prob(bits)) @ w) for bits, w in terms)
    delta = new.theta - old.theta
    slope = sum(float(old.gradient(bits, weights) @ delta) for bits, weights in terms)
    blocks = itertools.chain(*dense_blocks(old, *fisher_rows))
    pairs = zip(itertools.chain(*old.unit_ranges), blocks, strict=True)
    length = sum(float(delta[unit] @ block @ delta[unit]) for unit, block in pairs)
    return actual / (slope - length / 2)


@pytest.mark.parametrize("soft", [False, True], ids=["bits", "intensities"])
@pytest.mark.parametrize("rule_name", [name for name in RULES if name != "recognition only"])
@pytest.mark.parametrize("units", EACH_UNITS)
def test_the_ratio_is_of_actual_to_predicted_gain(units: Units, rule_name: str, soft: bool) -> None:
    case = Case((3, 4, 2), 3, 4, units)
    machine, learning, dampings = adaptive(case, rule_name)
    x, rule = case.data(soft), learning.rule
    states = StepRows.draw(machine, x, case.samples, case.rng(SEED), exponent_of(rule))
    weights, uniform = states.importance, states.uniform
    centred = weights - uniform if rule.baseline else weights
    q_wake = (states.wake, rule.recognition_wake * centred)
    q_dream = (states.dream, rule.recognition_dream * uniform)
    terms = [[(states.wake, rule.generator_wake * weights)], [q_wake, q_dream]]
    old = [network_of(machine, which) for which in BOTH]
    one_step(machine, learning, x, rate=0.5)
    for i, damping in enumerate(dampings):
        new, rows = network_of(machine, i), states.of_network(i)
        expected = expected_ratio(old[i], new, terms[i], rows)
        assert damping.ratios == [pytest.approx(expected, rel=100 * EXACT)]
        # The control: at this rate the gain differs from that of the quadratic model.
        assert abs(expected - 1) > 1e-3


def test_each_network_has_a_damping_of_its_own() -> None:
    """Here the step is far too long for the generator alone."""
    machine, learning, (generator, recognition) = adaptive(CASE)
    learning.rng.manual_seed(3)
    one_step(machine, learning, CASE.data(seed=3), rate=3.0)
    assert generator.ratios[0] < 0.25 and recognition.ratios[0] > 0.75
    assert learning.report() == {
        "generator/damping": pytest.approx(0.25 / 0.9),
        "generator/reduction_ratio": generator.ratios[0],
        "recognition/damping": pytest.approx(0.25 * 0.9),
        "recognition/reduction_ratio": recognition.ratios[0],
    }


def test_the_next_step_is_damped_by_the_new_alpha() -> None:
    machine, learning, dampings = adaptive(CASE, factor=0.5)
    one_step(machine, learning, CASE.data(), rate=1e-12)
    assert [float(damping.alpha) for damping in dampings] == [0.125, 0.125]
    rng = learning.rng.get_state()
    learning.step(CASE.data(seed=5))
    actual = directions(machine)
    for alpha, same in [(0.125, True), (0.25, False)]:
        again = learner(CASE, machine, alpha=alpha)
        again.rng.set_state(rng)
        again.step(CASE.data(seed=5))
        for gradient, other in zip(actual, directions(machine), strict=True):
            assert torch.equal(gradient, other) == same


def test_measuring_changes_no_direction_and_no_draw_and_is_done_every_so_many_steps() -> None:
    runs = []
    for every, measured in ((1, 7), (3, 3), (1000, 1)):
        machine, learning, dampings = adaptive(CASE, every=every, minimum=0.25, maximum=0.25)
        for step in range(7):
            one_step(machine, learning, CASE.data(seed=step), rate=0.1)
        assert [len(damping.ratios) for damping in dampings] == [measured] * 2
        runs.append([network_of(machine, which).theta for which in BOTH])
    assert all(torch.equal(runs[0][i], run[i]) for run in runs for i in BOTH)
