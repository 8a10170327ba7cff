"""An ordinary training step never waits for the device, seen on the simulated one.

A step that reads nothing makes no branch by its numbers. What waits is named; only lateral draws
wait in each step.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import composed
from simulated_cuda import Device, simulated_cuda

from nws.experiment.build import build_parts
from nws.experiment.hardware import pick_device
from nws.experiment.run import RunDirectory
from nws.experiment.trainer import Trainer
from nws.natural.metrics import Adaptive

STEPS = 24
REFRESH = {"_factors", "check_rows", "check_system", "finite"}  # every 20th step, first ones too
LOOK = {"__call__"}  # of cg: does the number of iterations still fit?
MEASURE = {"after_step"}  # of Levenberg-Marquardt
ROUND = {"_draw_in_rounds"}  # of a lateral layer: did a state change?
REFRESHES, LOOKS, MEASURES = {0, 20}, {0, 1, 2, 4, 8, 16, 20}, {0, 5, 10, 15, 20}


@pytest.fixture
def device() -> Iterator[Device]:
    with simulated_cuda() as device:
        yield device


def trainer(folder: Path, *options: str) -> Trainer:
    small = ("logger=none", "model.layers=[5,3]", "trainer.batch_size=50")
    config = composed(*small, *options)
    made = Trainer(build_parts(config, pick_device(config.device)), config, RunDirectory(folder))
    made.call("start", made)
    return made


def waits(trained: Trainer, device: Device, steps: int = STEPS) -> list[Counter[str]]:
    """What waited in each step, by the function that did."""
    found = []
    for _ in range(steps):
        device.waits.clear()
        trained._step()
        found.append(Counter(wait.place for wait in device.waits))
    assert trained.device.type == "cuda" and trained.sums.is_cuda
    return found


PLAIN = [
    "algorithm=ws optimizer=nadam scheduler=cosine average=tail",
    "algorithm=rws optimizer=momentum average=exponential data.binarize=threshold",
    "algorithm=bihm optimizer=sgd model.units=bipolar data.binarize=none",
    "algorithm=vimco optimizer.fused=false data.where=host",
    "algorithm=nrws metric=diagonal", "algorithm=nrws metric=mean",
    "algorithm=nrws metric=fisher solver=cholesky", "algorithm=nrws metric=fisher solver=woodbury",
    "algorithm=nrws metric=fisher solver=sherman_morrison solver.forgetting=0.9",
    "algorithm=nrws metric=fisher solver=minres solver.tolerance=0 solver.iterations=3",
]  # fmt: skip
SELDOM = [
    "algorithm=nws metric=kronecker metric.max_kl=0.1 damping=linear",
    "algorithm=nrws metric.batch=other data.where=host",
    "algorithm=nvimco damping=levenberg_marquardt", "algorithm=nbihm metric=fisher",
    "algorithm=nrws metric=fisher solver.iterations=3", "algorithm=nrws metric=empirical",
    "algorithm=nrws metric=adaptive",
    "algorithm=nrws metric=kronecker model.generator.lateral=all model.skip=true",
]  # fmt: skip


@pytest.mark.parametrize("options", PLAIN)
def test_no_step_waits(options: str, tmp_path: Path, device: Device) -> None:
    steps = 6 if "=fisher" in options else STEPS  # all are alike; 24 come to the second epoch
    trained = trainer(tmp_path, *options.split())
    assert waits(trained, device, steps) == [Counter()] * steps


@pytest.mark.parametrize("options", SELDOM)
def test_what_waits_is_seldom_and_named(options: str, tmp_path: Path, device: Device) -> None:
    made = trainer(tmp_path, *options.split())
    adaptive = any(isinstance(each.metric, Adaptive) for each in made.learner.metrics)
    refreshes = LOOKS if adaptive else REFRESHES
    looks = LOOKS if options.endswith(("=fisher", "=empirical")) else set()
    measures = MEASURES if "levenberg" in options else set()
    rounds = set(range(STEPS)) if "lateral" in options else set()
    for step, each in enumerate(found := waits(made, device)):
        due = (refreshes, REFRESH), (looks, LOOK), (measures, MEASURE), (rounds, ROUND)
        assert each.keys() <= set().union(*(names for steps, names in due if step in steps)), step
    assert all(found[step] for step in refreshes | looks | measures | rounds)  # the control


@pytest.mark.parametrize("optimizer", ["nadam", "adam"])
def test_no_step_waits_after_a_resume(optimizer: str, tmp_path: Path, device: Device) -> None:
    first, second = (trainer(tmp_path, f"optimizer={optimizer}") for _ in range(2))
    first._step()
    second.load_state_dict(first.state_dict(), set())
    assert waits(second, device, 3) == [Counter()] * 3
