"""One step of a learning rule: its gradients against autograd, its statistics, its manners."""

import dataclasses
import math
from functools import partial
from typing import Any

import cases
import pytest
import reference
import torch
from cases import EXACT, Case, apart, assert_close, exponent_of, make_rule, recorded, seeded
from directions import SEED, natural_metrics
from directions import directions as gradients
from torch import Tensor

from nws.errors import UserError
from nws.learning import Rule, StepResult, WakeSleep, tempered
from nws.learning.step import STATISTICS
from nws.models import HelmholtzMachine
from nws.natural import LevenbergMarquardt

SMALL = Case((3, 4, 2), 4, 3, "bipolar")
each_case = pytest.mark.parametrize("case", cases.CASES)
each_units = pytest.mark.parametrize("units", cases.EACH_UNITS)


def step(case: Case, machine: HelmholtzMachine, rule: Rule, x: Tensor) -> StepResult:
    """A step leaves parameters and batch alone, and no autograd graph."""
    before = [each.detach().clone() for each in (x, *machine.parameters())]
    result = WakeSleep(machine, rule, case.rng(SEED)).step(x)
    assert all(map(torch.equal, before, (x, *machine.parameters())))
    assert not result.statistics.requires_grad and not result.layer_losses.requires_grad
    for each in machine.parameters():
        assert each.requires_grad and each.grad is not None and each.grad.shape == each.shape
        assert not each.grad.requires_grad and each.grad.grad_fn is None
    return result


def traces_of_step(
    case: Case, machine: HelmholtzMachine, rule: Rule, x: Tensor, sizes: list[int] | None = None
) -> tuple[reference.Bits, reference.Bits]:
    """The states of a step seeded as above, in parts of these sizes: wake, then the dreams."""
    rng, parts = case.rng(SEED), []
    dreams = rule.samples if rule.dreams is None else rule.dreams
    for part in x.split(sizes or [len(x)]):
        wake = reference.bits_of(machine.wake(part, rule.samples, rng))
        some = bool(rule.recognition_dream) or sizes is None
        dream = machine.dream(len(part) * dreams, rng) if some else None
        parts.append((wake, wake if dream is None else reference.bits_of(dream)))
    phases = zip(*parts, strict=True)
    return tuple([torch.cat(layer) for layer in zip(*phase, strict=True)] for phase in phases)


def assert_step(
    machine: HelmholtzMachine, rule: Rule, result: StepResult, wake: reference.Bits,
    dream: reference.Bits, bound: float, weights: tuple[Tensor, Tensor] | None = None,
) -> None:  # fmt: skip
    """Gradients, statistics and losses are those of the rule's objective on these states."""
    expected = reference.rule_gradients(machine, rule, wake, dream, weights)
    for actual, gradient in zip(gradients(machine), expected, strict=True):
        assert_close(actual, gradient, bound)
    p, q = reference.generator(machine), reference.recognition(machine)
    if weights is None:
        own = reference.importance_weights(machine, wake, rule.samples, exponent_of(rule))
        weights = own, own
    of_p, points = weights[0].flatten(), len(weights[0])
    ratios = (p.log_prob(wake) - q.log_prob(wake)).exp().view(points, -1)
    seen = dream if rule.recognition_dream else wake
    dream_loss = -q.log_prob(dream).mean() if rule.recognition_dream else torch.tensor(math.nan)
    numbers = {
        "wake_loss": -of_p @ p.log_prob(wake) / points,
        "dream_loss": dream_loss,
        "log_likelihood": ratios.mean(1).log().mean(),
        "ess": (ratios.sum(1) ** 2 / (ratios**2).sum(1)).mean(),
    }
    assert tuple(numbers) == STATISTICS
    torch.testing.assert_close(
        result.statistics.double().cpu(), torch.stack([each.double() for each in numbers.values()]),
        rtol=bound, atol=bound, equal_nan=True,
    )  # fmt: skip
    layers = [-p.layer_log_probs(wake) @ of_p / points, -q.layer_log_probs(seen).mean(1)]
    assert_close(result.layer_losses, torch.cat(layers), bound)


# rule, as many dreams as are asked for, intensities in place of bits
STEPS: list[tuple[str, int | None, bool]] = [
    *((name, None, soft) for name in cases.RULES for soft in (False, True)),
    *((name, dreams, False) for name in ("ws", "rws") for dreams in (1, 2, 7)),
]


