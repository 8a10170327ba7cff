"""The noise of the gradients, against the formulas of its source."""

import math

import pytest
import torch
from cases import seeded
from directions import directions
from noise_scale import noise, noise_scales
from torch import Tensor

from nws.learning import Rule, WakeSleep
from nws.models import HelmholtzMachine

RELATIVE = 1e-9  # of the same sums in another order


def by_the_source(gradients: Tensor, size: int) -> tuple[float, float]:
    """tr(Sigma) and |G|^2 by appendix A.1: from small batches, and all of them as a big one."""
    small, big = size, size * len(gradients)
    small_norm = sum(float(g @ g) for g in gradients) / len(gradients)
    mean = gradients.mean(0)
    big_norm = float(mean @ mean)
    squared_norm = (big * big_norm - small * small_norm) / (big - small)
    trace = (small_norm - big_norm) / (1 / small - 1 / big)
    return trace, squared_norm


@pytest.mark.parametrize(("count", "size"), [(2, 1), (2, 16), (8, 16), (5, 3)])
def test_the_estimates_are_those_of_the_source(count: int, size: int) -> None:
    gradients = torch.randn(count, 7, generator=seeded(), dtype=torch.float64) + 0.5
    found = noise(gradients, size)
    assert found == pytest.approx(by_the_source(gradients, size), rel=RELATIVE)
    if count == 2:  # of two halves |G|^2 is their product
        assert found[1] == pytest.approx(float(gradients[0] @ gradients[1]), rel=RELATIVE)


def test_it_is_the_noise_of_the_gradients_of_steps() -> None:
    """Those of each network; each batch has draws of its own. Nothing else is touched."""
    machine, rule = HelmholtzMachine([4, 3, 2], rng=seeded()).double(), Rule("rws", 3)
    batches = [torch.rand(5, 4, generator=seeded(n)).round().double() for n in range(3)]
    learner, rows = WakeSleep(machine, rule, seeded(7)), []
    for x in batches:
        learner.step(x)
        rows.append(directions(machine))
    for each in machine.parameters():
        each.grad = torch.full_like(each, 7.0)
    before = {name: value.clone() for name, value in machine.state_dict().items()}
    found = noise_scales(machine, rule, batches, seeded(7))
    for network, gradients in zip(machine.networks, zip(*rows, strict=True), strict=True):
        trace, norm = by_the_source(torch.stack(gradients), size=5)
        expected = trace / norm if norm > 0 else math.inf
        assert found[network.name] == pytest.approx(expected, rel=RELATIVE)
        assert trace > 0.1  # there is noise
    assert all(torch.equal(value, before[name]) for name, value in machine.state_dict().items())
    assert all((each.grad == 7).all() for each in machine.parameters() if each.grad is not None)
