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


class Schedule(Schema):
    """A function of the step."""

    partial = True


class Constant(Schedule):
    """Stays."""

    target = "nws.schedules.constant"
    warmup_steps: CountOrZero | TotalSteps = Field(
        0, description="steps of a straight line from 0 at the start"
    )


class Linear(Schedule):
    """Falls in a straight line."""

    target = "nws.schedules.linear"
    total_steps: Positive | TotalSteps = Field(
        examples=["total_steps"], description="steps until the end; total_steps: those of the run"
    )
    final: NonNegative = Field(0.0, description="factor at the end of the run")
    warmup_steps: CountOrZero | TotalSteps = Field(
        0, description="steps of a straight line from 0 at the start"
    )


class Cosine(Linear):
    """Falls along half a cosine wave."""

    target = "nws.schedules.cosine"


class Exponential(Schedule):
    """Falls by halves."""

    target = "nws.schedules.exponential"
    half_life: Positive | TotalSteps = Field(
        examples=[1000], description="steps in which half of the way is gone"
    )
    final: NonNegative = Field(0.0, description="of the start: it falls towards it", exclude=True)
    warmup_steps: CountOrZero | TotalSteps = Field(
        0, description="steps of a straight line from 0 at the start", exclude=True
    )


class WarmupStableDecay(Schedule):
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


class Tempered(Schema):
    """softmax_k(exponent (log p - log q))."""

    target = "nws.learning.weighting.tempered"
    partial = True
    exponent: NonNegative = Field(1.0, description="of softmax_k(exponent (log p - log q))")


class Vimco(Schema):
    """Importance weights and leave-one-out signals."""

    target = "nws.learning.vimco.vimco"
    partial = True


FUNCTIONS: tuple[type[Schema], ...] = (
    Constant, Linear, Cosine, Exponential, WarmupStableDecay, Tempered, Vimco,
)  # fmt: skip
