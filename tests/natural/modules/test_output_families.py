"""Families of outputs against torch.distributions, autograd and the enumeration of targets."""

import pytest
import torch
from dense import FAMILIES, every_target, log_prob
from torch.autograd.functional import jacobian

from nws.errors import UserError
from nws.natural.modules import BernoulliLogits, CategoricalLogits, GaussianMean

TIGHT = 1e-12  # float64, a handful of operations


@pytest.mark.parametrize("name", FAMILIES)
def test_loss_and_errors_are_those_of_the_distribution(name: str) -> None:
    family, shape = FAMILIES[name], (3, 2, 3) if name == "categorical" else (3, 2)
    z = 3 * torch.randn(shape, dtype=torch.float64, generator=torch.manual_seed(1))
    targets = torch.stack([next(iter(every_target(name, each)))[0] for each in z])

    def log_probs(z: torch.Tensor) -> torch.Tensor:
        return torch.stack([log_prob(name, a, b) for a, b in zip(z, targets, strict=True)])

    assert torch.allclose(family.loss(z, targets), -log_probs(z), rtol=0, atol=TIGHT)
    scores = jacobian(lambda z: log_probs(z).sum(), z)
    assert torch.allclose(family.errors(z, targets), scores, rtol=0, atol=TIGHT)


def test_targets_that_do_not_fit_are_refused() -> None:
    z = torch.zeros(4, 3)
    with pytest.raises(UserError, match=r"numbers of classes of shape \(4,\), got \(4, 3\)"):
        CategoricalLogits().loss(z, torch.zeros(4, 3))
    for wrong in (torch.zeros(4), torch.full((4,), 3), torch.full((4,), -100)):
        with pytest.raises(UserError, match=r"targets that are 0 \.\. 2"):
            CategoricalLogits().loss(z, wrong)
    with pytest.raises(UserError, match=r"targets in \[0, 1\]"):
        BernoulliLogits().loss(z, -torch.ones(4, 3))
    with pytest.raises(UserError, match=r"bits of shape \(4, 3\), got \(4,\)"):
        BernoulliLogits().loss(z, torch.zeros(4))
    with pytest.raises(UserError, match=r"\(n, \.\.\.\) of two dimensions"):
        GaussianMean().loss(z[:, 0], torch.zeros(4))
