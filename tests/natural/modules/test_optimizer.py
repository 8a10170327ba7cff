"""`NaturalGradient` as a user of torch meets it: its step, its options, its state, its errors."""

import copy
import math
from typing import Any

import pytest
import torch
from cases import STANDARD_ERRORS
from dense import CASES, DENSE, FAMILIES, Case, dense_gradient, make_case
from solving import saved
from torch import Tensor, nn

from nws.errors import UserError
from nws.natural import CategoricalLogits, Damping, LevenbergMarquardt, NaturalGradient
from nws.natural.modules import GaussianMean, Linearized, ModelCurvature, Sampled
from nws.natural.preconditioners import Unpreconditioned
from nws.natural.solvers import Cholesky, ConjugateGradient, MinRes, Woodbury

EXACT = 1e-10  # float64, by a direct solver
SOLVED = 1e-8  # float64, by an iterative solver with a residual of 1e-12
ALPHA = 0.05

SOLVERS = {
    "woodbury": Woodbury,
    "cholesky": Cholesky,
    "cg": lambda: ConjugateGradient(200, tolerance=1e-12, preconditioner=Unpreconditioned()),
    "minres": lambda: MinRes(200, 1e-12, scaled=False),
    "scaled minres": lambda: MinRes(200, 1e-12),
    "too few": lambda: ConjugateGradient(2, preconditioner=Unpreconditioned()),
}


def optimizer_of(case: Case, **settings: Any) -> NaturalGradient:
    options: dict[str, Any] = {"damping": ALPHA, "solver": Woodbury()} | settings
    return NaturalGradient(case.model, FAMILIES[case.family], case.parameters, **options)


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
    wrong = (moved(case, optimizer) - expected).abs().max()
    if solver == "too few":  # the negative control of the tolerance
        assert wrong > 1e3 * SOLVED
    else:
        assert wrong < (EXACT if solver in ("woodbury", "cholesky") else SOLVED)


@pytest.mark.parametrize("name", CASES)
def test_a_step_on_every_module_moves_its_parameters_alone(name: str) -> None:
    case = make_case(name)
    rest = [p for p in case.model.parameters() if all(p is not q for q in case.parameters)]
    before = [p.clone() for p in rest]
    expected = -solved(case, DENSE["fisher"](case))
    assert (moved(case, optimizer_of(case)) - expected).abs().max() < EXACT
    assert all(torch.equal(a, b) for a, b in zip(rest, before, strict=True))
    assert len(rest) == (2 if name == "part" else 0)


@pytest.mark.parametrize("metric", ["fisher", "covariance"])
def test_the_metric_can_be_of_other_rows(metric: str) -> None:
    """More than those of the batch too. The Fisher matrix needs no targets, the others do."""
    case, other = make_case("categorical"), make_case("categorical")
    other.inputs = (torch.randn(9, 4, dtype=torch.float64),)
    other.targets = torch.randint(3, (9,))
    own, expected = (-solved(case, DENSE[metric](each)) for each in (case, other))
    assert (expected - own).norm() > 0.1 * own.norm()
    optimizer, more = optimizer_of(case, metric=metric), [other.inputs]
    if metric == "covariance":
        with pytest.raises(UserError, match="it needs targets"):
            optimizer.step(case.inputs, case.targets, *more)
        more.append(other.targets)
    assert (moved(case, optimizer, case.targets, *more) - expected).norm() < EXACT


@pytest.mark.parametrize("metric", ["fisher", "empirical"])
def test_a_loss_of_your_own_comes_by_its_gradient(metric: str) -> None:
    case, same = make_case("tied"), make_case("tied")
    expected = moved(same, optimizer_of(same, metric=metric))
    optimizer = optimizer_of(case, metric=metric)
    with pytest.raises(UserError, match="call backward"):
        optimizer.step(case.inputs)
    FAMILIES["bernoulli"].loss(case.model(*case.inputs), case.targets).mean().backward()
    assert (moved(case, optimizer, None, None, case.targets) - expected).abs().max() < EXACT


