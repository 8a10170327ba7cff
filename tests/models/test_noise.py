"""Noise: uniform to float32's own steps, the units of a row next to independent."""

import pytest
import torch
from cases import STANDARD_ERRORS, seeded
from scipy.stats import kstest

from nws.models.noise import fill_uniform


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    out = torch.full(shape, float("nan"), dtype=dtype)
    fill_uniform(out, seeded(seed))
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (7, 5), (64, 33), (2, 3, 5)])
def test_every_number_lies_in_the_unit_interval(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    noise = draw(*shape, dtype=dtype)
    assert ((noise >= 0) & (noise < 1)).all()
    assert torch.equal(noise, draw(*shape, dtype=dtype))
    assert not torch.equal(noise, draw(*shape, seed=1, dtype=dtype))


def test_numbers_are_uniform_below_sixteen_bits_too() -> None:
    """Kolmogorov and Smirnov, of the numbers and of what lies below their 16 own bits.

    One number of each row is tested, because a row shares what lies below. p > 1e-4 is what a
    right generator fails once in ten thousand seeds.
    """
    noise = draw(20_000, 4)[:, 0].double()
    assert kstest(noise.numpy(), "uniform").pvalue > 1e-4
    below = (noise * 2**16).frac()
    assert kstest(below.numpy(), "uniform").pvalue > 1e-4
    assert kstest((noise * 0.9).numpy(), "uniform").pvalue < 1e-4  # the control


def test_neighbours_are_uncorrelated() -> None:
    """Sample correlations of n independent pairs have a standard error of 1 / sqrt(n)."""
    noise = draw(40_000, 8).double()
    correlation = torch.corrcoef(noise.T) - torch.eye(8)
    assert correlation.abs().max() < STANDARD_ERRORS / 40_000**0.5
