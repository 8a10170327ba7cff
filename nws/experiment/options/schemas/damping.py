"""The group `damping`: alpha."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Gt, Le
from pydantic import Field, model_validator

from nws.experiment.options.schemas.functions import ExponentialOptions, LinearOptions
from nws.experiment.options.schemas.schema import Choice, Count, InnerShare, Named, Positive, Schema
from nws.natural.damping import LARGEST

#: Above, the direction is the plain gradient.
Alpha = Annotated[float, Gt(0), Le(LARGEST)]


class DampingOptions(Schema):
    """alpha, constant or on a schedule."""

    target = "nws.natural.damping.Damping"
    value: Alpha = Field(
        0.2,
        description="alpha, the published default; a Fisher block from few rows is singular"
        " without",
    )
    schedule: Named | None = Field(
        None, description="a function of the step: the factor on value", exclude=True
    )


class LevenbergMarquardtOptions(Schema):
    """alpha by the ratio of gains."""

    target = "nws.natural.damping.LevenbergMarquardt"
    value: Alpha = Field(0.2, description="alpha at the start")
    every: Count = Field(5, description="steps between measurements of the reduction ratio")
    factor: InnerShare = Field(
        0.9, description="times alpha where the ratio is above 3/4; divided by it where below 1/4"
    )
    minimum: Positive = Field(0.001, description="alpha is at least this")
    maximum: Alpha = Field(10.0, description="alpha is at most this")

    @model_validator(mode="after")
    def _in_order(self) -> LevenbergMarquardtOptions:
        if not self.minimum <= self.value <= self.maximum:
            raise ValueError(
                "damping.value must lie in damping.minimum .. damping.maximum, got"
                f" {self.value:g} in {self.minimum:g} .. {self.maximum:g}"
            )
        return self


AT_START = {"value": "alpha at the start"}
DAMPINGS: dict[str, Choice | str] = {
    "constant": Choice(DampingOptions, "alpha stays the same."),
    "exponential": Choice(
        DampingOptions,
        "alpha falls by halves.",
        notes=AT_START,
        schedule=Choice(
            ExponentialOptions,
            half_life=1000,
            final=0.1,
            notes={"final": "of value: it falls towards it"},
        ),
    ),
    "levenberg_marquardt": Choice(
        LevenbergMarquardtOptions,
        "alpha follows the ratio of actual to predicted gain of a step (Martens 2010).",
    ),
    "linear": Choice(
        DampingOptions,
        "alpha falls in a straight line.",
        notes=AT_START,
        schedule=Choice(
            LinearOptions,
            total_steps="total_steps",
            final=0.1,
            notes={"final": "of value, at the end of the run"},
            without=["warmup_steps"],
        ),
    ),
}
