"""Stopping and going on: bit for bit, with more epochs, with new options, and what is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from conftest import (
    CONF,
    ROOT,
    SMALL,
    Command,
    Interrupt,
    assert_same_run,
    checkpoint,
    flatten,
    metrics,
    snapshot,
)

from nws.experiment.provenance import read_provenance
from nws.experiment.loading import load_run

RESUMABLE = {
    "one_dream": ("algorithm.dreams=1", "optimizer=momentum"),
    "no_dreams": ("algorithm=bihm",),
    "dreams_of_a_metric": (
        "algorithm=nbihm",
        "metric=fisher",
        "algorithm.dreams=3",
        "metric.refresh_every=4",
    ),
    "kronecker": (
        "algorithm=nrws",
        "metric=kronecker",
        "metric.refresh_every=4",
        "metric.memory=8",
        "metric.rank=3",
    ),
    "kronecker_full": ("algorithm=nrws", "metric=kronecker", "metric.rank=full"),
    "running_diagonal": ("algorithm=nrws", "metric=diagonal", "metric.memory=5"),
    "fisher_of_two_updates": (
        "algorithm=nrws",
        "metric=fisher",
        "metric.memory=2",
        "metric.refresh_every=4",
    ),
    "momentum_linear": ("optimizer=momentum", "scheduler=linear"),
    "adam_cosine": ("optimizer=adam", "scheduler=cosine"),
    "nadam_plateau": ("optimizer=nadam", "scheduler=plateau", "scheduler.patience=0"),
    "static_bipolar_ws": (
        "algorithm=ws",
        "data.binarize=static",
        "model.units=bipolar",
        "scheduler=exponential",
    ),
    "multistep": (
        "scheduler._target_=torch.optim.lr_scheduler.MultiStepLR",
        "~scheduler.lr_lambda",
        "+scheduler.milestones=[3,8]",
    ),
    "onecycle": (
        "scheduler._target_=torch.optim.lr_scheduler.OneCycleLR",
        "~scheduler.lr_lambda",
        "+scheduler.max_lr=0.01",
        "+scheduler.total_steps=total_steps",
    ),
    "lbfgs": (
        "optimizer._target_=torch.optim.LBFGS",
        "optimizer.lr=0.01",
        "~optimizer.betas",
        "~optimizer.fused",
        "+optimizer.max_iter=3",
    ),
}


@pytest.mark.parametrize("options", RESUMABLE.values(), ids=RESUMABLE.keys())
def test_a_resumed_run_ends_as_one_never_stopped(
    train: Command, interrupt: Interrupt, options: tuple[str, ...]
) -> None:
    steps = (
        25 if "optimizer._target_=torch.optim.LBFGS" in options else 10
    )  # it asks for 3 losses a step
    whole = train("hydra.run.dir=whole", "trainer.epochs=3", *options).run
    interrupt(steps, signal.SIGTERM)
    stopped = train("hydra.run.dir=stopped", "trainer.epochs=3", *options)
    assert stopped.code == 128 + signal.SIGTERM
    assert (
        f"train.py resume={stopped.run}\n" in stopped.out and "stopped by signal 15" in stopped.out
    )
    step = checkpoint(stopped.run)["step"]
    assert (
        step < 18 and step % 6 != 0 and len(metrics(stopped.run)) < 3
    )  # amid an epoch, and the control: not the end
    resumed = train("resume=stopped")
    assert resumed.code == 0 and resumed.run == stopped.run and resumed.err == ""
    assert_same_run(whole, resumed.run)


def test_a_broken_run_goes_on_from_its_last_checkpoint(
    train: Command, interrupt: Interrupt
) -> None:
    whole = train("hydra.run.dir=whole").run
    interrupt(10, MemoryError("broken"))
    assert train("hydra.run.dir=broken").code == 1
    broken = whole.with_name("broken")
    assert checkpoint(broken)["step"] == 6 and len(metrics(broken)) == 1
    # What a crash between the row and the checkpoint leaves: a row that will be written again.
    row = (broken / "metrics.csv").read_text().splitlines()[-1].replace("1.0,6,", "2.0,12,", 1)
    with open(broken / "metrics.csv", "a") as file:
        file.write(row + "\n")
    assert_same_run(whole, train("resume=broken").run)


KILLED = """
import os, runpy, signal, sys
from nws.learning import WakeSleep

