"""Conjugate gradient as a pure function, and the rules that say when it stops.

Sources: Hestenes & Stiefel 1952; Martens 2010 (natural gradients by conjugate gradient).
"""

import math
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import vecdot

Map = Callable[[Tensor], Tensor]


class Progress(NamedTuple):
    """What a stopping rule sees after an iteration."""

    iteration: int  # from 1
    solution: Tensor  # (m, d)
    residual: Tensor  # (m, d)
    step: Tensor  # (m, 1) length of the step along the direction
    energy: Tensor  # (m, 1) residual times preconditioned residual, before the step

    @property
    def gain(self) -> Tensor:
        """By how much the iteration shortened |x_j - solution_j|^2 in the norm of A_j: (m, 1)."""
        return self.step * self.energy


Rule = Callable[[Progress], bool]


def cg(
    matmul: Map, right: Tensor, precondition: Map, stop: Rule, later: Map | None = None
) -> tuple[Tensor, int]:
    """Solve A_j x_j = b_j for m positive definite matrices at once, from zero.

    Args:
        matmul: V -> A_j v_j, (m, d) each.
        right: b_j, (m, d).
        precondition: V -> about A_j^{-1} v_j, (m, d) each; symmetric and positive definite.
        stop: Looks at the `Progress` after each iteration, and says whether it was the last.
        later: As `matmul` but less exact, for all iterations after the first: an error of a
            product counts the less the shorter the residual is (Simoncini & Szyld 2003).

    Returns:
        x_j, (m, d), and the number of iterations.

    Examples:
        >>> matrix = torch.tensor([[2.0, 0.0], [0.0, 4.0]])
        >>> cg(lambda v: v @ matrix, torch.ones(1, 2), lambda v: v / 2, after(2))
        (tensor([[0.5000, 0.2500]]), 2)
    """
    tiny = torch.finfo(right.dtype).tiny  # a unit that is solved has 0 / tiny = 0 as its step
    solution, residual = torch.zeros_like(right), right.clone()
    direction = energy = None
    for iteration in count(1):
        steepest = precondition(residual)
        if steepest.data_ptr() == residual.data_ptr():  # the identity: both change in place
            steepest = residual.clone()
        new_energy = vecdot(residual, steepest)[:, None]
        if direction is None or energy is None:
            direction = steepest
        else:
            direction = steepest.addcmul_(new_energy / energy.clamp_min_(tiny), direction)
        energy = new_energy
        image = (later if later and iteration > 1 else matmul)(direction)
        step = energy / vecdot(direction, image)[:, None].clamp_min_(tiny)
        solution.addcmul_(step, direction)
        residual.addcmul_(step, image, value=-1)
        del image  # before the next one is made
        if stop(Progress(iteration, solution, residual, step, energy)):
            break
    return solution, iteration


def after(number: int) -> Rule:
    """Stop after a fixed number of iterations. Reads nothing from the device."""
    return lambda progress: progress.iteration >= number


class UntilAccurate:
    """Stop where the relative error of the solution is about `accuracy`, of all units together.

    Iteration i shortens a unit's squared error by gain_i (Hestenes & Stiefel 1952, theorem 6:1). If
    the gains fall on by the last ratio q, taken as at most 0.9, gain_i q / (1 - q) is left after
    it. Where gains fall slower and slower, for want of a good preconditioner, more is left. `size`
    gives the squared length of a solution in the norm of the gains.
    """

    def __init__(self, accuracy: float, size: Map, limit: int) -> None:
        self.accuracy, self.size, self.limit = accuracy, size, limit
        self._gain: Tensor | None = None

    def __call__(self, progress: Progress) -> bool:
        last, self._gain = self._gain, progress.gain
        if last is None:
            return self.limit == 1
        ratio = (progress.gain / last.clamp_min(torch.finfo(last.dtype).tiny)).clamp_max_(0.9)
        left = (progress.gain * ratio / (1 - ratio)).sum()
        near = not left > self.accuracy**2 * self.size(progress.solution)
        return near or progress.iteration >= self.limit


class UntilResidual:
    """Stop where every unit's residual, by `length` (m,) from (m, d), is at most its `target`."""

    def __init__(self, target: Tensor, length: Map, limit: int) -> None:
        self.target, self.length, self.limit = target, length, limit
        self.worst = math.nan  # largest ratio of a residual to its target; 0: all are reached

    def __call__(self, progress: Progress) -> bool:
        length = self.length(progress.residual)
        self.worst = float(torch.where(length <= self.target, 0.0, length / self.target).max())
        return not self.worst > 0 or progress.iteration >= self.limit
