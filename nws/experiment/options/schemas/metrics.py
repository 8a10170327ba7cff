"""The group `metric`: the natural gradient."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nws.experiment.options.schemas.schema import Choice, Count, CountOrZero, Positive, Schema


class MetricOptions(Schema):
    """What all metrics take: which rows make them, and how often."""

    generator_rows: Literal["model", "posterior"] = Field(
        "model",
        description="the generator's rows: model (dreams) or posterior (wake rows by importance)",
    )
    batch: Literal["same", "other", "unlabeled"] = Field(
        "same",
        description="Whose rows. same: the gradient's batch; other: another training batch;"
        " unlabeled: for recognition a batch of the data set's unlabelled images (data=tfd"
        " data.split=train), for the generator as in same.",
    )
    max_rows: Count | None = Field(
        None,
        description="at most so many rows a layer, evenly spaced (the K that share x are one);"
        " null: all",
    )
    refresh_every: Count = Field(1, description="steps between updates of the metric")
    max_kl: Positive | None = Field(
        None,
        description="trust region: half the squared Fisher length of a step, in nats; null: none",
    )


class MeanOptions(MetricOptions):
    """The mean row alone."""

    target = "nws.natural.metrics.mean.Mean"


class FisherOptions(MetricOptions):
    """The exact Fisher matrix."""

    target = "nws.natural.metrics.Fisher"
    memory: Count = Field(1, description="the rows of so many updates make the matrix")


class EmpiricalOptions(FisherOptions):
    """The second moment of the rows' gradients."""

    target = "nws.natural.metrics.Empirical"


class DiagonalOptions(MetricOptions):
    """The diagonal alone."""

    target = "nws.natural.metrics.Diagonal"
    memory: Count = Field(
        50, description="of the running mean, in updates; 1: the newest rows alone"
    )


class KroneckerOptions(MetricOptions):
    """The shared covariance, scaled by each unit's curvature."""

    target = "nws.natural.metrics.Kronecker"
    memory: Count = Field(
        50, description="of the parents' covariance, in steps; 1: the newest rows alone"
    )
    rank: CountOrZero | Literal["full"] = Field(
        15, description="of the covariance, the largest eigenpairs that are kept; full: all of them"
    )
    refresh_every: Count = Field(20, description="steps between rows that the covariance takes in")
    max_rows: Count | None = Field(
        64,
        description="at most so many rows a layer, evenly spaced (the K that share x are one);"
        " null: all",
    )


METRICS: dict[str, Choice | str] = {
    "diagonal": Choice(DiagonalOptions, "The Fisher matrix's diagonal alone; needs no solver."),
    "empirical": Choice(
        EmpiricalOptions,
        "The row gradients' second moment, (y - p)^2 in place of p (1 - p); not the Fisher matrix.",
    ),
    "euclidean": Choice(None, "The plain gradient."),
    "fisher": Choice(
        FisherOptions, "The exact Fisher matrix, one block for each unit (Varady et al. 2022)."
    ),
    "kronecker": Choice(
        KroneckerOptions,
        "What the units of a layer share, averaged over steps, scaled by each unit's mean"
        " curvature; needs no solver. The natural rules choose it.",
    ),
    "mean": Choice(
        MeanOptions,
        "What all rows of a layer have in common: F_j ~ s_j c c^T with the mean row c; needs no"
        " solver.",
    ),
}
