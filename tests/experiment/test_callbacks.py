"""Policies around the loop: divergence, patience, averages, noise, images, W&B and TensorBoard."""

import math
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import wandb
from cases import recorded
from conftest import FINISHED, Command, Interrupt, assert_same_run, checkpoint, flatten, metrics
from torch.nn.utils import parameters_to_vector

from nws.analysis.evaluation import fingerprint, read_rows
from nws.analysis.runs import read_run
from nws.errors import Diverged
from nws.experiment.callbacks import Average, WandbLogger
from nws.experiment.loading import load_run
from nws.experiment.provenance import read_provenance
from nws.learning import WakeSleep
from nws.learning.step import STATISTICS
from nws.models import HelmholtzMachine
from nws.models.likelihood import log_likelihood

LL = "valid/log_likelihood"
ROUNDING = 1e-5  # relative, of some 20 updates in float32


def spoil(monkeypatch: pytest.MonkeyPatch, at: int, how: Callable[[WakeSleep, Any], Any]) -> None:
    """In the step `at`, from 1, the result is another one."""
    original, calls = WakeSleep.step, [0]

    def step(self: WakeSleep, *batches: Any) -> Any:
        result, calls[0] = original(self, *batches), calls[0] + 1
        return how(self, result) if calls[0] == at else result

    monkeypatch.setattr(WakeSleep, "step", step)


def test_a_loss_that_is_not_finite_names_step_layer_and_remedy(train: Command) -> None:
    message = train("optimizer=sgd", "optimizer.lr=3e38", "hydra.run.dir=run").message()
    assert re.search(r"step 2: the loss of (generator|recognition) layer \d is not finite", message)
    assert "lower optimizer.lr" in message and "(step 0) is the last good checkpoint" in message
    assert "not finite" in Path("run/train.log").read_text() and metrics(Path("run")) == []
    assert read_provenance("run")["state"] == "diverged"


def test_numbers_not_finite_amid_a_run(
    train: Command, monkeypatch: pytest.MonkeyPatch, interrupt: Interrupt
) -> None:
    """A parameter ends it, or a loss. Its last checkpoint is good, and a small alpha is blamed."""

    def nan(learner: WakeSleep, result: Any) -> Any:
        learner.machine.recognition.layers[1].weight.grad[0, 0] = torch.nan
        return result

    def inf(learner: WakeSleep, result: Any) -> Any:
        return result._replace(layer_losses=torch.full_like(result.layer_losses, math.inf))

    with monkeypatch.context() as patch:
        spoil(patch, 9, nan)
        message = train("callbacks.divergence.every=1", "hydra.run.dir=run").message()
    assert "step 9: the parameter of recognition.layers.1.weight is not finite" in message
    assert "last.pt (step 6) is the last good checkpoint" in message
    state = checkpoint(Path("run"))
    assert state["step"] == 6 and all(each.isfinite().all() for each in state["machine"].values())
    with monkeypatch.context() as patch:
        spoil(patch, 8, nan)
        interrupt(9, signal.SIGTERM)  # before the next look
        assert "step 9: the loss of" in train("hydra.run.dir=stopped").err
    assert checkpoint(Path("stopped"))["step"] == 6
    with monkeypatch.context() as patch:
        spoil(patch, 3, inf)
        small = train("algorithm=nrws", "metric=fisher", "damping.value=1e-6", "hydra.run.dir=lost")
    assert "step 3: the loss of generator layer 0 is not finite" in small.message()
    assert "raise damping.value (alpha is 1e-06" in small.message()


