"""One step of a learning rule: its gradients against autograd, its importance weights, its statistics, its manners."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from cases import (
    CASES,
    EACH_UNITS,
    EXACT,
    FLOAT32,
    RULES,
    Case,
    assert_close,
    make_rule,
    random_machine,
    seeded,
)
from omegaconf import OmegaConf
from torch import Tensor

from nws.errors import UserError
from nws.learning.wake_sleep import STATISTICS, Rule, StepResult, WakeSleep, importance_weights
from nws.models.helmholtz import HelmholtzMachine
from nws.models.likelihood import effective_sample_size

SEED = 11


def step(case: Case, machine: HelmholtzMachine, rule: Rule, x: Tensor) -> StepResult:
    return WakeSleep(machine, rule, case.rng(SEED)).step(x)


def traces_of_step(
    case: Case, machine: HelmholtzMachine, rule: Rule, x: Tensor
) -> tuple[reference.Bits, reference.Bits]:
    """The states that a step seeded as above works with: wake comes first, then as many rows of dreams."""
    rng = case.rng(SEED)
    wake = machine.wake(x, rule.samples, rng)
    return reference.bits_of(wake), reference.bits_of(machine.dream(len(wake.bits), rng))


def gradients(machine: HelmholtzMachine) -> tuple[Tensor, Tensor]:
    p, q = (reference.flatten(network.layers, gradients=True) for network in machine.networks)
    return p, q


# --- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("soft", [False, True], ids=["bits", "intensities"])
@pytest.mark.parametrize("rule_name", RULES)
@pytest.mark.parametrize("case", CASES)
def test_gradients_of_a_step_are_autograds_of_the_rules_objective(
    case: Case, rule_name: str, soft: bool
) -> None:
    machine, x, rule = case.machine(), case.data(soft), make_rule(rule_name, case.samples)
    step(case, machine, rule, x)
    expected = reference.rule_gradients(machine, rule, *traces_of_step(case, machine, rule, x))
    for actual, gradient in zip(gradients(machine), expected, strict=True):
        assert_close(actual, gradient, case.tolerance)


@pytest.mark.parametrize(
    ("rule_name", "wrong"),
    [
        ("rws", {"exponent": 0.0}),  # samples not weighted
        ("rws", {"exponent": 0.5}),  # another rule's weights
        ("ws", {"exponent": 1.0}),
        ("rws", {"baseline": False}),
        ("rws without baseline", {"baseline": True}),
        ("rws", {"generator_wake": 0.5}),
        ("rws", {"generator_wake": -1.0}),
        ("rws", {"recognition_wake": 1.0}),
        ("rws", {"recognition_dream": 1.0}),
        ("ws", {"recognition_wake": 0.5}),
    ],
)
@pytest.mark.parametrize("units", EACH_UNITS)
def test_gradients_of_another_rule_fail_the_same_comparison(
    rule_name: str, wrong: dict[str, Any], units: str
) -> None:
    """Negative controls, by at least 10,000 times the tolerance."""
    case = Case((3, 4, 2), 4, 3, units)
    machine, x, rule = case.machine(), case.data(), make_rule(rule_name, case.samples)
    step(case, machine, rule, x)
    other = Rule.__new__(Rule)  # unchecked: a negative factor is no rule
    other.__dict__.update(dataclasses.asdict(rule) | wrong)
    wake, dream = traces_of_step(case, machine, rule, x)
    expected = torch.cat(reference.rule_gradients(machine, other, wake, dream))
    with pytest.raises(AssertionError):
        assert_close(torch.cat(gradients(machine)), expected, 1e4 * EXACT)


def test_the_unnormalised_weights_fail_the_same_comparison() -> None:
    case, rule = Case((3, 4, 2), 4, 3, "binary"), make_rule("rws", 4)
    machine, x = case.machine(), case.data()
    step(case, machine, rule, x)
    wake, _ = traces_of_step(case, machine, rule, x)
    p, q = reference.generator(machine), reference.recogniser(machine)
    ratios = (p.log_prob(wake) - q.log_prob(wake)).exp()
    assert not torch.allclose(
        gradients(machine)[0], -p.gradient(wake, ratios / len(ratios)), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("units", EACH_UNITS)
def test_generators_gradient_is_that_of_the_log_likelihood_where_recognition_is_exact(
    units: str,
) -> None:
    """With q(h|x) = p(h|x), Fisher's identity: E_q[grad log p(x, h)] = grad log p(x). Here over K = 40,000 samples."""
    samples, machine = 40_000, random_machine((3, 1), units)
    x = torch.tensor([[1.0, 0, 1]], dtype=torch.float64)
    log_odds = reference.exact_posterior(machine, x[0]).logit()[1]  # h = 0 and 1, in this order
    torch.nn.init.zeros_(machine.recognition.layers[0].weight)
    torch.nn.init.constant_(machine.recognition.layers[0].bias, log_odds.item())
    WakeSleep(machine, make_rule("rws", samples), seeded(SEED)).step(x)

    p, states = reference.generator(machine), reference.every_hidden_state(machine, x[0])
    theta = p.theta.clone().requires_grad_()
    (expected,) = torch.autograd.grad(p.log_prob(states, theta).logsumexp(0), theta)
    # each entry of grad log p(x, h) takes two values, at most 2 apart: its mean has a standard error below 1 / sqrt(K)
    assert (gradients(machine)[0] + expected).abs().max() < 5 / samples**0.5


