"""Bidirectional machines: the gradient of log p~*(x) = 2 log sum_h sqrt(p(x, h) q(h | x))."""

from __future__ import annotations

import pytest
import reference
import torch
from cases import (
    CASES,
    EACH_UNITS,
    Case,
    assert_close,
    exponent_of,
    make_rule,
    random_machine,
    seeded,
)
from test_step import SEED, gradients, step, traces_of_step

from nws.learning import WakeSleep


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
            q_part = q_part - reference.recognition(machine).gradient(wake, uniform)
        assert_close(gradients(machine)[0], -p_part, case.tolerance)
        assert_close(gradients(machine)[1], -q_part, case.tolerance)


@pytest.mark.parametrize("units", EACH_UNITS)
def test_bihm_goes_to_the_exact_gradient_of_log_p_tilde(units: str) -> None:
    """Against autograd over every h; the weights of rws give another direction."""
    samples, machine = 40_000, random_machine((3, 2, 2), units)
    x = torch.tensor([[1.0, 0, 1]], dtype=torch.float64)
    p, q = reference.generator(machine), reference.recognition(machine)
    states = reference.every_hidden_state(machine, x[0])
    thetas = [network.theta.clone().requires_grad_() for network in (p, q)]
    log_p_tilde = 2 * (
        (p.log_prob(states, thetas[0]) + q.log_prob(states, thetas[1])) / 2
    ).logsumexp(0)
    expected = torch.cat(torch.autograd.grad(log_p_tilde, thetas))

    def error(name: str) -> tuple[float, float]:
        """Largest error of the direction, and the effective sample size of the weights."""
        case = Case((3, 2, 2), samples, 1, units)
        rule = make_rule("bihm", samples, exponent=exponent_of(make_rule(name, 1)))
        step(case, machine, rule, x)
        wake, _ = traces_of_step(case, machine, rule, x)
        weights = reference.importance_weights(machine, wake, samples, exponent_of(rule))
        return (torch.cat(gradients(machine)) + expected).abs().max().item(), (
            1 / weights.square().sum()
        ).item()

    deviation, ess = error("bihm")
    # an entry of grad log p or log q lies in [-1, 1]: its weighted mean has a standard error below
    # 2 / sqrt(ess)
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
