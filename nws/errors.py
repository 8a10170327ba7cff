"""Errors that are addressed to a person."""

from __future__ import annotations

from numbers import Integral


class UserError(ValueError):
    """A mistake a user can mend: the message says what was expected, what came and what to do."""


class Diverged(UserError):
    """A run whose loss or parameters are not finite any more."""


def positive_int(name: str, value: object, minimum: int = 1) -> int:
    """The value as an int, where it is a whole number (3.0 is, True is not) of at least minimum.

    Raises:
        UserError: For any other value, with its name.
    """
    numeric = isinstance(value, Integral | float) and not isinstance(value, bool)
    if numeric and float(value).is_integer() and value >= minimum:  # type: ignore
        return int(value)  # type: ignore
    raise UserError(f"{name} must be a whole number of at least {minimum}, got {value!r}")
