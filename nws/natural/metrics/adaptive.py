"""Variances of the gradient in the parents' eigenbasis: measured, the model's, or both."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nws.errors import number, positive_int
from nws.natural.averages import Shares, share_of_newest
from nws.natural.metrics.metric import Metric
from nws.natural.operators import Rows, Tensors
from nws.natural.shared import Basis, find_basis, take_place
from nws.natural.solvers.solver import check_rows

EPSILON = 1e-8  # Adam's


class Frame:
    """Matrices V (m, d) of some layers in coordinates: V Q, and the rest V - V Q Q^T.

    All of them lie in one vector, so that what is done by coordinates is one operation. Q and V Q
    are kept transposed, which makes products with few columns fast.
    """

    def __init__(self, bases: Sequence[Basis], widths: Sequence[int]) -> None:
        self.bases = [b.vectors.T.contiguous().clone() for b in bases]  # (r, d), all of them copies
        pairs = list(zip(widths, self.bases, strict=True))
        shapes = [(m, rows.shape[1]) for m, rows in pairs] + [(len(rows), m) for m, rows in pairs]
        self._shapes, self._sizes = shapes, [m * d for m, d in shapes]
        self.vector = bases[0].rest.new_zeros(sum(self._sizes))
        self.matrices, self._along = self.parts(self.vector)
        self.gradients = [each[:, :-1] for each in self.matrices]  # of weights, then of biases
        self.gradients += [each[:, -1] for each in self.matrices]

    def parts(self, vector: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The rest (m, d) and the coordinates (r, m) of each layer: views."""
        pieces = zip(vector.split(self._sizes), self._shapes, strict=True)
        views = [piece.view(shape) for piece, shape in pieces]
        return views[: len(self.bases)], views[len(self.bases) :]

    def enter_(self) -> None:
        """Take the coordinates out of V, which stands in the place of the rest."""
        for rest, along, basis in zip(self.matrices, self._along, self.bases, strict=True):
            torch.mm(basis, rest.T, out=along)
            rest.addmm_(along.T, basis, alpha=-1)

    def leave_(self) -> None:
        """V of its coordinates, and of what of the rest lies beside Q."""
        for rest, along, basis in zip(self.matrices, self._along, self.bases, strict=True):
            along.addmm_(basis, rest.T, alpha=-1)
            rest.addmm_(along.T, basis)

    def turn(self, moments: Sequence[Tensor], new: "Frame") -> list[Tensor]:
        """M and V in the coordinates of another frame; squares as of independent coordinates."""
        mean, square = moments
        self.vector.copy_(mean)
        self.leave_()
        torch._foreach_copy_(new.matrices, self.matrices)
        new.enter_()
        squares = torch.zeros_like(new.vector)
        before, after = self.parts(square), new.parts(squares)
        torch._foreach_copy_(after[0], before[0])
        parts = zip(*before, after[1], self.bases, new.bases, strict=True)
        for rest, along, turned, old, basis in parts:
            rotation = basis @ old.T
            torch.mm(rotation.square(), along, out=turned)
            turned.addmm_((basis - rotation @ old).square(), rest.T)
        return [new.vector.clone(), squares]


