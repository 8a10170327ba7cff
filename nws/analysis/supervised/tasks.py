"""The tasks: data in four parts, a network, and the family of its outputs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from nws.data.embedded import digits_labels, load_digits
from nws.data.mnist import fashion_mnist_labels, load_fashion_mnist
from nws.errors import UserError
from nws.natural import BernoulliLogits, CategoricalLogits
from nws.natural.modules import OutputFamily

Part = tuple[Tensor, Tensor]  # inputs and targets


@dataclass(frozen=True)
class Task:
    """What a method is to learn.

    Args:
        name: Of the task.
        train: Labelled, for the gradient.
        unlabelled: Further inputs of the training file, for the metric alone.
        valid: For the search.
        test: For the results.
        sizes: Units of each layer of the network, the inputs first.
        family: Of the outputs.
        batch: Examples in a batch of the gradient, and of the metric.
        epochs: Over `train`.
    """

    name: str
    train: Part
    unlabelled: Tensor
    valid: Part
    test: Part
    sizes: tuple[int, ...]
    family: OutputFamily
    batch: int
    epochs: int

    @property
    def classifies(self) -> bool:
        """Whether targets are classes."""
        return isinstance(self.family, CategoricalLogits)

    def model(self) -> nn.Sequential:
        """A network of tanh units with Glorot's weights, drawn by torch's own generator."""
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(self.sizes):
            layers += [nn.Linear(inputs, outputs), nn.Tanh()]
            nn.init.xavier_uniform_(layers[-2].weight)  # type: ignore[arg-type]
            nn.init.zeros_(layers[-2].bias)  # type: ignore[arg-type]
        return nn.Sequential(*layers[:-1])

    def quick(self) -> "Task":
        """The same with little data, for a look at whether everything runs."""

        def cut(part: Part) -> Part:
            return part[0][:200], part[1][:200]

        return replace(
            self, train=cut(self.train), unlabelled=self.unlabelled[:200], valid=cut(self.valid),
            test=cut(self.test), batch=50, epochs=2,
        )  # fmt: skip


def digits(root: Path) -> Task:
    """Classes of scikit-learn's digits: 700 labelled images, 597 unlabelled ones."""
    images, labels = load_digits(), digits_labels()
    pixels = torch.cat([images.train, images.valid, images.test]).float() / images.maximum
    inputs, targets = pixels.split([700, 597, 250, 250]), labels.split([700, 597, 250, 250])
    return Task(
        "digits", (inputs[0], targets[0]), inputs[1], (inputs[2], targets[2]),
        (inputs[3], targets[3]), (64, 64, 32, 10), CategoricalLogits(), batch=100, epochs=30,
    )  # fmt: skip


def fashion(root: Path) -> Task:
    """Classes of Fashion-MNIST: 10,000 labelled images, 10,000 unlabelled ones."""
    train, unlabelled, valid, test = _fashion_pixels(root)
    labels, test_labels = fashion_mnist_labels(root)
    return Task(
        "fashion", (train, labels[:10_000]), unlabelled, (valid, labels[50_000:55_000]),
        (test, test_labels), (784, 100, 50, 10), CategoricalLogits(), batch=250, epochs=5,
    )  # fmt: skip


def autoencoder(root: Path) -> Task:
    """A deep autoencoder of Fashion-MNIST's grey values, with Bernoulli outputs."""
    train, unlabelled, valid, test = (part[:5_000] for part in _fashion_pixels(root))
    return Task(
        "autoencoder", (train, train), unlabelled, (valid, valid), (test, test),
        (784, 128, 32, 8, 32, 128, 784), BernoulliLogits(), batch=250, epochs=5,
    )  # fmt: skip


def _fashion_pixels(root: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    images = load_fashion_mnist(root)
    train = images.train[:20_000].float() / 255
    parts = images.valid[:5_000].float() / 255, images.test.float() / 255
    return train[:10_000], train[10_000:], *parts


TASKS: dict[str, Callable[[Path], Task]] = {
    "digits": digits,
    "fashion": fashion,
    "autoencoder": autoencoder,
}


def load_task(name: str, root: Path, quick: bool = False) -> Task:
    """The task of a name; `UserError` for another."""
    if name not in TASKS:
        raise UserError(f"the task must be one of {', '.join(TASKS)}, got {name!r}")
    task = TASKS[name](root)
    return task.quick() if quick else task
