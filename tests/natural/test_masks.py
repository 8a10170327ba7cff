"""Natural directions of units that see some of a layer's parents alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import EXACT, seeded
from directions import joined, natural_metrics
from solving import basis_matrix, error, shared_blocks
from torch import Tensor

from nws.errors import UserError
from nws.learning import Rule, WakeSleep
from nws.models import HelmholtzMachine
from nws.models.masks import local
from nws.natural import Rows
from nws.natural.masked import LayerInverses
from nws.natural.metrics import Adaptive, Diagonal, Empirical, Fisher, Kronecker, Mean, Metric
from nws.natural.operators import UnitFisher
from nws.natural.reference import natural_direction
from nws.natural.shared import Basis
from nws.natural.solvers import Cholesky, ConjugateGradient, MinRes, ShermanMorrison, Woodbury

ALPHA = 0.1


def system(n: int = 40, d: int = 9, m: int = 7) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs, curvature, mask and gradients of a layer; the mask hides half of the parents."""
    rng = seeded()
    inputs = (torch.rand(n, d, generator=rng, dtype=torch.float64) < 0.4).double()
    inputs[:, -1] = 1
    curvature = torch.rand(n, m, generator=rng, dtype=torch.float64) / n
    mask = (torch.rand(m, d, generator=rng) < 0.5).double()
    mask[:, -1] = 1
    return inputs, curvature, mask, mask * torch.randn(m, d, generator=rng, dtype=torch.float64)


def direction(metric: Metric, rows: Rows, gradient: Tensor) -> Tensor:
    metric.update([rows], torch.tensor(ALPHA, dtype=torch.float64))
    return (1 + ALPHA) * metric.direction([gradient])[0]


@pytest.mark.parametrize(
    "solver",
    [Cholesky, lambda: ConjugateGradient(tolerance=1e-12), lambda: MinRes(200, 1e-12)],
    ids=["cholesky", "pcg", "minres"],
)
def test_exact_directions_are_those_of_dense_blocks(solver: Callable[[], Any]) -> None:
    inputs, curvature, mask, gradient = system()
    rows = Rows(inputs, curvature, mask=mask)
    expected = natural_direction(inputs, curvature, gradient, ALPHA, mask)
    fisher = UnitFisher(inputs, curvature, mask=mask)
    assert torch.equal(fisher.diagonal() == 0, mask == 0)
    assert error(fisher.diagonal(), fisher.blocks().diagonal(dim1=1, dim2=2)) < EXACT
    found = direction(Fisher(solver), rows, gradient)
    assert error(found, expected) < EXACT
    assert (found[mask == 0] == 0).all()
    # the control: hiding the entries of the unmasked direction is something else
    whole = mask * natural_direction(inputs, curvature, gradient, ALPHA)
    assert error(whole, expected) > 0.01


@pytest.mark.parametrize("solver", [Woodbury, ShermanMorrison])
def test_solvers_without_a_masked_form_say_so(solver: Callable[[], Any]) -> None:
    inputs, curvature, mask, gradient = system()
    with pytest.raises(UserError, match="take solver=pcg"):
        direction(Fisher(solver), Rows(inputs, curvature, mask=mask), gradient)


def dense(basis: Basis, centre: Tensor, scale: Tensor, mask: Tensor, gradient: Tensor) -> Tensor:
    """(s_j K[seen, seen] + alpha I)^{-1} g_j for each unit, by dense blocks."""
    blocks, found = shared_blocks(scale, centre, basis_matrix(basis)), torch.zeros_like(gradient)
    for j, seen in enumerate(mask.bool()):
        block = blocks[j][seen][:, seen] + ALPHA * torch.eye(int(seen.sum())).double()
        found[j, seen] = torch.linalg.solve(block, gradient[j, seen])
    return found


