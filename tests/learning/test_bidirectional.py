"""Bidirectional machines: the gradient of log p~*(x) = 2 log sum_h sqrt(p(x, h) q(h | x))."""

from __future__ import annotations

import pytest
import reference
import torch
from cases import (
    CASES,
    EACH_UNITS,
    STANDARD_ERRORS,
    Case,
    assert_close,
    exponent_of,
    make_rule,
    random_machine,
    seeded,
)
from test_step import SEED, gradients, step, traces_of_step

from nws.learning import WakeSleep


@pytest.mark.parametrize("baseline", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_bihm_follows_the_gradient_of_its_estimate_of_log_p_tilde(
    case: Case, baseline: bool
) -> None:
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


@pytest.mark.parametrize("units", EACH_UNITS)
def test_bihm_goes_to_the_exact_gradient_of_log_p_tilde(units: str) -> None:
    """Against autograd over every h; the weights of rws give another direction."""
    samples, machine = 40_000, random_machine((3, 2, 2), units)
    x = torch.tensor([[1.0, 0, 1]], dtype=torch.float64)
    p, q = reference.generator(machine), reference.recognition(machine)
    states = reference.every_hidden_state(machine, x[0])
    thetas = [network.theta.clone().requires_grad_() for network in (p, q)]
    log_roots = (p.log_prob(states, thetas[0]) + q.log_prob(states, thetas[1])) / 2
    expected = torch.cat(torch.autograd.grad(2 * log_roots.logsumexp(0), thetas))

    def error(name: str) -> tuple[float, float]:
        """Largest error of the direction, and the effective sample size of the weights."""
        case = Case((3, 2, 2), samples, 1, units)  # type: ignore[arg-type]
        rule = make_rule("bihm", samples, exponent=exponent_of(make_rule(name, 2)))
        step(case, machine, rule, x)
        wake, _ = traces_of_step(case, machine, rule, x)
        weights = reference.importance_weights(machine, wake, samples, exponent_of(rule))
        off = (torch.cat(gradients(machine)) + expected).abs().max()
        return float(off), float(1 / weights.square().sum())

    deviation, ess = error("bihm")
    # an entry of grad log p or log q lies in [-1, 1]: its weighted mean has a standard error below
    # 2 / sqrt(ess)
    assert deviation < STANDARD_ERRORS * 2 / ess**0.5 < 0.1
    assert error("rws")[0] > 0.15


def test_bihms_baseline_changes_no_expectation_and_takes_noise_away() -> None:
    case, repeats = Case((3, 2), 5, 1, "binary"), 500
    machine, x, draws = case.machine(), case.data(), []
    for baseline in (False, True):
        rule = make_rule("bihm", case.samples, baseline=baseline)
        learner, rows = WakeSleep(machine, rule, seeded(SEED + baseline)), []
        for _ in range(repeats):
            learner.step(x)
            rows.append(torch.cat([layer.bias.grad for layer in machine.recognition.layers]))
        draws.append(torch.stack(rows))
    without, with_ = draws
    error = ((without.var(0) + with_.var(0)) / repeats).sqrt()
    assert ((without.mean(0) - with_.mean(0)).abs() < STANDARD_ERRORS * error).all()
    assert (with_.var(0) < without.var(0) / 2).all()
    assert (with_.mean(0).abs() > STANDARD_ERRORS * error).any()  # and the gradient is not just 0