original, count = WakeSleep.step, 0

def step(self, *batches):
    global count
    count += 1
    if count == 21:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, *batches)

WakeSleep.step = step
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


def test_a_killed_process_goes_on(train: Command, tmp_path: Path) -> None:
    """Killed amid an epoch: it goes on from the evaluation before."""
    options = ["trainer.epochs=5", "trainer.evaluate_every=2", "scheduler=cosine"]
    arguments = [ROOT / "train.py", *SMALL, "hydra.run.dir=killed", *options]
    code = [sys.executable, "-c", KILLED, *arguments]
    killed = subprocess.run(code, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert killed.returncode == -signal.SIGKILL
    assert checkpoint(tmp_path / "killed")["step"] == 12
    whole = train("hydra.run.dir=whole", *options).run
    assert_same_run(whole, train("resume=killed").run)
    assert checkpoint(whole)["step"] == 30


@pytest.mark.parametrize("directory", ["a run with spaces", "lr=0.1,seed=2", "it's"])
def test_resume_takes_any_path(train: Command, tmp_path: Path, directory: str) -> None:
    run = train("trainer.epochs=1").run
    moved = run.rename(tmp_path / directory)
    outcome = train(f"resume={directory}", "trainer.epochs=2")
    assert outcome.code == 0 and outcome.run == moved, outcome.err
    assert len(metrics(moved)) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["outputs", directory])
    assert not run.exists() and "step      12" in (moved / "train.log").read_text()


def test_more_epochs_follow_the_longer_schedule(train: Command) -> None:
    """With a constant rate, the two halves are the whole; with a linear one the rest of the longer
    line is followed.
    """
    whole = train("hydra.run.dir=whole", "trainer.epochs=4", "scheduler=constant").run
    train("hydra.run.dir=part", "scheduler=constant")
    part = train("resume=part", "trainer.epochs=4").run
    assert_same_run(whole, part)
    assert yaml.safe_load((part / ".hydra" / "config.yaml").read_text())["trainer"]["epochs"] == 4

    train("hydra.run.dir=linear", "optimizer.lr=0.01")
    rows = metrics(train("resume=linear", "trainer.epochs=4").run)
    assert [float(row["learning_rate"]) for row in rows] == pytest.approx([0.005, 0, 0.0025, 0])
    torch_options = RESUMABLE["onecycle"]  # its state holds the old number of steps
    train("hydra.run.dir=cycle", *torch_options)
    longer = train("resume=cycle", "trainer.epochs=4")
    assert longer.code == 0 and len(metrics(longer.run)) == 4


def test_new_options_of_the_optimizer_are_applied(train: Command) -> None:
    base = ("optimizer=momentum", "scheduler=constant", "trainer.epochs=1")
    for name in ("same", "rate", "other"):
        train(f"hydra.run.dir={name}", *base)
    before = flatten(checkpoint(train("resume=same", "trainer.epochs=2").run))
    rate = train("resume=rate", "trainer.epochs=2", "optimizer.lr=0.001", "optimizer.momentum=0.5")
    group = checkpoint(rate.run)["optimizer"]["param_groups"][0]
    assert rate.code == 0 and (group["lr"], group["momentum"]) == (0.001, 0.5)
    assert metrics(rate.run)[1]["learning_rate"] == "0.001"
    other = train("resume=other", "trainer.epochs=2", "optimizer=adam", "scheduler=linear")
    assert other.code == 0 and "exp_avg" in checkpoint(other.run)["optimizer"]["state"][0]
    config = yaml.safe_load((other.run / ".hydra" / "config.yaml").read_text())
    assert config["optimizer"] == yaml.safe_load((CONF / "optimizer" / "adam.yaml").read_text())
    assert (
        config["model"]["layers"] == [5, 3]
        and config["scheduler"]["lr_lambda"]["_target_"] == "nws.schedules.linear"
    )
    again = train(
        "resume=rate", "trainer.epochs=3"
    )  # the run's configuration is now the one with the new rate
    assert metrics(again.run)[2]["learning_rate"] == "0.001"
    assert before["/optimizer/param_groups/0/lr"] == 0.05  # the control


