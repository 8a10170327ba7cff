"""The keys of a run, and the group `trainer`."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import Field

from nws.experiment.options.schemas.schema import (
    Choice,
    Count,
    CountOrZero,
    Positive,
    Schema,
    Text,
    WholeNumber,
)


class RunOptions(Schema):
    """The keys beside the groups."""

    name: Text = Field(
        description="the experiment's name: its folder in outputs/ and multirun/",
        examples=["my_experiment"],
    )
    seed: CountOrZero = Field(description="of the parameters, shuffling and every draw of training")
    device: Literal["auto", "cpu", "cuda"] = Field(
        description="where the run computes; auto: CUDA where there is one"
    )
    progress: bool = Field(description="bars, where the output is a terminal")
    verbosity: Literal["normal", "quiet"] = Field(
        "normal", description="what the run says; quiet: errors and the run's directory alone"
    )
    resume: Text | None = Field(
        description="a run directory to go on with, with its own configuration and the overrides"
        " given; or auto: go on with what the same command left"
    )


class TrainerOptions(Schema):
    """The group `trainer`."""

    epochs: Positive = Field(
        description="passes over the training part; this and the intervals may be fractions"
    )
    batch_size: Count = Field(description="B, data points of a step")
    evaluate_every: Positive = Field(
        description="epochs between rows of metrics.csv (and checkpoints); a row of step 0 comes"
        " before the first step"
    )
    images_every: Positive = Field(description="epochs between image grids")
    check_every: Count = Field(
        description="steps between looks at the losses (are all numbers finite?)"
    )
    evaluation_samples: Count = Field(description="importance samples of valid/log_likelihood")
    evaluation_points: Count | None = Field(description="validation images used; null: all")
    noise_batches: Annotated[WholeNumber, Ge(2)] | None = Field(
        None,
        description="batches that show the gradients' noise scale at evaluations; null: none is"
        " logged",
    )
    matmul_precision: Literal["highest", "high"] = Field(
        "highest",
        description="of float32 products: highest, or high (TF32 on a GPU: faster, about 3 digits)",
    )
    on_divergence: Literal["stop", "warn", "back_off"] = Field(
        "stop",
        description="where numbers are not finite; warn: go on while parameters are; back_off: to"
        " the last checkpoint, with half the rate",
    )
    patience: Count | None = Field(
        None,
        description="evaluations without a better valid/log_likelihood that end the run; null:"
        " none do",
    )


RUN = Choice(
    RunOptions,
    name="${data.name}_${algorithm.name}",
    seed=0,
    device="auto",
    progress=True,
    resume=None,
)
TRAINER = Choice(
    TrainerOptions,
    epochs=100,
    batch_size=32,
    evaluate_every=10,
    images_every=50,
    check_every=50,
    evaluation_samples=100,
    evaluation_points=None,
)
