"""Data, rules and metrics by the names of the command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import yaml
from conftest import CONF, Command, names

import nws
from nws.data import load_dataset, load_digits
from nws.errors import UserError
from nws.natural.metrics import Kronecker


@pytest.mark.parametrize("name", names("algorithm"))
def test_a_named_rule_is_that_of_its_file(name: str) -> None:
    rule = nws.named_rule(name)
    source = name.removeprefix("n") if name.startswith("n") else name
    config = yaml.safe_load((CONF / "algorithm" / f"{source}.yaml").read_text())
    assert rule.name == name
    for key in ("samples", "generator_wake", "recognition_wake", "baseline", "bidirectional"):
        assert getattr(rule, key) == config[key]
    log_p, log_q = torch.randn(2, 3, rule.samples, generator=torch.Generator().manual_seed(0))
    if "exponent" in config["weighting"]:
        expected = (config["weighting"]["exponent"] * (log_p - log_q)).softmax(1)
        assert rule.weighting(log_p, log_q)[0].allclose(expected)


def test_fields_of_a_named_rule_may_differ() -> None:
    rule = nws.named_rule("rws", samples=3, recognition_dream=0.0)
    assert (rule.samples, rule.recognition_dream, rule.recognition_wake) == (3, 0.0, 0.5)
    with pytest.raises(UserError, match="algorithm.samples must be a whole number"):
        nws.named_rule("rws", samples=0)


def test_data_by_name() -> None:
    found = nws.load_data("digits", device="cpu", binarize="threshold")
    expected = load_dataset(load_digits, binarize="threshold")
    assert found.name == "digits" and found.train.bytes.equal(expected.train.bytes)


def gradients(metrics: Callable[[nws.HelmholtzMachine], list[nws.NaturalMetric]]) -> torch.Tensor:
    """All natural gradients of one step; the same parameters and draws each time."""
    machine = nws.HelmholtzMachine([6, 4, 3], rng=torch.Generator().manual_seed(0)).double()
    rng = torch.Generator().manual_seed(1)
    learner = nws.WakeSleep(machine, nws.named_rule("nrws"), rng, metrics(machine))
    learner.step((torch.rand(20, 6, generator=rng) < 0.5).double())
    parts = [each.grad.flatten() for each in machine.parameters() if each.grad is not None]
    return torch.cat(parts)


def test_a_metric_in_one_call_is_the_one_made_by_hand() -> None:
    def by_hand(machine: nws.HelmholtzMachine) -> list[nws.NaturalMetric]:
        rows = nws.RowOptions(max_rows=64)
        return [
            nws.NaturalMetric(each, Kronecker(rank=2), nws.Damping(0.3), rows)
            for each in machine.networks
        ]

    made = gradients(lambda machine: nws.natural_metrics(machine, "kronecker", 0.3, rank=2))
    assert made.equal(gradients(by_hand))
    assert not made.equal(gradients(lambda machine: nws.natural_metrics(machine, "kronecker")))
    assert not made.equal(gradients(lambda machine: []))


def test_the_exact_metric_does_not_depend_on_its_solver() -> None:
    """In float64, to the accuracy that is asked of the first."""
    one, other = (
        gradients(
            lambda machine, solver=solver: nws.natural_metrics(machine, "fisher", solver=solver)
        )  # type: ignore[misc]
        for solver in ("pcg", "cholesky")
    )
    assert (one - other).norm() < 0.02 * other.norm()


def test_mistakes(command: Command) -> None:
    machine = nws.HelmholtzMachine([6, 4])
    calls: dict[str, Callable[[], object]] = {
        "algorithm must be one of bihm, nbihm, .*, got 'nope'": lambda: nws.named_rule("nope"),
        "algorithm has the options name, samples, .*; got foo": lambda: nws.named_rule(
            "rws", foo=1
        ),
        "data must be one of digits, .*, got 'nope'": lambda: nws.load_data("nope"),
        "data has the options name, .*; got size": lambda: nws.load_data("digits", size=3),
        "metric must be one of diagonal, .*'nope'": lambda: nws.natural_metrics(machine, "nope"),
        "solver must be one of auto, .*": lambda: nws.natural_metrics(machine, solver="nope"),
        "metric has the options generator_rows, .*, memory; got rank": lambda: nws.natural_metrics(
            machine, "fisher", rank=2
        ),
        "damping.value must be a number above 0": lambda: nws.natural_metrics(machine, damping=0),
    }
    for message, call in calls.items():
        with pytest.raises(UserError, match=message):
            call()
