"""The tasks: data in four parts, a network, and the family of its outputs."""

import os
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isqrt
from pathlib import Path

import torch
from torch import Tensor, nn

from nws.data.mnist import load_fashion_mnist
from nws.data.tfd import load_tfd
from nws.errors import UserError
from nws.natural import BernoulliLogits, CategoricalLogits
from nws.natural.modules import OutputFamily

Part = tuple[Tensor, Tensor]  # inputs and targets
SIDE, STRIDE = 5, 2  # of filters


def constant(step: int) -> float:
    """The factor of a rate that stays."""
    return 1.0


def falling(step: int) -> float:
    """The factor 1 / (1 + (t - 200) / 20) of the rate after 200 updates (Pascanu & Bengio 2014)."""
    return 1 / (1 + max(step - 200, 0) / 20)


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
        filters: Of each convolutional layer before the others, where inputs are square images.
        schedule: From the number of updates to the factor of the rate.
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
    filters: tuple[int, ...] = ()
    schedule: Callable[[int], float] = constant

    @property
    def classifies(self) -> bool:
        """Whether targets are classes."""
        return isinstance(self.family, CategoricalLogits)

    def model(self) -> nn.Sequential:
        """A network of tanh units with Glorot's weights, drawn by torch's own generator."""
        units, side = self.sizes[0], isqrt(self.sizes[0])
        layers: list[nn.Module] = []
        if self.filters:
            layers.append(nn.Unflatten(1, (1, side, side)))
            for inputs, outputs in pairwise((1, *self.filters)):
                layers += [_glorot(nn.Conv2d(inputs, outputs, SIDE, STRIDE)), nn.Tanh()]
                side = (side - SIDE) // STRIDE + 1
            layers.append(nn.Flatten())
            units = self.filters[-1] * side**2
        for inputs, outputs in pairwise((units, *self.sizes[1:])):
            layers += [_glorot(nn.Linear(inputs, outputs)), nn.Tanh()]
        return nn.Sequential(*layers[:-1])

    def quick(self) -> "Task":
        """The same with little data, for a look at whether everything runs."""
        train, valid, test = (
            (inputs[:200], targets[:200]) for inputs, targets in (self.train, self.valid, self.test)
        )
        return replace(
            self, name=f"{self.name}_quick", train=train, unlabelled=self.unlabelled[:200],
            valid=valid, test=test, batch=50, epochs=2,
        )  # fmt: skip


def _glorot(layer: nn.Linear | nn.Conv2d) -> nn.Module:
    nn.init.xavier_uniform_(layer.weight)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


def digits(root: Path) -> Task:
    """Classes of scikit-learn's digits: 700 labelled images, 597 unlabelled ones."""
    from sklearn.datasets import load_digits

    both = load_digits()
    inputs = (torch.from_numpy(both.data).float() / 16).split([700, 597, 250, 250])
    labels = torch.from_numpy(both.target).long().split([700, 597, 250, 250])
    return Task(
        "digits", (inputs[0], labels[0]), inputs[1], (inputs[2], labels[2]),
        (inputs[3], labels[3]), (64, 64, 32, 10), CategoricalLogits(), batch=100, epochs=30,
    )  # fmt: skip


def fashion(root: Path) -> Task:
    """Classes of Fashion-MNIST: 10,000 labelled images, 10,000 unlabelled ones."""
    (images, labels), test = _fashion_mnist(root)
    return Task(
        "fashion", (images[:10_000], labels[:10_000]), images[10_000:20_000],
        (images[50_000:55_000], labels[50_000:55_000]), test,
        (784, 100, 50, 10), CategoricalLogits(), batch=250, epochs=5,
    )  # fmt: skip


def autoencoder(root: Path) -> Task:
    """A deep autoencoder of Fashion-MNIST's grey values, with Bernoulli outputs."""
    (images, _), (test, _) = _fashion_mnist(root)
    train, unlabelled, valid = images[:5_000], images[10_000:15_000], images[50_000:55_000]
    return Task(
        "autoencoder", (train, train), unlabelled, (valid, valid), (test[:5_000], test[:5_000]),
        (784, 128, 32, 8, 32, 128, 784), BernoulliLogits(), batch=250, epochs=5,
    )  # fmt: skip


def convolutional(root: Path) -> Task:
    """Classes of Fashion-MNIST by a small convolutional network; 5,000 labelled images."""
    task = fashion(root)
    parts = zip((task.train, task.valid, task.test), (5_000, 2_000, 5_000), strict=True)
    train, valid, test = ((inputs[:count], labels[:count]) for (inputs, labels), count in parts)
    return replace(
        task, name="convolutional", train=train, valid=valid, test=test, sizes=(784, 50, 10),
        batch=100, epochs=5, filters=(32, 64), schedule=falling,
    )  # fmt: skip


def faces(root: Path) -> Task:
    """Expressions of TFD's labelled faces, of 24 x 24 pixels; the unlabelled are for the metric."""
    images = load_tfd(root, split="train")
    assert images.labels is not None and images.unlabeled is not None  # TFD has both
    labels = {name: each.long() - 1 for name, each in images.labels.items()}
    return Task(
        "faces", (images.train.float() / 255, labels["train"]), images.unlabeled.float() / 255,
        (images.valid.float() / 255, labels["valid"]), (images.test.float() / 255, labels["test"]),
        (576, 50, 7), CategoricalLogits(), batch=100, epochs=9, filters=(32, 64), schedule=falling,
    )  # fmt: skip


def _fashion_mnist(root: Path) -> tuple[Part, Part]:
    """The official training and test part: pixels in [0, 1], (N, 784), and labels, (N,)."""
    images = load_fashion_mnist(root)
    if images.labels is None:
        raise UserError(
            f"{root}/FashionMNIST/raw: expected two files of labels beside those of the images;"
            " delete all of them and run again to download them, or put good copies there"
        )
    train = torch.cat([images.train, images.valid]).float() / 255
    labels = torch.cat([images.labels["train"], images.labels["valid"]])
    return (train, labels), (images.test.float() / 255, images.labels["test"])


def add_folders(parser: ArgumentParser, output: str) -> None:
    """Give a program the options `--root` of the data sets and `--output` of its results."""
    parser.add_argument(
        "--root", type=Path, default=Path(os.environ.get("NWS_DATA_ROOT", "data")),
        help="folder of the data sets (default: NWS_DATA_ROOT, or data)",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=Path, default=Path(output), metavar="DIR",
        help=f"folder of the results (default: {output})",
    )  # fmt: skip


TASKS = {task.__name__: task for task in (digits, fashion, autoencoder, convolutional, faces)}
