"""What the library's own checks refuse."""

import math
from fractions import Fraction

import numpy as np
import pytest

from nws.errors import UserError, number, positive_int


@pytest.mark.parametrize("value", ["3", None, True, 2.5, math.nan, math.inf, 0, -1])
def test_positive_int_refuses(value: object) -> None:
    with pytest.raises(UserError, match="epochs must be a whole number of at least 1, got "):
        positive_int("epochs", value)


def test_good_numbers_pass() -> None:
    assert [positive_int("n", value) for value in (3, 3.0, np.int64(3))] == [3, 3, 3]
    assert positive_int("n", 10**400) == 10**400  # no float is as large
    assert type(positive_int("n", 3.0)) is int and positive_int("n", 0, minimum=0) == 0
    for value in (0, -2.5, 1e300, np.int64(3), np.float32(0.5), Fraction(1, 4)):
        assert type(number("n", value)) is float and number("n", value) == value


@pytest.mark.parametrize("value", [True, None, "0.5", 1j, math.nan, -math.inf, 10**400, -0.1, 1])
def test_number_refuses(value: object) -> None:
    with pytest.raises(UserError) as refusal:
        number("solver.accuracy", value, least=0, below=1)
    message = f"solver.accuracy must be a number of at least 0 and below 1, got {value!r}"
    assert str(refusal.value) == message
