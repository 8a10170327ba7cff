"""Rules and weightings: the published ones; what is no rule is refused by name."""

import dataclasses
import itertools
import math
from functools import partial
from typing import Any

import pytest
import torch
from cases import EXACT, FLOAT32, assert_close, flat_gradient, make_rule, random_machine, seeded
from conftest import CONF
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor

from nws.errors import UserError
from nws.learning import Rule, tempered
from nws.learning.vimco import vimco
from nws.models import HelmholtzMachine
from nws.models.likelihood import all_values, effective_sample_size

PUBLISHED = {
    "ws": make_rule("ws", 1), "rws": make_rule("rws", 10), "bihm": make_rule("bihm", 10),
    "vimco": Rule("vimco", 10, vimco, 1.0, 1.0, 0.0, baseline=False),
}  # fmt: skip


def test_shipped_rules_are_the_published_ones() -> None:
    log_p, log_q = -torch.rand(2, 5, 10, generator=seeded(0), dtype=torch.float64)
    seen = []
    for name, expected in PUBLISHED.items():
        shipped = instantiate(OmegaConf.load(CONF / "algorithm" / f"{name}.yaml"))
        seen.append(torch.stack(shipped.weighting(log_p, log_q)))
        assert_close(seen[-1], torch.stack(expected.weighting(log_p, log_q)))
        assert dataclasses.replace(shipped, weighting=expected.weighting) == expected
    assert not any(torch.allclose(a, b) for a, b in itertools.combinations(seen, 2))  # the control
    assert Rule("rws") == dataclasses.replace(PUBLISHED["rws"], weighting=tempered)
    w = torch.tensor([[1.0, 4.0, 16.0]])  # the baseline of the first has 8, their mean, for it
    assert vimco(w.log(), 0 * w)[1][0, 0] == pytest.approx(math.log(21 / 28) - 1 / 21)


def test_whole_numbers_may_be_floats_and_shares_whole() -> None:
    given: Any = {"dreams": 2.0, "generator_wake": 2, "recognition_wake": 0, "recognition_dream": 1}
    rule = make_rule("rws", 3.0, **given)  # type: ignore[arg-type]
    assert type(rule.samples) is type(rule.dreams) is int
    shares = (rule.generator_wake, rule.recognition_wake, rule.recognition_dream)
    assert shares == (2, 0, 1) and all(type(each) is float for each in shares)


CALLED = "algorithm.weighting, a function of log p and log q, .* cannot be called: "
WRONG: list[tuple[str, Any, str]] = [
    ("weighting", None, CALLED),
    ("weighting", lambda p: (p, p), CALLED),
    ("weighting", partial(tempered, power=1), f"{CALLED}.*power"),
    ("weighting", lambda p, q: p - q, r"must return the weights of p and of q, \(B, K\) each"),
    ("weighting", partial(tempered, exponent=-1), "weighting.exponent must be a number of at"),
]


@pytest.mark.parametrize(("option", "value", "message"), WRONG)
def test_what_cannot_be_called_is_found_at_once(option: str, value: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Rule("mine", **{option: value})


def test_a_rule_that_does_not_train_recognition_is_refused() -> None:
    with pytest.raises(UserError, match="nothing would train recognition"):
        make_rule("rws", 3, recognition_wake=0.0, recognition_dream=0.0)
    with pytest.raises(UserError, match="nothing would train recognition"):
        make_rule("bihm", 1, baseline=True)
    assert Rule("mine", 2, vimco).samples == 2  # a weighting says itself what it needs
    with pytest.raises(UserError, match=r"algorithm\.samples of at least 2, got 1"):
        Rule("mine", 1, vimco)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shift", [-1e4, 0, 1e4])
def test_importance_weights_of_any_size_do_not_overflow(shift: float, dtype: torch.dtype) -> None:
    log_weights = torch.tensor([[0, 0, 0], [0, -2, -1e4], [0, -2e4, 1e4]], dtype=dtype) + shift
    weights, other = tempered(log_weights, torch.zeros_like(log_weights))
    assert torch.equal(weights, other) and weights.dtype == other.dtype == dtype
    small = 1 / (1 + math.exp(2))
    expected = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [1 - small, small, 0], [0, 0, 1]])
    assert_close(weights, expected, FLOAT32)
    assert_close(weights.sum(1), torch.ones(3), 1e-6)


@pytest.mark.parametrize("shift", [-1e4, 0, 1e4])
def test_effective_sample_size_has_its_known_values(shift: float) -> None:
    """K for equal weights, 1 for one that has it all, (1 + r)^2 / (1 + r^2) for two of ratio r.

    Any common factor cancels; the tolerance is 1e4 times the rounding unit, times a few.
    """
    ratio, log_weights = math.exp(-2), torch.tensor([[0, 0, 0], [0, -1e4, -2e4], [0, -2, -1e4]])
    expected = torch.tensor([3, 1, (1 + ratio) ** 2 / (1 + ratio**2)])
    assert_close(effective_sample_size(log_weights.double() + shift), expected, 1e-7)


# --- VIMCO: against autograd of the expected K-sample bound, by enumeration -----------------------

SIZES, SAMPLES = (3, 2), 3


def tables(machine: HelmholtzMachine) -> tuple[Tensor, Tensor, Tensor]:
    """log p(x, h_k) and log q(h_k | x) of every tuple of K states, and the tuple's probability."""
    x = torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64)
    hidden = all_values(machine.units[1], SIZES[1]).double()
    states = [x.expand(len(hidden), -1), hidden]
    log_p, log_q = machine.generator.log_prob(states), machine.recognition.log_prob(states)
    tuples = torch.tensor(list(itertools.product(range(len(hidden)), repeat=SAMPLES)))
    return log_p[tuples], log_q[tuples], log_q[tuples].sum(1).exp()


@pytest.mark.parametrize("seed", range(3))
def test_vimcos_expected_gradient_is_that_of_the_bound(seed: int) -> None:
    """The expectation of what a step follows: sum_k w_k d log p(x, h_k) + v_k d log q(h_k | x)."""
    machine = random_machine(SIZES, seed=seed)
    log_p, log_q, probability = tables(machine)
    bound = (probability * (log_p - log_q).logsumexp(1)).sum()
    expected = flat_gradient(bound, machine.parameters())
    for weighting, follows in ((vimco, True), (tempered, False)):  # the control: RWS does not
        log_p, log_q, probability = tables(machine)
        of_p, of_q = (part.detach() for part in weighting(log_p, log_q))
        terms = (of_p * log_p + of_q * log_q).sum(1)
        found = flat_gradient((probability.detach() * terms).sum(), machine.parameters())
        if follows:
            assert_close(found, expected, EXACT)
            assert_close(of_p.sum(1), torch.ones(len(of_p)))
            assert (of_q < 0).any()  # which no softmax gives
        else:
            assert (found - expected).abs().max() > 1e-3
