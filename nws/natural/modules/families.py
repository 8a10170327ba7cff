"""Families of a model's outputs: what log-likelihood they stand for, and their Fisher matrix.

Symbols: n examples, z (n, ...) the outputs of a model, one slice for each example. A family is
exponential in z, log p(y | z) = y . z - A(z) + constant (up to a scale), so its score is y less the
mean, and its Fisher matrix A''(z) needs no y. A''(z) = R^T R, with R the root.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional

from nws.errors import UserError, number


class OutputFamily(ABC):
    """What `NaturalGradient` asks of a family; one of your own derives from it."""

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """-log p(y | z) of each example in nats: (n,)."""

    @abstractmethod
    def root(self, outputs: Tensor, vectors: Tensor) -> Tensor:
        """R v of each example, where R^T R is the Fisher matrix of z: (n, ...)."""

    def errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The score d log p(y | z) / dz, by autograd: (n, ...), the shape of the outputs."""
        z = outputs.detach().requires_grad_()
        with torch.enable_grad():
            total = self.loss(z, targets).sum()
        return -torch.autograd.grad(total, z)[0]

    def transposed(self, outputs: Tensor, vectors: Tensor) -> Tensor:
        """R^T v of each example: (n, ...), the shape of the outputs; R v where R is diagonal."""
        return self.root(outputs, vectors)


class BernoulliLogits(OutputFamily):
    """Independent bits with logits z: A''(z) = p (1 - p), p = sigma(z). Targets are in [0, 1].

    Examples:
        >>> BernoulliLogits().loss(torch.zeros(1, 2), torch.ones(1, 2))  # 2 log 2
        tensor([1.3863])
    """

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """softplus(z) - y z, summed over the bits of an example: (n,)."""
        _check_shape(targets, outputs.shape, "bits", outputs)
        if not ((targets >= 0) & (targets <= 1)).all():
            raise UserError("BernoulliLogits needs targets in [0, 1]")
        y = targets.to(outputs)
        losses = functional.binary_cross_entropy_with_logits(outputs, y, reduction="none")
        return losses.flatten(1).sum(1)

    def root(self, outputs: Tensor, vectors: Tensor) -> Tensor:
        """sqrt(p (1 - p)) v."""
        return vectors * (outputs.sigmoid() * (-outputs).sigmoid()).sqrt()


class CategoricalLogits(OutputFamily):
    """One of several classes with logits z along the last dimension, p = softmax(z).

        A''(z) = diag(p) - p p^T = R^T R,    R = diag(sqrt(p)) (I - 1 p^T)

    Targets are numbers of classes, of the shape of the outputs without the last dimension.
    """

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """-log p_y, summed over all but the first dimension: (n,)."""
        _check_shape(targets, outputs.shape[:-1], "numbers of classes", outputs)
        classes = outputs.shape[-1]
        if targets.is_floating_point() or not ((targets >= 0) & (targets < classes)).all():
            raise UserError(f"CategoricalLogits needs targets that are 0 .. {classes - 1}")
        losses = -outputs.log_softmax(-1).gather(-1, targets.long()[..., None])
        return losses.flatten(1).sum(1)

    def root(self, outputs: Tensor, vectors: Tensor) -> Tensor:
        """sqrt(p) (v - p . v)."""
        p = outputs.softmax(-1)
        return p.sqrt() * (vectors - (p * vectors).sum(-1, keepdim=True))

    def transposed(self, outputs: Tensor, vectors: Tensor) -> Tensor:
        """sqrt(p) v - p (sqrt(p) . v)."""
        p = outputs.softmax(-1)
        scaled = p.sqrt() * vectors
        return scaled - p * scaled.sum(-1, keepdim=True)


class GaussianMean(OutputFamily):
    """Independent Gaussians with means z and one known variance: A''(z) = 1 / variance.

    Args:
        variance: Of each output, above 0.
    """

    def __init__(self, variance: float = 1.0) -> None:
        self.variance = number("the variance", variance, above=0)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """|y - z|^2 / (2 variance) + log(2 pi variance) / 2 for each output, summed: (n,)."""
        _check_shape(targets, outputs.shape, "values", outputs)
        squares = (targets.to(outputs) - outputs).square() / self.variance
        constant = math.log(2 * math.pi * self.variance)
        return (squares + constant).flatten(1).sum(1) / 2

    def root(self, outputs: Tensor, vectors: Tensor) -> Tensor:
        """v / sqrt(variance)."""
        return vectors / self.variance**0.5


def _check_shape(targets: Tensor, expected: torch.Size, what: str, outputs: Tensor) -> None:
    if outputs.ndim < 2 or targets.shape != expected:
        given = f"outputs of shape {tuple(outputs.shape)}, (n, ...) of two dimensions at least"
        need = f"targets that are {what} of shape {tuple(expected)}, got {tuple(targets.shape)}"
        raise UserError(f"{given}, need {need}")
