"""Learning rules: how the samples are weighed, and which phase trains which network."""

import math
from dataclasses import dataclass

import torch

from nws.errors import UserError, positive_int
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
        dreams: Dream rows for each data point; None for K of them.

    Raises:
        UserError: For less than one sample or dream, shares that are negative or not finite, or a
            weighting that is no function or returns something else than weights.
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", positive_int("algorithm.samples", self.samples))
        if self.dreams is not None:
            object.__setattr__(self, "dreams", positive_int("algorithm.dreams", self.dreams))
        if not callable(self.weighting):
            raise UserError(
                "algorithm.weighting must name a function of log p and log q by _target_, with"
                f" _partial_: true, got {self.weighting!r}"
            )
        self._try_weighting()
        for name in ("generator_wake", "recognition_wake", "recognition_dream"):
            share = getattr(self, name)
            numeric = isinstance(share, int | float) and not isinstance(share, bool)
            if not (numeric and 0 <= share < math.inf):
                raise UserError(f"algorithm.{name} must be a number of at least 0, got {share!r}")
        if self.recognition_wake + self.recognition_dream == 0:
            raise UserError(
                "algorithm.recognition_wake and recognition_dream are both 0: nothing would train"
                " recognition"
            )

    @property
    def dream_rows(self) -> int:
        """Dream rows for each data point."""
        return self.samples if self.dreams is None else self.dreams

    def _try_weighting(self) -> None:
        """Find a wrong weighting before the first step."""
        shape = (1, self.samples)
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
