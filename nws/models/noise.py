"""Uniform noise, the largest part of a step that is no matrix product, and noise of some rows."""

from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Share:
    """Some of the rows of a phase, with the noise that they have where all are drawn together.

    It stands where a generator does. The noise of all rows is drawn, and that of these is kept.

    Args:
        rng: Generator of the noise.
        start: The first row.
        stop: The row after the last; `start` where there is none.
        total: All rows of the phase.
    """

    rng: torch.Generator | None
    start: int
    stop: int
    total: int

    def times(self, each: int) -> "Share":
        """The same data points, with so many rows each."""
        return Share(self.rng, each * self.start, each * self.stop, each * self.total)

    def fill(
        self, fill_noise: Callable[[Tensor, torch.Generator | None], None], out: Tensor
    ) -> None:
        """Fill these rows, (stop - start, ..), with the noise that a function fills rows with."""
        # As all rows have it: a family's noise may depend on the layout of its tensor.
        whole = out.new_empty_strided((self.total, *out.shape[1:]), out.stride())
        fill_noise(whole, self.rng)
        out.copy_(whole[self.start : self.stop])


Rng = torch.Generator | Share | None  # of draws: a generator, or what draws some of a phase's rows