@pytest.mark.parametrize(("name", "dreams", "soft"), STEPS)
@each_case
def test_a_step_is_autograd_of_its_objective(case: Case, name: str, dreams: Any, soft: Any) -> None:
    machine, x = case.machine(), case.data(soft)
    rule = make_rule(name, case.samples, dreams=dreams)
    result = step(case, machine, rule, x)
    wake, dream = traces_of_step(case, machine, rule, x)
    assert len(dream[0]) == (dreams or case.samples) * case.batch
    assert_step(machine, rule, result, wake, dream, case.tolerance)
    if dreams in (2, 7):  # the control: the mean of some of the dreams is another
        wrong = reference.rule_gradients(machine, rule, wake, [layer[:-1] for layer in dream])[1]
        assert not torch.allclose(gradients(machine)[1].double(), wrong, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rule_name", ["rws", "bihm"])
@pytest.mark.parametrize(("rows", "sizes"), [(1, [1, 1, 1, 1, 1]), (8, [2, 2, 1]), (20, [5])])
def test_a_batch_in_parts_gives_the_mean_of_all_of_it(
    rule_name: str, rows: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most so many rows at once; each part has its phases, in this order of draws."""
    case = Case((3, 4, 2), 4, 5, "bipolar")
    most = rows * sum(case.sizes)
    monkeypatch.setattr("nws.learning.step.parts_of", lambda states, _: math.ceil(states / most))
    machine, x, rule = case.machine(), case.data(), make_rule(rule_name, case.samples)
    result = step(case, machine, rule, x)
    wake, dream = traces_of_step(case, machine, rule, x, sizes)
    assert_step(machine, rule, result, wake, dream, EXACT)
    some = ([layer[:4] for layer in each] for each in (wake, dream))  # the control: a part
    first = reference.rule_gradients(machine, rule, *some)
    assert not torch.allclose(gradients(machine)[0], first[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("baseline", [False, True])
@each_case
def test_both_networks_follow_weights_of_their_own(case: Case, baseline: bool) -> None:
    """A weighting sees log p and log q of each sample, and its weights are no softmax."""
    machine, x = case.machine(), case.data(soft=True)
    seen: list[tuple[Tensor, Tensor]] = []

    def spy(log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
        seen.append((log_p, log_q))
        return apart(log_p, log_q)

    rule = Rule("apart", case.samples, spy, 1.3, 0.4, 2.1, baseline)
    seen.clear()  # what the rule tried it on
    result = step(case, machine, rule, x)
    wake, dream = traces_of_step(case, machine, rule, x)
    plain = (reference.generator(machine), reference.recognition(machine))
    log_p, log_q = (network.log_prob(wake).view(case.batch, case.samples) for network in plain)
    of_p = reference.importance_weights(machine, wake, case.samples, 1.0)
    weights = of_p, (log_p - log_q).sin() + 0.3  # those of `apart`, by the reference
    assert_step(machine, rule, result, wake, dream, case.tolerance, weights)
    for actual, expected in zip(seen[0], (log_p, log_q), strict=True):
        assert_close(actual, expected, case.tolerance)


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("rws", {"exponent": 0.0}), ("rws", {"exponent": 0.5}), ("ws", {"exponent": 1.0}),
    ("rws", {"baseline": False}), ("rws without baseline", {"baseline": True}),
    ("rws", {"generator_wake": 0.5}), ("rws", {"generator_wake": -1.0}),
    ("rws", {"recognition_wake": 1.0}), ("rws", {"recognition_dream": 1.0}),
    ("ws", {"recognition_wake": 0.5}),
]  # fmt: skip


@pytest.mark.parametrize(("rule_name", "wrong"), WRONG)
@each_units
def test_gradients_of_another_rule_fail_the_same_comparison(
    rule_name: str, wrong: dict[str, Any], units: Any
) -> None:
    """Negative controls, by at least 10,000 times the tolerance."""
    case = dataclasses.replace(SMALL, units=units)
    machine, x, rule = case.machine(), case.data(), make_rule(rule_name, case.samples)
    step(case, machine, rule, x)
    if "exponent" in wrong:
        wrong = {"weighting": partial(tempered, **wrong)}
    other = Rule.__new__(Rule)  # unchecked: a negative factor is no rule
    other.__dict__.update({f.name: getattr(rule, f.name) for f in dataclasses.fields(rule)} | wrong)
    states = traces_of_step(case, machine, rule, x)
    expected = torch.cat(reference.rule_gradients(machine, other, *states))
    with pytest.raises(AssertionError):
        assert_close(torch.cat(gradients(machine)), expected, 1e4 * EXACT)


# --- bidirectional machines: the gradient of log p~*(x) = 2 log sum_h sqrt(p(x, h) q(h | x)) ------


@pytest.mark.parametrize("baseline", [False, True])
@each_case
def test_bihm_follows_the_gradient_of_its_estimated_log_p_tilde(case: Case, baseline: bool) -> None:
    """Exactly so without the baseline; with it, 1/K of each sample's grad log q is taken off."""
    machine, x, baseline = case.machine(), case.data(), baseline and case.samples > 1
    rule = make_rule("bihm", case.samples, baseline=baseline)
    step(case, machine, rule, x)
    wake, _ = traces_of_step(case, machine, rule, x)
    p_part, q_part = reference.p_tilde_gradients(machine, rule.samples, wake)
    if baseline:
        uniform = torch.full((len(wake[0]),), 1 / len(wake[0]), dtype=torch.float64)
        q_part = q_part - reference.recognition(machine).gradient(wake, uniform)
    for found, expected in zip(gradients(machine), (p_part, q_part), strict=True):
        assert_close(found, -expected, case.tolerance)


@each_units
def test_a_learner_keeps_nothing_of_a_batch_but_its_rng(units: str) -> None:
    """Batches of changing size, as an epoch's last, in one learner and each in one of its own."""
    case, rule = Case((4, 3, 2), 3, 4, units), make_rule("rws", 3)  # type: ignore[arg-type]
    machine, x = case.machine(), case.data(soft=True)
    rng, other_rng = seeded(SEED), seeded(SEED)
    learner = WakeSleep(machine, rule, rng)
    for batch in (x, x.flip(0), x[:2], x):
        learner.step(batch)
        kept = gradients(machine)
        WakeSleep(machine, rule, other_rng).step(batch)
        assert all(map(torch.equal, gradients(machine), kept))


@pytest.mark.parametrize(("rule_name", "options", "dreams"), [
    ("rws", None, [12]), ("bihm", None, []), ("bihm", {}, [12] * 4),
    ("bihm", {"generator_rows": "posterior"}, []), ("bihm", {"refresh_every": 2}, [12] * 2),
    ("bihm", {"kind": "adaptive"}, [12] * 3), ("bihm", {"batch": "other"}, [8] * 4),
    ("bihm", {"kind": "adaptive", "max_kl": 1}, [12] * 4),
    ("bihm", {"batch": "unlabeled"}, [12] * 4),
])  # fmt: skip
def test_dreams_are_drawn_where_a_gradient_or_a_metric_takes_them_in(
    rule_name: str, options: Any, dreams: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In four steps of 3 images, with another batch of 2."""
    calls, machine = recorded(monkeypatch, HelmholtzMachine, "dream"), SMALL.machine()
    metrics = [] if options is None else natural_metrics(machine, **options)
    learner = WakeSleep(machine, make_rule(rule_name, SMALL.samples), SMALL.rng(), metrics)
    x = SMALL.data()
    for _ in range(1 if options is None else 4):
        result = learner.step(x, x[:2] if "batch" in (options or {}) else None)
    assert [rows for _, rows, *_ in calls] == dreams
    loss = result.statistics[STATISTICS.index("dream_loss")]
    assert bool(loss.isnan()) == (rule_name == "bihm")


def test_a_length_for_a_later_step_is_measured_on_dreams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of step 15 serve step 18, which measures; the metric takes in those of 0, 5 and 10."""
    calls, machine = recorded(monkeypatch, HelmholtzMachine, "dream"), SMALL.machine()
    metrics = natural_metrics(machine, kind="adaptive", refresh_every=5.0)
    for metric in metrics:
        metric.damping = LevenbergMarquardt(0.1, every=3).to(metric.damping.alpha)
    learner = WakeSleep(machine, make_rule("bihm", SMALL.samples), SMALL.rng(), metrics)
    for _ in range(16):
        learner.step(SMALL.data())
        learner.after_step()
    assert [rows for _, rows, *_ in calls] == [12] * 4
    with pytest.raises(UserError, match="intensities in"):  # of another batch too
        learner.step(SMALL.data(), 255 * SMALL.data())
