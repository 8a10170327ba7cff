"""Units: what one number of a network is, a one-parameter exponential family.

A unit with parents h, weights w and bias b has the natural parameter (its logit) a = w . h + b:

    p(y; a) = exp(y a - A(a)) base(y),      mean A'(a),      curvature A''(a)

y is the unit's *value*, its sufficient statistic. Its *state* is what other layers see of it as a
parent: 2 y - 1 for bipolar units. *Data* are what a data set holds, intensities in [0, 1].
A fifth family is one file with a subclass of `Units`; see nws/models/gaussian.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import groupby
from math import nan
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from nws.errors import UserError, number
from nws.models.noise import fill_uniform


class Units(ABC):
    """A family of units; every method works elementwise on tensors of any shape.

    Attributes:
        support: The values that y can take; None where there are infinitely many.
        waits: Whether a draw reads numbers from its device.
    """

    support: tuple[float, ...] | None = None
    waits = False

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({options})"

    @abstractmethod
    def log_partition(self, logits: Tensor) -> Tensor:
        """A(a), in nats."""

    @abstractmethod
    def mean(self, logits: Tensor, out: Tensor | None = None) -> Tensor:
        """A'(a), the expected value; written to `out` where it is given."""

    @abstractmethod
    def curvature(self, mean: Tensor) -> Tensor:
        """A''(a), the variance of y, as a function of the mean A'(a)."""

    @abstractmethod
    def link(self, mean: Tensor) -> Tensor:
        """The logit a with A'(a) = mean, the inverse of `mean`."""

    def fill_noise(self, out: Tensor, rng: torch.Generator | None = None) -> None:
        """Fill `out` with the noise that `sample_` turns into values: uniform on [0, 1)."""
        fill_uniform(out, rng)

    @abstractmethod
    def sample_(self, noise: Tensor, mean: Tensor) -> Tensor:
        """Turn noise into values with this mean, in place. The same noise gives the same values."""

    def log_base(self, values: Tensor) -> Tensor:
        """log base(y), in nats; 0 here."""
        return torch.zeros_like(values)

    def log_prob(self, values: Tensor, logits: Tensor, means: Tensor) -> Tensor:
        """log p(y; a) = y a - A(a) + log base(y), in nats; `means` are A'(a)."""
        return torch.addcmul(self.log_base(values) - self.log_partition(logits), values, logits)

    def layer_log_probs(self, *parts: Tensor, widths: list[int]) -> Tensor:
        """The sums of `log_prob(*parts)` over neighbouring layers of these widths: (layers, n)."""
        blocks = self.log_prob(*parts).split(widths, dim=1)
        return torch.stack([block.sum(-1) for block in blocks])

    def encode(self, values: Tensor) -> Tensor:
        """States from values; the same tensor where a unit's state is its value."""
        return values

    def decode(self, states: Tensor) -> Tensor:
        """Values from states, the inverse of `encode`."""
        return states

    def from_data(self, x: Tensor) -> Tensor:
        """Values from data in [0, 1]."""
        return x

    def to_data(self, values: Tensor) -> Tensor:
        """Data from values (or means), the inverse of `from_data`."""
        return values


