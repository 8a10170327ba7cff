"""Slow and obvious: dense matrices of small modules, example by example and target by target."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from cases import flat_gradient
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Normal

from nws.natural.modules import BernoulliLogits, CategoricalLogits, GaussianMean, OutputFamily

VARIANCE = 0.7
FAMILIES: dict[str, OutputFamily] = {
    "bernoulli": BernoulliLogits(),
    "categorical": CategoricalLogits(),
    "gaussian": GaussianMean(VARIANCE),
}


def log_prob(family: str, outputs: Tensor, target: Tensor) -> Tensor:
    """log p(y | z) of one example by torch.distributions."""
    if family == "categorical":
        return Categorical(logits=outputs).log_prob(target).sum()
    if family == "bernoulli":
        return Bernoulli(logits=outputs).log_prob(target).sum()
    return Normal(outputs, math.sqrt(VARIANCE)).log_prob(target).sum()


def every_target(family: str, outputs: Tensor) -> Iterator[tuple[Tensor, float]]:
    """All targets of one example with their probabilities.

    Three points of Gauss and Hermite stand for a Gaussian: they are exact for second moments of
    scores, which are linear in the target.
    """
    z = outputs.detach()
    if family == "categorical":
        choices = [torch.arange(z.shape[-1])] * z[..., 0].numel()
        shape = z.shape[:-1]
    elif family == "bernoulli":
        choices, shape = [torch.tensor([0.0, 1.0]).to(z)] * z.numel(), z.shape
    else:
        points = math.sqrt(3 * VARIANCE) * torch.tensor([-1.0, 0.0, 1.0]).to(z)
        for index in itertools.product(range(3), repeat=z.numel()):
            weight = math.prod((1 / 6, 2 / 3, 1 / 6)[i] for i in index)
            yield z + points[list(index)].view(z.shape), weight
        return
    for values in itertools.product(*choices):
        target = torch.stack(values).view(shape)
        yield target, float(log_prob(family, z, target).exp())


def score(case: "Case", i: int, target: Tensor) -> Tensor:
    """The gradient of log p(y | x_i) by the parameters: (d,)."""
    outputs = case.model(*(each[i : i + 1] for each in case.inputs))[0]
    return flat_gradient(log_prob(case.family, outputs, target), case.parameters)


def dense_fisher(case: "Case") -> Tensor:
    """(1 / n) sum_i sum_y p(y | x_i) s s^T: (d, d)."""
    n, matrix = len(case.inputs[0]), 0
    for i in range(n):
        outputs = case.model(*(each[i : i + 1] for each in case.inputs))[0]
        for target, probability in every_target(case.family, outputs):
            s = score(case, i, target)
            matrix = matrix + probability / n * torch.outer(s, s)
    return matrix


def dense_moment(case: "Case", centred: bool) -> Tensor:
    """The second moment of the scores at the targets, or their covariance: (d, d)."""
    n = len(case.inputs[0])
    scores = torch.stack([score(case, i, case.targets[i]) for i in range(n)])
    if centred:
        scores = scores - scores.mean(0)
    return scores.T @ scores / n


def dense_gradient(case: "Case") -> Tensor:
    """Of the mean loss: (d,)."""
    n = len(case.inputs[0])
    return -torch.stack([score(case, i, case.targets[i]) for i in range(n)]).mean(0)


DENSE = {
    "fisher": dense_fisher,
    "empirical": lambda case: dense_moment(case, False),
    "covariance": lambda case: dense_moment(case, True),
}


class Tied(nn.Module):
    """An autoencoder with one matrix for both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.bias = nn.Linear(4, 2), nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.code(x).tanh() @ self.code.weight + self.bias


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(2, 2, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.first(x) * self.second(y).sigmoid()).cumsum(-1)


@dataclass
class Case:
    """A module, its batch, and the family of its outputs."""

    family: str
    model: nn.Module
    inputs: tuple[Tensor, ...]
    targets: Tensor
    parameters: list[Tensor]


def make_case(name: str) -> Case:
    """A seeded case in float64, with all that a module may bring."""
    torch.manual_seed(0)
    n, family, shapes = 5, "categorical", [(4,)]
    if name in ("categorical", "part"):
        model: nn.Module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3))
    elif name == "several":  # several categorical outputs for each example
        model = nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (2, 2)), nn.Linear(2, 3))
    elif name == "tied":
        model, family = Tied(), "bernoulli"
    elif name == "convolution":
        layers = [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten()]
        model = nn.Sequential(*layers, nn.Dropout(0.5), nn.Linear(8, 2))
        family, shapes = "bernoulli", [(1, 4, 4)]
        model(torch.randn(20, 1, 4, 4) + 1)  # running statistics of their own
    else:
        model, family, shapes = TwoInputs(), "gaussian", [(3,), (2,)]
    model = model.double().eval()
    inputs = tuple(torch.randn(n, *shape, dtype=torch.float64) for shape in shapes)
    outputs = model(*inputs).detach()
    if family == "categorical":
        targets = torch.randint(outputs.shape[-1], outputs.shape[:-1])
    else:
        targets = torch.randn_like(outputs)
        targets = (targets > 0).double() if family == "bernoulli" else targets
    parameters: list[Tensor] = list(model.parameters())
    if name == "part":
        parameters = [parameters[3], parameters[0]]  # an order of their own
    return Case(family, model, inputs, targets, parameters)


CASES = ("categorical", "part", "several", "tied", "convolution", "two inputs")
