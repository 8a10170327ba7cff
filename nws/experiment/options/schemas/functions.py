"""Functions that options name: schedules of the step, and weightings of samples."""

from __future__ import annotations

from pydantic import Field

from nws.experiment.options.schemas.schema import (
    CountOrZero,
    NonNegative,
    Positive,
    Schema,
    Share,
    TotalSteps,
)


class ScheduleOptions(Schema):
    """A function of the step."""

    partial = True


class ConstantOptions(ScheduleOptions):
    """Stays."""

    target = "nws.schedules.constant"
    warmup_steps: CountOrZero | TotalSteps = Field(
        0, description="steps of a straight line from 0 at the start"
    )


class LinearOptions(ScheduleOptions):
    """Falls in a straight line."""

    target = "nws.schedules.linear"
    total_steps: Positive | TotalSteps = Field(
        examples=["total_steps"], description="steps until the end; total_steps: those of the run"
    )
    final: NonNegative = Field(0.0, description="factor at the end of the run")
    warmup_steps: CountOrZero | TotalSteps = Field(
        0, description="steps of a straight line from 0 at the start"
    )


class CosineOptions(LinearOptions):
    """Falls along half a cosine wave."""

    target = "nws.schedules.cosine"


class ExponentialOptions(ScheduleOptions):
    """Falls by halves."""

    target = "nws.schedules.exponential"
    half_life: Positive | TotalSteps = Field(
        examples=[1000], description="steps in which half of the way is gone"
    )
    final: NonNegative = Field(0.0, description="of the start: it falls towards it", exclude=True)
    warmup_steps: CountOrZero | TotalSteps = Field(
        0, description="steps of a straight line from 0 at the start", exclude=True
    )


class WarmupStableDecayOptions(ScheduleOptions):
    """Rises, stays, and falls at the end."""

    target = "nws.schedules.warmup_stable_decay"
    total_steps: Positive | TotalSteps = Field(
        examples=["total_steps"], description="steps until the end; total_steps: those of the run"
    )
    decay: Share = Field(0.2, description="share of the run over which it falls")
    final: NonNegative = Field(0.0, description="factor at the end of the run")
    warmup_steps: CountOrZero | TotalSteps = Field(
        0, description="steps of a straight line from 0 at the start"
    )


class TemperedOptions(Schema):
    """softmax_k(exponent (log p - log q))."""

    target = "nws.learning.weighting.tempered"
    partial = True
    exponent: NonNegative = Field(1.0, description="of softmax_k(exponent (log p - log q))")


class VimcoOptions(Schema):
    """Importance weights and leave-one-out signals."""

    target = "nws.learning.vimco.vimco"
    partial = True


SCHEDULES: tuple[type[Schema], ...] = (
    ConstantOptions,
    LinearOptions,
    CosineOptions,
    ExponentialOptions,
    WarmupStableDecayOptions,
)
WEIGHTINGS: tuple[type[Schema], ...] = (TemperedOptions, VimcoOptions)
