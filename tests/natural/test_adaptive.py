"""The adaptive metric against Adam of torch, dense projectors and dense matrices."""

from typing import Any

import pytest
import torch
from cases import EXACT, SolverCase, assert_close
from test_metrics import rows_of
from torch import Tensor

from nws.natural.metrics import Adaptive
from nws.natural.shared import Basis

ALPHA = torch.tensor(0.2, dtype=torch.float64)
MEMORIES, BETAS = (5, 10), (0.8, 0.9)
LAYERS = [SolverCase(40, 9, 5, 0.2), SolverCase(2, 12, 3, 0.2), SolverCase(1, 1, 4, 0.2)]
STEPS = 9


def gradients(seed: int) -> list[Tensor]:
    return [case.gradient(seed) for case in LAYERS]


def directions(metric: Adaptive, fixed: bool = False) -> tuple[list[list[Tensor]], list[Any]]:
    """Those of some steps with (1 + alpha)^a, and the basis of each layer at each step."""
    found, bases = [], []
    for step in range(STEPS):
        metric.update([rows_of(case, 0 if fixed else step) for case in LAYERS], ALPHA)
        scale = 1.2**metric.measured
        found.append([scale * each for each in metric.direction(gradients(step))])
        bases.append([Basis(**each) for each in metric.state_dict()["bases"]])
    return found, bases


@pytest.mark.parametrize("rank", [0, 12])
def test_with_none_or_all_of_the_eigenvectors_it_is_adam_in_fixed_coordinates(rank: int) -> None:
    found, _ = directions(Adaptive(rank, 4, 50, *MEMORIES, measured=1), fixed=True)
    for number in (0, 2):
        rows, gradient = rows_of(LAYERS[number]), gradients(0)[number]
        moment = torch.einsum("k,ki,kj->ij", rows.weights, rows.inputs, rows.inputs)
        axes = torch.linalg.eigh(moment)[1], torch.eye(len(moment)).double()
        errors = []
        for basis in axes if rank else reversed(axes):  # the second is the control
            point = torch.zeros_like(gradient).requires_grad_()
            optimizer = torch.optim.Adam([point], lr=1.0, betas=BETAS)
            for step in range(STEPS):
                before, point.grad = point.detach().clone(), gradients(step)[number] @ basis
                optimizer.step()
            moved = (before - point.detach()) @ basis.T
            errors.append(float((found[-1][number] - moved).abs().max()))
        assert errors[0] < 1e3 * EXACT and (errors[1] > 0.1 or number == 2)


def low_rank(
    number: int, bases: list[list[Basis]], measured: float = 1, turns: bool = True,
    projects: bool = True,
) -> Tensor:  # fmt: skip
    """The last direction of a layer by dense projectors; moments go over to each new basis."""
    gradient, past = gradients(0)[number], bases[0][number].vectors
    mean, along = torch.zeros_like(gradient), gradient.new_zeros(len(gradient), past.shape[1])
    rest = torch.zeros_like(gradient)
    for step, each in enumerate(bases):
        q, g = each[number].vectors, gradients(step)[number]
        away, before = (torch.eye(len(v)).double() - v @ v.T for v in (q, past))
        if turns and not torch.equal(q, past):
            blocks = [past @ a.diag() @ past.T + before @ b.diag() @ before
                      for a, b in zip(along, rest, strict=True)]  # of each unit  # fmt: skip
            along = torch.stack([(q.T @ block @ q).diagonal() for block in blocks])
        past = q
        mean = BETAS[0] * mean + (1 - BETAS[0]) * g
        along = BETAS[1] * along + (1 - BETAS[1]) * (g @ q) ** 2
        rest = BETAS[1] * rest + (1 - BETAS[1]) * (g @ away) ** 2
    first, second = (1 - beta**STEPS for beta in BETAS)
    scales, last = rows_of(LAYERS[number], STEPS - 1).means[1][:, None], bases[-1][number]
    models = scales * last.rest + ALPHA, scales * last.values + ALPHA
    roots = [(square / second).sqrt() + 1e-8 for square in (rest, along)]
    beside, inside = (
        mean @ part / first / (root**measured * model ** (1 - measured))
        for part, root, model in zip((away, q), roots, models, strict=True)
    )
    return inside @ q.T + (beside @ away if projects else beside)


@pytest.mark.parametrize(("rank", "measured"), [(1, 1), (3, 1), (3, 0.5), (3, 0.2)])
def test_few_eigenvectors_are_coordinates_with_the_rest_beside(rank: int, measured: float) -> None:
    """Moments go over to each new basis; a basis grows where rows were few."""
    found, bases = directions(Adaptive(rank, 2, 5, *MEMORIES, measured=measured))
    for number in (0, 1):
        assert bases[-1][number].vectors.shape[1] == rank
        assert_close(found[-1][number], low_rank(number, bases, measured), 1e3 * EXACT)
    wrong: tuple[dict[str, Any], ...] = ({"turns": False}, {"projects": False}, {"measured": 0.6})
    for each in wrong:  # the controls
        other = low_rank(0, bases, **{"measured": measured} | each)
        assert float((found[-1][0] - other).abs().max()) > 1e-3


def test_with_the_models_variances_alone_it_is_a_damped_inverse() -> None:
    """(s_j H^T W H + alpha I)^{-1} g_j, with all eigenvectors and without momentum."""
    found, _ = directions(Adaptive(12, 1, 1, 1, 1, measured=0))
    for number, case in enumerate(LAYERS):
        rows, gradient = rows_of(case, STEPS - 1), gradients(STEPS - 1)[number]
        moment = torch.einsum("k,ki,kj->ij", rows.weights, rows.inputs, rows.inputs)
        dense = rows.means[1][:, None, None] * moment + ALPHA * torch.eye(len(moment))
        assert_close(found[-1][number], torch.linalg.solve(dense, gradient), 1e3 * EXACT)


def test_the_basis_is_of_a_running_mean_in_steps() -> None:
    """At first the newest rows serve alone: those of the steps 0, 1 and 2."""
    _, bases = directions(Adaptive(12, 3, memory=10))
    for number in (0, 1):
        seen = [rows_of(LAYERS[number], step) for step in (2, 3, 6)]
        moments = [torch.einsum("k,ki,kj->ij", x.weights, x.inputs, x.inputs) for x in seen]
        parts = [0.9**6, 0.9**3, 1]  # a beta of 0.9 a step, three steps apart
        mean = sum(part * moment for part, moment in zip(parts, moments, strict=True)) / sum(parts)
        q, values = bases[-1][number].vectors, bases[-1][number].values
        assert_close(q @ values.diag() @ q.T, mean, 1e3 * EXACT)


def test_a_gradient_of_zero_goes_nowhere_and_is_soon_forgotten() -> None:
    metric = Adaptive(2, mean_memory=1, square_memory=1)
    for step in range(3):
        metric.update([rows_of(case) for case in LAYERS], ALPHA)
        given = [g * (step % 2) for g in gradients(step)]
        for g, x in zip(given, metric.direction(given), strict=True):
            assert x.isfinite().all() and bool(x.any()) == bool(g.any())
