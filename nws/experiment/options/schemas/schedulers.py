"""The groups `scheduler` and `average`: rates over a run, and averages of its weights."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Ge, Le
from pydantic import Field

from nws.experiment.options.schemas import functions
from nws.experiment.options.schemas.schema import (
    MOST,
    Choice,
    CountOrZero,
    InnerShare,
    Named,
    NonNegative,
    Schema,
)


class LambdaLROptions(Schema):
    """A schedule in closed form."""

    target = "torch.optim.lr_scheduler.LambdaLR"
    others = True
    lr_lambda: Named = Field(
        description="a function of the step: the factor on optimizer.lr",
        examples=["{_target_: nws.schedules.constant, _partial_: true}"],
    )
    last_epoch: Literal[-1] = Field(-1, description="the run sets it", exclude=True)


class ReduceLROnPlateauOptions(Schema):
    """Falls where the likelihood stays."""

    target = "torch.optim.lr_scheduler.ReduceLROnPlateau"
    others = True
    mode: Literal["max", "min"] = Field(
        "min", description="what is better; max: a larger valid/log_likelihood"
    )
    factor: InnerShare = Field(0.1, description="on the rate, each time")
    patience: CountOrZero = Field(10, description="evaluations without a better one before that")
    threshold: NonNegative = Field(1e-4, description="what counts as better", exclude=True)
    threshold_mode: Literal["rel", "abs"] = Field("rel", description="of threshold", exclude=True)
    cooldown: CountOrZero = Field(0, description="evaluations after a fall", exclude=True)
    min_lr: NonNegative | list[NonNegative] = Field(0.0, description="least rate", exclude=True)
    eps: NonNegative = Field(1e-8, description="least change of the rate", exclude=True)


TOTAL = "total_steps"


def _lambda(about: str, schedule: type[Schema], **values: Any) -> Choice:
    return Choice(LambdaLROptions, about, lr_lambda=Choice(schedule, **values))


SCHEDULERS: dict[str, Choice | str] = {
    "constant": _lambda(
        "The rate stays, after a warm-up. Any scheduler of torch will do; all take a step at each"
        " training step.",
        functions.ConstantOptions,
    ),
    "cosine": _lambda(
        "The rate falls along half a cosine wave over the run (Loshchilov & Hutter 2017).",
        functions.CosineOptions,
        total_steps=TOTAL,
    ),
    "exponential": _lambda(
        "The rate falls by halves.",
        functions.ExponentialOptions,
        half_life=1000,
        notes={"half_life": "steps in which the rate is halved"},
    ),
    "linear": _lambda(
        "The rate falls in a straight line over the run.",
        functions.LinearOptions,
        total_steps=TOTAL,
    ),
    "linear_warmup": Choice(
        LambdaLROptions,
        "The same after a warm-up: the first steps of Adam are as long as its rate, whatever the"
        " gradient.",
        lr_lambda=Choice(functions.LinearOptions, total_steps=TOTAL, warmup_steps=20),
    ),
    "plateau": Choice(
        ReduceLROnPlateauOptions,
        "The rate falls where valid/log_likelihood stays; it takes a step at each evaluation.",
        mode="max",
        factor=0.5,
        patience=5,
    ),
    "wsd": Choice(
        LambdaLROptions,
        "Warm-up, stable, decay: the rate rises, stays, and falls at the end (Hu et al. 2024).",
        lr_lambda=Choice(functions.WarmupStableDecayOptions, total_steps=TOTAL, warmup_steps=20),
    ),
}


class AverageOptions(Schema):
    """An average of the weights, evaluated and saved beside the weights themselves."""

    target = "nws.experiment.averaging.Average"
    memory: Annotated[float, Ge(1), Le(MOST)] | None = Field(
        None,
        description="in steps: the weights of k steps ago count (1 - 1 / memory)^k; null: all"
        " weights count the same",
    )
    start: float = Field(
        0.0, ge=0, lt=1, description="share of the run before the first weights that count"
    )


AVERAGES: dict[str, Choice | str] = {
    "exponential": Choice(
        AverageOptions,
        "The exponential mean of the weights, evaluated and saved beside the weights themselves.",
        memory=500,
    ),
    "none": Choice(None, "No average."),
    "tail": Choice(
        AverageOptions,
        "The plain mean of the weights over the end of the run, evaluated and saved beside them.",
        start=0.5,
    ),
}