def test_a_step_that_raises_and_a_callback_that_ends(
    train: Command, interrupt: Interrupt, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = lambda self, trainer: setattr(self, "ends", "enough" * (trainer.step == 4))  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr("nws.experiment.callbacks.divergence.Divergence.after_step", ended)
        assert train("hydra.run.dir=ended").code == 0
    assert checkpoint(Path("ended"))["step"] == 4 and read_provenance("ended")["reason"] == "enough"
    interrupt(9, Diverged("lost"))
    message = train("hydra.run.dir=lost").message()
    assert "step 9: lost; " in message and "last.pt (step 6) is the last good checkpoint" in message


def test_patience_ends_a_run_and_more_goes_on(train: Command, interrupt: Interrupt) -> None:
    """As if it had been there from the start: the count is that of the evaluations."""
    options = ("trainer.epochs=9", "optimizer.lr=0.5", "callbacks.patience.evaluations=2")
    whole = train("hydra.run.dir=whole", *options)
    (line,) = [each for each in whole.warnings if "brought no better" in each]
    values = [float(row[LL]) for row in metrics(whole.run)]
    best = values.index(max(values))
    assert len(values) == best + 3 < 9 and "2 evaluations brought no better" in line
    assert checkpoint(whole.run)["finished"] and "finished" in whole.out
    again = train("resume=whole")
    assert again.code == 0 and "finished already" in again.out
    longer = train("resume=whole", "trainer.epochs=10")  # of its options its end is one
    assert longer.code == 0 and "nothing to do: 2 evaluations" in longer.out
    interrupt(6 * len(values) - 3, 15)
    assert train("hydra.run.dir=parts", *options).code == 143
    assert train("resume=parts").code == 0
    assert_same_run(whole.run, Path("parts"))
    more = train("resume=parts", "callbacks.patience.evaluations=100").run
    endless = train("hydra.run.dir=endless", *options[:2], "callbacks.patience.evaluations=100")
    assert metrics(more) == metrics(endless.run) and len(metrics(more)) == 9


def test_a_job_far_below_the_others_of_its_sweep_is_pruned(train: Command) -> None:
    for job, text in ((8, f"epoch,{LL}\n1,0\n9,0\n"), (9, "damaged\n1\n")):  # they count for none
        Path(f"sweep/{job}/.hydra").mkdir(parents=True)
        Path(f"sweep/{job}/metrics.csv").write_text(text)
        Path(f"sweep/{job}/.hydra/config.yaml").write_text("data: {name: of other images}")
    sweep = ("-m", "optimizer.lr=0.1,0.2,1e-6", "callbacks.pruning.runs=2", "trainer.epochs=6")
    outcome = train(*sweep, "callbacks.pruning.evaluations=3", "hydra.sweep.dir=sweep")
    (line,) = [each for each in outcome.warnings if "below the median of 2 other runs" in each]
    bests = [max(float(row[LL]) for row in metrics(Path(f"sweep/{job}"))[:3]) for job in (0, 1)]
    assert f"at epoch 3, {np.mean(bests):.3f};" in line and " pruned" in outcome.out
    assert [len(metrics(Path(f"sweep/{job}"))) for job in range(3)] == [6, 6, 3]
    assert train("resume=sweep/2", "callbacks.pruning.evaluations=null").code == 0
    assert len(metrics(Path("sweep/2"))) == 6
    alone = train("callbacks.pruning.evaluations=1", "callbacks.pruning.runs=1", "optimizer.lr=0")
    assert alone.code == 0 and alone.warnings == []  # the control: no sweep


@pytest.mark.parametrize("steps", [1, 7, 20])
@pytest.mark.parametrize("options", [{"memory": 5}, {"memory": 1}, {"start": 0.5}, {"start": 0.74}])
def test_an_average_is_a_weighted_mean_of_all_it_saw(steps: int, options: dict[str, Any]) -> None:
    rng = torch.Generator().manual_seed(0)
    machine = HelmholtzMachine([4, 3, 2], rng=rng)
    average, seen = Average(**options), []
    average.machine = HelmholtzMachine([4, 3, 2], rng=rng)
    for step in range(1, steps + 1):
        for each in machine.parameters():
            each.data.add_(torch.randn(each.shape, generator=rng))
        average.after_step(SimpleNamespace(machine=machine, step=step, total_steps=steps))
        seen.append(parameters_to_vector(machine.parameters()).detach().double())
    first = math.floor(options.get("start", 0) * steps)
    assert average.count == steps - first
    decay = 1 - 1 / options["memory"] if "memory" in options else 1.0
    shares = decay ** torch.arange(steps - first - 1, -1, -1, dtype=torch.float64)
    expected = shares / shares.sum() @ torch.stack(seen[first:])
    found = parameters_to_vector(average.machine.parameters()).double()
    torch.testing.assert_close(found, expected, rtol=ROUNDING, atol=ROUNDING)
    if steps == 20 and options != {"memory": 1}:  # the control: the newest weights are others
        assert (seen[-1] - expected).abs().max() > 1e3 * ROUNDING


def test_an_average_leaves_training_alone(train: Command, command: Command, finished: Path) -> None:
    plain = train("hydra.run.dir=plain", *FINISHED, "average=none").run
    states = [checkpoint(run) for run in (plain, finished)]
    for state in states:
        del state["callbacks"], state["configuration"], state["choices"]
    assert flatten(states[0]) == flatten(states[1])
    rows = metrics(finished)
    own = [(row.pop("average/log_likelihood"), row.pop("average/standard_error")) for row in rows]
    assert rows == metrics(plain)
    loaded = load_run(finished, "last", "average", device="cpu")
    rng = torch.Generator().manual_seed(0)
    found = log_likelihood(loaded.machine, loaded.data.valid.first(20), 5, rng)
    assert float(own[-1][0]) == found.mean != float(rows[-1][LL])
    assert float(own[-1][1]) == found.standard_error
    few = ("--weights", "average", "--checkpoint", "last", "--samples", "2")
    assert command("scripts/evaluate.py", str(finished), *few).code == 0
    expected = fingerprint(loaded.machine, loaded.data.test.batch())
    assert [row["fingerprint"] for row in read_rows(finished)] == [expected]
    tail = train("average=tail", "average.start=0.75", "hydra.run.dir=tail").run  # of 12 steps
    assert [row["average/log_likelihood"] != "" for row in metrics(tail)] == [False, True]
    assert checkpoint(tail)["callbacks"]["average"]["count"] == 3
    train("resume=tail", "trainer.epochs=3")  # the tail of 18 steps starts after 13.5
    assert checkpoint(tail)["callbacks"]["average"]["count"] == 5


def test_rows_are_means_since_the_last(train: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = lambda result, *_: result.statistics.tolist()  # noqa: E731
    seen = recorded(monkeypatch, WakeSleep, "step", numbers)
    clock = SimpleNamespace(perf_counter=lambda: len(seen))  # a step takes a second, the rest none
    monkeypatch.setattr("nws.experiment.trainer.time", clock)
    run = train().run
    for row, part in zip(metrics(run), (seen[:6], seen[6:12]), strict=True):
        found = [float(row[f"train/{name}"]) for name in STATISTICS]
        assert found == pytest.approx(np.mean(part, 0), rel=ROUNDING)
    assert read_run(run).metrics["seconds"].tolist() == [0, 6, 12]


def test_noise_and_images_leave_training_alone(
    train: Command, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    own = "+callbacks.noise_scale._target_=examples.noise_scale.NoiseScale"
    more = (own, "+callbacks.noise_scale.batches=3", "callbacks.images.every=0.5")
    shown = train("hydra.run.dir=shown", *FINISHED, *more).run
    columns = [float(row["noise_scale/generator"]) for row in metrics(shown)]
    assert len(columns) == 2 and all(each > 0 for each in columns)
    names = sorted(path.name for path in (shown / "images").iterdir())
    kinds, steps = ("generated", "reconstructed"), (3, 6, 9, 12)
    assert names == [f"{kind}_step_{step:07d}.png" for kind in kinds for step in steps]
    off = train("hydra.run.dir=off", *FINISHED, "callbacks.images=null").run
    assert not (off / "images").exists()
    for run in (shown, off):
        assert flatten(checkpoint(run)["machine"]) == flatten(checkpoint(finished)["machine"])


ON = "logger=wandb_offline"


def test_wandb_offline(train: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    given, init = [], wandb.init
    monkeypatch.setattr(wandb, "init", lambda **more: given.append(more) or init(**more))
    outcome = train(ON, "hydra.run.dir=on", "callbacks.images.every=2")
    assert outcome.code == 0 and outcome.err == "" and "wandb:" not in outcome.out
    (folder,) = (outcome.run / "wandb").glob("offline-run-*")
    identity = folder.name.rsplit("-", 1)[1]
    content = (folder / f"run-{identity}.wandb").read_bytes()
    values = [row[LL] for row in metrics(outcome.run, start=True)]
    for word in (LL, *values, "weight_scale", "best/log_likelihood", "finished"):
        assert word.encode() in content, word
    assert len(list(folder.rglob("*.png"))) == 2
    train("resume=on", "trainer.epochs=3")
    assert given[1]["id"] == identity and given[1]["resume"] == "allow"
    sweep = (ON, "logger.mode=disabled", "optimizer.lr=0.01,0.002", "trainer.epochs=0.5")
    assert train("-m", *sweep).code == 0
    names = [f"rws digits optimizer.lr={lr}" for lr in (0.01, 0.002)]
    assert [each["name"] for each in given[2:4]] == names
    assert train(ON, "logger.mode=disabled", "+logger.name=mine", "trainer.epochs=0.1").code == 0
    assert given[4]["name"] == "mine"
    assert given[2]["group"] == given[3]["group"] and given[2]["group"] and not given[0]["group"]
    WandbLogger().load_state_dict({})  # of a run that had another logger


@pytest.mark.parametrize("fail", ["init", "log", "finish"])
def test_a_broken_logger_warns(train: Command, monkeypatch: pytest.MonkeyPatch, fail: str) -> None:
    class Run(SimpleNamespace):
        id, define_metric, summary = "x", print, Counter()
        log = finish = print

    def broken(*_: Any, **__: Any) -> None:
        raise SystemExit(1)  # as wandb does when its service failed

    setattr(Run, fail, broken)
    monkeypatch.setattr(wandb, "init", broken if fail == "init" else Run)
    outcome = train(ON, "trainer.epochs=4")
    assert outcome.code == 0 and len(metrics(outcome.run)) == 4
    assert outcome.err.count("WARNING: logger failed (") == 1 and "going on without" in outcome.err


def test_tensorboard(train: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event file says what metrics.csv says; rows that are written again are hidden."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    outcome = train("logger=tensorboard", "callbacks.images.every=1", "hydra.run.dir=run")
    assert outcome.code == 0 and outcome.err == "", outcome.err
    assert train("resume=run", "trainer.epochs=3").code == 0
    board = events.EventAccumulator(str(outcome.run / "tensorboard")).Reload()
    rows = metrics(outcome.run, start=True)
    for name in set(rows[0]) - {"step"}:
        found = [(each.step, each.value) for each in board.Scalars(name)]
        numbers = [(int(row["step"]), row[name]) for row in rows if row[name]]
        assert found == [(step, float(np.float32(number))) for step, number in numbers], name
    shown = board.Images("images/generated")
    assert [each.step for each in shown] == [6, 12, 18]
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard")
    message = train("logger=tensorboard").message()
    assert "logger needs the package tensorboard, not installed here" in message
