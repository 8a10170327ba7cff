"""Schedules in closed form: the factor on a base value (learning rate, damping) after `step` steps.

A warm-up is a factor on the rest, which decays meanwhile: the peak of `linear`, `cosine` and
`exponential` is then below 1. A resumed run with more epochs follows the longer schedule from where
it stands. A number that is out of range is a `UserError`.
"""

import math

from nws.errors import number


def constant(step: int, warmup_steps: int = 0) -> float:
    """1, after a straight line that starts at 1 / (`warmup_steps` + 1)."""
    number("warmup_steps", warmup_steps, least=0)
    return min(1.0, (step + 1) / (warmup_steps + 1))


def linear(step: int, total_steps: int, final: float = 0.0, warmup_steps: int = 0) -> float:
    """1 at the start to `final` at `total_steps`, in a straight line; `final` from there on."""
    number("total_steps", total_steps, above=0)
    number("final", final, least=0)
    return constant(step, warmup_steps) * (1 + (final - 1) * min(1.0, step / total_steps))


def cosine(step: int, total_steps: int, final: float = 0.0, warmup_steps: int = 0) -> float:
    """1 to `final` along half a cosine wave over `total_steps`, and `final` from there on.

    Source: Loshchilov & Hutter 2017, eq. 5.
    """
    number("total_steps", total_steps, above=0)
    number("final", final, least=0)
    wave = (1 + math.cos(math.pi * min(1.0, step / total_steps))) / 2
    return constant(step, warmup_steps) * (final + (1 - final) * wave)


def exponential(step: int, half_life: float, final: float = 0.0, warmup_steps: int = 0) -> float:
    """1 towards `final`, half of the way every `half_life` steps."""
    number("half_life", half_life, above=0)
    number("final", final, least=0)
    return constant(step, warmup_steps) * (final + (1 - final) * 0.5 ** (step / half_life))


def warmup_stable_decay(
    step: int, total_steps: int, decay: float = 0.2, final: float = 0.0, warmup_steps: int = 0
) -> float:
    """1, and over the last share `decay` of `total_steps` a straight line to `final`.

    Source: Hu et al. 2024 (MiniCPM), section 4.
    """
    number("decay", decay, least=0, most=1)
    number("total_steps", total_steps, above=0)
    number("final", final, least=0)
    left, span = max(0, total_steps - step), decay * total_steps
    share = 1.0 if left >= span else left / span
    return constant(step, warmup_steps) * (final + (1 - final) * share)