def test_groups_have_rates_of_their_own_and_rates_and_damping_follow_schedules() -> None:
    case = make_case("categorical")
    groups = [{"params": case.parameters[:2], "lr": 0.25}, {"params": case.parameters[2:]}]
    optimizer = NaturalGradient(
        case.model, CategoricalLogits(), groups, lr=1.0, solver=Woodbury(),
        damping=Damping(ALPHA, lambda step: 0.5**step),
    )  # fmt: skip
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    pairs = zip(case.parameters, (0.25, 0.25, 1.0, 1.0), strict=True)
    rates = torch.cat([torch.full((each.numel(),), rate) for each, rate in pairs])
    for factor in (1.0, 0.5):
        expected = -factor * rates * solved(case, DENSE["fisher"](case), factor * ALPHA)
        assert (moved(case, optimizer) - expected).abs().max() < EXACT
        scheduler.step()


@pytest.mark.parametrize(("lr", "kl"), [(1.0, 1e-4), (0.5, 1e-4), (1.0, 1e-5), (1.0, None)])
def test_steps_of_constant_kl(lr: float, kl: float | None) -> None:
    """The divergence of the outputs is lr^2 kl to second order, so within 5 % at 1e-4 nats."""
    case = make_case("categorical")
    before = case.model(*case.inputs).detach().log_softmax(-1)
    optimizer_of(case, lr=lr, kl=kl).step(case.inputs, case.targets)
    after = case.model(*case.inputs).detach().log_softmax(-1)
    divergence = float((before.exp() * (before - after)).sum(-1).mean())
    if kl is None:  # the control: without it a step is of another length
        assert divergence > 1e-2
    else:
        assert divergence == pytest.approx(lr**2 * kl, rel=0.05)


@pytest.mark.filterwarnings("ignore:Converting a tensor")
@pytest.mark.parametrize("lr", [0.05, 40.0])
def test_levenberg_marquardt_follows_the_reduction_ratio(lr: float) -> None:
    """A short step is as good as predicted, so alpha falls; a far too long one makes it grow."""
    case, fresh = make_case("categorical"), make_case("categorical")
    damping = LevenbergMarquardt(0.1, every=2, factor=0.5, minimum=1e-3, maximum=10)
    optimizer, matrix = optimizer_of(case, lr=lr, damping=damping), DENSE["fisher"](fresh)
    delta = -lr * solved(fresh, matrix, 0.1)
    loss = float(optimizer.step(case.inputs, case.targets))
    losses = [nn.functional.cross_entropy(c.model(*c.inputs), c.targets) for c in (fresh, case)]
    predicted = -dense_gradient(fresh) @ delta - delta @ matrix @ delta / 2
    report = optimizer.report()
    assert loss == pytest.approx(float(losses[0]))
    assert report["damping"] == (0.05 if lr < 1 else 0.2)
    expected = float((losses[0] - losses[1]) / predicted) if predicted > 0 else -math.inf
    assert report["reduction_ratio"] == pytest.approx(expected)
    assert (expected > 0.75) == (lr < 1) and (losses[1] < losses[0]) == (lr < 1)
    optimizer.step(case.inputs, case.targets)  # one of every two is measured
    assert optimizer.report()["damping"] == report["damping"]


def relative_errors(family: str, alpha: float, solver: Any = None, steps: int = 40) -> Tensor:
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
        rows = ModelCurvature(linear, own).with_rows()
        matrix = rows.blocks()[0] + alpha * torch.eye(len(gradient), dtype=torch.float64)
        before = position(case)
        optimizer.step(inputs[batch], targets[batch])
        exact = torch.linalg.solve(matrix, gradient)
        wrong = (before - position(case)) / (0.5 * (1 + alpha)) - exact
        found.append((wrong @ matrix @ wrong / (exact @ matrix @ exact)).sqrt())
    return torch.stack(found)


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("family", ["categorical", "gaussian"])
def test_it_is_as_accurate_as_it_says_in_every_step(family: str, alpha: float) -> None:
    errors = relative_errors(family, alpha)
    assert errors.median() < 0.1 and errors.max() < 0.5
    assert errors.min() > 1e-3, "solved much further than it has to be"


