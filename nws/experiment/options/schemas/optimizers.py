"""The group `optimizer`: what follows the direction."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Lt
from pydantic import Field, model_validator

from nws.experiment.options.schemas.schema import Choice, NonNegative, Schema

Beta = Annotated[float, Ge(0), Lt(1)]


class RateOptions(Schema):
    """What every optimizer takes here: the learning rates."""

    lr: NonNegative = Field(
        0.001, description="learning rate: the step is so many times the direction"
    )
    generator_lr: NonNegative | None = Field(
        None, description="learning rate of the generator alone; null: lr"
    )
    recognition_lr: NonNegative | None = Field(
        None, description="learning rate of the recognition network alone; null: lr"
    )


class TorchOptimizerOptions(RateOptions):
    """What torch's optimizers share besides."""

    others = True
    weight_decay: NonNegative = Field(0.0, description="share of weights taken off", exclude=True)
    maximize: bool = Field(False, description="climb; training descends", exclude=True)
    foreach: bool | None = Field(None, description="torch's foreach step", exclude=True)
    differentiable: bool = Field(False, description="autograd through steps", exclude=True)


class SGDOptions(TorchOptimizerOptions):
    """Gradient steps."""

    target = "torch.optim.SGD"
    momentum: NonNegative = Field(0.0, description="share of the last step kept", exclude=True)
    dampening: Annotated[float, Ge(-1e6)] = Field(
        0.0, description="share of the gradient left out of the momentum", exclude=True
    )
    nesterov: bool = Field(
        False, description="the gradient is taken after that share of the step", exclude=True
    )
    fused: bool | None = Field(None, description="one pass over the parameters", exclude=True)

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> SGDOptions:
        if self.nesterov and (self.momentum <= 0 or self.dampening != 0):
            raise ValueError(
                "optimizer.nesterov needs an optimizer.momentum above 0 (and no dampening), got"
                f" {self.momentum:g}; set optimizer.nesterov=false, or optimizer.momentum=0.9"
            )
        return self


class AdamOptions(TorchOptimizerOptions):
    """Adam."""

    target = "torch.optim.Adam"
    betas: list[Beta] = Field(
        [0.9, 0.999],
        min_length=2,
        max_length=2,
        description="shares of the gradient and of its square that stay, a step",
    )
    eps: NonNegative = Field(1e-8, description="least divisor", exclude=True)
    amsgrad: bool = Field(False, description="the largest square so far divides", exclude=True)
    decoupled_weight_decay: bool = Field(False, description="AdamW's decay", exclude=True)
    fused: bool | None = Field(None, description="one pass over the parameters", exclude=True)


class NAdamOptions(TorchOptimizerOptions):
    """NAdam."""

    target = "torch.optim.NAdam"
    lr: NonNegative = Field(
        0.002, description="learning rate: the step is so many times the direction"
    )
    betas: list[Beta] = Field(
        [0.9, 0.999],
        min_length=2,
        max_length=2,
        description="shares of the gradient and of its square that stay, a step",
        exclude=True,
    )
    eps: NonNegative = Field(1e-8, description="least divisor", exclude=True)
    momentum_decay: NonNegative = Field(0.004, description="of the momentum", exclude=True)
    decoupled_weight_decay: bool = Field(False, description="AdamW's decay", exclude=True)


OPTIMIZERS: dict[str, Choice | str] = {
    "adam": Choice(AdamOptions, "Adam (Kingma & Ba 2015).", lr=0.01, fused=True),
    "momentum": Choice(
        SGDOptions,
        "Gradient steps with Nesterov momentum.",
        lr=0.05,
        momentum=0.9,
        nesterov=True,
        fused=True,
    ),
    "nadam": Choice(NAdamOptions, "NAdam (Dozat 2016).", lr=0.001),
    "sgd": Choice(SGDOptions, "Plain gradient steps.", lr=0.1),
}
