"""Learning rules: how the samples are weighed, and which phase trains which network."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from nws.errors import UserError, number, positive_int
from nws.learning.weighting import Weighting, importance


@dataclass(frozen=True)
class Rule:
    """A learning rule: one file of conf/algorithm/.

    Args:
        name: Of the rule, for the names of runs.
        samples: K, samples of each data point.
        weighting: How the K samples are weighed (nws/learning/weighting.py).
        generator_wake: Share of the wake phase in the generator's gradient.
        recognition_wake: Share of the wake phase in the recognition network's gradient.
        recognition_dream: Share of the sleep phase in it.
        baseline: Whether 1/K is subtracted from the weights of recognition's wake gradient.
        bidirectional: Whether the model of the data is p*, the geometric mean of both networks.
        dreams: Dream rows for each data point; None for as many as samples.
        samples_schedule: The share of K that a step draws, a function of the step, counted from 0
            (see nws/schedules.py); None for all of K.

    Raises:
        UserError: For less than one sample or dream, shares that are negative or not finite, or a
            weighting or schedule that is no function or returns something else than weights or a
            share.
    """

    name: str
    samples: int = 10
    weighting: Weighting = importance
    generator_wake: float = 1.0
    recognition_wake: float = 0.5
    recognition_dream: float = 0.5
    baseline: bool = True
    bidirectional: bool = False
    dreams: int | None = None
    samples_schedule: Callable[[int], float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", positive_int("algorithm.samples", self.samples))
        if self.dreams is not None:
            object.__setattr__(self, "dreams", positive_int("algorithm.dreams", self.dreams))
        if not callable(self.weighting):
            raise UserError(
                "algorithm.weighting must name a function of log p and log q by _target_, with"
                f" _partial_: true, got {self.weighting!r}"
            )
        if self.samples_schedule is not None and not callable(self.samples_schedule):
            raise UserError(
                "algorithm.samples_schedule must be a function of the step by _target_, with"
                f" _partial_: true, or null, got {self.samples_schedule!r}"
            )
        self._try_weighting(self.samples)
        self.try_step(0)
        for name in ("generator_wake", "recognition_wake", "recognition_dream"):
            share = getattr(self, name)
            share = number(f"algorithm.{name}", share, "of at least 0", lambda value: value >= 0)
            object.__setattr__(self, name, share)
        if self.recognition_wake + self.recognition_dream == 0:
            raise UserError(
                "algorithm.recognition_wake and recognition_dream are both 0: nothing would train"
                " recognition"
            )

    def samples_at(self, step: int) -> int:
        """Return the samples of each data point that a step draws: 1 to K.

        Raises:
            UserError: Where the schedule has no value, or none in 0 .. 1.
        """
        if self.samples_schedule is None:
            return self.samples
        try:
            share = float(self.samples_schedule(step))
        except (TypeError, ValueError, ArithmeticError) as error:
            raise UserError(
                f"algorithm.samples_schedule cannot be followed at step {step}: {error}"
            ) from error
        if not 0 <= share <= 1:
            raise UserError(
                "algorithm.samples_schedule must give shares of algorithm.samples from 0 to 1,"
                f" got {share:g} at step {step}"
            )
        return max(1, round(share * self.samples))

    def try_step(self, step: int) -> None:
        """Raise `UserError` where the rule cannot draw or weigh the samples of a step."""
        if self.samples_schedule is not None:
            self._try_weighting(self.samples_at(step))

    def _try_weighting(self, samples: int) -> None:
        """Find a wrong weighting before the first step."""
        shape = (1, samples)
        try:
            found = self.weighting(torch.zeros(shape), torch.zeros(shape))
            good = [tuple(weights.shape) for weights in found] == [shape, shape]
        except (AttributeError, TypeError) as error:
            raise UserError(
                "algorithm.weighting cannot be called with log p and log q, (B, K) each:"
                f" {type(error).__name__}: {error}"
            ) from error
        if not good:
            raise UserError(
                "algorithm.weighting must return the weights of p and of q, (B, K) each,"
                f" got {found!r}"
            )
