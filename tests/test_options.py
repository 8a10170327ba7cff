"""Options: those that are refused, by their name on the command line, and numbers that pass."""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nws.errors import UserError, number, positive_int
from nws.learning import RowOptions, Rule
from nws.models import Gaussian, HelmholtzMachine, Poisson, log_likelihood
from nws.natural import CategoricalLogits, Damping, LevenbergMarquardt, NaturalGradient
from nws.natural.metrics import Adaptive, Diagonal, Fisher, Kronecker
from nws.natural.modules import GaussianMean
from nws.natural.solvers import Cholesky, ConjugateGradient, MinRes, ShermanMorrison
from nws.schedules import constant, cosine, exponential, linear, warmup_stable_decay

NOT_ABOVE = (0, -0.1, math.nan, math.inf, "much", None, True)
NO_FRACTION = (-1e-3, 1.0, math.nan, True, "1e-3", None)
WHOLE, ABOVE = "must be a whole number", "must be a number above 0"
LEAST = "must be a number of at least"
SOLVER = r"solver\.{option} must be .*, got {value!r}"
RULE, ROWS = (rf"^{group}\.{{option}} must be " for group in ("algorithm", "metric"))
optimizer = partial(NaturalGradient, nn.Linear(2, 2), CategoricalLogits())
rule, machine = partial(Rule, "mine"), partial(HelmholtzMachine, sizes=(3, 2))

# what takes the option; the option; values that are refused; the message
BAD: list[tuple[Callable[..., Any], str, tuple[Any, ...], str]] = [
    (Cholesky, "max_bytes", (0, 1.5, "a"), SOLVER),
    (ShermanMorrison, "forgetting", NO_FRACTION, SOLVER),
    (ConjugateGradient, "iterations", (0, 2.5, True), SOLVER),
    (ConjugateGradient, "tolerance", NO_FRACTION, SOLVER),
    (ConjugateGradient, "accuracy", NO_FRACTION, SOLVER),
    (ConjugateGradient, "rank", (-1, "full"), SOLVER),
    (ConjugateGradient, "preconditioner_every", (0,), SOLVER),
    (MinRes, "iterations", (0, None), SOLVER), (MinRes, "tolerance", NO_FRACTION, SOLVER),
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
    (optimizer, "metric", ("exact",),
     "metric must be one of fisher, .*, covariance, sampled, got 'exact'"),
    (optimizer, "solver", (Cholesky, "pcg"), r"solver must be an object such as .*, got"),
    (GaussianMean, "variance", (0,), "variance must be a number above 0, got 0"),
    (rule, "samples", (0, 2.5, "3", None, True, 10**18),
     f"{RULE}a whole number of at least 1 and at"),
    (rule, "dreams", (0, 10**18), f"{RULE}a whole number of at least 1 and at most 1,000,000, got"),
    (rule, "generator_wake", (-0.5, math.nan, "1"), f"{RULE}a number of at least 0, got"),
    (rule, "recognition_wake", (-0.5, math.inf), f"{RULE}a number of at least 0, got"),
    (rule, "recognition_dream", (-0.5, None), f"{RULE}a number of at least 0, got"),
    (rule, "baseline", (1, "yes"), f"{RULE}true or false, got"),
    (rule, "bidirectional", (None,), f"{RULE}true or false, got"),
    (RowOptions, "generator_rows", ("dreams",), f"{ROWS}one of model, posterior, got 'dreams'"),
    (RowOptions, "batch", ("next",), f"{ROWS}one of same, other, unlabeled, got 'next'"),
    (RowOptions, "max_rows", (0, 2.5), f"{ROWS}a whole number of at least 1, got"),
    (RowOptions, "refresh_every", (0, None), f"{ROWS}a whole number of at least 1, got"),
    (RowOptions, "max_kl", (0, math.nan, math.inf, "small"),
     f"{ROWS}a number above 0 nats, or null, got"),
    (machine, "sizes", ([], [3], [3, 0], [3, 2.5], [3, "2"], [3, True]), r"model\.layers"),
    (machine, "units", ("ternary", None),
     r"^model\.units must be binary or bipolar, got .*_target_"),
    (machine, "visible", ("ternary", 2),
     r"^model\.visible must be binary or bipolar, got .*_target_"),
    (machine, "weight_scale", (-0.1, 2e6, math.nan, "1"),
     rf"model\.weight_scale {LEAST} 0 and at most 1e"),
    (machine, "truncated", (2, "yes"), r"model\.truncated must be one of True, False"),
    (machine, "hidden_bias", (2e6, None, torch.zeros(2)), rf"model\.hidden_bias {LEAST} -1e"),
    (machine, "visible_bias", (math.nan, torch.zeros(2)), rf"model\.visible_bias {LEAST} -1e"),
    (partial(log_likelihood, machine(), torch.zeros(2, 3)), "samples", (0, 1.5, 10**18),
     rf"evaluation\.samples {WHOLE} of at least 1 and at most"),
    *((kind, "scale", (0.0, 1e7, math.nan, "wide"), rf"model\.visible\.scale {LEAST}")
      for kind in (Gaussian, Poisson)),
    (partial(constant, 0), "warmup_steps", (-1,), f"warmup_steps {LEAST} 0, got -1"),
    (partial(linear, 0), "total_steps", (0,), f"total_steps {ABOVE}, got 0"),
    (partial(cosine, 0, total_steps=10), "final", ("low",), f"final {LEAST} 0"),
    (partial(exponential, 0), "half_life", (-3,), f"half_life {ABOVE}, got -3"),
    (partial(warmup_stable_decay, 0, total_steps=9), "decay", (2,), f"decay {LEAST}"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "option", "value", "message"),
    [(make, option, value, text) for make, option, values, text in BAD for value in values],
)
def test_a_bad_option_is_refused_by_name(make: Any, option: str, value: Any, message: str) -> None:
    with pytest.raises(UserError, match=message.format(option=option, value=value)):
        make(**{option: value})


def test_good_numbers_pass() -> None:
    assert [positive_int("n", value) for value in (3, 3.0, np.int64(3))] == [3, 3, 3]
    assert positive_int("n", 10**400) == 10**400  # no float is as large
    assert type(positive_int("n", 3.0)) is int and positive_int("n", 0, minimum=0) == 0
    for value in (0, -2.5, 1e300, np.int64(3), np.float32(0.5), Fraction(1, 4)):
        assert type(number("n", value)) is float and number("n", value) == value
    with pytest.raises(UserError, match="n must be a number, got 1000"):
        number("n", 10**400)  # nor is there a float as large