class Adaptive(Metric):
    """Variances in the eigenbasis of the parents' second moment sum_k w_k h_k h_k^T ~ Q Lambda Q^T.

    A layer's gradient G (m, d) has the coordinates G Q along the r largest eigenvectors, and a rest
    R = G - G Q Q^T with a coordinate for each parent. V is the running mean of a coordinate's
    square, M that of the coordinate itself. Of means over n rows V ~ s_j Lambda_i / n. There s_j
    is E[A''(a)], and in the rest Lambda_i is rho, the mean of its eigenvalues. The direction is

        D_Q Q^T + D_R (I - Q Q^T),  D = M / (sqrt(V)^a (s_j Lambda_i + alpha)^(1 - a))

    With a = 1 it is Adam in this basis, without eigenvectors Adam itself (Kingma & Ba 2015). With
    a = 0 it is nearly the Kronecker metric with momentum. docs/natural_step.md derives it. EK-FAC
    (George et al. 2018) has n V + alpha below M. SOAP (Vyas et al. 2024) finds bases of both sides
    from gradients. The direction cancels the factor (1 + alpha)^a of a step; a mask is put on it.

    Args:
        rank: r, at most, at least 0.
        refresh_every: Steps between rows that the parents' second moment takes in; before, its
            newest rows are those of the steps 0, 1, 2, 4, 8, .., as a new network changes fast.
        memory: Of the parents' second moment, in steps; 1 for the newest rows alone.
        mean_memory: Of M, in steps; 1 for the newest gradient alone. 10 is a beta of 0.9 in Adam.
        square_memory: Of V, in steps; 200 is a beta of 0.995. A tenth of it fails in long runs.
        measured: a, from 0 to 1; others than 0.5 and 1 take a tenth of a step at batch 32.
    """

    def __init__(
        self, rank: int = 7, refresh_every: int = 20, memory: int = 50,
        mean_memory: int = 10, square_memory: int = 200, measured: float = 0.5,
    ) -> None:  # fmt: skip
        self.rank = positive_int("metric.rank", rank, minimum=0)
        self.refresh_every = positive_int("metric.refresh_every", refresh_every)
        self.memory = positive_int("metric.memory", memory)
        self.mean_memory = positive_int("metric.mean_memory", mean_memory)
        self.square_memory = positive_int("metric.square_memory", square_memory)
        self.measured = number("metric.measured", measured, least=0, most=1)
        self._shares: Shares  # of the newest gradient
        self._bases: list[Basis] = []
        self._widths: list[int] = []
        self._frame: Frame
        self._moments: list[Tensor] = []  # M and V
        self._curvatures: list[Tensor] = []  # alpha and the s_j of the last refresh
        self._model = torch.empty(0)  # of `_find_model`

    @property
    def due(self) -> bool:  # type: ignore[override]
        step, every = self._step, self.refresh_every
        return step % every == 0 or (step < every and step & (step - 1) == 0)

    def update(self, rows: Sequence[Rows], alpha: Tensor) -> None:
        self._scale = (1 + alpha) ** -self.measured
        if self.due:
            self._refresh(rows, check_rows(rows, alpha, waits=True))
        self._step += 1

    def _refresh(self, rows: Sequence[Rows], alpha: Tensor) -> None:
        """Take the rows into the second moments, find their eigenpairs, and turn M and V."""
        terms = self._step // self.refresh_every + 1
        keep = 1 - share_of_newest(self.memory, terms, self.refresh_every)
        lasts: Sequence[Basis | None] = self._bases or [None] * len(rows)
        bases: list[Basis] = []
        for layer, last in zip(rows, lasts, strict=True):
            weighed = layer.inputs * layer.weights.sqrt()[:, None]
            bases.append(find_basis(weighed, self.rank, last, layer.name, keep))
        widths = [len(layer.means[1]) for layer in rows]
        frame = Frame(bases, widths)
        if not self._bases:
            self._moments = [frame.vector.clone(), frame.vector.clone()]
            self._shares, self._frame = self._make_shares(), frame
        else:
            moments = self._frame.turn(self._moments, frame)
            if not take_place([*frame.bases, *moments], [*self._frame.bases, *self._moments]):
                self._moments, self._frame = moments, frame
        self._bases, self._widths = bases, widths
        if self.measured < 1:
            self._curvatures = [alpha.clone(), *(layer.means[1] for layer in rows)]
            self._find_model()

    def _make_shares(self, count: Tensor | int = 0) -> Shares:
        return Shares([self.mean_memory, self.square_memory], self._moments[0], count)

    def _adapt(self) -> None:
        """Take in the gradient that is in the frame, and put the direction in its place."""
        x, (mean, square) = self._frame.vector, self._moments
        self._frame.enter_()
        of_mean, of_square = self._shares.next()
        mean.lerp_(x, of_mean)
        square.lerp_(x.square(), of_square)
        torch.sqrt(square, out=x).add_(EPSILON)
        if self.measured < 1:
            x.pow_(self.measured).mul_(self._model)
        torch.div(mean, x, out=x)
        self._frame.leave_()

    def _find_model(self) -> None:
        """Find (s_j Lambda_i + alpha)^(1 - a) of the coordinates in the frame."""
        if self._model.shape != self._frame.vector.shape:
            self._model = torch.empty_like(self._frame.vector)
        alpha, *curvatures = self._curvatures
        parts = zip(*self._frame.parts(self._model), self._bases, curvatures, strict=True)
        for rest, along, basis, scales in parts:
            rest.copy_((scales * basis.rest)[:, None])
            torch.outer(basis.values, scales, out=along)
        self._model.add_(alpha).pow_(1 - self.measured)

    def direction(self, gradients: Tensors) -> list[Tensor]:
        """Take in the gradients, and return the direction, (m, d) for each layer."""
        torch._foreach_copy_(self._frame.matrices, list(gradients))
        self._adapt()
        return [each * self._scale for each in self._frame.matrices]

    def precondition_(self, weights: Tensors, biases: Tensors, scale: Tensor) -> bool:
        torch._foreach_copy_(self._frame.gradients, [*weights, *biases])
        self._adapt()
        torch._foreach_copy_([*weights, *biases], self._frame.gradients)
        torch._foreach_mul_([*weights, *biases], scale * self._scale)
        return True

    def graph_key(self, updates: bool) -> Any:
        return None if updates and self.due else self._frame

    def state_dict(self) -> dict[str, Any]:
        names = ("step", "widths", "moments", "curvatures")
        bases = [basis._asdict() for basis in self._bases]
        more = {"bases": bases, "count": self._shares.count if bases else 0}
        return {name: getattr(self, f"_{name}") for name in names} | more

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._step = state["step"]
        self._widths, self._moments = state["widths"], [m.clone() for m in state["moments"]]
        self._bases = [Basis(**basis) for basis in state["bases"]]
        if self._bases:
            self._frame = Frame(self._bases, self._widths)
            self._shares = self._make_shares(state["count"])
        self._curvatures = list(state["curvatures"])
        if self._curvatures:
            self._find_model()

    def redamp(self, alpha: Tensor) -> None:
        if self._curvatures:
            self._curvatures[0] = alpha.clone()
            self._find_model()