class Binary(Units):
    """States {0, 1}: Bernoulli, A(a) = log(1 + e^a), mean sigma(a), curvature p (1 - p).

    Values between 0 and 1 are soft targets.
    """

    support = (0.0, 1.0)

    def log_partition(self, logits: Tensor) -> Tensor:
        return torch.logaddexp(logits, torch.zeros_like(logits))

    def mean(self, logits: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.sigmoid(logits, out=out)

    def curvature(self, mean: Tensor) -> Tensor:
        return torch.addcmul(mean, mean, mean, value=-1)

    def link(self, mean: Tensor) -> Tensor:
        return torch.logit(mean)

    def sample_(self, noise: Tensor, mean: Tensor) -> Tensor:
        """1 where the noise is below the mean, else 0."""
        return noise.lt_(mean)

    def layer_log_probs(self, *parts: Tensor, widths: list[int]) -> Tensor:
        """The sums of y a - max(a, 0) + log max(p, 1 - p)."""
        if type(self) not in (Binary, Bipolar):  # a class may have formulas of its own
            return super().layer_log_probs(*parts, widths=widths)
        values, logits, means = parts
        found = (means - 0.5).abs_().add_(0.5).log_()  # of max(p, 1 - p)
        found.sub_(torch.relu(logits)).addcmul_(values, logits)
        return torch.stack([each.sum(-1) for each in found.split(widths, dim=1)])


class Bipolar(Binary):
    """States {-1, +1}: Bernoulli values y in {0, 1}, seen by other layers as 2 y - 1."""

    def encode(self, values: Tensor) -> Tensor:
        return 2 * values - 1

    def decode(self, states: Tensor) -> Tensor:
        return (states + 1) / 2


class Scaled(Units):
    """Units whose values are data divided by a scale; other layers see the data themselves.

    Args:
        scale: Data of one unit of y, 1e-6 to 1e6.
    """

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = number("model.visible.scale", scale, least=1e-6, most=1e6)

    def encode(self, values: Tensor) -> Tensor:
        return values * self.scale

    def decode(self, states: Tensor) -> Tensor:
        return states / self.scale

    def from_data(self, x: Tensor) -> Tensor:
        return x / self.scale

    to_data = encode


NAMED: dict[str, Units] = {"binary": Binary(), "bipolar": Bipolar()}


def find_units(units: str | Units, option: str = "model.units") -> Units:
    """The family of a name, or the family itself."""
    if isinstance(units, str) and units in NAMED:
        return NAMED[units]
    if not isinstance(units, Units):
        way = "another is a choice (model/visible=gaussian) or an object of its class (_target_)"
        raise UserError(f"{option} must be {' or '.join(NAMED)}, got {units!r}; {way}")
    return units


class Span(NamedTuple):
    """Neighbouring layers of one family: elementwise work on them is one call."""

    units: Units
    columns: slice  # of a tensor that holds the layers next to each other
    widths: list[int]  # of each layer


def find_spans(units: Sequence[Units], widths: Sequence[int]) -> list[Span]:
    """Layers next to each other in columns, grouped by family: one family gives one span."""
    spans, start = [], 0
    for _, group in groupby(zip(units, widths, strict=True), lambda pair: id(pair[0])):
        families, own = zip(*group, strict=True)
        spans.append(Span(families[0], slice(start, start + sum(own)), list(own)))
        start += sum(own)
    return spans


def check_units(units: Units) -> None:
    """Find a mistake in a family of one's own before anything is trained.

    A' and A'' are compared with derivatives of A by autograd, at logits from -2 to 2.

    Raises:
        UserError: Where A is not finite, or a method does not fit it or writes nothing in place.
    """
    name, logits = type(units).__name__, torch.linspace(-2, 2, 9, dtype=torch.float64)
    slope = grad(lambda at: units.log_partition(at).sum())
    second = grad(lambda at: slope(at).sum())(logits)
    a, mean, out = units.log_partition(logits), units.mean(logits), torch.full_like(logits, nan)
    units.mean(logits, out=out)
    drawn = units.sample_(noise := torch.full_like(logits, 0.5), mean)
    formula = Units.log_prob(units, mean, logits, mean)
    pairs = {
        "log_partition must be finite for every real logit": (a * 0, logits * 0),
        "mean must be the derivative of log_partition": (mean, slope(logits)),
        "mean must write its result to out where it is given": (out, mean),
        "sample_ must change the noise in place": (noise, noise if drawn is noise else out * nan),
        "log_prob must be y a - A(a) + log_base(y)": (units.log_prob(mean, logits, mean), formula),
        "curvature must be the second derivative of log_partition": (units.curvature(mean), second),
        "link must be the inverse of mean": (units.link(mean), logits),
        "decode must be the inverse of encode": (units.decode(units.encode(mean)), mean),
    }
    for claim, (found, expected) in pairs.items():
        same = found.shape == expected.shape
        if not (same and torch.allclose(found, expected, rtol=1e-4, atol=1e-6)):
            got = f"expected {expected.tolist()}, got {found.tolist()}"
            at = f"at the logits {logits.tolist()}"
            raise UserError(f"units of the class {name}: {claim}; {at} {got}")