@pytest.mark.parametrize("sign", ["", "++"])
def test_options_written_with_plus_signs_are_applied_too(
    train: Command, interrupt: Interrupt, sign: str
) -> None:
    interrupt(4, signal.SIGTERM)
    run = train("hydra.run.dir=run", "optimizer=sgd", "scheduler=constant").run
    assert train("resume=run", f"{sign}optimizer.lr=0.001", "+optimizer.weight_decay=0.5").code == 0
    assert checkpoint(run)["step"] == 12
    (group,) = checkpoint(run)["optimizer"]["param_groups"]
    assert group["lr"] == 0.001 and group["weight_decay"] == 0.5


def test_a_new_rate_keeps_what_the_optimizer_gathered(train: Command) -> None:
    train("hydra.run.dir=run", "optimizer=momentum", "scheduler=constant", "trainer.epochs=1")
    buffer = checkpoint(Path("run"))["optimizer"]["state"][0]["momentum_buffer"]
    train(
        "resume=run",
        "trainer.epochs=1.1",
        "optimizer.lr=1e-30",
        "optimizer.momentum=1",
        "optimizer.nesterov=false",
    )
    after = checkpoint(Path("run"))["optimizer"]["state"][0]["momentum_buffer"]
    assert buffer.abs().max() > 0 and (after - buffer).norm() < (after.norm() + buffer.norm()) / 2


def test_a_finished_run_says_so_and_stays(train: Command) -> None:
    run = train().run
    before = snapshot(run)
    for arguments in ((), ("trainer.epochs=1",)):
        outcome = train(f"resume={run}", *arguments)
        assert outcome.code == 0 and outcome.run == run
        assert "nothing to do: step 12 of" in outcome.out and "trainer.epochs=N" in outcome.out
        assert snapshot(run) == before


FIXED = {
    "seed=1": "keeps its seed",
    "trainer.batch_size=10": "keeps its trainer.batch_size",
    "data=three_by_three": "keeps its data.name",
    "algorithm=ws": "keeps its algorithm.name",
    "debug=short": "keeps its debug",
    "natural_metric=fisher": "keeps its natural_metric",
    "model.layers=[5]": "keeps its model.layers",
    "model.units=bipolar": "keeps its model.units",
    "++model.weight_scale=small": "keeps its model.weight_scale",
    "model.weight_scale=9": "keeps its model.weight_scale",
    "algorithm.samples=20": "keeps its algorithm.samples",
    "hydra.run.dir=zzz": "stays in",
    "optimizer.lr=-1": "optimizer.lr must be a number of at least 0, got -1",
    "trainer.epochs=abc": "trainer.epochs must be",
    "device=foo": "device must be",
    "+logger.mode=foo": "logger=none takes no options",
}


def test_a_failed_resume_leaves_the_run_as_it_was(train: Command, tmp_path: Path) -> None:
    run = train().run
    before, folders = snapshot(run), sorted(tmp_path.rglob("*"))
    for override, expected in FIXED.items():
        assert expected in train(f"resume={run}", "trainer.epochs=3", override).message(), override
        assert snapshot(run) == before, override
    unknown = train(f"resume={run}", "foo=1")
    assert unknown.code == 1 and "foo" in unknown.err and "Traceback" not in unknown.err
    sweep = train("-m", f"resume={run}", "trainer.epochs=3,4").message()
    assert "takes one run" in sweep
    broken = train(
        f"resume={run}", "trainer.epochs=9", "optimizer=sgd", "optimizer.lr=1e38"
    ).message()
    assert "is not finite" in broken and "(step 12) is the last good checkpoint" in broken
    kept = {name for name in before if not name.startswith("provenance")}  # which notes it
    after = snapshot(run)
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert read_provenance(run)["state"] == "diverged"
    assert sorted(tmp_path.rglob("*")) == folders


@pytest.mark.parametrize("override", ["data.fold=1", "data.split=both", "data.size=48"])
def test_a_resumed_run_keeps_its_faces(train: Command, data_root: Path, override: str) -> None:
    key = override.split("=")[0]
    run = train(
        "data=tfd", f"data.root={data_root}", "trainer.batch_size=10", "trainer.epochs=1"
    ).run
    before = snapshot(run)
    refused = train(f"resume={run}", "trainer.epochs=2", override).message()
    assert f"a resumed run keeps its {key}, got {override}" in refused and snapshot(run) == before
    kept = yaml.safe_load((run / ".hydra" / "config.yaml").read_text())["data"][key.split(".")[1]]
    same = train(f"resume={run}", "trainer.epochs=2", f"{key}={kept}")  # the control
    assert same.code == 0 and len(metrics(run)) == 2, same.err