def test_the_gains_alone_promise_too_much() -> None:
    """The control: without a preconditioner more is left than the last gains foretell."""
    foretold = ConjugateGradient(accuracy=0.1, preconditioner=Unpreconditioned())
    assert relative_errors("gaussian", 0.01, foretold).median() > 0.15


# --- the sampled metric ---------------------------------------------------------------------------

DRAWS = 3000


def drawn(case: Case, metric: Sampled) -> Tensor:
    """Its next matrix (d, d), or its diagonal (d,)."""
    linear = Linearized(case.model, case.parameters, case.inputs)
    with torch.no_grad():
        blocks = metric.update(linear, FAMILIES[case.family]).blocks()
    return blocks[:, 0, 0] if metric.diagonal else blocks[0]


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("name", ["categorical", "several", "tied", "two inputs"])
def test_the_sampled_metric_is_unbiased(name: str, diagonal: bool) -> None:
    """Within five standard errors of the Fisher matrix; the empirical one is not, the control."""
    case, metric = make_case(name), Sampled(1, diagonal=diagonal)
    found = torch.stack([drawn(case, metric) for _ in range(DRAWS)])
    error = (found.std(0) / DRAWS**0.5).clamp_min(EXACT)
    for kind in ("fisher", "empirical"):
        matrix = DENSE[kind](case)
        gap = found.mean(0) - (matrix.diagonal() if diagonal else matrix)
        assert ((gap / error).abs().max() < STANDARD_ERRORS) == (kind == "fisher")


def test_samples_are_a_mean_and_the_memory_is_of_the_last_steps() -> None:
    case = make_case("tied")

    def each_step(metric: Sampled, passes: int = 1) -> Tensor:
        found = []
        for step in range(5):
            torch.manual_seed(step)
            found.append(torch.stack([drawn(case, metric) for _ in range(passes)]).mean(0))
        return torch.stack(found)

    newest, diagonal = each_step(Sampled(2)), each_step(Sampled(2, diagonal=True))
    assert (each_step(Sampled(1), 2) - newest).abs().max() < EXACT
    assert (each_step(Sampled(2, 3))[-1] - newest[-3:].mean(0)).abs().max() < EXACT
    weights = (2 / 3) ** torch.arange(4.0, -1, -1).double()
    mean = weights @ diagonal / weights.sum()
    assert (each_step(Sampled(2, 3, diagonal=True))[-1] - mean).abs().max() < EXACT
    assert (diagonal[-1] - mean).abs().max() > 1e-3  # the control


@pytest.mark.parametrize("kl", [None, 1e-3])
@pytest.mark.parametrize("solver", [Woodbury, Cholesky, lambda: None])
@pytest.mark.parametrize("diagonal", [False, True])
def test_a_sampled_step_is_the_dense_one(diagonal: bool, solver: Any, kl: float | None) -> None:
    """The usual solver is as accurate as it says: a tenth."""
    case, metric = make_case("categorical"), Sampled(8, diagonal=diagonal)
    optimizer = optimizer_of(case, metric=metric, solver=solver(), kl=kl)
    torch.manual_seed(1)
    matrix = drawn(case, metric).diag() if diagonal else drawn(case, metric)
    expected = -solved(case, matrix)
    if kl is not None:
        expected *= (2 * kl / (expected @ matrix @ expected)).sqrt()
    metric.state = {}
    torch.manual_seed(1)
    wrong = (moved(case, optimizer) - expected).norm() / expected.norm()
    assert wrong < (EXACT if solver in (Woodbury, Cholesky) else 0.1)


# --- state and mistakes ---------------------------------------------------------------------------