def test_shared_curvature_is_inverted_over_each_units_own_parents() -> None:
    inputs, curvature, mask, gradient = system()
    centred = inputs[:, :-1] - inputs[:, :-1].mean(0)
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(inputs))
    basis = Basis(vectors[:, -3:], values[-3:], values[:-3].mean()[None])
    centre, scale = inputs.mean(0), curvature.sum(0)
    alpha = torch.tensor(ALPHA, dtype=torch.float64)
    found, inverses = {}, LayerInverses()
    for name, seen in {"some": mask, "all": torch.ones_like(mask)}.items():
        inverses.change([basis])
        inverses.update([centre], [scale], [seen], alpha)
        found[name] = inverses([seen * gradient])[0]
        assert error(found[name], dense(basis, centre, scale, seen, seen * gradient)) < EXACT
    inverses.change([basis])
    inverses.update([centre], [scale], [None], alpha)
    assert error(found["all"], inverses([gradient])[0]) < EXACT
    assert error(mask * found["all"], found["some"]) > 0.01  # the control


def test_other_metrics_take_each_units_own_parents() -> None:
    inputs, curvature, mask, gradient = system()
    rows = Rows(inputs, curvature, mask=mask)
    centre, scale = inputs.mean(0), curvature.sum(0)
    blocks = scale[:, None, None] * (mask * centre)[:, :, None] * (mask * centre)[:, None, :]
    blocks = blocks + ALPHA * torch.eye(mask.shape[1], dtype=torch.float64)
    expected = (1 + ALPHA) * torch.linalg.solve(blocks, gradient)
    assert error(direction(Mean(), rows, gradient), expected) < EXACT
    expected = (1 + ALPHA) * gradient / (curvature.T @ inputs.square() + ALPHA)
    assert error(direction(Diagonal(), rows, gradient), expected) < EXACT
    found = direction(metric := Kronecker(rank=3), rows, gradient)
    basis = Basis(**metric.state_dict()["bases"][0])
    expected = (1 + ALPHA) * dense(basis, centre, scale, mask, gradient)
    assert error(found, expected) < EXACT
    errors = curvature.flip(0).square() * 40
    rows = Rows(inputs, curvature, lambda: errors, mask=mask)
    expected = natural_direction(inputs, errors, gradient, ALPHA, mask)
    assert error(direction(Empirical(Cholesky), rows, gradient), expected) < EXACT


def machine() -> HelmholtzMachine:
    both = {"lateral": "hidden"}
    return HelmholtzMachine(
        [16, 6, 4], generator={"lateral": "all"}, recognition=both, skip=True,
        mask=local, shape=(4, 4), rng=seeded(),
    ).double()  # fmt: skip


@pytest.mark.parametrize("max_kl", [None, 1e-3], ids=["free", "region"])
@pytest.mark.parametrize("make", [Fisher, Kronecker, Mean, Diagonal, Adaptive, Empirical])
def test_a_step_of_any_metric_leaves_hidden_weights_alone(
    make: Callable[[], Metric], max_kl: float | None
) -> None:
    """A trust region holds, with Adaptive too: what a mask hides of a direction is in no length."""
    made = machine()
    metrics = natural_metrics(made, ALPHA, make=make, max_kl=max_kl, refresh_every=2)
    learner = WakeSleep(made, Rule("rws", samples=4), seeded(), metrics)
    x = (torch.rand(8, 16, generator=seeded(1)) < 0.5).double()
    plain = WakeSleep(machine(), Rule("rws", samples=4), seeded())
    for metric in metrics:
        metric.learning_rate.fill_(0.1)
    learner.step(x)
    plain.step(x)
    slope = 0.0
    for network, other in zip(made.networks, plain.machine.networks, strict=True):
        for layer, one in zip(network.layers, other.layers, strict=True):
            if layer.mask is not None:
                assert (layer.weight.grad[layer.mask == 0] == 0).all()
            slope += float((layer.weight.grad * one.weight.grad).sum())
    assert slope > 0  # a descent direction
    for metric in metrics if max_kl and make is not Kronecker else ():  # which has its own length
        length = metric._square_length(joined(metric.network))
        assert abs(0.1**2 * length / 2 / max_kl - 1) < EXACT