# --- bihm: the gradient of log p~*(x) = 2 log sum_h sqrt(p(x, h) q(h | x)) -----------------------


@pytest.mark.parametrize("case", CASES)
def test_bihm_follows_the_gradient_of_its_estimate_of_log_p_tilde(case: Case) -> None:
    """Exactly so without the baseline; with it, 1/K of each sample's grad log q is taken off."""
    machine, x = case.machine(), case.data()
    for baseline in (False, True):
        rule = make_rule("bihm", case.samples, baseline=baseline)
        step(case, machine, rule, x)
        wake, _ = traces_of_step(case, machine, rule, x)
        p_part, q_part = reference.p_tilde_gradients(machine, rule.samples, wake)
        if baseline:
            uniform = torch.full((len(wake[0]),), 1 / len(wake[0]), dtype=torch.float64)
            q_part = q_part - reference.recogniser(machine).gradient(wake, uniform)
        assert_close(gradients(machine)[0], -p_part, case.tolerance)
        assert_close(gradients(machine)[1], -q_part, case.tolerance)


@pytest.mark.parametrize("units", EACH_UNITS)
def test_bihm_goes_to_the_exact_gradient_of_log_p_tilde(units: str) -> None:
    """Against autograd over every h; the weights of rws give another direction."""
    samples, machine = 40_000, random_machine((3, 2, 2), units)
    x = torch.tensor([[1.0, 0, 1]], dtype=torch.float64)
    p, q = reference.generator(machine), reference.recogniser(machine)
    states = reference.every_hidden_state(machine, x[0])
    thetas = [network.theta.clone().requires_grad_() for network in (p, q)]
    log_p_tilde = 2 * (
        (p.log_prob(states, thetas[0]) + q.log_prob(states, thetas[1])) / 2
    ).logsumexp(0)
    expected = torch.cat(torch.autograd.grad(log_p_tilde, thetas))

    def error(name: str) -> tuple[float, float]:
        """Largest error of the direction, and the effective sample size of the weights."""
        case, rule = (
            Case((3, 2, 2), samples, 1, units),
            make_rule("bihm", samples, exponent=make_rule(name, 1).exponent),
        )
        step(case, machine, rule, x)
        wake, _ = traces_of_step(case, machine, rule, x)
        weights = reference.importance_weights(machine, wake, samples, rule.exponent)
        return (torch.cat(gradients(machine)) + expected).abs().max().item(), (
            1 / weights.square().sum()
        ).item()

    deviation, ess = error("bihm")
    # an entry of grad log p or log q lies in [-1, 1]: its weighted mean has a standard error below 2 / sqrt(ess)
    assert deviation < 5 * 2 / ess**0.5 < 0.1
    assert error("rws")[0] > 0.15


def test_bihms_baseline_changes_no_expectation_and_takes_noise_away() -> None:
    case, repeats = Case((3, 2), 5, 1, "binary"), 500
    machine, x = case.machine(), case.data()
    draws = {}
    for baseline in (False, True):
        learner = WakeSleep(
            machine, make_rule("bihm", case.samples, baseline=baseline), seeded(SEED + baseline)
        )
        rows = []
        for _ in range(repeats):
            learner.step(x)
            rows.append(torch.cat([layer.bias.grad for layer in machine.recognition.layers]))
        draws[baseline] = torch.stack(rows)
    error = ((draws[False].var(0) + draws[True].var(0)) / repeats).sqrt()
    assert ((draws[False].mean(0) - draws[True].mean(0)).abs() < 5 * error).all()
    assert (draws[True].var(0) < draws[False].var(0) / 2).all()
    assert (draws[True].mean(0).abs() > 5 * error).any()  # and the gradient is not just 0


# --- manners -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule_name", RULES)
@pytest.mark.parametrize("units", EACH_UNITS)
def test_gradients_are_overwritten_not_accumulated(rule_name: str, units: str) -> None:
    case = Case((4, 3, 2), 3, 2, units)
    machine, rule = case.machine(), make_rule(rule_name, case.samples)
    step(case, machine, rule, case.data())
    first = gradients(machine)
    for parameter in machine.parameters():
        assert parameter.grad is not None
        parameter.grad.fill_(torch.nan)
    step(case, machine, rule, case.data())
    assert all(torch.equal(a, b) for a, b in zip(gradients(machine), first, strict=True))


