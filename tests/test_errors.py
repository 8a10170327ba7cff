"""What the library's own checks let pass; tests/test_options.py has what they refuse."""

from fractions import Fraction

import numpy as np
import pytest

from nws.errors import UserError, number, positive_int


def test_good_numbers_pass() -> None:
    assert [positive_int("n", value) for value in (3, 3.0, np.int64(3))] == [3, 3, 3]
    assert positive_int("n", 10**400) == 10**400  # no float is as large
    assert type(positive_int("n", 3.0)) is int and positive_int("n", 0, minimum=0) == 0
    for value in (0, -2.5, 1e300, np.int64(3), np.float32(0.5), Fraction(1, 4)):
        assert type(number("n", value)) is float and number("n", value) == value
    with pytest.raises(UserError, match="n must be a number, got 1000"):
        number("n", 10**400)  # nor is there a float as large