METRICS: list[Any] = [lambda: "fisher", lambda: Sampled(2, 3), lambda: Sampled(2, 3, diagonal=True)]


@pytest.mark.parametrize("metric", METRICS, ids=["fisher", "rows", "diagonal"])
@pytest.mark.parametrize("solver", [lambda: None, Woodbury])
def test_it_goes_on_bit_for_bit(solver: Any, metric: Any) -> None:
    def make(case: Case) -> NaturalGradient:
        options = {"metric": metric(), "damping": LevenbergMarquardt(0.1, every=2)}
        return optimizer_of(case, lr=0.3, solver=solver(), **options)

    def three(case: Case, optimizer: NaturalGradient) -> Tensor:
        torch.manual_seed(7)  # of what is sampled
        return torch.stack([moved(case, optimizer) for _ in range(3)])

    case = make_case("tied")
    optimizer = make(case)
    torch.optim.lr_scheduler.StepLR(optimizer, 99)  # it puts a `step` of its own into it
    for _ in range(3):
        optimizer.step(case.inputs, case.targets)
    state, model = saved(optimizer), copy.deepcopy(case.model.state_dict())
    copied, its_own = copy.deepcopy((case, optimizer))
    expected = three(case, optimizer)
    assert torch.equal(three(copied, its_own), expected)
    again, fresh = make_case("tied"), make_case("tied")
    for each in (again, fresh):
        each.model.load_state_dict(model)
    other = make(again)
    other.load_state_dict(state)
    assert torch.equal(three(again, other), expected)
    assert other.report() == optimizer.report()
    assert not torch.equal(three(fresh, make(fresh)), expected)  # the control


def test_training_mode_is_refused_where_it_matters() -> None:
    refused = {
        r"0 \(BatchNorm1d\) mixes the examples": nn.BatchNorm1d(4),
        r"0 \(Dropout\) is random": nn.Dropout(0.1),
        r"0 \(RReLU\) is random": nn.RReLU(),
        "mixes the examples": nn.BatchNorm1d(4, track_running_stats=False).eval(),
    }
    batch = torch.randn(5, 4), torch.zeros(5, dtype=torch.long)
    for message, module in refused.items():
        model = nn.Sequential(module, nn.Linear(4, 3))
        with pytest.raises(UserError, match=message):
            NaturalGradient(model, CategoricalLogits()).step(*batch)
    NaturalGradient(model[1:], CategoricalLogits()).step(*batch)  # in training mode too


def test_what_does_not_fit_is_refused() -> None:
    case, other = make_case("categorical"), make_case("categorical")
    with pytest.raises(UserError, match="take ConjugateGradient"):  # a preconditioner of layers
        optimizer_of(case, solver=ConjugateGradient()).step(case.inputs, case.targets)
    with pytest.raises(UserError, match="another optimizer"):
        optimizer_of(case).load_state_dict(torch.optim.SGD(case.parameters).state_dict())
    with pytest.raises(UserError, match="parameters of the model"):
        NaturalGradient(case.model, CategoricalLogits(), other.parameters)
    one = case.inputs[0][:1], case.targets[:1]
    with pytest.raises(UserError, match="not finite"):  # the covariance of one row is 0
        optimizer_of(case, metric="covariance", kl=0.1).step(*one)
    frozen, before = case.parameters[0].requires_grad_(False), position(case)
    optimizer_of(case).step(case.inputs, case.targets)
    assert (position(case) != before).nonzero().min() >= frozen.numel()  # it alone stays
    for each in other.parameters:
        each.grad = torch.zeros_like(each)
    optimizer_of(other, kl=1.0).step(other.inputs)  # nowhere
    other.inputs[0][0], before = math.nan, position(other)
    for solver, seen in ((Woodbury(), None), (None, None), (None, case.inputs)):
        with pytest.raises(UserError, match="not finite"):
            optimizer_of(other, solver=solver).step(other.inputs, other.targets, seen)
    assert torch.equal(position(other), before)
