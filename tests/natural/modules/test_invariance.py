"""The natural gradient's path in function space does not depend on how weights are written down.

A parametrisation w = f(u) with the same model has other plain gradients. To first order in the
step length natural steps are the same, so the paths of two parametrisations come together as steps
shrink. Those of the plain gradient stay apart.
"""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from nws.natural import CategoricalLogits, Damping, NaturalGradient
from nws.natural.solvers import Cholesky

TIME = 0.5  # length of a path: steps times rate


class Mixed(nn.Module):
    """w = M sinh(u) with a fixed matrix M."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.eye(size) + 0.4 * torch.ones(size, size).tril())

    def forward(self, u: Tensor) -> Tensor:
        return self.matrix @ u.sinh()

    def right_inverse(self, w: Tensor) -> Tensor:
        return torch.linalg.solve(self.matrix, w).asinh()


def make_problem() -> tuple[nn.Module, nn.Module, Tensor, Tensor]:
    """One model under two parametrisations, and more data than parameters: F is regular."""
    torch.manual_seed(0)
    inputs = torch.randn(60, 3, dtype=torch.float64)
    targets = torch.randint(2, (60,))
    # one class has no logit of its own: with one for each the parameters would be too many
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1), nn.ConstantPad1d((0, 1), 0))
    model = model.double()
    other = copy.deepcopy(model)
    for layer, name in ((0, "weight"), (0, "bias"), (2, "weight")):
        mixed = Mixed(model[layer].out_features).double()
        parametrize.register_parametrization(other[layer], name, mixed)
    assert torch.allclose(other(inputs), model(inputs), rtol=0, atol=1e-12)
    return model, other, inputs, targets


def end(model: nn.Module, inputs: Tensor, targets: Tensor, steps: int, metric: str) -> Tensor:
    """Log-probabilities at the end of a path of a method, in a copy of the model."""
    model = copy.deepcopy(model)
    if metric == "plain":
        plain = torch.optim.SGD(model.parameters(), lr=TIME / steps)
        for _ in range(steps):
            plain.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            plain.step()
    else:
        optimizer = NaturalGradient(
            model, CategoricalLogits(), lr=TIME / steps,
            damping=Damping(1e-10), metric=metric, solver=Cholesky(),
        )  # fmt: skip
        for _ in range(steps):
            optimizer.step(inputs, targets)
    return model(inputs).detach().log_softmax(-1)


def apart(metric: str, steps: int) -> float:
    """Distance of the ends of the two paths, relative to the way of the first."""
    model, other, inputs, targets = make_problem()
    first = end(model, inputs, targets, steps, metric)
    second = end(other, inputs, targets, steps, metric)
    way = first - model(inputs).detach().log_softmax(-1)
    return float((first - second).norm() / way.norm())


@pytest.mark.parametrize("metric", ["fisher", "empirical", "plain"])
def test_paths_of_two_parametrisations_come_together_but_of_the_plain_gradient(metric: str) -> None:
    """The distance is of first order in the step: a quarter of the step, a quarter of it."""
    coarse, fine = apart(metric, 10), apart(metric, 40)
    if metric == "plain":
        assert fine > 0.9 * coarse and fine > 0.1
    else:
        assert fine < 0.3 * coarse and fine < 0.02
