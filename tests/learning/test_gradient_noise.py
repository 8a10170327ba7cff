"""The noise of the gradients: against the formulas of its source, and a machine whose covariance is
known.
"""

import math

import pytest
import torch
from cases import STANDARD_ERRORS
from torch import Tensor

from nws.errors import UserError
from nws.learning import Rule
from nws.learning.gradient_noise import GradientNoise, estimate_noise, gradient_noise
from nws.learning.weighting import uniform
from nws.models import HelmholtzMachine

REPEATS = 400
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
    rng = torch.Generator().manual_seed(0)
    gradients = torch.randn(count, 7, generator=rng, dtype=torch.float64) + 0.5
    found = estimate_noise(gradients, size)
    assert tuple(found) == pytest.approx(by_the_source(gradients, size), rel=RELATIVE)
    if count == 2:  # of two halves |G|^2 is their product
        assert found.squared_norm == pytest.approx(float(gradients[0] @ gradients[1]), rel=RELATIVE)
    assert found.scale in (pytest.approx(found.trace / found.squared_norm), math.inf)


def test_one_batch_is_refused() -> None:
    machine, rng = HelmholtzMachine([2, 1]), torch.Generator()
    with pytest.raises(UserError, match="needs at least 2 batches, got 1; take more batches"):
        gradient_noise(machine, Rule("rws"), [torch.ones(4, 2)], rng)


def assert_unbiased(found: list[GradientNoise], expected: GradientNoise) -> None:
    table = torch.tensor(found, dtype=torch.float64)
    errors = table.std(0) / math.sqrt(len(table))
    off = (table.mean(0) - torch.tensor(expected, dtype=torch.float64)).abs() / errors
    assert (off < STANDARD_ERRORS).all(), (table.mean(0), expected, errors)
    assert (errors < 0.1 * table.mean(0).abs()).all()  # close enough to say something


def test_the_noise_of_a_machine_without_weights_is_known() -> None:
    """Without weights all units are independent, so each gradient is a product of known moments.

    p: weights (x - p) h with h from q, biases x - p, and h - 1/2 for the top layer.
    q, in dreams: weights (h - r) x with x and h from p, biases h - r.
    """
    machine = HelmholtzMachine([3, 2], rng=torch.Generator().manual_seed(0)).double()
    for each in machine.parameters():
        each.data.zero_()
    recognition_bias = torch.tensor([1.5, -1.0], dtype=torch.float64)
    machine.recognition.layers[0].bias.data.copy_(recognition_bias)
    mu = torch.tensor([0.9, 0.2, 0.6], dtype=torch.float64)  # of the data; p is 1/2 everywhere
    r = recognition_bias.sigmoid()
    delta, epsilon = mu - 0.5, 0.5 - r
    square, top, t = mu * (1 - mu) + delta**2, 0.25, 0.25 + epsilon**2
    moments = {  # E|g|^2 of a data point, |G|^2
        "generator": (
            square.sum() * (1 + r.sum()) + top * 2,
            (delta**2).sum() * (1 + (r**2).sum()) + (epsilon**2).sum(),
        ),
        "recognition": (t.sum() * (1 + 3 / 2), (epsilon**2).sum() * (1 + 3 / 4)),
    }
    rule = Rule("ws", 1, uniform, 1.0, 0.0, 1.0, baseline=False)
    rng, found = torch.Generator().manual_seed(2), []
    for _ in range(REPEATS // 4):
        draws = torch.rand(8, 40, 3, generator=rng, dtype=torch.float64)
        found.append(gradient_noise(machine, rule, list((draws < mu).double()), rng))
    for name, (second, squared) in moments.items():
        expected = GradientNoise(float(second - squared), float(squared))
        assert_unbiased([each[name] for each in found], expected)


def test_nothing_is_touched_but_the_given_draws() -> None:
    rng = torch.Generator().manual_seed(0)
    machine = HelmholtzMachine([4, 3], rng=rng)
    for each in machine.parameters():
        each.grad = torch.full_like(each, 7.0)
    before = {name: value.clone() for name, value in machine.state_dict().items()}
    gradient_noise(machine, Rule("rws", 3), [torch.ones(2, 4)] * 2, rng)
    assert all(torch.equal(value, before[name]) for name, value in machine.state_dict().items())
    assert all((each.grad == 7).all() for each in machine.parameters() if each.grad is not None)
    assert GradientNoise(1.0, -0.5).scale == GradientNoise(1.0, 0.0).scale == math.inf
    assert GradientNoise(6.0, 2.0).scale == 3