@pytest.mark.parametrize("units", EACH_UNITS)
def test_a_learner_that_reuses_its_traces_gives_what_fresh_ones_give(units: str) -> None:
    """Batches of changing size, the last one of an epoch say, in one learner and each in a learner of its own."""
    case, rule = Case((4, 3, 2), 3, 4, units), make_rule("rws", 3)
    machine, x = case.machine(), case.data(soft=True)
    rng, other_rng = seeded(SEED), seeded(SEED)
    learner = WakeSleep(machine, rule, rng)
    for batch in (x, x.flip(0), x[:2], x):
        learner.step(batch)
        reused = gradients(machine)
        WakeSleep(machine, rule, other_rng).step(batch)
        assert all(torch.equal(a, b) for a, b in zip(gradients(machine), reused, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_a_step_leaves_parameters_and_batch_alone_and_no_autograd_graph(case: Case) -> None:
    machine, x = case.machine(), case.data()
    before, x_before = [p.detach().clone() for p in machine.parameters()], x.clone()
    result = step(case, machine, make_rule("rws", case.samples), x)
    assert (
        torch.equal(x, x_before)
        and not result.statistics.requires_grad
        and not result.layer_losses.requires_grad
    )
    for parameter, value in zip(machine.parameters(), before, strict=True):
        assert torch.equal(parameter, value) and parameter.requires_grad
        assert parameter.grad is not None and parameter.grad.shape == parameter.shape
        assert not parameter.grad.requires_grad and parameter.grad.grad_fn is None


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        lambda parameters: torch.optim.NAdam(parameters, lr=0.01),
        lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=3),
    ],
    ids=["SGD", "Adam", "NAdam", "LBFGS"],
)
def test_torch_optimizers_follow_the_gradients(
    make_optimizer: Callable[..., torch.optim.Optimizer],
) -> None:
    case = Case((4, 3, 2), 3, 4, "binary", torch.float32)
    machine, x = case.machine(), case.data()
    learner = WakeSleep(machine, make_rule("rws", case.samples), case.rng())
    optimizer = make_optimizer(machine.parameters())
    for _ in range(2):
        before = [p.detach().clone() for p in machine.parameters()]
        optimizer.step(lambda: float(learner.step(x).statistics[0]))
        for parameter, value in zip(machine.parameters(), before, strict=True):
            assert parameter.isfinite().all() and (
                parameter.numel() == 0 or not torch.equal(parameter, value)
            )


@pytest.mark.parametrize("rule_name", RULES)
def test_plain_gradient_steps_make_the_data_likely(rule_name: str) -> None:
    """The sign: 100 steps on one image make it likely, but for a rule that does not train the generator."""
    machine, x = random_machine((4, 2)), torch.tensor([[1.0, 0, 1, 1]]).double().expand(8, -1)
    before = reference.exact_log_prob(machine, x[:1])
    learner = WakeSleep(machine, make_rule(rule_name, 4), seeded(SEED))
    optimizer = torch.optim.SGD(machine.parameters(), lr=0.2)
    for _ in range(100):
        learner.step(x)
        optimizer.step()
    after = reference.exact_log_prob(machine, x[:1])
    assert (
        after == before if rule_name == "recognition only" else after > before / 4
    )  # log-likelihoods are negative


def test_gradients_are_finite_at_extreme_logits() -> None:
    machine = random_machine((4, 3, 2)).float()
    with torch.no_grad():
        for parameter in machine.parameters():
            parameter.mul_(1e4)
    result = WakeSleep(machine, make_rule("rws", 5), seeded(SEED)).step(torch.eye(4))
    assert result.statistics.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in machine.parameters())


# --- statistics ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rule_name", ["ws", "rws", "bihm"])
@pytest.mark.parametrize("case", CASES)
def test_statistics_are_losses_bound_and_effective_sample_size(case: Case, rule_name: str) -> None:
    machine, x, rule = case.machine(), case.data(soft=True), make_rule(rule_name, case.samples)
    result = step(case, machine, rule, x)
    wake, dream = traces_of_step(case, machine, rule, x)
    p, q = reference.generator(machine), reference.recogniser(machine)
    weights = reference.importance_weights(machine, wake, rule.samples, rule.exponent)
    ratios = (p.log_prob(wake) - q.log_prob(wake)).exp().view(case.batch, case.samples)
    expected = {
        "wake_loss": -(weights * p.log_prob(wake).view_as(weights)).sum(1).mean(),
        "dream_loss": -q.log_prob(dream).mean(),
        "log_likelihood": ratios.mean(1).log().mean(),
        "ess": (ratios.sum(1) ** 2 / (ratios**2).sum(1)).mean(),
    }
    assert tuple(expected) == STATISTICS
    assert_close(result.statistics, torch.stack(list(expected.values())), case.tolerance)
    layers = [
        -p.layer_log_probs(wake) @ weights.flatten() / case.batch,
        -q.layer_log_probs(dream).mean(1),
    ]
    assert_close(result.layer_losses, torch.cat(layers), case.tolerance)


