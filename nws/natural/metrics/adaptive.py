"""Adam in the parents' eigenbasis: measured second moments in place of the model's."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from nws.errors import number, positive_int
from nws.natural.averages import share_of_newest
from nws.natural.metrics.metric import Metric
from nws.natural.operators import Rows
from nws.natural.preconditioners import Basis, leading_basis
from nws.natural.solvers.solver import check_rows

EPSILON = 1e-8  # Adam's


class Frame:
    """Matrices V (m, d) of some layers in coordinates: V Q, and the rest V - V Q Q^T.

    All of them lie in one vector, so that what is done by coordinates is one operation. Q and V Q
    are kept transposed: then a product with few columns is fast.
    """

    def __init__(self, bases: Sequence[Basis], widths: Sequence[int]) -> None:
        self._bases = [basis.vectors.T.contiguous() for basis in bases]  # (r, d)
        pairs = list(zip(widths, self._bases, strict=True))
        self._shapes = [(m, rows.shape[1]) for m, rows in pairs]  # of the rest
        self._shapes += [(len(rows), m) for m, rows in pairs]
        self._sizes = [m * d for m, d in self._shapes]
        self.vector = bases[0].rest.new_zeros(sum(self._sizes))
        self.matrices, self._along = self.parts(self.vector)

    def parts(self, vector: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The rest (m, d) and the coordinates (r, m) of each layer: views."""
        pieces = zip(vector.split(self._sizes), self._shapes, strict=True)
        views = [piece.view(shape) for piece, shape in pieces]
        return views[: len(self._bases)], views[len(self._bases) :]

    def enter_(self) -> None:
        """Take the coordinates out of V, which stands in the place of the rest."""
        for rest, along, basis in zip(self.matrices, self._along, self._bases, strict=True):
            torch.mm(basis, rest.T, out=along)
            rest.addmm_(along.T, basis, alpha=-1)

    def leave_(self) -> None:
        """V of its coordinates, and of what of the rest lies beside Q."""
        for rest, along, basis in zip(self.matrices, self._along, self._bases, strict=True):
            along.addmm_(basis, rest.T, alpha=-1)
            rest.addmm_(along.T, basis)

    def turn(self, mean: Tensor, square: Tensor, new: "Frame") -> tuple[Tensor, Tensor]:
        """Moments in the coordinates of another frame; squares as of independent coordinates."""
        self.vector.copy_(mean)
        self.leave_()
        torch._foreach_copy_(new.matrices, self.matrices)
        new.enter_()
        squares = torch.zeros_like(new.vector)
        before, after = self.parts(square), new.parts(squares)
        torch._foreach_copy_(after[0], before[0])
        parts = zip(*before, after[1], self._bases, new._bases, strict=True)
        for rest, along, turned, old, basis in parts:
            rotation = basis @ old.T
            torch.mm(rotation.square(), along, out=turned)
            turned.addmm_((basis - rotation @ old).square(), rest.T)
        return new.vector.clone(), squares


