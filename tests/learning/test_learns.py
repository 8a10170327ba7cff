"""Natural reweighted wake-sleep lowers the exact divergence on a data set of known distribution."""

import pytest
import torch

from nws.data import load_dataset, load_three_by_three
from nws.learning import NaturalMetric, Rule, WakeSleep
from nws.models import HelmholtzMachine, kl_divergence
from nws.natural import Damping
from nws.natural.metrics import Kronecker


@pytest.mark.parametrize(("lateral", "least", "most"), [("visible", 0, 0.01), ("none", 0.2, 0.5)])
def test_lateral_pixels_represent_any_distribution(lateral: str, least: float, most: float) -> None:
    """Two layers: with lateral pixels to 0.005 nats, and as a chain of the same width to 0.34."""
    images, probabilities = load_dataset(load_three_by_three).distribution or pytest.fail("none")
    rng = torch.Generator().manual_seed(0)
    machine = HelmholtzMachine((9, 6), generator={"lateral": lateral}, rng=rng)
    natural = [NaturalMetric(net, Kronecker(), Damping(0.05)) for net in machine.networks]
    learner = WakeSleep(machine, Rule("nrws", 10), rng, natural)
    optimizer = torch.optim.SGD(machine.parameters(), lr=1.0)
    rates = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=1_200)
    for _ in range(1_200):
        learner.step(images[torch.multinomial(probabilities, 128, True, generator=rng)])
        optimizer.step()
        rates.step()
    assert least < kl_divergence(machine, images, probabilities) < most
