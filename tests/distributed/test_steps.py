"""Steps of several processes against those of one, with shares that are not alike.

One group of three processes does all that these tests compare.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from conftest import flatten
from processes import together
from torch import Tensor

from nws import distributed
from nws.learning import NaturalMetric, RowOptions, Rule, WakeSleep, tempered
from nws.learning.together import log_sums, results
from nws.learning.vimco import vimco
from nws.models import HelmholtzMachine
from nws.models.gaussian import Gaussian
from nws.models.likelihood import LogLikelihood, log_likelihood
from nws.natural import Damping, LevenbergMarquardt
from nws.natural.metrics import Adaptive, Empirical, Fisher, Kronecker, Mean
from nws.natural.solvers import ConjugateGradient
from nws.natural.solvers.direct import ShermanMorrison

SIZES = [11, 7, 5, 1]  # no width is a multiple of 3, and one is below it
POINTS = 13  # data points of a batch, likewise
SINGLE = 1e-5  # relative, float32 after 25 steps: sums of other shares round in another way
DOUBLE = 1e-10  # the same in float64

Make = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    rule: Rule
    metric: Make | None = None
    options: RowOptions = field(default_factory=RowOptions)
    damping: Make = Damping
    steps: int = 8
    dtype: torch.dtype = torch.float64
    parts: bool = False  # one data point at a time
    machine: dict[str, Any] = field(default_factory=dict)


RWS = Rule("rws", 3)
BIHM = Rule("bihm", 3, partial(tempered, exponent=0.5), 1.0, 1.0, 0.0)
LATERAL = {"generator": {"lateral": "all"}, "recognition": {"lateral": "hidden"}, "skip": True}
LONG: dict[str, Any] = {"steps": 25, "dtype": torch.float32}


def fisher(solver: Callable[..., Any], memory: int = 1, **options: Any) -> Make:
    return partial(Fisher, partial(solver, **options), memory)


kronecker = partial(Kronecker, rank=3, refresh_every=4)
eigenbasis = partial(Adaptive, 3, 4, measured=0.5)
adaptive = partial(LevenbergMarquardt, every=2)
CASES = {
    "rws": Case(RWS, **LONG),
    "nrws, exact": Case(RWS, Fisher, **LONG),
    "nrws, Kronecker": Case(RWS, kronecker, RowOptions(max_rows=8), **LONG),
    "nrws, eigenbasis": Case(RWS, eigenbasis, RowOptions(max_rows=8), **LONG),
    "vimco": Case(Rule("vimco", 3, vimco)),
    # so small that some processes have no data point
    "in parts, adaptive": Case(RWS, Fisher, damping=adaptive, parts=True),
    "in parts, Kronecker": Case(RWS, kronecker, RowOptions(max_rows=8), parts=True),
    "in parts, empirical": Case(RWS, Empirical, RowOptions(max_rows=7), parts=True),
    "nbihm": Case(BIHM, Fisher),
    "gaussian": Case(RWS, Fisher, machine={"visible": Gaussian(0.5)}),
    "running inverses": Case(RWS, fisher(ShermanMorrison, forgetting=0.9)),
    "memory": Case(RWS, fisher(ConjugateGradient, memory=3)),
    "seldom": Case(RWS, Fisher, RowOptions(refresh_every=5)),
    "posterior": Case(RWS, Fisher, RowOptions(generator_rows="posterior", max_rows=9)),
    "other batch": Case(RWS, Fisher, RowOptions(batch="other")),
    "unlabeled": Case(RWS, kronecker, RowOptions(batch="unlabeled")),
    "many dreams": Case(Rule("rws", 3, dreams=5)),
    "trust region": Case(RWS, kronecker, RowOptions(max_kl=1e-4)),
    "mean": Case(RWS, Mean),
    "lateral, Kronecker": Case(RWS, kronecker, RowOptions(max_rows=8), machine=LATERAL),
    "lateral, exact": Case(RWS, Fisher, parts=True, machine=LATERAL),
}


@dataclass(frozen=True)
class Result:
    parameters: Tensor
    statistics: Tensor  # (steps, 4)
    report: dict[str, float]
    states: list[dict[str, Any]]


def learner_of(case: Case) -> WakeSleep:
    rng = torch.Generator().manual_seed(0)
    machine = HelmholtzMachine(SIZES, rng=rng, **case.machine).to(case.dtype)
    networks = () if case.metric is None else machine.networks
    metrics = [NaturalMetric(n, case.metric(), case.damping(), case.options) for n in networks]
    return WakeSleep(machine, case.rule, rng, metrics)


def take_steps(learner: WakeSleep, case: Case, steps: range) -> list[Tensor]:
    optimizer = torch.optim.SGD(learner.machine.parameters(), lr=0.1)
    seen = []
    for number in steps:
        data = torch.Generator().manual_seed(number)
        x, other = (torch.rand(2, POINTS, SIZES[0], generator=data) < 0.3).to(case.dtype)
        for metric in learner.metrics:
            metric.learning_rate.fill_(0.1)
        result = learner.step(x, other if case.options.batch != "same" else None)
        seen.append(result.statistics.clone())
        optimizer.step()
        learner.after_step()
    return seen


def parameters(learner: WakeSleep) -> Tensor:
    return torch.cat([each.detach().flatten() for each in learner.machine.parameters()])


def train(case: Case) -> Result:
    learner = learner_of(case)
    if case.parts:
        vars(learner)["_parts"] = len
    statistics = torch.stack(take_steps(learner, case, range(case.steps)))
    states = [metric.state_dict() for metric in learner.metrics]
    return Result(parameters(learner), statistics, learner.report(), states)


def likelihood() -> LogLikelihood:
    """Of 29 data points in parts of 5: the last is of 4, that of one of 3 processes of fewer."""
    learner = learner_of(CASES["rws"])
    data = (torch.rand(29, SIZES[0], generator=torch.Generator().manual_seed(1)) < 0.3).float()
    rng = torch.Generator().manual_seed(2)
    return log_likelihood(learner.machine, data, 7, rng, 7 * 5 * sum(SIZES), sums=log_sums)


def one_wrong_draw() -> Tensor:
    """The parameters of vimco, where the second process has other numbers in one step."""
    learner = learner_of(CASES["vimco"])
    take_steps(learner, CASES["vimco"], range(4))
    if distributed.rank() == 1:
        torch.rand(1, generator=learner.rng)
    take_steps(learner, CASES["vimco"], range(4, 8))
    return parameters(learner)


def collect() -> Any:
    rank = distributed.rank()
    rows = [torch.full((rank, 2), float(rank)), torch.arange(3.0) + 10 * rank]
    numbers = [torch.ones(2) * rank, torch.tensor(1.0)]
    distributed.sum_(numbers)
    chunks = results(lambda number: torch.full((number,), float(number)), range(2, 7))
    return (
        [each.tolist() for each in distributed.gather(rows)], [each.tolist() for each in numbers],
        distributed.send(rank + 5), distributed.exchange({"rank": rank}),
        [distributed.any_(rank == 1), distributed.any_(False)], [each.tolist() for each in chunks],
        distributed.share(7),
    )  # fmt: skip


def everything() -> dict[str, Any]:
    """All that is compared."""
    runs = {name: train(case) for name, case in CASES.items()}
    more = {"likelihood": likelihood(), "wrong": one_wrong_draw(), "collected": collect()}
    return {"runs": runs} | more


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return everything()


@pytest.fixture(scope="module")
def processes() -> list[dict[str, Any]]:
    return together(3, everything, way="spawn")


def assert_close(found: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    """Within a tolerance relative to the largest number."""
    error = (found - expected).abs().max() / expected.abs().max().clamp_min(1e-30)
    assert error <= tolerance, f"{what}: {error:.1e}"


@pytest.mark.parametrize("name", CASES)
def test_the_parameters_are_those_of_one_process(name: str, alone: Any, processes: Any) -> None:
    one, tolerance = alone["runs"][name], SINGLE if CASES[name].steps == 25 else DOUBLE
    first, *others = (each["runs"][name] for each in processes)
    assert_close(first.parameters, one.parameters, tolerance, name)
    means = (each.statistics.nan_to_num(7.0) for each in (first, one))
    assert_close(*means, tolerance, f"{name}, statistics")
    assert first.report.keys() == one.report.keys()
    for key, value in one.report.items():
        assert first.report[key] == pytest.approx(value, rel=1e-3, abs=1e-9), key
    for other in others:  # bit for bit: they never part
        pair = ([each.parameters, each.states] for each in (first, other))
        assert next(pair_ := map(flatten, pair)) == next(pair_)


def test_a_log_likelihood_is_that_of_one_process(alone: Any, processes: Any) -> None:
    for each in processes:
        assert tuple(each["likelihood"]) == pytest.approx(tuple(alone["likelihood"]), rel=SINGLE)


def test_another_share_is_seen(alone: Any, processes: Any) -> None:
    """The control: parameters move by far more than the tolerances, and all draws matter."""
    start = parameters(learner_of(CASES["rws"]))
    assert (alone["runs"]["rws"].parameters - start).abs().median() > 1000 * SINGLE
    right = alone["runs"]["vimco"].parameters
    assert (processes[0]["wrong"] - right).abs().max() > 1e3 * DOUBLE


def test_what_processes_sum_gather_and_send(alone: Any, processes: Any) -> None:
    """Rows may be of other numbers in each; chunks come in order, as one process computes them."""
    rows = [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]
    flat = [0.0, 1, 2, 10, 11, 12, 20, 21, 22]
    chunks = [[float(n)] * n for n in range(2, 7)]
    shared = ([rows, flat], [[3.0, 3.0], 3.0], 5, [{"rank": r} for r in range(3)], [True, False])
    for each, share in zip(processes, (slice(0, 2), slice(2, 4), slice(4, 7)), strict=True):
        assert each["collected"] == (*shared, chunks, share)
    one = alone["collected"]
    assert one[0] == [[], [0.0, 1.0, 2.0]] and one[5] == chunks and one[6] == slice(0, 7)
