"""A Kronecker preconditioner of a module's curvature, by the factors of its linear layers.

    C ~ E[g g^T] (x) E[a a^T] for each linear layer,

with a the layer's inputs and a one for the bias, g the derivatives by its outputs (Martens & Grosse
2015). It changes the number of iterations alone, never the solution.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nws.errors import UserError, positive_int
from nws.natural.modules.curvature import ModelCurvature
from nws.natural.operators import CurvatureOperator
from nws.natural.preconditioners import Preconditioner, State


@dataclass(frozen=True)
class Block:
    """G (x) A of one linear layer, by the eigenpairs of both factors."""

    places: Tensor  # (1,) or (2,): those of weight and bias among the parameters
    outer: Tensor  # (m, m) eigenvectors of G, in columns
    outer_values: Tensor  # (m,)
    inner: Tensor  # (d, d) of A, the bias as the last input
    inner_values: Tensor  # (d,)

    def write(self, parts: list[Tensor], given: list[Tensor], damping: Tensor) -> None:
        """Replace the layer's parts of a vector V (m, d) by (G (x) A + alpha I)^{-1} V."""
        weight, *bias = [int(i) for i in self.places]
        joined = torch.cat([given[weight], *(given[i][:, None] for i in bias)], 1)
        scale = self.outer_values[:, None] * self.inner_values + damping
        joined = self.outer @ (self.outer.T @ joined @ self.inner / scale) @ self.inner.T
        parts[weight] = joined[:, : given[weight].shape[1]]
        for i in bias:
            parts[i] = joined[:, -1]


class KroneckerPreconditioner(Preconditioner):
    """(E[g g^T] (x) E[a a^T] + alpha I)^{-1} on linear layers, a number on any other parameter.

    g is drawn once for each example, by random signs e in J^T R^T e, whose second moment is C. By
    the same signs the number is alpha and the mean of the parameter's diagonal of C. Layers that
    run more than once have such numbers too.

    Args:
        every: Updates between new factors. They cost a run of the model, a backward pass, and the
            eigenvectors of both factors.
    """

    def __init__(self, every: int = 20) -> None:
        self.every = positive_int("solver.preconditioner_every", every)
        self._age = 0
        self._means = torch.empty(0)  # of the diagonal, one for each parameter
        self._blocks: list[Block] = []
        self._shapes: list[torch.Size] = []

    def update(self, operator: CurvatureOperator, damping: Tensor) -> None:
        """Take in a module's curvature, and alpha.

        Raises:
            UserError: For the curvature of anything but a module.
        """
        if not isinstance(operator, ModelCurvature):
            raise UserError(
                "KroneckerPreconditioner is for modules; layers of units have SharedPreconditioner"
            )
        self._shapes = [each.shape for each in operator.linear.parameters]
        self._damping = damping
        if self._age % self.every == 0:
            self._factor(operator)
        self._age += 1

    def _factor(self, operator: ModelCurvature) -> None:
        linear, n = operator.linear, operator.rows
        places = {id(each): i for i, each in enumerate(linear.parameters)}
        outputs, layers = _record(linear.model, linear.inputs, set(places))
        signs = operator.draw(self._age)
        wanted = [output for _, _, output in layers] + linear.parameters
        found = torch.autograd.grad(outputs, wanted, signs, allow_unused=True)
        derivatives, gradients = found[: len(layers)], found[len(layers) :]
        means = [signs.new_zeros(()) if g is None else g.square().mean() / n for g in gradients]
        self._means, self._blocks = torch.stack(means), []
        for (layer, inputs, _), g in zip(layers, derivatives, strict=True):
            if g is not None:
                own = [places[id(p)] for p in layer.parameters() if id(p) in places]
                a = inputs.flatten(0, -2)
                a = torch.cat([a, a.new_ones(len(a), len(own) - 1)], 1)
                outer, inner = _eigenpairs(g.flatten(0, -2), n), _eigenpairs(a, len(a))
                self._blocks.append(Block(torch.tensor(own), *outer, *inner))

    def __call__(self, vectors: Tensor) -> Tensor:
        """About (C + alpha I)^{-1} v: (1, d) from (1, d)."""
        flat = vectors[0].split([shape.numel() for shape in self._shapes])
        given = [part.view(shape) for part, shape in zip(flat, self._shapes, strict=True)]
        scales = self._means + self._damping
        parts = [part / scale for part, scale in zip(given, scales, strict=True)]
        for block in self._blocks:
            block.write(parts, given, self._damping)
        return torch.cat([part.flatten() for part in parts])[None]

    def state_dict(self) -> State:
        """Age, means, and the factors of each layer."""
        state = {"age": torch.tensor(self._age), "means": self._means}
        for i, block in enumerate(self._blocks):
            state |= {f"{i}.{name}": value for name, value in vars(block).items()}
        return state

    def load_state_dict(self, state: State) -> None:
        """Go on from a state."""
        self._age, self._means, self._blocks = int(state["age"]), state["means"], []
        while (prefix := f"{len(self._blocks)}.") + "places" in state:
            own = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            self._blocks.append(Block(**own))


def _record(
    model: nn.Module, inputs: tuple[Tensor, ...], chosen: set[int]
) -> tuple[Tensor, list[tuple[nn.Linear, Tensor, Tensor]]]:
    """The outputs of a model, and its linear layers that run once, with their inputs and outputs.

    A layer counts where its weight, and its bias if it has one, are among the parameters.
    """
    calls: dict[nn.Linear, list[tuple[Tensor, Tensor]]] = {}

    def note(layer: nn.Linear, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        calls.setdefault(layer, []).append((args[0].detach(), output))
        return output.clone()  # what follows may change it in place

    hooks = [
        each.register_forward_hook(note)
        for each in model.modules()
        if isinstance(each, nn.Linear) and {id(p) for p in each.parameters()} <= chosen
    ]
    try:
        with torch.enable_grad():
            outputs = model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs, [(layer, *pairs[0]) for layer, pairs in calls.items() if len(pairs) == 1]


def _eigenpairs(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Eigenvectors in columns, and eigenvalues, of rows^T rows / count."""
    values, vectors = torch.linalg.eigh(rows.T @ rows / count)
    return vectors, values.clamp_min(0)
