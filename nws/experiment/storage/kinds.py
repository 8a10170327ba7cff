"""Tests of values read from JSON and checkpoints.

Every test takes any value, as JSON or a checkpoint may hold it, and returns whether it fits.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nws.files import read_text

Test = Callable[[Any], bool]

BIG = 1e300  # beyond it Python's whole numbers become no floats


def whole(value: object) -> bool:
    """A whole number of at least 0."""
    return type(value) is int and 0 <= value < 2**63


def number(value: object) -> bool:
    """An int or a float, true and false aside."""
    return isinstance(value, float) or (type(value) is int and abs(value) < BIG)


def text(value: object) -> bool:
    """A text."""
    return isinstance(value, str)


def texts(value: object) -> bool:
    """A list of texts."""
    return isinstance(value, list) and all(map(text, value))


def mapping(value: object) -> bool:
    """A dictionary whose keys are texts."""
    return isinstance(value, dict) and all(map(text, value))


def maybe(fits: Test) -> Test:
    """The test of a value that may be none."""
    return lambda value: value is None or fits(value)


def misfit(record: Mapping[str, Any], kinds: Mapping[str, Test]) -> str:
    """Return what is wrong with the first value of another kind; empty where all fit.

    Keys that are missing, and keys that `kinds` does not have, are left alone.
    """
    for name, fits in kinds.items():
        if name in record and not fits(record[name]):
            kind = (fits.__doc__ or "another kind of value").rstrip(".").lower()
            return f"{name} should be {kind}, it is {repr(record[name])[:40]}"
    return ""


def read_json(path: Path) -> Any:
    """Return what a JSON file holds; `ValueError` where it is damaged, `OSError` where unread."""
    try:
        return json.loads(read_text(path))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
