"""What the tests of faults share: their seed, and a trial that reads broken files and counts."""

from __future__ import annotations

import os
import random
import secrets
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from faults import corpus

from nws.errors import UserError


def fresh_seed(long: bool) -> int:
    """A new seed for a long run, or the one that NWS_FAULTS_SEED gives again; else 0."""
    given = os.environ.get("NWS_FAULTS_SEED")
    return int(given) if given else secrets.randbelow(10**9) if long else 0


@dataclass
class Trial:
    """Reads broken files, and counts how that ended.

    Attributes:
        long: Whether to read many of them.
        rng: What breaks them.
        counts: How many were refused, and how many were harmless.
        refuses: Whether some are to be refused; if not, none is.
    """

    long: bool
    rng: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    refuses: bool = True

    def read(self, name: str, action: Callable[[], object]) -> bool:
        """Whether an action ended well; False after a `UserError`. Anything else fails the test."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
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
        for name, content in corpus.broken_bytes(good, 20 * few if self.long else few, self.rng):
            file.write_bytes(content)
            self.read(f"{file.name}, {name}", action)
        file.write_bytes(good)
        assert self.read(file.name, action), "the control: the good file"


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about a disk that loses power."""
    monkeypatch.setattr("os.fsync", lambda number: None)


@pytest.fixture
def trial(request: pytest.FixtureRequest) -> Iterator[Trial]:
    """Seeded by `fresh_seed`; its counts are printed at the end."""
    long = bool(request.config.getoption("--faults-long"))
    seed = fresh_seed(long)
    made = Trial(long, random.Random(seed))
    yield made
    print(f"\n{request.node.name}: {dict(made.counts)} with seed {seed}", file=sys.stderr)
    assert (made.counts["refused"] > 3) == made.refuses
