"""`NaturalGradient` as a user of torch meets it: its step, its options, its state, its errors."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import pytest
import torch
from dense import CASES, DENSE, FAMILIES, Case, dense_gradient, make_case
from torch import Tensor, nn

from nws.errors import UserError
from nws.natural import (
    CategoricalLogits,
    Damping,
    GaussianMean,
    LevenbergMarquardt,
    NaturalGradient,
)
from nws.natural.modules import KroneckerPreconditioner, Linearized, ModelCurvature, OutputMetric
from nws.natural.modules.optimizer import rows_are_cheaper
from nws.natural.preconditioners import Unpreconditioned
from nws.natural.solvers import Cholesky, ConjugateGradient, MinRes

EXACT = 1e-10  # float64, by a direct solver
SOLVED = 1e-8  # float64, by an iterative solver with a residual of 1e-12
ALPHA = 0.05

SOLVERS = {
    "rows": lambda: "rows",
    "cholesky": Cholesky,
    "cg": lambda: ConjugateGradient(200, tolerance=1e-12, preconditioner=Unpreconditioned()),
    "minres": lambda: MinRes(200, 1e-12, scaled=False),
    "scaled minres": lambda: MinRes(200, 1e-12),
}


def optimizer_of(case: Case, **settings: Any) -> NaturalGradient:
    options: dict[str, Any] = {"damping": ALPHA, "solver": "rows"}
    return NaturalGradient(
        case.model, FAMILIES[case.family], case.parameters, **(options | settings)
    )


def position(case: Case) -> Tensor:
    return torch.cat([each.detach().flatten() for each in case.parameters])


def moved(case: Case, optimizer: NaturalGradient, *batch: Any) -> Tensor:
    """By how much a step changes the parameters: (d,)."""
    before = position(case)
    optimizer.step(case.inputs, *(batch or (case.targets,)))
    return position(case) - before


def solved(case: Case, matrix: Tensor, alpha: float = ALPHA) -> Tensor:
    """(1 + alpha) (C + alpha I)^{-1} g by a dense solve."""
    identity = torch.eye(len(matrix), dtype=torch.float64)
    return (1 + alpha) * torch.linalg.solve(matrix + alpha * identity, dense_gradient(case))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("metric", DENSE)
def test_a_step_is_the_dense_solution(metric: str, solver: str) -> None:
    case = make_case("categorical")
    expected = -0.3 * solved(case, DENSE[metric](case))
    optimizer = optimizer_of(case, lr=0.3, metric=metric, solver=SOLVERS[solver]())
    bound = EXACT if solver in ("rows", "cholesky") else SOLVED
    assert (moved(case, optimizer) - expected).abs().max() < bound


@pytest.mark.parametrize("name", CASES)
def test_a_step_on_every_module(name: str) -> None:
    case = make_case(name)
    rest = [p.clone() for p in case.model.parameters() if all(p is not q for q in case.parameters)]
    expected = -solved(case, DENSE["fisher"](case))
    assert (moved(case, optimizer_of(case)) - expected).abs().max() < EXACT
    left = [p for p in case.model.parameters() if all(p is not q for q in case.parameters)]
    assert all(torch.equal(a, b) for a, b in zip(left, rest, strict=True))
    assert len(rest) == (2 if name == "part" else 0)


def test_few_iterations_are_not_enough() -> None:
    """A negative control of the tolerance above."""
    case = make_case("categorical")
    expected = -solved(case, DENSE["fisher"](case))
    few = ConjugateGradient(2, preconditioner=Unpreconditioned())
    assert (moved(case, optimizer_of(case, solver=few)) - expected).abs().max() > 1e3 * SOLVED


def test_the_metric_can_be_of_other_rows() -> None:
    """Another batch and unlabelled inputs are the same to it; more of them than the batch too."""
    case, other = make_case("categorical"), make_case("categorical")
    other.inputs = (torch.randn(9, 4, dtype=torch.float64),)
    other.targets = torch.randint(3, (9,))
    matrix, gradient = DENSE["fisher"](other), -solved(case, DENSE["fisher"](other))
    other.targets = case.targets[:0]
    assert (moved(case, optimizer_of(case), case.targets, other.inputs) - gradient).norm() < EXACT
    own = -solved(make_case("categorical"), DENSE["fisher"](make_case("categorical")))
    assert (gradient - own).norm() > 0.1 * own.norm() and len(matrix) == 27


def test_the_moment_of_gradients_of_another_batch_needs_its_targets() -> None:
    case, other = make_case("categorical"), make_case("categorical")
    other.inputs = (torch.randn(9, 4, dtype=torch.float64),)
    other.targets = torch.randint(3, (9,))
    optimizer = optimizer_of(case, metric="covariance")
    with pytest.raises(UserError, match="needs their targets"):
        optimizer.step(case.inputs, case.targets, other.inputs)
    expected = -solved(case, DENSE["covariance"](other))
    found = moved(case, optimizer, case.targets, other.inputs, other.targets)
    assert (found - expected).norm() < EXACT


def test_a_loss_of_your_own_comes_by_its_gradient() -> None:
    case, same = make_case("tied"), make_case("tied")
    expected = moved(same, optimizer_of(same))
    optimizer = optimizer_of(case)
    with pytest.raises(UserError, match="call backward"):
        optimizer.step(case.inputs)
    FAMILIES["bernoulli"].loss(case.model(*case.inputs), case.targets).mean().backward()
    before = position(case)
    assert optimizer.step(case.inputs) is None
    assert (position(case) - before - expected).abs().max() < EXACT


def test_the_loss_is_that_before_the_step_and_it_falls() -> None:
    case = make_case("categorical")
    optimizer = optimizer_of(case, lr=0.5)
    losses = [optimizer.step(case.inputs, case.targets) for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    expected = nn.functional.cross_entropy(
        make_case("categorical").model(*case.inputs), case.targets
    )
    assert float(losses[0]) == pytest.approx(float(expected.detach()))


def test_groups_have_rates_of_their_own_and_rates_and_damping_follow_schedules() -> None:
    case = make_case("categorical")
    groups = [{"params": case.parameters[:2], "lr": 0.25}, {"params": case.parameters[2:]}]
    optimizer = NaturalGradient(
        case.model, CategoricalLogits(), groups, lr=1.0, solver="rows",
        damping=Damping(ALPHA, lambda step: 0.5**step),
    )  # fmt: skip
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    rates = torch.cat(
        [torch.full((p.numel(),), 0.25 if i < 2 else 1.0) for i, p in enumerate(case.parameters)]
    )
    for factor in (1.0, 0.5):
        expected = -factor * rates * solved(case, DENSE["fisher"](case), factor * ALPHA)
        assert (moved(case, optimizer) - expected).abs().max() < EXACT
        scheduler.step()


# --- step length and damping ----------------------------------------------------------------------


def divergence(case: Case, before: Tensor) -> float:
    """Mean KL of the categorical outputs before a step from those after it, in nats."""
    after = case.model(*case.inputs).detach().log_softmax(-1)
    before = before.log_softmax(-1)
    return float((before.exp() * (before - after)).sum(-1).mean())


def test_steps_of_constant_kl() -> None:
    """The divergence of the outputs is lr^2 kl to second order, so within 5 % at 1e-4 nats."""
    for lr, kl in [(1.0, 1e-4), (0.5, 1e-4), (1.0, 1e-5)]:
        case = make_case("categorical")
        before = case.model(*case.inputs).detach()
        optimizer = optimizer_of(case, lr=lr, kl=kl)
        optimizer.step(case.inputs, case.targets)
        assert divergence(case, before) == pytest.approx(lr**2 * kl, rel=0.05)
    case = make_case("categorical")  # the control: without it a step is of another length
    optimizer_of(case).step(case.inputs, case.targets)
    assert divergence(case, before) > 1e-2


@pytest.mark.filterwarnings("ignore:Converting a tensor")
@pytest.mark.parametrize("lr", [0.05, 40.0])
def test_levenberg_marquardt_follows_the_reduction_ratio(lr: float) -> None:
    """A short step is as good as predicted, so alpha falls; a far too long one makes it grow."""
    case = make_case("categorical")
    damping = LevenbergMarquardt(0.1, every=2, factor=0.5, minimum=1e-3, maximum=10)
    optimizer = optimizer_of(case, lr=lr, damping=damping)
    delta = -lr * solved(make_case("categorical"), DENSE["fisher"](case), 0.1)
    loss = float(optimizer.step(case.inputs, case.targets))
    after = float(nn.functional.cross_entropy(case.model(*case.inputs), case.targets))
    fresh = make_case("categorical")
    predicted = -dense_gradient(fresh) @ delta - delta @ DENSE["fisher"](fresh) @ delta / 2
    report = optimizer.report()
    assert report["damping"] == (0.05 if lr < 1 else 0.2)
    if predicted > 0:
        assert report["reduction_ratio"] == pytest.approx(float((loss - after) / predicted))
        assert report["reduction_ratio"] > 0.75
    else:
        assert loss < after and report["reduction_ratio"] == -math.inf
    optimizer.step(case.inputs, case.targets)  # one of every two is measured
    assert optimizer.report()["damping"] == report["damping"]


# --- the choice of a form -------------------------------------------------------------------------


def curvature(n: int, outputs: int, width: int, metric: str = "fisher") -> ModelCurvature:
    model = nn.Sequential(nn.Linear(20, width), nn.Tanh(), nn.Linear(width, outputs))
    linear = Linearized(model, list(model.parameters()), torch.zeros(n, 20))
    targets = torch.zeros(n, dtype=torch.long)
    return ModelCurvature(linear, OutputMetric(metric, CategoricalLogits()), targets)


def test_auto_takes_the_rows_of_a_small_batch_and_products_for_a_large_one() -> None:
    assert rows_are_cheaper(curvature(16, 1, 50))
    assert not rows_are_cheaper(curvature(256, 1, 50))
    assert not rows_are_cheaper(curvature(16, 10, 50))
    assert rows_are_cheaper(curvature(16, 10, 50, "empirical"))
    small = curvature(16, 1, 50)
    small.max_bytes = 16 * small.shape[1] * 4 - 1
    assert not rows_are_cheaper(small)


def relative_errors(family: str, alpha: float, solver: Any, steps: int = 40) -> Tensor:
    """Of each step's direction, in the norm of C + alpha I, against the dense solution."""
    rng = torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    inputs = torch.randn(480, 10, generator=rng, dtype=torch.float64)
    noisy = inputs @ torch.randn(10, 3, generator=rng).double() + torch.randn(480, 3).double()
    targets = noisy.argmax(1) if family == "categorical" else noisy.tanh()
    own = FAMILIES[family] if family == "categorical" else GaussianMean()
    case = Case(family, model, (inputs,), targets, list(model.parameters()))
    optimizer = NaturalGradient(model, own, lr=0.5, damping=alpha, solver=solver)
    found = []
    for _ in range(steps):
        batch = torch.randperm(480)[:48]
        linear = Linearized(model, case.parameters, inputs[batch])
        gradient = linear.pull(own.errors(linear.outputs, targets[batch]) / -48)
        rows = ModelCurvature(linear, OutputMetric("fisher", own)).with_rows()
        matrix = rows.blocks()[0] + alpha * torch.eye(len(gradient), dtype=torch.float64)
        before = position(case)
        optimizer.step(inputs[batch], targets[batch])
        exact = torch.linalg.solve(matrix, gradient)
        wrong = (before - position(case)) / (0.5 * (1 + alpha)) - exact
        found.append((wrong @ matrix @ wrong / (exact @ matrix @ exact)).sqrt())
    return torch.stack(found)


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("family", ["categorical", "gaussian"])
def test_cg_is_as_accurate_as_it_says_in_every_step(family: str, alpha: float) -> None:
    errors = relative_errors(family, alpha, "cg")
    assert errors.median() < 0.1 and errors.max() < 0.5
    assert errors.min() > 1e-3, "solved much further than it has to be"


