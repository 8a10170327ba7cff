"""Options that are refused: by their name on the command line."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from torch import nn

from nws.errors import UserError
from nws.natural import CategoricalLogits, Damping, LevenbergMarquardt, NaturalGradient
from nws.natural.metrics import Adaptive, Diagonal, Fisher, Kronecker
from nws.natural.modules import GaussianMean
from nws.natural.solvers import Cholesky, ConjugateGradient, MinRes, ShermanMorrison

NOT_ABOVE = (0, -0.1, math.nan, math.inf, "much", None, True)
NO_FRACTION = (-1e-3, 1.0, math.nan, True, "1e-3", None)
WHOLE, ABOVE = "must be a whole number", "must be a number above 0"
SOLVER = r"solver\.{option} must be .*, got {value!r}"
optimizer = partial(NaturalGradient, nn.Linear(2, 2), CategoricalLogits())

# what takes the option; the option; values that are refused; the message
BAD: list[tuple[Callable[..., Any], str, tuple[Any, ...], str]] = [
    (Cholesky, "max_bytes", (0, 1.5, "a"), SOLVER),
    (ShermanMorrison, "forgetting", NO_FRACTION, SOLVER),
    (ConjugateGradient, "iterations", (0, 2.5, True), SOLVER),
    (ConjugateGradient, "tolerance", NO_FRACTION, SOLVER),
    (ConjugateGradient, "accuracy", NO_FRACTION, SOLVER),
    (ConjugateGradient, "rank", (-1, "full"), SOLVER),
    (ConjugateGradient, "preconditioner_every", (0,), SOLVER),
    (MinRes, "iterations", (0, None), SOLVER),
    (MinRes, "tolerance", NO_FRACTION, SOLVER),
    *((kind, "memory", (0, -1, 1.5, None), rf"metric\.memory {WHOLE} of at")
      for kind in (Adaptive, Diagonal, Fisher, Kronecker)),
    (Kronecker, "rank", (-1, "all", True), r"metric\.rank \(or full\) must be .*, got"),
    *((kind, "refresh_every", (0,), rf"metric\.refresh_every {WHOLE}")
      for kind in (Adaptive, Kronecker)),
    (Adaptive, "rank", (-1, "full"), rf"metric\.rank {WHOLE}"),
    (Adaptive, "mean_memory", (0, 0.9), rf"metric\.mean_memory {WHOLE}"),
    (Adaptive, "square_memory", (0, 0.9), rf"metric\.square_memory {WHOLE}"),
    (Adaptive, "measured", (-0.1, 1.1, None), r"metric\.measured must be a number of at"),
    *((kind, "value", NOT_ABOVE, r"damping\.value must be a number above 0")
      for kind in (Damping, LevenbergMarquardt)),
    (partial(Damping, 0.5), "schedule", (0.9,), "at step 0: 'float' object is not callable"),
    (partial(Damping, 0.5), "schedule", (lambda step: 1 / step,), "at step 0: .*division by zero"),
    (partial(Damping, 0.5), "schedule", (lambda step: None,), "at step 0: .*NoneType"),
    (partial(Damping, 0.5), "schedule", (lambda: 1.0,), "at step 0: .*argument"),
    (LevenbergMarquardt, "every", (0, 1.5), rf"damping\.every {WHOLE} of at least 1, got"),
    (LevenbergMarquardt, "factor", (0, 1.0, "a"), r"damping\.factor .* above 0 and below 1"),
    (LevenbergMarquardt, "minimum", (0,), rf"damping\.minimum {ABOVE}"),
    (LevenbergMarquardt, "minimum", (0.3,), r"must lie in damping\.minimum \.\. maximum, got 0\.2"),
    (LevenbergMarquardt, "maximum", (0.1,), r"must lie in damping\.minimum \.\. maximum, got 0\.2"),
    (optimizer, "lr", (0.0, "fast"), "lr must be a number above 0, got"),
    (optimizer, "kl", (-1,), "kl must be a number above 0, got -1"),
    (optimizer, "metric", ("hessian",), "metric must be one of fisher, .*, sampled, got .hessian"),
    (GaussianMean, "variance", (0,), "variance must be a number above 0, got 0"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "option", "value", "message"),
    [(make, option, value, text) for make, option, values, text in BAD for value in values],
)
def test_a_bad_option_is_refused_by_name(make: Any, option: str, value: Any, message: str) -> None:
    message = message.format(option=option, value=value) if message is SOLVER else message
    with pytest.raises(UserError, match=message):
        make(**{option: value})
