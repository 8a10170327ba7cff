"""Curvature of any module, matrix-free: C = J^T R^T R J / n, by products with J and J^T.

Symbols: n examples, d parameters, z (n, ...) the outputs, J their derivatives by the parameters,
R a root of the outputs' own metric, A = R J / sqrt(n) the q rows of C = A^T A.
Sources: Schraudolph 2002 (products with the Gauss-Newton matrix); Le Roux, Manzagol & Bengio 2007
(the covariance of gradients); Pascanu & Bengio 2014 (metric from inputs alone).
"""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from nws.errors import UserError
from nws.natural.modules.families import OutputFamily
from nws.natural.operators import CurvatureOperator, UnitFisher

Inputs = Tensor | tuple[Tensor, ...]


class Linearized:
    """A model at its parameters on a batch: outputs z, and products with J and J^T.

    J v comes from differentiating J^T u by u, which reuses one graph. `torch.func.jvp` gives the
    same, but runs the model again for each product.

    Args:
        model: Any module, deterministic and without a dependence between examples.
        parameters: Those that J is of, the rest stays as it is.
        inputs: A tensor (n, ...), or a tuple of such tensors for a model of several inputs.
    """

    def __init__(self, model: nn.Module, parameters: Sequence[Tensor], inputs: Inputs) -> None:
        self.model, self.parameters = model, list(parameters)
        self.inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        with torch.enable_grad():
            self._graph = model(*self.inputs)
        self.outputs = self._graph.detach()  # (n, ...)
        self.size = sum(each.numel() for each in self.parameters)

    def pull(self, vectors: Tensor) -> Tensor:
        """J^T u: (d,) from u of the shape of the outputs."""
        found = torch.autograd.grad(
            self._graph, self.parameters, vectors, retain_graph=True, allow_unused=True
        )
        return self.flatten(found)

    def push(self, vector: Tensor) -> Tensor:
        """J v: the shape of the outputs, from v (d,)."""
        weights, pulled = self._pulled
        pairs = zip(pulled, self.parts(vector), strict=True)
        values, directions = zip(*(pair for pair in pairs if pair[0] is not None), strict=True)
        return torch.autograd.grad(values, weights, directions, retain_graph=True)[0]

    @cached_property
    def _pulled(self) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """u = 0 and J^T u as a function of it."""
        weights = torch.zeros_like(self.outputs, requires_grad=True)
        with torch.enable_grad():
            pulled = torch.autograd.grad(
                self._graph, self.parameters, weights, create_graph=True, allow_unused=True
            )
        return weights, pulled

    def flatten(self, parts: Sequence[Tensor | None]) -> Tensor:
        """One vector (d,) of the parts of all parameters; None stands for zeros."""
        pairs = zip(parts, self.parameters, strict=True)
        return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])

    def parts(self, vector: Tensor) -> list[Tensor]:
        """The parts of a vector (d,), in the shapes of the parameters."""
        parts = vector.split([each.numel() for each in self.parameters])
        return [part.view_as(p) for part, p in zip(parts, self.parameters, strict=True)]

    def release(self) -> None:
        """Free the graph: no products after it."""
        for name in ("_graph", "_pulled"):
            self.__dict__.pop(name, None)


class ModelCurvature(CurvatureOperator):
    """C = A^T A of a module on a batch, as a `CurvatureOperator` of one unit and d parameters.

    Args:
        linear: The module on the batch.
        family: Of its outputs.
        metric: Of the outputs, R^T R for each example. "fisher": the family's own Fisher matrix, an
            expectation over the model's targets. "empirical" and "covariance": the second moment of
            the examples' gradients, where R is the score at the target; "covariance" is centred.
        targets: Of the batch, where the metric is one of gradients.

    Examples:
        >>> from nws.natural.modules.families import GaussianMean
        >>> model = nn.Linear(2, 1, bias=False)
        >>> linear = Linearized(model, list(model.parameters()), torch.eye(2))
        >>> ModelCurvature(linear, GaussianMean()).matmul(torch.ones(1, 2))
        tensor([[0.5000, 0.5000]])
    """

    name = "model"

    def __init__(
        self, linear: Linearized, family: OutputFamily, metric: str = "fisher",
        targets: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.linear, self.family, self.metric = linear, family, metric
        self._values = linear.outputs  # what R depends on: these, or the scores (n, ...)
        if metric != "fisher":
            if targets is None:
                raise UserError("this metric is made of gradients of examples: it needs targets")
            self._values = family.errors(linear.outputs, targets)

    @property
    def rows(self) -> int:
        return len(self.linear.outputs)

    @property
    def shape(self) -> tuple[int, int]:
        return 1, self.linear.size

    @property
    def finite(self) -> bool:
        """Whether the outputs are (synchronises)."""
        return bool(self.linear.outputs.isfinite().all())

    def matmul(self, vectors: Tensor) -> Tensor:
        """C v: (1, d) from (1, d)."""
        images = self._images(vectors)
        if self.metric == "fisher":
            images = self.family.transposed(self._values, images)
        else:
            images = self._values * images.view(-1, *[1] * (self._values.ndim - 1))
        return self.linear.pull(images).div_(self.rows)[None]

    def quadratic(self, vectors: Tensor) -> Tensor:
        """v . C v: a number, from (1, d); half the flops of a product."""
        return self._images(vectors).square().sum() / self.rows

    def _images(self, vectors: Tensor) -> Tensor:
        return self._centred(self._root(self._values, self.linear.push(vectors[0])))

    def _root(self, values: Tensor, vectors: Tensor) -> Tensor:
        """R v of each example; of scores one number, (n, 1)."""
        if self.metric == "fisher":
            return self.family.root(values, vectors)
        return (values * vectors).flatten(1).sum(1, keepdim=True)

    def _centred(self, rows: Tensor) -> Tensor:
        return rows - rows.mean(0) if self.metric == "covariance" else rows

    def with_rows(self) -> UnitFisher:
        """The same matrix by its rows A (q, d): each output of each example, or each gradient."""
        rows = self._centred(self._jacobian().div_(self.rows**0.5))
        return UnitFisher(rows, rows.new_ones(len(rows), 1), self.name)

    def diagonal(self) -> Tensor:
        """The diagonal of C: (1, d), from the rows."""
        return self.with_rows().diagonal()

    def _jacobian(self) -> Tensor:
        """R J, example by example: (q, d)."""
        model, chosen = self.linear.model, {id(p) for p in self.linear.parameters}
        named = {k: p.detach() for k, p in model.named_parameters() if id(p) in chosen}
        order = {id(p): k for k, p in model.named_parameters()}

        def images(parameters: dict[str, Tensor], value: Tensor, *inputs: Tensor) -> Tensor:
            single = functional_call(model, parameters, tuple(each[None] for each in inputs))
            return self._root(value[None], single).flatten()

        axes = (None, 0) + (0,) * len(self.linear.inputs)
        found = vmap(jacrev(images), axes)(named, self._values, *self.linear.inputs)
        parts = [found[order[id(p)]][..., None].flatten(2) for p in self.linear.parameters]
        return torch.cat(parts, 2).flatten(0, 1)
