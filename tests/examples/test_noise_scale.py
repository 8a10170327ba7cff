"""The noise of the gradients, against the formulas of its source, appendix A.1."""

import math

import pytest
import torch
from cases import seeded
from directions import directions
from noise_scale import noise_scales

from nws.learning import Rule, WakeSleep
from nws.models import HelmholtzMachine


@pytest.mark.parametrize(("count", "size"), [(2, 5), (3, 1), (4, 8)])
def test_it_is_the_noise_of_the_gradients_of_steps(count: int, size: int) -> None:
    """From small batches, and all of them as a big one. A step leaves the machine as it was."""
    machine, rule = HelmholtzMachine([4, 3, 2], rng=seeded()).double(), Rule("rws", 3)
    batches = [torch.rand(size, 4, generator=seeded(n)).round().double() for n in range(count)]
    learner, rows, big = WakeSleep(machine, rule, seeded(7)), [], count * size
    for x in batches:
        learner.step(x)
        rows.append(directions(machine))
    for each in machine.parameters():
        each.grad = torch.full_like(each, 7.0)
    before = {name: value.clone() for name, value in machine.state_dict().items()}
    found = noise_scales(machine, rule, batches, seeded(7))
    for network, parts in zip(machine.networks, zip(*rows, strict=True), strict=True):
        gradients = torch.stack(parts)
        small_norm, mean = float(gradients.square().sum(1).mean()), gradients.mean(0)
        norm = (big * float(mean @ mean) - size * small_norm) / (big - size)
        trace = (small_norm - float(mean @ mean)) / (1 / size - 1 / big)
        expected = trace / norm if norm > 0 else math.inf
        assert found[network.name] == pytest.approx(expected, rel=1e-9) and trace > 0.1
    assert all(torch.equal(value, before[name]) for name, value in machine.state_dict().items())
    assert all((each.grad == 7).all() for each in machine.parameters() if each.grad is not None)
