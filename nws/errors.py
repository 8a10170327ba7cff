"""Errors that are addressed to a person."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from numbers import Integral, Real


class UserError(ValueError):
    """A mistake a user can mend: the message says what was expected, what came and what to do.

    An argument that is not what its docstring names is one, and so is a file that is missing,
    damaged or cannot be written. Not every docstring says so again.
    """


class Diverged(UserError):
    """A run whose numbers are not finite any more, or too large or small to go on with."""


class Stopped(UserError):
    """A job of a sweep, in a process of its own, that a signal stopped."""


@contextmanager
def explained(problem: str, *advice: str) -> Iterator[None]:
    """Turn whatever a library raises over a file into a `UserError`, with its words in one line."""
    try:
        yield
    except Exception as error:
        words = getattr(error, "strerror", None) or " ".join(str(error).split())
        text = "; ".join([words or type(error).__name__, *advice])
        raise UserError(f"{problem}: {text}") from error


def positive_int(name: str, value: object, minimum: int = 1, maximum: float = math.inf) -> int:
    """The value as an int, where it is a whole number (3.0 is, True is not) in range.

    Raises `UserError` for any other value, with its name.
    """
    whole = isinstance(value, Integral) or (isinstance(value, float) and value.is_integer())
    if whole and not isinstance(value, bool) and minimum <= value <= maximum:  # type: ignore
        return int(value)  # type: ignore
    most = f" and at most {maximum:,}" if maximum < math.inf else ""
    raise UserError(f"{name} must be a whole number of at least {minimum}{most}, got {value!r}")


def one_of(name: str, value: object, choices: Iterable[object]) -> None:
    """Raise `UserError` where the value of an option is none of the choices."""
    if value not in (there := [*choices]):
        raise UserError(f"{name} must be one of {', '.join(map(str, there))}, got {value!r}")


def number(
    name: str, value: object, *, above: float = -math.inf, least: float = -math.inf,
    below: float = math.inf, most: float = math.inf, more: str = "",
) -> float:  # fmt: skip
    """The value as a float, where it is a finite number (2 is, True is not) within bounds.

    Args:
        name: Of the option, for the message.
        value: What came.
        above: What the value must be above.
        least: What it must be at least.
        below: What it must be below.
        most: What it must be at most.
        more: What else the message says of the range.

    Raises:
        UserError: For any other value, with its name.

    Examples:
        >>> number("damping.factor", 0.5, above=0, below=1)
        0.5
    """
    found = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # of whole numbers that are too large
            found = float(value)
    if math.isfinite(found) and above < found < below and least <= found <= most:
        return found
    bounds = {" above": above, " of at least": least, " below": below, " at most": most}
    ends = [f"{word} {end:g}" for word, end in bounds.items() if math.isfinite(end)]
    raise UserError(f"{name} must be a number{' and'.join(ends)}{more}, got {value!r}")