def test_a_damaged_run_is_not_resumed(train: Command, tmp_path: Path) -> None:
    run = train().run
    last = run / "checkpoints" / "last.pt"
    content = last.read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"text\n"):
        last.write_bytes(damaged)
        assert (
            "last.pt is not a checkpoint of nws or is damaged" in train(f"resume={run}").message()
        )
    torch.save({"weights": torch.zeros(1)}, last)
    assert "last.pt is not a checkpoint of nws" in train(f"resume={run}").message()
    last.unlink()
    assert "expected a checkpoint at" in train(f"resume={run}").message()
    (run / ".hydra" / "config.yaml").write_text("")
    assert "config.yaml should hold the configuration" in train(f"resume={run}").message()
    (tmp_path / "other").mkdir()
    assert "other is not a run directory" in train("resume=other").message()
    before = sorted(tmp_path.iterdir())
    assert f"{tmp_path / 'missing'} does not exist" in train("resume=missing").message()
    assert sorted(tmp_path.iterdir()) == before


def test_a_signal_in_the_last_step_asks_for_no_more(train: Command, interrupt: Interrupt) -> None:
    interrupt(12, signal.SIGTERM)
    outcome = train("hydra.run.dir=run")
    assert outcome.code == 128 + signal.SIGTERM and checkpoint(outcome.run)["step"] == 12
    assert "go on with" not in outcome.out and len(metrics(outcome.run)) == 2


def test_a_resumed_run_keeps_its_visible_units(train: Command) -> None:
    run = train("model/visible=gaussian", "data.binarize=none", "trainer.epochs=1").run
    wider = train(f"resume={run}", "trainer.epochs=2", "model.visible.scale=0.5").message()
    assert "a resumed run keeps its model.visible" in wider
    longer = train(f"resume={run}", "trainer.epochs=2")
    assert longer.code == 0 and checkpoint(run)["step"] == 12, longer.err


def test_a_run_of_version_0_1_says_that_it_cannot_go_on(train: Command) -> None:
    run = train("trainer.epochs=1").run
    config = yaml.safe_load((run / ".hydra" / "config.yaml").read_text())
    for group in ("algorithm", "model", "metric", "solver", "data"):
        config[group].pop("_target_")
    (run / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config))
    assert "version 0.1" in train(f"resume={run}", "trainer.epochs=2").message()
    load_run(run, device="cpu")  # it can be looked at


#: Options that came later, and what a run without them does.
LATER = {
    "optimizer.generator_lr": None,
    "optimizer.recognition_lr": None,
    "trainer.patience": None,
    "trainer.noise_batches": None,
    "algorithm.samples_schedule": None,
    "average": {"_target_": None},
    "natural_metric": "kronecker",
}
LATER_STATE = ("waited", "finished", "average")


@pytest.mark.parametrize("resume", ["resume=auto", "resume=old"])
def test_a_run_goes_on_whose_configuration_lacks_later_options(
    train: Command, command: Command, interrupt: Interrupt, resume: str
) -> None:
    whole = train("hydra.run.dir=whole").run
    interrupt(8, signal.SIGTERM)
    run = train("hydra.run.dir=old").run
    file = run / ".hydra" / "config.yaml"
    config = yaml.safe_load(file.read_text())
    for key, value in LATER.items():
        group, _, name = key.rpartition(".")
        assert (config[group] if group else config).pop(name, "missing") == value, key
    file.write_text(yaml.safe_dump(config))
    last = run / "checkpoints" / "last.pt"
    state = torch.load(last, map_location="cpu", weights_only=True)
    torch.save({key: state[key] for key in state if key not in LATER_STATE}, last)
    given = ("hydra.run.dir=old", *SMALL) if resume == "resume=auto" else ()
    outcome = command("train.py", resume, *given)
    assert outcome.code == 0 and outcome.run == run, outcome.err
    assert_same_run(whole, run)
    later = ("optimizer.recognition_lr=0.1", "average=exponential")
    longer = train("resume=old", "trainer.epochs=3", *later)
    assert longer.code == 0 and len(metrics(run)) == 3, longer.err
    assert checkpoint(run)["average"]["count"] == 6
