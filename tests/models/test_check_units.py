"""A family of one's own is checked where a machine is made: each mistake has its message."""

from __future__ import annotations

import pytest
import torch
from families import Counts, Gauss, Pair
from torch import Tensor

from nws import HelmholtzMachine
from nws.errors import UserError
from nws.models import Binary, Units


class HalfLine(Gauss):
    """A negative binomial's log-partition: its logits must be below 0."""

    def log_partition(self, logits: Tensor) -> Tensor:
        return -(1 - logits.exp()).log()


class OtherMean(Gauss):
    def log_partition(self, logits: Tensor) -> Tensor:
        return logits.square()


class Unwritten(Binary):
    def mean(self, logits: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.sigmoid(logits)


class OtherCurvature(Binary):
    def curvature(self, mean: Tensor) -> Tensor:
        return mean


class FlatCurvature(Gauss):
    def curvature(self, mean: Tensor) -> Tensor:
        return torch.ones(())


class OtherLink(Binary):
    def link(self, mean: Tensor) -> Tensor:
        return mean


class OneWay(Binary):
    def encode(self, values: Tensor) -> Tensor:
        return 3 * values


WRONG = {
    HalfLine: "log_partition must be finite for every real logit",
    OtherMean: "mean must be the derivative of log_partition",
    Unwritten: "mean must write its result to out",
    OtherCurvature: "curvature must be the second derivative",
    FlatCurvature: "curvature must be the second derivative",
    OtherLink: "link must be the inverse of mean",
    OneWay: "decode must be the inverse of encode",
}


@pytest.mark.parametrize(("family", "message"), WRONG.items())
def test_a_mistake_is_found_where_the_machine_is_made(family: type[Units], message: str) -> None:
    with pytest.raises(UserError, match=f"units of the class {family.__name__}: {message}"):
        HelmholtzMachine([4, 3], visible=family())
    with pytest.raises(UserError, match=message):
        HelmholtzMachine([4, 3], family())


@pytest.mark.parametrize("family", [Gauss, Pair, Counts])
def test_a_right_family_passes_also_without_autograd(family: type[Units]) -> None:
    with torch.no_grad():
        HelmholtzMachine([4, 3], visible=family())
