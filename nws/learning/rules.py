"""Learning rules: how the samples are weighed, and which phase trains which network."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from nws.errors import UserError, number, positive_int
from nws.learning.weighting import Weighting, importance

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
        checked: dict[str, float] = {
            "samples": positive_int("algorithm.samples", self.samples, maximum=MOST)
        }
        if self.dreams is not None:
            checked["dreams"] = positive_int("algorithm.dreams", self.dreams, maximum=MOST)
        for name in ("generator_wake", "recognition_wake", "recognition_dream"):
            share = getattr(self, name)
            checked[name] = number(f"algorithm.{name}", share, "of at least 0", lambda x: x >= 0)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        for name in ("baseline", "bidirectional"):
            if not isinstance(found := getattr(self, name), bool):
                raise UserError(f"algorithm.{name} must be true or false, got {found!r}")
        if self.recognition_wake + self.recognition_dream == 0:
            raise UserError(
                "algorithm.recognition_wake and recognition_dream are both 0: nothing would train"
                " recognition"
            )
        if self.samples == 1 and self.baseline and self.recognition_dream == 0:
            raise UserError(
                "algorithm.samples=1 with algorithm.baseline=true weighs recognition's one sample"
                " by 1 - 1/K = 0: nothing would train it; take algorithm.samples of at least 2"
            )
        _check_callable("weighting", self.weighting, "of log p and log q")
        if self.samples_schedule is not None:
            _check_callable("samples_schedule", self.samples_schedule, "of the step, or null,")
        self._try_weighting(self.samples)
        self.try_step(0)

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
        """Find a wrong weighting before the first step, on a copy: it may have a state."""
        shape = (1, samples)
        try:
            found = copy.deepcopy(self.weighting)(torch.zeros(shape), torch.zeros(shape))
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

    def state_dict(self) -> dict[str, Any]:
        """The state of a weighting that has one; else nothing."""
        return dict(self.weighting.state_dict()) if hasattr(self.weighting, "state_dict") else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        if hasattr(self.weighting, "load_state_dict"):
            self.weighting.load_state_dict(state)


def _check_callable(name: str, found: object, what: str) -> None:
    if not callable(found):
        raise UserError(
            f"algorithm.{name} must name a function {what} by _target_, with _partial_: true, or"
            f" an object that is called, got {found!r}"
        )