def test_the_gains_alone_promise_too_much() -> None:
    """The control: without a preconditioner more is left than the last gains foretell."""
    foretold = ConjugateGradient(accuracy=0.1, preconditioner=Unpreconditioned())
    assert relative_errors("gaussian", 0.01, foretold).median() > 0.15


# --- state ----------------------------------------------------------------------------------------


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


@pytest.mark.parametrize("solver", ["cg", "kronecker", "rows", "auto", "minres"])
def test_it_goes_on_bit_for_bit(solver: str) -> None:
    def make(case: Case) -> NaturalGradient:
        damping = LevenbergMarquardt(0.1, every=2)
        own = {
            "minres": lambda: MinRes(20, scaled=False),
            "kronecker": lambda: ConjugateGradient(preconditioner=KroneckerPreconditioner(2)),
        }
        chosen = own[solver]() if solver in own else solver
        return optimizer_of(case, lr=0.3, damping=damping, solver=chosen)

    case = make_case("tied")
    optimizer = make(case)
    for _ in range(3):
        optimizer.step(case.inputs, case.targets)
    saved, model = through_a_file(optimizer.state_dict()), copy.deepcopy(case.model.state_dict())
    expected = [moved(case, optimizer) for _ in range(3)]
    again = make_case("tied")
    again.model.load_state_dict(model)
    other = make(again)
    other.load_state_dict(saved)
    assert all(torch.equal(moved(again, other), each) for each in expected)
    assert other.report() == optimizer.report()
    if solver != "kronecker":
        return
    fresh = make_case("tied")  # the control: what is in the state matters
    fresh.model.load_state_dict(model)
    assert not torch.equal(moved(fresh, make(fresh)), expected[0])


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.BatchNorm1d(4), r"0 \(BatchNorm1d\) mixes the examples"),
        (nn.Dropout(0.1), r"0 \(Dropout\) is random"),
        (nn.BatchNorm1d(4, track_running_stats=False).eval(), "mixes the examples"),
    ],
)
def test_training_mode_is_refused_where_it_matters(module: nn.Module, message: str) -> None:
    model = nn.Sequential(module, nn.Linear(4, 3))
    optimizer = NaturalGradient(model, CategoricalLogits())
    with pytest.raises(UserError, match=message):
        optimizer.step(torch.randn(5, 4), torch.zeros(5, dtype=torch.long))
    plain = NaturalGradient(model[1:], CategoricalLogits())  # in training mode too
    plain.step(torch.randn(5, 4), torch.zeros(5, dtype=torch.long))


def test_outputs_that_are_not_finite_are_refused() -> None:
    case = make_case("categorical")
    case.inputs[0][0] = math.nan
    for solver in ("rows", "cg"):
        before = position(case)
        with pytest.raises(UserError, match="not finite"):
            optimizer_of(case, solver=solver).step(case.inputs, case.targets)
        assert torch.equal(position(case), before)


def test_what_does_not_fit_is_refused() -> None:
    case, other = make_case("categorical"), make_case("categorical")
    with pytest.raises(UserError, match="take ConjugateGradient"):  # a preconditioner of layers
        optimizer_of(case, solver=ConjugateGradient()).step(case.inputs, case.targets)
    with pytest.raises(UserError, match="another optimizer"):
        optimizer_of(case).load_state_dict(torch.optim.SGD(case.parameters).state_dict())
    with pytest.raises(UserError, match="parameters of the model"):
        NaturalGradient(case.model, CategoricalLogits(), other.parameters)
    case.parameters[0].requires_grad_(False)
    with pytest.raises(UserError, match="must require gradients"):
        NaturalGradient(case.model, CategoricalLogits(), case.parameters)
    assert len(NaturalGradient(case.model, CategoricalLogits()).param_groups[0]["params"]) == 3
