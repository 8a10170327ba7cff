"""What the library's own checks refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nws.errors import UserError, positive_int


@pytest.mark.parametrize("value", ["abc", "3", None, True, 2.5, math.nan, math.inf, 0, -1])
def test_positive_int_refuses(value: object) -> None:
    with pytest.raises(
        UserError, match="trainer.epochs must be a whole number of at least 1, got "
    ):
        positive_int("trainer.epochs", value)


def test_positive_int_accepts_whole_numbers() -> None:
    assert [positive_int("n", value) for value in (3, 3.0, np.int64(3))] == [3, 3, 3]
    assert type(positive_int("n", 3.0)) is int and positive_int("n", 0, minimum=0) == 0
