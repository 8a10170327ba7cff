"""The groups `model` and `model/visible`: the machine and its units."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le
from pydantic import Field

from nws.experiment.options.schemas.schema import Choice, Count, Named, Schema

Bias = Annotated[float, Ge(-1e6), Le(1e6)]


class HelmholtzMachineOptions(Schema):
    """A Helmholtz machine."""

    target = "nws.models.HelmholtzMachine"
    layers: list[Count] = Field(
        min_length=1,
        description="hidden layer sizes n_1 .. n_L, bottom up; the visible layer comes from the"
        " data",
        examples=["[200,100]"],
    )
    units: Literal["binary", "bipolar"] | Named = Field(
        "binary", description="binary {0, 1} or bipolar {-1, +1}"
    )
    visible: Literal["binary", "bipolar"] | Named | None = Field(
        None,
        description="units of the visible layer, where they are other ones;"
        " model/visible=gaussian or poisson",
    )
    weight_scale: Annotated[float, Ge(0), Le(1e6)] = Field(
        1.0, description="scale of the starting weights, times Glorot-normal"
    )
    hidden_bias: Bias = Field(0.0, description="starting value of the hidden biases")
    visible_bias: Bias | Literal["data"] = Field(
        0.0,
        description="a number, or data: the natural parameter of the mean training image (for"
        " binary units its log-odds)",
    )


def _small(about: str, layers: list[int]) -> Choice:
    return Choice(
        HelmholtzMachineOptions, about, layers=layers, weight_scale=0.3, visible_bias="data"
    )


MODELS: dict[str, Choice | str] = {
    "deep": _small(
        "Twelve hidden layers, as in the best model of Bornschein et al. 2016 on MNIST.",
        [300, 200, 100, 75, 50, 35, 30, 25, 20, 15, 10, 10],
    ),
    "published": Choice(
        HelmholtzMachineOptions,
        "What the authors of natural reweighted wake-sleep used for MNIST and TFD (Varady et al."
        " 2022).",
        layers=[300, 200, 100, 75, 50, 35, 25, 20, 15, 10, 10],
        units="bipolar",
        hidden_bias=-1.0,
    ),
    "small": _small("For 8x8 digits and first trials.", [128, 64, 32, 16]),
    "toy": Choice(
        HelmholtzMachineOptions,
        "For the 3x3 images: small enough for exact log-likelihoods.",
        layers=[6, 1],
    ),
}


class GaussianOptions(Schema):
    """Gaussian units."""

    target = "nws.models.gaussian.Gaussian"
    scale: Annotated[float, Ge(1e-6), Le(1e6)] = Field(
        1.0, description="standard deviation of a pixel given its parents, intensities in [0, 1]"
    )


class PoissonOptions(Schema):
    """Poisson units."""

    target = "nws.models.poisson.Poisson"
    scale: Annotated[float, Ge(1e-6), Le(1e6)] = Field(
        1.0, description="the intensity of one count; 1/255: the bytes of a grey image"
    )


VISIBLE: dict[str, Choice | str] = {
    "gaussian": Choice(
        GaussianOptions,
        "Grey images as they are, with data.binarize=none: x / scale is normal with variance 1.",
        scale=0.2,
    ),
    "poisson": Choice(
        PoissonOptions, "Counts, with data.binarize=none: x / scale is a count.", scale=1 / 255
    ),
}
UNITS: tuple[type[Schema], ...] = (GaussianOptions, PoissonOptions)
