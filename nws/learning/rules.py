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

    Raises:
        UserError: For K < 1, shares that are negative or not finite, or no function as weighting.
    """

    name: str
    samples: int = 10
    weighting: Weighting = importance
    generator_wake: float = 1.0
    recognition_wake: float = 0.5
    recognition_dream: float = 0.5
    baseline: bool = True
    bidirectional: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", positive_int("algorithm.samples", self.samples))
        self._check_weighting()
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

    def _check_weighting(self) -> None:
        """Try the weighting on K equal samples, so that a mistake is found before training."""
        zeros = torch.zeros(1, self.samples)
        try:
            found = [tuple(weights.shape) for weights in self.weighting(zeros, zeros)]
        except (TypeError, AttributeError) as error:
            found = [error]
        if found != [(1, self.samples)] * 2:
            raise UserError(
                "algorithm.weighting must be a function of log p and log q, (B, K) each, to the"
                " weights of p and of q, (B, K) each (_target_ with _partial_: true); for K ="
                f" {self.samples} and B = 1 it gave {found}"
            )
