"""Rules: those that are shipped are the published ones; what is no rule is refused by name."""

from __future__ import annotations

import dataclasses
import itertools
import math
from functools import partial
from typing import Any

import pytest
import torch
from cases import assert_close, make_rule, seeded
from conftest import CONF
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor

from nws.errors import UserError
from nws.learning import Rule, WakeSleep, importance, tempered, uniform
from nws.learning.vimco import vimco
from nws.models import HelmholtzMachine

PUBLISHED = {
    "ws": make_rule("ws", 1),
    "rws": make_rule("rws", 10),
    "bihm": make_rule("bihm", 10),
    "vimco": Rule("vimco", 10, vimco, 1.0, 1.0, 0.0, baseline=False),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_shipped_rules_are_the_published_ones(name: str) -> None:
    expected = PUBLISHED[name]
    shipped = instantiate(OmegaConf.load(CONF / "algorithm" / f"{name}.yaml"))
    log_p, log_q = -torch.rand(2, 5, 10, generator=seeded(0), dtype=torch.float64)
    for found, weights in zip(
        shipped.weighting(log_p, log_q), expected.weighting(log_p, log_q), strict=True
    ):
        assert_close(found, weights)
    assert dataclasses.replace(shipped, weighting=expected.weighting) == expected


def test_the_published_rules_weigh_in_ways_of_their_own() -> None:
    """The control: no rule passes for another by its weights."""
    log_p, log_q = -torch.rand(2, 5, 10, generator=seeded(0), dtype=torch.float64)
    weights = [torch.stack(each.weighting(log_p, log_q)) for each in PUBLISHED.values()]
    assert all(not torch.allclose(a, b) for a, b in itertools.combinations(weights, 2))


@pytest.mark.parametrize("samples", [0, -1, 2.5, "3", None, True])
def test_bad_sample_counts_are_refused(samples: Any) -> None:
    with pytest.raises(
        UserError, match=r"algorithm\.samples must be a whole number of at least 1, got"
    ):
        make_rule("rws", samples)


@pytest.mark.parametrize("dreams", [0, -1, 2.5, "3", True])
def test_bad_dream_counts_are_refused(dreams: Any) -> None:
    with pytest.raises(UserError, match=r"algorithm\.dreams must be a whole number of at least 1"):
        make_rule("rws", 3, dreams=dreams)


def test_there_are_as_many_dreams_as_samples_unless_another_number_is_given() -> None:
    counts = []
    for dreams in (None, 1, 8, 2.0):
        machine = HelmholtzMachine([3, 2], rng=seeded(0))
        counts.append(WakeSleep(machine, make_rule("rws", 3, dreams=dreams), seeded(0)).dreams)
    assert counts == [3, 1, 8, 2]


@pytest.mark.parametrize("name", ["generator_wake", "recognition_wake", "recognition_dream"])
@pytest.mark.parametrize("value", [-0.5, math.nan, math.inf, "1", None, True])
def test_bad_factors_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"algorithm\.{name} must be a number of at least 0, got"):
        make_rule("rws", 3, **{name: value})


def test_factors_are_floats() -> None:
    rule = make_rule("rws", 3, generator_wake=2, recognition_wake=0, recognition_dream=1)
    shares = (rule.generator_wake, rule.recognition_wake, rule.recognition_dream)
    assert shares == (2, 0, 1) and all(type(each) is float for each in shares)


def test_a_rule_that_does_not_train_recognition_is_refused() -> None:
    with pytest.raises(UserError, match="nothing would train recognition"):
        make_rule("rws", 3, recognition_wake=0.0, recognition_dream=0.0)


def test_a_rule_is_rws_where_nothing_else_is_said() -> None:
    assert Rule("rws") == make_rule("rws", 10)
    assert Rule("rws").weighting is importance and not Rule("rws").bidirectional


@pytest.mark.parametrize("samples", [1.0, 3.0])
def test_a_whole_sample_count_is_an_int(samples: float) -> None:
    assert make_rule("rws", samples).samples == int(samples)  # type: ignore[arg-type]


def one_alone(log_p: Tensor, log_q: Tensor) -> Tensor:
    return torch.softmax(log_p - log_q, dim=1)


def transposed(log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    return log_p.T, log_q.T


def needs_two(log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    if log_p.shape[1] < 2:
        raise UserError("algorithm.samples must be at least 2 to leave one out, got 1")
    return uniform(log_p, log_q)


@pytest.mark.parametrize(
    ("weighting", "message"),
    [
        ("uniform", "must name a function of log p and log q by _target_, with _partial_: true"),
        (None, "must name a function"),
        (1.0, "must name a function"),
        (one_alone, r"must return the weights of p and of q, \(B, K\) each, got tensor"),
        (transposed, "must return the weights of p and of q"),
        (lambda log_p, log_q: None, "cannot be called with log p and log q.*TypeError"),
        (lambda log_p: (log_p, log_p), "cannot be called with log p and log q.*TypeError"),
        (partial(tempered, power=1), "cannot be called with log p and log q.*power"),
        (partial(tempered, exponent=-1), "exponent must be a number of at least 0, got -1"),
    ],
)
def test_what_is_no_weighting_is_refused_before_the_first_step(
    weighting: Any, message: str
) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        Rule("mine", 3, weighting)
    assert str(refusal.value).startswith("algorithm.weighting")


def test_a_weighting_says_itself_what_it_needs() -> None:
    assert Rule("mine", 2, needs_two).samples == 2
    with pytest.raises(UserError, match="at least 2 to leave one out"):
        Rule("mine", 1, needs_two)
