"""An ordinary training step never waits for the device, seen on the simulated one.

A step that reads nothing makes no branch by its numbers either. What waits is seldom, and named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import composed
from simulated_cuda import Device, simulated_cuda

from nws.errors import UserError
from nws.experiment.build import build_parts
from nws.experiment.hardware import pick_device
from nws.experiment.run import RunDirectory
from nws.experiment.trainer import Trainer
from nws.natural import UnitFisher
from nws.natural.metrics import Kronecker
from nws.natural.operators import Rows
from nws.natural.solvers import Cholesky, ConjugateGradient, Woodbury

STEPS = 24
REFRESH = {"_eigenpairs", "check_rows", "check_system", "finite"}  # every 20th step
LOOK = {"__call__"}  # of cg: does the number of iterations still fit?
MEASURE = {"after_step"}  # of Levenberg-Marquardt
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
        functions = (wait.place.split(" < ")[0].split(":")[-1] for wait in device.waits)
        found.append(Counter(functions))
    assert trained.device.type == "cuda" and trained.sums.is_cuda
    return found


PLAIN = [
    "algorithm=ws", "algorithm=rws", "algorithm=bihm", "algorithm=vimco", "optimizer=nadam",
    "optimizer=momentum", "optimizer=sgd", "optimizer.fused=false", "scheduler=cosine",
    "average=tail", "average=exponential", "data.binarize=threshold", "data.binarize=none",
    "model.units=bipolar", "algorithm=nrws metric=diagonal", "algorithm=nrws metric=mean",
    "algorithm=rws data.where=host",
]  # fmt: skip
PLAIN += [
    f"algorithm=nrws metric=fisher solver={solver}"
    for solver in (
        "cholesky", "woodbury", "sherman_morrison",
        "sherman_morrison solver.forgetting=0.9", "minres solver.tolerance=0 solver.iterations=3",
    )
]  # fmt: skip


@pytest.mark.parametrize("options", PLAIN)
def test_no_step_waits(options: str, tmp_path: Path, device: Device) -> None:
    steps = 6 if "=fisher" in options else STEPS  # all are alike; 24 come to the second epoch
    trained = trainer(tmp_path, *options.split())
    assert waits(trained, device, steps) == [Counter()] * steps


@pytest.mark.parametrize(
    "options",
    [f"algorithm={name}" for name in ("nws", "nrws", "nbihm", "nvimco")]
    + [
        "algorithm=nrws metric.max_kl=0.1", "algorithm=nrws metric.batch=other data.where=host",
        "algorithm=nrws damping=linear", "algorithm=nrws damping=levenberg_marquardt",
        "algorithm=nrws metric=fisher solver.iterations=3", "algorithm=nbihm metric=fisher",
        "algorithm=nrws metric=fisher", "algorithm=nrws metric=empirical",
    ],
)  # fmt: skip
def test_what_waits_is_seldom_and_named(options: str, tmp_path: Path, device: Device) -> None:
    found = waits(trainer(tmp_path, *options.split()), device)
    looks = LOOKS if "=fisher" in options or "=empirical" in options else set()
    looks = set() if "iterations=3" in options else looks
    measures = MEASURES if "levenberg" in options else set()
    for step, each in enumerate(found):
        due = ((REFRESHES, REFRESH), (looks, LOOK), (measures, MEASURE))
        assert each.keys() <= set().union(*(names for steps, names in due if step in steps)), step
    assert all(found[step] for step in REFRESHES | looks | measures)  # the control


@pytest.mark.parametrize("optimizer", ["nadam", "adam"])
def test_no_step_waits_after_a_resume(optimizer: str, tmp_path: Path, device: Device) -> None:
    first, second = (trainer(tmp_path, f"optimizer={optimizer}") for _ in range(2))
    first._step()
    second.load_state_dict(first.state_dict(), set())
    assert waits(second, device, 3) == [Counter()] * 3


def test_a_step_finds_everything_where_the_last_one_did(tmp_path: Path) -> None:
    """Batches, gradients, sums and alpha: as the recording of a step would need it."""
    trained = trainer(tmp_path, "algorithm=nrws", "metric.batch=other", "device=cpu")

    def places() -> list[int]:
        batches = trained.batches.at(trained.step, trained.learner.rng)
        gradients = [p.grad for p in trained.machine.parameters() if p.grad is not None]
        metrics = trained.learner.metrics
        alphas = [each for m in metrics for each in (m.damping.alpha, m.learning_rate)]
        check = trained.callbacks["divergence"]
        kept = [*batches, *gradients, *alphas, trained.sums, check._first_bad, check._step]
        return [each.data_ptr() for each in kept]

    trained._step()
    first = places()
    for _ in range(3):
        trained._step()
    assert places() == first and len(set(first)) > 10


# --- errors ---------------------------------------------------------------------------------------


def rows_with(value: float, device: str) -> Rows:
    inputs = torch.rand(30, 4, generator=torch.Generator().manual_seed(0)).to(device)
    inputs[3, 1] = value
    return Rows(inputs, torch.full((30, 2), 0.01, device=device), name="layer 0")


def message(rows: Rows, how: str) -> str:
    alpha = torch.tensor(0.2, device=rows.inputs.device)
    fisher = UnitFisher(rows.inputs, rows.curvature, rows.name)
    take_in = {
        "kronecker": lambda: Kronecker().update([rows], alpha),
        "pcg": lambda: ConjugateGradient(3).factor(fisher, alpha),
    }[how]
    with pytest.raises(UserError) as caught:
        take_in()
    return str(caught.value)


@pytest.mark.parametrize("how", ["kronecker", "pcg"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_rows_that_are_not_finite_are_named_as_on_the_cpu(how: str, value: float) -> None:
    on_cpu = message(rows_with(value, "cpu"), how)
    with simulated_cuda():
        assert message(rows_with(value, "cuda"), how) == on_cpu
    assert "rows are not finite; lower optimizer.lr" in on_cpu


@pytest.mark.parametrize("solver", [Cholesky, Woodbury])
def test_a_singular_block_is_found_later_on_a_device(
    solver: type[Cholesky], device: Device
) -> None:
    """Its solution is nan, and the next look at the device says what the CPU says at once."""
    fisher = UnitFisher(torch.ones(6, 4) * 1e4, torch.full((6, 3), 1.0), "layer 0")
    alpha = torch.tensor(1e-7)
    with pytest.raises(UserError) as on_cpu:
        solver().factor(fisher, alpha)
    found = solver()
    found.factor(
        UnitFisher(fisher.inputs.to("cuda"), fisher.curvature.to("cuda"), "layer 0"),
        alpha.to("cuda"),
    )
    device.waits.clear()
    solution = found.solve(torch.ones(3, 4, device="cuda"))
    assert device.waits == []
    with pytest.raises(UserError) as later:
        found.check()
    assert str(later.value) == str(on_cpu.value) and "raise damping.value" in str(later.value)
    assert not solution.isfinite().any()
