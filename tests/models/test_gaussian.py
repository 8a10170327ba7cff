"""Gaussian units with a scale, against scipy's normal distribution, and on the command line."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import EXACT, assert_close
from conftest import Command, checkpoint
from scipy.stats import norm

from nws import HelmholtzMachine, exact_log_likelihood
from nws.errors import UserError
from nws.models import Gaussian


@pytest.mark.parametrize("scale", [1.0, 0.2])
def test_log_densities_are_those_of_the_data(scale: float) -> None:
    """x ~ N(scale a, scale^2): the density of x, not of x / scale."""
    units, x = Gaussian(scale), torch.linspace(-1, 2, 31, dtype=torch.float64)
    logits = torch.linspace(-3, 5, 31, dtype=torch.float64)
    found = units.log_prob(units.from_data(x), logits, units.mean(logits))
    expected = norm.logpdf(x.numpy(), loc=scale * logits.numpy(), scale=scale)
    assert_close(found, torch.from_numpy(expected), EXACT)


def test_the_exact_likelihood_is_a_mixture_of_normals() -> None:
    machine = HelmholtzMachine([3, 2], visible=Gaussian(0.3), rng=torch.Generator().manual_seed(0))
    machine = machine.double()
    x = torch.tensor([[0.1, 0.9, 0.4]], dtype=torch.float64)
    prior = torch.sigmoid(machine.generator.layers[1].bias).detach().numpy()
    weight, bias = (p.detach().numpy() for p in machine.generator.layers[0].parameters())
    total = 0.0
    for h in np.ndindex(2, 2):
        chance = np.prod(np.where(h, prior, 1 - prior))
        total += chance * np.prod(norm.pdf(x.numpy()[0], 0.3 * (weight @ h + bias), 0.3))
    assert float(exact_log_likelihood(machine, x)) == pytest.approx(np.log(total), abs=EXACT)


@pytest.mark.parametrize("scale", [0.0, -1, float("nan"), "wide", True])
def test_a_wrong_scale_is_refused(scale: float) -> None:
    with pytest.raises(UserError, match="scale of Gaussian units must be a number above 0"):
        Gaussian(scale)


@pytest.mark.parametrize("algorithm", ["rws", "nrws"])
def test_a_run_on_grey_images(train: Command, algorithm: str) -> None:
    options = ("model/visible=gaussian", "data.binarize=none", "optimizer.lr=0.01")
    outcome = train(f"algorithm={algorithm}", *options)
    assert outcome.code == 0 and outcome.err == "", outcome.err
    state = checkpoint(outcome.run)["machine"]
    assert all(value.isfinite().all() for value in state.values())
    resumed = train("resume=" + str(outcome.run), "trainer.epochs=3")
    assert resumed.code == 0, resumed.err
