"""Broken files, made from good ones: what `test_broken_data.py` and `test_broken_runs.py` read."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import torch

#: What a value of a file is replaced by.
WRONG = (
    None, True, -1, 0, 3.5, 10**30, float("nan"), float("inf"), -float("inf"), "", "text", [], [1],
    {}, {"a": 1}, [[]],
)  # fmt: skip


def broken_bytes(good: bytes, count: int, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Truncations, single bytes that differ, lost and doubled pieces, each with its name."""
    size = len(good)
    yield "empty", b""
    for length in sorted({1, 2, 7, size // 4, size // 2, size - 9, size - 1} & set(range(size))):
        yield f"cut to {length}", good[:length]
    yield "doubled", good + good
    yield "zeros", bytes(size)
    for _ in range(count):
        place = rng.randrange(size)
        what = rng.choice(["byte", "byte", "byte", "bit", "zeros", "ones", "lost", "cut"])
        length = 1 if what in ("byte", "bit") else rng.randrange(1, max(2, size // 8))
        old = good[place : place + length]
        new = {
            "byte": bytes([rng.randrange(256)]),
            "bit": bytes([old[0] ^ 1 << rng.randrange(8)]),
            "zeros": bytes(len(old)),
            "ones": b"\xff" * len(old),
            "lost": b"",
            "cut": b"",
        }[what]
        rest = b"" if what == "cut" else good[place + length :]
        yield f"{what} of {len(old)} at {place}", good[:place] + new + rest


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in nested dictionaries and lists, by its keys; the top is ()."""
    yield path
    items: Any = []
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    for key, each in items:
        yield from places(each, (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any = None, delete: bool = False) -> Any:
    """A copy of nested values with another one at a place, or without what is there."""
    if not path:
        return new
    top = copy.deepcopy(value)
    inner = top
    for key in path[:-1]:
        if isinstance(inner[key], tuple):
            inner[key] = list(inner[key])
        inner = inner[key]
    if delete:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return top


def broken_values(good: Any, count: int | None, rng: random.Random) -> Iterator[tuple[str, Any]]:
    """Values with a key that is missing or more, or one of another type; `count` of each kind."""
    every = [place for place in places(good) if place]
    for place in every if count is None else rng.sample(every, min(count, len(every))):
        yield f"without {place}", changed(good, place, delete=True)
    pairs = [(place, new) for place in [(), *every] for new in WRONG]
    for place, new in pairs if count is None else rng.sample(pairs, min(count, len(pairs))):
        yield f"{place} is {new!r}", changed(good, place, new)
    if isinstance(good, dict):
        yield "one more key", good | {"unheard of": 3}


def broken_tensors(good: Any, rng: random.Random, count: int | None) -> Iterator[tuple[str, Any]]:
    """Values with a tensor of another shape, dtype or layout, or of numbers that are none."""
    every = [place for place in places(good) if isinstance(_at(good, place), torch.Tensor)]
    for place in every if count is None else rng.sample(every, min(count, len(every))):
        tensor = _at(good, place)
        for name, new in {
            "flat": tensor.flatten()[:-1],
            "more": torch.zeros(*tensor.shape, 2, dtype=tensor.dtype),
            "scalar": torch.zeros((), dtype=tensor.dtype),
            "complex": torch.zeros(tensor.shape, dtype=torch.complex64),
            "ints": torch.zeros(tensor.shape, dtype=torch.int64),
            "nan": torch.full(tensor.shape, float("nan")),
            "huge": torch.zeros(1).expand(10**6, 10**7),
            "sparse": torch.zeros(4, 4).to_sparse(),
        }.items():
            yield f"{place} is {name}", changed(good, place, new)


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value
