"""What tests of faults share: a seed, files broken from good ones, a trial that counts."""

import copy
import os
import random
import secrets
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from nws.errors import UserError

KINDS = ("byte", "byte", "bit", "ones", "cut", "lost")
GONE = "gone"
#: What a value of a file is replaced by.
WRONG = (
    GONE, None, True, -1, 0, 3.5, 10**30, float("nan"), float("inf"), "", "text", [], [1], {},
    {"a": 1}, [[]],
)  # fmt: skip
#: What a tensor is replaced by.
TENSORS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda tensor: tensor.flatten()[:-1],
    lambda tensor: torch.zeros(*tensor.shape, 2, dtype=tensor.dtype),
    lambda tensor: torch.zeros(tensor.shape, dtype=torch.complex64),
    lambda tensor: torch.zeros(tensor.shape, dtype=torch.int64),
    lambda tensor: torch.full(tensor.shape, float("nan")),
    lambda tensor: torch.zeros(1).expand(10**6, 10**7),
    lambda tensor: torch.zeros(4, 4).to_sparse(),
)


@dataclass
class Trial:
    """Reads files that `rng` breaks, and counts how that ended. NWS_FAULTS_SEED repeats a seed."""

    long: bool  # whether to read many of them, with a fresh seed
    refuses: bool = True  # whether some are to be refused; if not, none is
    counts: Counter[str] = field(default_factory=Counter)  # of the refused and the harmless

    def __post_init__(self) -> None:
        given = os.environ.get("NWS_FAULTS_SEED")
        self.seed = int(given) if given else secrets.randbelow(10**9) if self.long else 0
        self.rng = random.Random(self.seed)

    def read(self, name: object, action: Callable[[], object]) -> bool:
        """Whether an action ended well; False after a `UserError`. Anything else fails the test."""
        try:
            with warnings.catch_warnings(action="ignore"):
                action()
        except UserError as error:
            message = str(error)
            assert "weights_only" not in message and "Traceback" not in message, (name, message)
            self.counts["refused"] += 1
            return False
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
        self.counts["harmless"] += 1
        return True

    def read_bytes(self, file: Path, few: int, action: Callable[[], object]) -> None:
        """Read many broken versions of a file, and in the end the good one."""
        good = file.read_bytes()
        for name, content in self.broken_bytes(good, few):
            file.write_bytes(content)
            self.read(f"{file.name}, {name}", action)
        file.write_bytes(good)
        assert self.read(file.name, action), "the control: the good file"

    def broken_bytes(self, good: bytes, few: int) -> Iterator[tuple[str, bytes]]:
        """Truncations, other bits and bytes, lost and doubled pieces, each with its name."""
        yield "empty", b""
        yield "doubled", good + good
        yield "zeros", bytes(len(good))
        for _ in range(20 * few if self.long else few):
            place, what = self.rng.randrange(len(good)), self.rng.choice(KINDS)
            length = 1 if what in ("byte", "bit") else self.rng.randrange(1, max(2, len(good) // 8))
            new = {
                "byte": bytes([self.rng.randrange(256)]),
                "bit": bytes([good[place] ^ 1 << self.rng.randrange(8)]),
                "ones": b"\xff" * length,
            }.get(what, b"")
            rest = b"" if what == "cut" else good[place + length :]
            yield f"{what} of {length} at {place}", good[:place] + new + rest

    def broken_values(self, good: Any, few: int) -> Iterator[tuple[object, Any]]:
        """Nested values in which one is missing, of another kind, or another tensor."""
        every = [place for place in places(good) if place]
        tensors = [place for place in every if isinstance(at(good, place), torch.Tensor)]
        yield "nothing", None
        yield "another kind", [good] if isinstance(good, dict) else {"unheard of": good}
        for number in range(20 * few if self.long else few):
            place = self.rng.choice(tensors if tensors and number % 3 == 0 else every)
            old = at(good, place)
            new: Any = self.rng.choice(WRONG)
            if isinstance(old, torch.Tensor) and number % 3 == 0:
                new = self.rng.choice(TENSORS)(old)
            broken = copy.deepcopy(good)
            inner = at(broken, place[:-1])
            if new is GONE:
                del inner[place[-1]]
            else:
                inner[place[-1]] = new
            yield (place, new), broken


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in nested dictionaries and lists, by its keys; the top is ()."""
    yield path
    items: Any = value.items() if isinstance(value, dict) else ()
    for key, each in enumerate(value) if isinstance(value, list) else items:
        yield from places(each, (*path, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    """What is at a place."""
    for key in path:
        value = value[key]
    return value


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about a disk that loses power."""
    monkeypatch.setattr("os.fsync", lambda number: None)


@pytest.fixture
def trial(request: pytest.FixtureRequest) -> Iterator[Trial]:
    """Its counts are printed at the end."""
    made = Trial(bool(request.config.getoption("--faults-long")))
    yield made
    print(f"\n{request.node.name}: {dict(made.counts)} with seed {made.seed}", file=sys.stderr)
    assert (made.counts["refused"] > 3) == made.refuses