class Adaptive(Metric):
    """Adam in the eigenbasis of the parents' second moment sum_k w_k h_k h_k^T ~ Q Lambda Q^T.

    A layer's gradient G (m, d) has the coordinates Y = G Q along the r largest eigenvectors, and a
    rest R = G - Y Q^T, of which a parent is a coordinate. With M and V the running means of a
    coordinate and of its square, the direction is

        (M_Y / sqrt(V_Y)) Q^T + (M_R / sqrt(V_R)) (I - Q Q^T)

    Adam is the case r = 0 (Kingma & Ba 2015). The basis is that of the Kronecker metric, whose
    variances s_j Lambda + alpha are the model's; here they are measured, as in EK-FAC (George et
    al. 2018), under the root. SOAP (Vyas et al. 2024) finds bases of both sides from gradients.
    alpha cancels: the direction is divided by the 1 + alpha that a step multiplies by.

    Args:
        rank: r, at most, at least 0.
        refresh_every: Steps between rows that the second moment of the parents takes in.
        memory: Of the parents' second moment, in steps; 1 for the newest rows alone.
        beta1: Of the gradient's running mean, as in Adam; 0 for the newest gradient alone.
        beta2: Of the running mean of its square, as in Adam.

    Raises:
        UserError: For numbers that are out of range.
    """

    def __init__(
        self, rank: int = 7, refresh_every: int = 20, memory: int = 50,
        beta1: float = 0.0, beta2: float = 0.95,
    ) -> None:  # fmt: skip
        self.rank = positive_int("metric.rank", rank, minimum=0)
        self.refresh_every = positive_int("metric.refresh_every", refresh_every)
        self.memory = positive_int("metric.memory", memory)
        expected = "of at least 0 and below 1"
        self._memories = [  # of the gradient's running means, in steps
            1 / (1 - number(f"metric.{name}", beta, expected, lambda value: 0 <= value < 1))
            for name, beta in (("beta1", beta1), ("beta2", beta2))
        ]
        self._step = self._count = 0  # of updates, and of gradients
        self._bases: list[Basis] = []
        self._moments: tuple[Tensor, Tensor] | None = None  # means and mean squares
        self._widths: list[int] = []  # m of each layer
        self._frame: Frame | None = None
        self._scale = torch.ones(())

    def update(self, rows: Sequence[Rows], alpha: Tensor) -> None:
        """Take in the rows of each layer where they are due, and alpha."""
        self._scale = 1 / (1 + alpha)
        if self._step % self.refresh_every == 0:
            check_rows(rows, alpha, waits=True)
            self._refresh(rows)
        self._step += 1

    def _refresh(self, rows: Sequence[Rows]) -> None:
        """Take the rows into the second moments, and find their eigenpairs."""
        terms = self._step // self.refresh_every + 1
        keep = 1 - share_of_newest(self.memory, terms, self.refresh_every)
        bases: list[Basis] = []
        for number_, layer in enumerate(rows):
            last = self._bases[number_] if self._bases else None
            weighed = layer.inputs * layer.weights.sqrt()[:, None]
            bases.append(leading_basis(weighed, self.rank, last, layer.name, keep))
        self._bases, self._widths = bases, [len(layer.means[1]) for layer in rows]
        old, self._frame = self._frame, Frame(self._bases, self._widths)
        if old is not None and self._moments is not None:
            self._moments = old.turn(*self._moments, self._frame)

    def _adapt(self) -> None:
        """Take the vector in as a gradient, and make the direction of it."""
        assert self._frame is not None, "update comes first"
        x = self._frame.vector
        self._frame.enter_()
        if self._moments is None:
            self._moments = torch.zeros_like(x), torch.zeros_like(x)
        mean, square = self._moments
        self._count += 1
        first, second = (share_of_newest(each, self._count) for each in self._memories)
        mean.lerp_(x, first)
        square.mul_(1 - second).addcmul_(x, x, value=second)
        torch.sqrt(square, out=x)
        torch.div(mean, x.add_(EPSILON), out=x)
        self._frame.leave_()

    def direction(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Take in the gradients, and return the direction, (m, d) for each layer."""
        assert self._frame is not None, "update comes first"
        torch._foreach_copy_(self._frame.matrices, list(gradients))
        self._adapt()
        return [each * self._scale for each in self._frame.matrices]

    def precondition_(
        self, weights: Sequence[Tensor], biases: Sequence[Tensor], scale: Tensor,
        shorten: Callable[[Tensor], Tensor] | None = None,
    ) -> bool:  # fmt: skip
        """As `Metric` says; not with a trust region, whose length is the exact one."""
        if shorten is not None:
            return False
        assert self._frame is not None, "update comes first"
        matrices = self._frame.matrices
        places = list(chain(*((each[:, :-1], each[:, -1]) for each in matrices)))
        gradients = list(chain(*zip(weights, biases, strict=True)))
        torch._foreach_copy_(places, gradients)
        self._adapt()
        torch._foreach_copy_(gradients, places)
        torch._foreach_mul_(gradients, scale * self._scale)
        return True

    def state_dict(self) -> dict[str, Any]:
        """The numbers of updates and gradients, the basis of each layer, and the moments."""
        return {
            "step": self._step, "count": self._count, "widths": self._widths,
            "bases": [basis._asdict() for basis in self._bases], "moments": self._moments,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self._step, self._count, self._widths = state["step"], state["count"], state["widths"]
        self._bases = [Basis(**basis) for basis in state["bases"]]
        self._frame = Frame(self._bases, self._widths) if self._bases else None
        moments = state["moments"]
        self._moments = None if moments is None else (moments[0], moments[1])
