"""The optimizers that others compare with, by hand and without their libraries."""

import types
from pathlib import Path

import pytest
import torch
from conftest import SMALL, Command, checkpoint, composed, flatten, metrics

from nws.experiment.build import build_optimizer, build_parts
from nws.experiment.loading import load_run
from nws.experiment.run import RunDirectory
from nws.experiment.trainer import Trainer
from nws.models import HelmholtzMachine

FREE = ("optimizer=schedule_free", "scheduler=constant")


@pytest.mark.parametrize("rate", [0.03, 0.02])
def test_matrices_have_the_step_of_muon_and_biases_that_of_adam(rate: float) -> None:
    machine, hand, copies = HelmholtzMachine([6, 5, 3]), [], {}
    ours = build_optimizer(composed("optimizer=muon", f"optimizer.generator_lr={rate}"), machine)
    assert len(ours.param_groups) == (2 if rate == 0.03 else 4)
    for network, lr in zip(machine.networks, (rate, 0.03), strict=True):
        here = {each: each.detach().clone() for each in network.parameters() if each.numel()}
        matrices, biases = ([c for c in here.values() if c.ndim == size] for size in (2, 1))
        muon = torch.optim.Muon(matrices, lr, 0.0, adjust_lr_fn="match_rms_adamw")
        hand += [muon, torch.optim.Adam(biases, lr, fused=True)]
        copies |= here
    for _ in range(3):
        for parameter, copy in copies.items():
            parameter.grad = copy.grad = torch.randn_like(copy)
        for each in (ours, *hand):
            each.step()
        assert all(torch.equal(*pair) for pair in copies.items())


def test_without_a_schedule_a_run_is_evaluated_at_the_average(train: Command) -> None:
    run, config = train(*FREE).run, composed(*SMALL, *FREE, "callbacks.divergence=null")
    made = Trainer(build_parts(config, torch.device("cpu")), config, RunDirectory(Path("none")))
    made.optimizer.train()
    for _ in range(12):
        made._step()
    y = [each.detach().clone() for each in made.machine.parameters() if each.numel()]
    at_y = made.validate(made.machine)["valid/log_likelihood"]
    made.optimizer.eval()
    at_x = made.validate(made.machine)["valid/log_likelihood"]
    assert float(metrics(run)[-1]["valid/log_likelihood"]) == at_x != at_y
    for name in ("last.pt", "best.pt"):  # the last row is the best
        state = checkpoint(run, name)
        assert flatten(state["machine"]) == flatten(made.machine.state_dict())
        kept = [each["y"] for each in state["optimizer"]["state"].values()]
        assert all(map(torch.equal, kept, y)) and len(kept) == len(y)


@pytest.mark.parametrize("optimizer", ["optimizer=soap", "optimizer=schedule_free"])
def test_a_run_is_looked_at_without_the_libraries(
    train: Command, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, absent = train(optimizer).run, types.SimpleNamespace(find_spec=lambda *_: None)
    monkeypatch.syspath_prepend(Path.cwd())
    for name in ("pytorch_optimizer", "schedulefree"):
        Path(f"{name}.py").write_text("1 / 0")  # of this directory, where a saved run may bring it
    assert "which a file here hides: pip install" in train(optimizer).message()
    monkeypatch.setattr("nws.experiment.config.PathFinder", absent)
    assert load_run(run).state["step"] == 12 and "recognition/" not in str(metrics(run))
    assert "which is not installed or" in train(optimizer).message()