def test_the_unweighted_bound_is_another_and_lower() -> None:
    """Negative control: the mean of log p - log q (the bound of K = 1) is not the K-sample bound."""
    case, rule = Case((3, 4, 2), 5, 4, "binary"), make_rule("rws", 5)
    machine, x = case.machine(), case.data()
    bound = step(case, machine, rule, x).statistics[STATISTICS.index("log_likelihood")]
    wake, _ = traces_of_step(case, machine, rule, x)
    unweighted = (
        reference.generator(machine).log_prob(wake) - reference.recogniser(machine).log_prob(wake)
    ).mean()
    assert unweighted < bound - 0.01


# --- importance weights --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_importance_weights_are_a_softmax_over_the_samples(
    exponent: float, dtype: torch.dtype
) -> None:
    log_weights = torch.randn(6, 5, generator=seeded(0), dtype=torch.float64)
    powers = log_weights.exp() ** exponent
    expected = powers / powers.sum(1, keepdim=True)
    assert_close(
        importance_weights(log_weights.to(dtype), exponent),
        expected,
        EXACT if dtype == torch.float64 else FLOAT32,
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shift", [-1e4, 0, 1e4])
def test_importance_weights_of_any_size_do_not_overflow(shift: float, dtype: torch.dtype) -> None:
    log_weights = torch.tensor([[0, 0, 0], [0, -2, -1e4], [0, -2e4, 1e4]], dtype=dtype) + shift
    weights = importance_weights(log_weights)
    small = 1 / (1 + math.exp(2))
    expected = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [1 - small, small, 0], [0, 0, 1]])
    assert_close(weights, expected, FLOAT32)
    assert_close(weights.sum(1), torch.ones(3), 1e-6)


@pytest.mark.parametrize("shift", [-1e4, 0, 1e4])
def test_effective_sample_size_has_its_known_values(shift: float) -> None:
    """K for equal weights, 1 for one that has it all, (1 + r)^2 / (1 + r^2) for two of ratio r; any common factor cancels."""
    ratio = math.exp(-2)
    log_weights = (
        torch.tensor([[0, 0, 0], [0, -1e4, -2e4], [0, -2, -1e4]], dtype=torch.float64) + shift
    )
    expected = torch.tensor([3, 1, (1 + ratio) ** 2 / (1 + ratio**2)])
    assert_close(
        effective_sample_size(log_weights), expected, 1e-7
    )  # 1e4 times the rounding unit, times a few


def test_effective_sample_size_lies_between_one_and_the_samples() -> None:
    log_weights = 10 * torch.randn(1000, 7, generator=seeded(0), dtype=torch.float64)
    ess = effective_sample_size(log_weights)
    assert (ess >= 1 - EXACT).all() and (ess <= 7 + EXACT).all()
    weights = log_weights.exp()
    assert_close(ess, weights.sum(1) ** 2 / (weights**2).sum(1))


# --- rules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ws", "rws", "bihm"])
def test_shipped_rules_are_the_published_ones(name: str) -> None:
    shipped = OmegaConf.load(Path(__file__).parents[2] / "conf" / "algorithm" / f"{name}.yaml")
    expected = make_rule(name, samples=1 if name == "ws" else 10)
    assert {key: shipped[key] for key in dataclasses.asdict(expected)} == dataclasses.asdict(
        expected
    )


@pytest.mark.parametrize("samples", [0, -1, 2.5, "3", None, True])
def test_bad_sample_counts_are_refused(samples: Any) -> None:
    with pytest.raises(
        UserError, match=r"algorithm\.samples must be a whole number of at least 1, got"
    ):
        make_rule("rws", samples)


@pytest.mark.parametrize(
    "name", ["exponent", "generator_wake", "recognition_wake", "recognition_dream"]
)
@pytest.mark.parametrize("value", [-0.5, math.nan, math.inf, "1", None, True])
def test_bad_factors_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"algorithm\.{name} must be a number of at least 0, got"):
        make_rule("rws", 3, **{name: value})


def test_a_rule_that_does_not_train_recognition_is_refused() -> None:
    with pytest.raises(UserError, match="nothing would train recognition"):
        make_rule("rws", 3, recognition_wake=0.0, recognition_dream=0.0)
