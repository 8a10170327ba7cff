"""Weights of the K samples, and their effective number."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from cases import EXACT, FLOAT32, assert_close, seeded
from torch import Tensor

from nws.errors import UserError
from nws.learning import importance, tempered, uniform
from nws.learning.weighting import Weighting
from nws.models.likelihood import effective_sample_size

WEIGHTINGS: dict[str, tuple[Weighting, float]] = {  # and the exponent that it stands for
    "uniform": (uniform, 0.0),
    "importance": (importance, 1.0),
    **{f"tempered {e}": (partial(tempered, exponent=e), e) for e in (0, 0.5, 0.7, 1.0, 2.0)},
}


def weigh(log_weights: Tensor, weighting: Weighting = importance) -> Tensor:
    """Weights of log p - log q = log_weights, whatever log q is; p and q have the same."""
    log_q = torch.linspace(-3, 2, log_weights.numel(), dtype=log_weights.dtype)
    log_q = log_q.view_as(log_weights)
    of_p, of_q = weighting(log_weights + log_q, log_q)
    assert torch.equal(of_p, of_q)
    return of_p


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("weighting", "exponent"), WEIGHTINGS.values(), ids=WEIGHTINGS)
def test_weights_are_powers_of_the_ratio_over_their_sum(
    weighting: Weighting, exponent: float, dtype: torch.dtype
) -> None:
    log_weights = torch.randn(6, 5, generator=seeded(0), dtype=torch.float64)
    powers = log_weights.exp() ** exponent
    expected = powers / powers.sum(1, keepdim=True)
    found = weigh(log_weights.to(dtype), weighting)
    assert found.dtype == dtype
    assert_close(found, expected, EXACT if dtype == torch.float64 else FLOAT32)
    # the control: another exponent's weights
    other = torch.softmax((exponent + 0.1) * log_weights, dim=1)
    assert (found - other).abs().max() > 100 * FLOAT32


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shift", [-1e4, 0, 1e4])
def test_importance_weights_of_any_size_do_not_overflow(shift: float, dtype: torch.dtype) -> None:
    log_weights = torch.tensor([[0, 0, 0], [0, -2, -1e4], [0, -2e4, 1e4]], dtype=dtype) + shift
    weights = importance(log_weights, torch.zeros_like(log_weights))[0]
    small = 1 / (1 + math.exp(2))
    expected = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [1 - small, small, 0], [0, 0, 1]])
    assert_close(weights, expected, FLOAT32)
    assert_close(weights.sum(1), torch.ones(3), 1e-6)


@pytest.mark.parametrize("shift", [-1e4, 0, 1e4])
def test_effective_sample_size_has_its_known_values(shift: float) -> None:
    """K for equal weights, 1 for one that has it all, (1 + r)^2 / (1 + r^2) for two of ratio r.

    Any common factor cancels.
    """
    ratio = math.exp(-2)
    log_weights = (
        torch.tensor([[0, 0, 0], [0, -1e4, -2e4], [0, -2, -1e4]], dtype=torch.float64) + shift
    )
    expected = torch.tensor([3, 1, (1 + ratio) ** 2 / (1 + ratio**2)])
    # The tolerance is 1e4 times the rounding unit, times a few.
    assert_close(effective_sample_size(log_weights), expected, 1e-7)


def test_effective_sample_size_lies_between_one_and_the_samples() -> None:
    log_weights = 10 * torch.randn(1000, 7, generator=seeded(0), dtype=torch.float64)
    ess = effective_sample_size(log_weights)
    assert (ess >= 1 - EXACT).all() and (ess <= 7 + EXACT).all()
    weights = log_weights.exp()
    assert_close(ess, weights.sum(1) ** 2 / (weights**2).sum(1))


@pytest.mark.parametrize("exponent", [-0.5, math.nan, math.inf, "1", None, True])
def test_bad_exponents_are_refused(exponent: Any) -> None:
    with pytest.raises(
        UserError, match=r"algorithm\.weighting\.exponent must be a number of at least 0, got"
    ):
        tempered(torch.zeros(1, 2), torch.zeros(1, 2), exponent)
