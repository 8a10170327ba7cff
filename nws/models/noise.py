"""Uniform noise, the largest part of a step that is no matrix product."""

import torch
from torch import Tensor


def fill_uniform(out: Tensor, rng: torch.Generator | None = None) -> None:
    """Fill `out` (.., units) with uniform noise in [0, 1).

    On the CPU the generator runs on one thread. So in float32 one 64-bit word serves four units,
    and each gets 16 bits of its own. What lies below them is one more draw, which the units of a
    row share. Each number is uniform to float32's own 2^-24, and two numbers of a row are
    correlated by at most 2^-32.
    """
    if out.device.type != "cpu" or out.dtype != torch.float32:
        out.uniform_(generator=rng)
        return
    words = torch.empty((out.numel() + 3) // 4, dtype=torch.int64)
    words.random_(-(2**63), None, generator=rng)
    # The draw ends before 1, or rounding could bring the sum there.
    below = torch.empty(*out.shape[:-1], 1).uniform_(0, 1 - 2**-8, generator=rng)
    high = words.view(torch.int16)[: out.numel()].view(out.shape)
    torch.add(high, below + 2**15, out=out).mul_(2**-16)
