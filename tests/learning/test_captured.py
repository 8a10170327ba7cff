"""A step that a CUDA graph replays is the step, bit for bit; what differs is taken as it is."""

from pathlib import Path

import pytest
import torch
from conftest import composed
from simulated_cuda import _DEVICE, _inner, _map

from nws.errors import UserError
from nws.experiment.batches import Batches
from nws.experiment.build import build_parts
from nws.experiment.run import RunDirectory
from nws.experiment.trainer import Trainer
from nws.learning.weighting import Weights, tempered
from nws.natural import Damping
from nws.natural.metrics import Kronecker
from nws.natural.operators import Tensors
from nws.natural.solvers import ConjugateGradient

pytestmark = pytest.mark.cuda
STEPS = 44  # two refreshes of a metric
SMALL = ("logger=none", "model.layers=[5,3]", "trainer.batch_size=50", "device=cuda")
Own = type("Own", (ConjugateGradient,), {})  # it inherits `graph_key`, and so is not asked
#: Options; on the simulated device the steps of 44 that graphs do, and how many graphs.
COUNTS = {
    "algorithm=rws optimizer=adam": (43, 1),
    "algorithm=vimco data.binarize=threshold scheduler=cosine": (43, 1),
    "algorithm=nrws metric=mean model.skip=true": (43, 1),
    "algorithm=nrws metric=kronecker metric.max_kl=0.1 damping=linear": (40, 1),
    "algorithm=nrws metric=kronecker metric.batch=other data.where=host": (40, 1),
    "algorithm=nrws metric=adaptive optimizer.lr=0.01": (34, 1),
    "algorithm=nrws metric=adaptive metric.measured=1 optimizer.lr=0.01": (34, 1),
    "algorithm=nrws metric=diagonal metric.memory=1": (43, 1),
    "algorithm=nrws metric=fisher": (33, 4),
    "algorithm=nrws metric=fisher metric.refresh_every=10 metric.max_rows=8": (38, 5),
    "algorithm=nrws metric=empirical solver.iterations=3 metric.max_rows=1": (33, 1),
    "algorithm=nrws metric=kronecker damping=levenberg_marquardt": (34, 1),
    "algorithm=nrws metric=fisher damping=levenberg_marquardt": (27, 3),
    "algorithm=nrws metric=fisher solver=cholesky": (0, 0),
    f"algorithm=nrws metric=fisher solver._target_={__name__}.Own": (0, 0),
    "algorithm=rws model.generator.lateral=all": (0, 0),
    "algorithm=nrws model.mask={_target_:nws.models.masks.local,_partial_:true}": (0, 0),
    "algorithm=rws model/visible=gaussian": (43, 1),
    "algorithm=rws model/visible=poisson": (0, 0),
}


def trained(folder: Path, graph: bool, *options: str, forgets: range = range(0)) -> Trainer:
    """A run; one that `forgets` has no gradients any more after these numbers of steps."""
    config = composed(*SMALL, *options, f"trainer.cuda_graph={graph}")
    made = Trainer(build_parts(config, torch.device("cuda")), config, RunDirectory(folder))
    made.call("start", made)
    for step in range(STEPS):
        if step in forgets:
            made.optimizer.zero_grad()
        made._step()
        vars(made).setdefault("reports", []).append(made.learner.report())
    return made


def same(one: Trainer, other: Trainer) -> bool:
    """Whether parameters, statistics and the state of the draws are the same, bit for bit."""
    pairs = [[*each.machine.parameters(), each.sums.nan_to_num()] for each in (one, other)]
    states = (each.learner.rng.get_state() for each in (one, other))
    return all(map(torch.equal, *pairs)) and torch.equal(*states)


@pytest.mark.parametrize("options", COUNTS)
def test_a_replayed_run_is_the_run(options: str, tmp_path: Path) -> None:
    plain, _DEVICE.counts = trained(tmp_path, False, *options.split()), [0, 0]
    replayed = trained(tmp_path, True, *options.split())
    assert same(plain, replayed) and vars(plain)["reports"] == vars(replayed)["reports"]
    assert torch.cuda.get_device_name()[:6] == "NVIDIA" or _DEVICE.counts == [*COUNTS[options]]
    assert len({str(_map(_inner, e.state_dict()["metrics"])) for e in (plain, replayed)}) == 1


@pytest.mark.parametrize("forgets", [range(9, 10), range(STEPS)])
def test_replays_write_what_is_zeroed(forgets: range, tmp_path: Path) -> None:
    plain, before = trained(tmp_path, False), _DEVICE.counts[0]
    assert same(plain, trained(tmp_path, True, forgets=forgets))
    assert torch.cuda.get_device_name()[:6] == "NVIDIA" or _DEVICE.counts[0] == before + STEPS - 1


def test_a_smaller_batch_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = Batches.at  # pcg solves that of step 20 in the space of its rows, without preconditioner
    monkeypatch.setattr(Batches, "at", lambda *a: [x[: 6 if a[1] == 20 else 50] for x in at(*a)])
    runs = [trained(tmp_path, graph, "algorithm=nrws", "metric=fisher") for graph in (False, True)]
    assert same(*runs) and vars(runs[0])["reports"] == vars(runs[1])["reports"]


def test_a_graph_ends_where_a_state_is_loaded(tmp_path: Path) -> None:
    options = "algorithm=nrws", "metric=diagonal"
    other = trained(tmp_path, False, *options, "seed=1").learner.metrics
    runs = [trained(tmp_path, graph, *options) for graph in (False, True)]
    for made in runs:
        for metric, its in zip(made.learner.metrics, other, strict=True):
            metric.load_state_dict(its.state_dict())
        made._step()
    assert same(*runs)


def reading(log_p: torch.Tensor, log_q: torch.Tensor) -> Weights:
    assert float(log_p.sum()) < 1e9  # a look
    return tempered(log_p, log_q)


def test_what_cannot_be_captured_says_so(tmp_path: Path) -> None:
    own = (f"algorithm.weighting._target_={__name__}.reading", "~algorithm.weighting.exponent")
    trained(tmp_path, False, *own)
    with pytest.raises(UserError, match=r"CUDA graph .*trainer\.cuda_graph=false"):
        trained(tmp_path, True, *own)


class Slower(Kronecker):
    count = 0  # `graph_key` does not know of it

    def direction(self, gradients: Tensors) -> list[torch.Tensor]:
        self.count += 1
        return [each / self.count for each in super().direction(gradients)]


class Annealed:
    count = 0

    def __call__(self, log_p: torch.Tensor, log_q: torch.Tensor) -> Weights:
        self.count += 1
        return tempered(log_p, log_q, 1 / self.count)


class Falling(Damping):
    def start_step(self, step: int) -> None:
        self.alpha = self.alpha * 0.9  # another tensor


@pytest.mark.parametrize("options", [
    f"algorithm=nrws metric=kronecker metric.max_kl=1 metric._target_={__name__}.Slower",
    f"~algorithm.weighting.exponent algorithm.weighting._target_={__name__}.Annealed",
    f"algorithm=nrws metric=kronecker damping._target_={__name__}.Falling",
])  # fmt: skip
def test_what_a_part_of_ones_own_counts_is_not_frozen(options: str, tmp_path: Path) -> None:
    assert same(*(trained(tmp_path, graph, *options.split()) for graph in (False, True)))


def test_a_wrong_repetition_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kronecker, "graph_key", lambda self, updates: self._step > 0 or None)
    options = "algorithm=nrws", "metric=kronecker"
    assert not same(*(trained(tmp_path, graph, *options) for graph in (False, True)))
