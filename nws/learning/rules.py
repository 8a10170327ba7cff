"""Learning rules: how the samples are weighed, and which phase trains which network."""

import copy
from dataclasses import dataclass

import torch

from nws.errors import UserError, number, positive_int
from nws.learning.weighting import Weighting, tempered

MOST = 10**6  # samples or dreams of a data point: more would not end


@dataclass(frozen=True)
class Rule:
    """A learning rule: one file of conf/algorithm/.

    Args:
        name: Of the rule, for the names of runs.
        samples: K, samples of each data point.
        weighting: How the K samples are weighed (nws/learning/weighting.py): a function, or an
            object that is called. One with `state_dict` and `load_state_dict` may keep a state. Of
            several processes each calls it with its own data points.
        generator_wake: Share of the wake phase in the generator's gradient.
        recognition_wake: Share of the wake phase in the recognition network's gradient.
        recognition_dream: Share of the sleep phase in it.
        baseline: Whether 1/K is subtracted from the weights of recognition's wake gradient.
        bidirectional: Whether the model of the data is p*, the geometric mean of both networks.
        dreams: Dream rows for each data point; None for as many as samples.
    """

    name: str
    samples: int = 10
    weighting: Weighting = tempered
    generator_wake: float = 1.0
    recognition_wake: float = 0.5
    recognition_dream: float = 0.5
    baseline: bool = True
    bidirectional: bool = False
    dreams: int | None = None

    def __post_init__(self) -> None:
        samples = positive_int("algorithm.samples", self.samples, maximum=MOST)
        checked: dict[str, float] = {"samples": samples}
        if self.dreams is not None:
            checked["dreams"] = positive_int("algorithm.dreams", self.dreams, maximum=MOST)
        for name in ("generator_wake", "recognition_wake", "recognition_dream"):
            checked[name] = number(f"algorithm.{name}", getattr(self, name), least=0)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        for name in ("baseline", "bidirectional"):
            if not isinstance(found := getattr(self, name), bool):
                raise UserError(f"algorithm.{name} must be true or false, got {found!r}")
        weighs_by_0 = self.samples == 1 and self.baseline  # 1 - 1/K
        if not self.recognition_dream and (weighs_by_0 or not self.recognition_wake):
            need = "which with algorithm.baseline=true needs algorithm.samples > 1"
            way = f"raise algorithm.recognition_dream or recognition_wake, {need}"
            raise UserError(f"nothing would train recognition; {way}")
        self._try_weighting()

    def _try_weighting(self) -> None:
        """Find a wrong weighting before the first step, on a copy, for it may have a state."""
        shape = (1, self.samples)
        try:
            found = copy.deepcopy(self.weighting)(torch.zeros(shape), torch.zeros(shape))
            good = [tuple(weights.shape) for weights in found] == [shape, shape]
        except (AttributeError, TypeError, ArithmeticError, LookupError, RuntimeError) as error:
            what = "algorithm.weighting, a function of log p and log q, (B, K) each"
            raise UserError(f"{what}, cannot be called: {type(error).__name__}: {error}") from error
        if not good:
            expected = "algorithm.weighting must return the weights of p and of q, (B, K) each"
            raise UserError(f"{expected}, got {found!r}")
