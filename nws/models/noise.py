"""Uniform noise, the largest part of a step that is no matrix product, and who draws it."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nws import distributed

Fill = Callable[[Tensor, torch.Generator | None], None]  # fills rows with noise


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


class Streams:
    """Blocks of a batch that draw by themselves.

    The numbers of a block are a function of seed, place, draw and block: no process needs those of
    another one's blocks. Seeding a generator costs as much as some thousand draws.

    Args:
        count: S, blocks that each batch is cut into.
        like: A generator, of whose device and first seed these are.
    """

    def __init__(self, count: int, like: torch.Generator) -> None:
        self.count, self._seed = count, like.initial_seed()
        self._rng = torch.Generator(like.device)
        self.start(0)

    def start(self, *place: int) -> None:
        """Come to a place, such as a step of a run."""
        self._place, self._draw = place, 0

    def blocks(self) -> Iterator[torch.Generator]:
        """The generator of each block, to be used before the next one is asked for."""
        self._draw += 1
        for block in range(self.count):
            key = repr((self._seed, self._place, self._draw, block)).encode()
            word = hashlib.blake2b(key, digest_size=8).digest()
            yield self._rng.manual_seed(int.from_bytes(word, "little") >> 1)


@dataclass(frozen=True)
class Part:
    """Which rows of a phase this process draws, of those that all processes draw together.

    It stands in place of a generator. Without streams every process draws the noise of all rows,
    from generators that are alike, and keeps its own.

    Args:
        rng: Generator, or streams.
        points: Data points of all processes.
        each: Rows for each data point.
    """

    rng: torch.Generator | Streams | None
    points: int
    each: int = 1

    def times(self, each: int) -> "Part":
        """The same data points, with so many rows each."""
        return replace(self, each=each)

    @property
    def is_empty(self) -> bool:
        """Whether no data point is this process's: there are fewer than processes."""
        own = distributed.share(self.points)
        return own.start == own.stop

    @property
    def own(self) -> slice:
        """This process's data points; the first one where none is, which then counts nothing."""
        return slice(0, 1) if self.is_empty else distributed.share(self.points)

    @property
    def rows(self) -> int:
        """How many rows this process draws."""
        return (self.own.stop - self.own.start) * self.each

    def bounds(self, rows: int) -> list[int]:
        """Where the processes' rows begin, and the end, of something with so many rows here."""
        each = rows // (self.own.stop - self.own.start)
        return [each * place for place in distributed.bounds(self.points)]

    def fill(self, fill: Fill, out: Tensor) -> None:
        """Fill this process's rows with their noise.

        Args:
            fill: Fills rows with noise from a generator.
            out: Its own rows, (rows, ..).
        """
        here = slice(self.own.start * self.each, self.own.stop * self.each)
        generators: Iterator[torch.Generator | None]
        if isinstance(self.rng, Streams):
            count, generators = self.rng.count, self.rng.blocks()
        else:
            count, generators = 1, iter([self.rng])
        for block, rng in enumerate(generators):
            first, last = (self.each * (self.points * edge // count) for edge in (block, block + 1))
            low, high = max(first, here.start), min(last, here.stop)
            if low >= high and count > 1:
                continue
            inside = slice(low - here.start, max(low, high) - here.start)
            if (low, high) == (first, last):
                fill(out[inside], rng)
                continue
            # As one process has it: a family's noise may depend on the layout of its tensor.
            whole = out.new_empty_strided((last - first, out.shape[1]), out.stride())
            fill(whole, rng)
            out[inside] = whole[low - first : max(low, high) - first]
