"""The group `algorithm`: learning rules."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from nws.experiment.options.schemas.functions import TemperedOptions, VimcoOptions
from nws.experiment.options.schemas.schema import Choice, Count, Named, NonNegative, Schema, Text


class RuleOptions(Schema):
    """A learning rule."""

    target = "nws.learning.Rule"
    name: Text = Field(description="for the name of the run, and in the log")
    samples: Count = Field(10, description="K, samples of each data point")
    samples_schedule: Named | None = Field(
        None, description="the share of K that a step draws, a function of the step; null: all"
    )
    weighting: Named = Field(
        description="how the K samples are weighed: a function of log p and log q",
        examples=["{_target_: nws.learning.weighting.importance, _partial_: true}"],
    )
    generator_wake: NonNegative = Field(1.0, description="share of the wake phase in p's gradient")
    recognition_wake: NonNegative = Field(
        0.5, description="share of the wake phase in q's gradient"
    )
    recognition_dream: NonNegative = Field(0.5, description="share of dreams in q's gradient")
    dreams: Count | None = Field(
        None, description="dream rows for each data point; null: K. Fewer are cheaper and noisier"
    )
    baseline: bool = Field(True, description="subtract 1/K from the weights of q's wake gradient")
    bidirectional: bool = Field(
        False, description="the model of the data is p*, the geometric mean of both networks"
    )

    @model_validator(mode="after")
    def _something_trains(self) -> RuleOptions:
        if self.recognition_wake + self.recognition_dream == 0:
            raise ValueError(
                "algorithm.recognition_wake and algorithm.recognition_dream are both 0: nothing"
                " would train recognition"
            )
        if self.samples == 1 and self.baseline and self.recognition_dream == 0:
            raise ValueError(
                "algorithm.samples=1 with algorithm.baseline=true weighs recognition's one sample"
                " by 1 - 1/K = 0: nothing would train it; take algorithm.samples of at least 2"
            )
        if self.weighting.get("_target_") == VimcoOptions.target and self.samples < 2:
            raise ValueError(f"vimco needs algorithm.samples of at least 2, got {self.samples}")
        return self


def _rule(name: str, about: str, weighting: Choice, **options: Any) -> Choice:
    return Choice(RuleOptions, about, name=name, weighting=weighting, **options)


def _tempered(exponent: float, note: str) -> Choice:
    about = f"of softmax_k(exponent (log p - log q)): {note}"
    return Choice(TemperedOptions, notes={"exponent": about}, exponent=exponent)


WS = _rule(
    "ws",
    "Wake-sleep (Hinton et al. 1995): the generator learns from states that q infers, q from"
    " dreams.",
    _tempered(0.0, "0 is uniform"),
    samples=1,
    recognition_wake=0.0,
    recognition_dream=1.0,
    baseline=False,
)
RWS = _rule(
    "rws",
    "Reweighted wake-sleep (Bornschein & Bengio 2015): importance weights over K samples, q learns"
    " from both phases.",
    _tempered(1.0, "1 is importance sampling from the posterior"),
)
BIHM = _rule(
    "bihm",
    "Bidirectional Helmholtz machine (Bornschein, Shabanian, Fischer & Bengio 2016): both networks"
    " learn from wake samples to raise log p~*(x) = 2 log sum_h sqrt(p(x, h) q(h | x)). It is a"
    " lower bound on log p(x) that is tight where q is the posterior. Its gradient is the mean of"
    " d log p + d log q under the weights. d log q has mean 0 under q, so the baseline keeps the"
    " expected gradient, for every K. It takes all noise away where q is the posterior.",
    _tempered(0.5, "1/2 is importance sampling from sqrt(p(x, h) q(h | x))"),
    recognition_wake=1.0,
    recognition_dream=0.0,
    bidirectional=True,
)
VIMCO = Choice(
    RuleOptions,
    "Variational inference for Monte Carlo objectives (Mnih & Rezende 2016): both networks follow"
    " the gradient of the K-sample bound, recognition by leave-one-out learning signals.",
    notes={
        "baseline": "subtract 1/K from the weights of q's wake gradient; the signals have baselines"
    },
    name="vimco",
    weighting=Choice(VimcoOptions),
    recognition_wake=1.0,
    recognition_dream=0.0,
    baseline=False,
)
CHOICES: dict[str, Choice | str] = {
    "ws": WS, "rws": RWS, "bihm": BIHM, "vimco": VIMCO,
    # Natural rules: the rule that they are of.
    "nws": "ws", "nrws": "rws", "nbihm": "bihm", "nvimco": "vimco",
}  # fmt: skip
