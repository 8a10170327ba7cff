"""Stopping and going on: bit for bit, with more epochs, with new options, and by resume=auto."""

import os
import signal
from pathlib import Path
from typing import Any

import conftest
import pytest
import yaml
from conftest import FINISHED, Command, Interrupt, assert_same_run, checkpoint, metrics, snapshot
from filelock import FileLock

from nws.experiment import optimizers
from nws.experiment.provenance import read_provenance

NRWS = "algorithm=nrws"
CYCLE = (
    "scheduler._target_=torch.optim.lr_scheduler.OneCycleLR ~scheduler.lr_lambda"
    " +scheduler.max_lr=0.01 +scheduler.total_steps=total_steps"
)
RESUMABLE = [
    "callbacks.patience.evaluations=5 average=exponential average.memory=4",
    "algorithm=bihm optimizer=sgd average=tail average.start=0.4 trainer.precision=bfloat16",
    "algorithm=vimco algorithm.dreams=1 scheduler=cosine",
    "algorithm=ws data.binarize=static model.units=bipolar scheduler=exponential",
    "optimizer.generator_lr=0.02 optimizer.fused=false scheduler=linear_warmup",
    f"{NRWS} metric=kronecker metric.refresh_every=4 metric.memory=8 metric.rank=3",
    f"{NRWS} metric=kronecker metric.rank=full metric.max_kl=0.1 optimizer=momentum",
    f"{NRWS} metric=fisher metric.memory=2 metric.refresh_every=5 damping=linear"
    " model.layers=[70,5] trainer.precision=bfloat16",
    f"{NRWS} metric=fisher solver=sherman_morrison damping=levenberg_marquardt",
    f"{NRWS} metric=diagonal metric.memory=5 damping=exponential",
    f"{NRWS} metric=adaptive metric.rank=3 metric.mean_memory=2 metric.refresh_every=4",
    f"{NRWS} model.generator.lateral=all model.recognition.lateral=hidden model.skip=true"
    " metric=kronecker metric.max_kl=1 metric.refresh_every=4",
    f"{NRWS} metric=fisher model.generator.lateral=visible metric.max_rows=8 trainer.precision="
    "bfloat16 model.mask={_target_:nws.models.masks.local,_partial_:true,width:3}"
    " model.order={_target_:nws.models.masks.from_the_centre,_partial_:true}",
    f"{NRWS} metric=mean metric.batch=other data.where=host",
    "algorithm=nbihm metric=fisher algorithm.dreams=3 metric.refresh_every=4",
    "optimizer=momentum optimizer.recognition_lr=0.01 scheduler=wsd",
    "optimizer=nadam scheduler=plateau scheduler.patience=0"
    " +optimizer.biases={_target_:torch.optim.Adam,fused:true}",
    "optimizer=soap optimizer.precondition_frequency=3 optimizer.recognition_lr=0.03",
    "optimizer=muon optimizer.generator_lr=0.02 average=tail",
    "optimizer=schedule_free optimizer.warmup_steps=5 scheduler=constant",
    CYCLE,
    "optimizer._target_=torch.optim.LBFGS optimizer.lr=0.01 ~optimizer.betas ~optimizer.fused"
    " +optimizer.max_iter=3",
]


@pytest.mark.parametrize("options", RESUMABLE)
def test_resumed_as_if_never_stopped(train: Command, interrupt: Interrupt, options: str) -> None:
    words = options.split()
    whole = train("hydra.run.dir=whole", *words)
    assert whole.code == 0, whole.err
    losses = 25 if "LBFGS" in options else 8  # it asks for some a step
    interrupt(losses, signal.SIGTERM)
    stopped = train("hydra.run.dir=stopped", *words)
    assert stopped.code == 128 + signal.SIGTERM, stopped.err
    again = f"go on with\n  python {conftest.ROOT / 'train.py'} resume="
    assert f"stopped by signal 15; {again}" in stopped.out
    # Amid an epoch, and the control: not at the end.
    assert checkpoint(stopped.run)["step"] in (7, 8, 9) and len(metrics(stopped.run)) == 1
    resumed = train("resume=stopped")
    assert resumed.code == 0 and resumed.run == stopped.run and resumed.err == "", resumed.err
    assert_same_run(whole.run, resumed.run)


def test_a_run_on_faces_goes_on(
    train: Command, interrupt: Interrupt, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the metric come from the unlabelled images, by a shuffle of their own."""
    Path("here").symlink_to(data_root)
    faces = ("data=tfd", "data.root=here", "trainer.batch_size=1", "data.split=train")
    options = (*faces, NRWS, "metric.batch=unlabeled", "trainer.epochs=5")
    whole = train("hydra.run.dir=whole", *options).run
    interrupt(4, signal.SIGINT)
    assert train("hydra.run.dir=stopped", *options).code == 128 + signal.SIGINT
    Path("here").unlink()  # as on another machine, which has the data elsewhere
    monkeypatch.setenv("NWS_DATA_ROOT", str(data_root))
    assert train("resume=stopped").code == 0
    assert_same_run(whole, Path("stopped"))
    assert "/here/TFD/" in train("hydra.run.dir=new", *options).message()  # a new run has its own
    options = (*options, f"data.root={data_root}", "metric.batch=same")
    other = train("hydra.run.dir=other", *options).run  # the control
    ends = [conftest.flatten(checkpoint(run)["machine"]) for run in (other, whole)]
    assert ends[0] != ends[1]


def test_the_end_of_a_run_that_broke(train: Command, interrupt: Interrupt, finished: Path) -> None:
    """It goes on from its last checkpoint, from another place; a stop at the end asks no more."""
    interrupt(10, RuntimeError("broken\nby a test"))
    message = train("hydra.run.dir=broken", *FINISHED).message()
    assert "RuntimeError: broken; its traceback is in " in message
    text = Path(message.split()[-1]).read_text()
    assert "Traceback" in text and "by a test" in text
    moved = Path("broken").rename("it's a run, lr=0.1")
    assert read_provenance(moved)["state"] == "failed" and checkpoint(moved)["step"] == 6
    interrupt(6, signal.SIGTERM)  # in the last step
    stopped = train(f"resume={moved}")
    assert stopped.code == 128 + signal.SIGTERM
    assert_same_run(finished, moved)
    record = read_provenance(moved)
    assert record["state"] == "finished" and [each["step"] for each in record["resumed"]] == [6]


def test_a_signal_between_two_looks_makes_no_second_row(
    train: Command, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered = []

    def training(optimizer: Any) -> Any:
        entered.append(optimizer)
        if len(entered) == 2:  # `fit` has asked, and no step was taken
            os.kill(os.getpid(), signal.SIGTERM)
        return optimizers.training(optimizer)

    monkeypatch.setattr("nws.experiment.trainer.training", training)
    assert train("hydra.run.dir=parts", *FINISHED).code == 128 + signal.SIGTERM
    assert train("resume=parts").code == 0
    assert_same_run(finished, Path("parts"))


def test_early_stop_and_two_signals(train: Command, interrupt: Interrupt, finished: Path) -> None:
    interrupt(1, signal.SIGTERM)
    assert train("hydra.run.dir=first", *FINISHED).code == 128 + signal.SIGTERM
    assert checkpoint(Path("first"))["step"] == 1
    interrupt(7, KeyboardInterrupt())  # as the second of two signals ends a run at once
    outcome = train("resume=first")
    assert outcome.code == 128 + signal.SIGINT and outcome.err.endswith("interrupted\n")
    assert read_provenance("first")["state"] == "stopped" and checkpoint(Path("first"))["step"] == 6
    assert train("resume=first").code == 0
    assert_same_run(finished, Path("first"))


# --- what may change ------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adam", "soap", "muon", "schedule_free"])
def test_more_epochs_keep_what_was_gathered(train: Command, optimizer: str) -> None:
    options = (f"optimizer={optimizer}", "scheduler=constant")
    whole = train("hydra.run.dir=whole", *options, "trainer.epochs=4").run
    train("hydra.run.dir=part", *options)
    part = train("resume=part", "trainer.epochs=4").run
    assert_same_run(whole, part)
    assert yaml.safe_load((part / ".hydra/config.yaml").read_text())["trainer"]["epochs"] == 4


def test_more_epochs_follow_the_longer_schedule(train: Command) -> None:
    train("hydra.run.dir=linear")
    rows = metrics(train("resume=linear", "trainer.epochs=4").run)
    assert [float(row["learning_rate"]) for row in rows] == pytest.approx([0.005, 0, 0.0025, 0])
    train("hydra.run.dir=cycle", *CYCLE.split())  # whose state holds the old steps
    assert len(metrics(train("resume=cycle", "trainer.epochs=4").run)) == 4


def test_new_options_are_applied(train: Command) -> None:
    base = ("optimizer=momentum", "scheduler=constant", "trainer.epochs=1")
    train("hydra.run.dir=run", *base)
    buffer = checkpoint(Path("run"))["optimizer"]["state"][0]["momentum_buffer"]
    new = ("++optimizer.lr=1e-30", "optimizer.momentum=1", "optimizer.nesterov=false")
    assert train("resume=run", "trainer.epochs=2", *new, "+optimizer.weight_decay=0").code == 0
    state = checkpoint(Path("run"))["optimizer"]
    assert state["param_groups"][0]["lr"] == 1e-30 and buffer.abs().max() > 0
    after = state["state"][0]["momentum_buffer"]  # it was kept, and has gathered an epoch more
    assert (after - buffer).norm() < (after.norm() + buffer.norm()) / 2
    other = ("optimizer=adam", "scheduler=linear", "average=exponential")
    assert train("resume=run", "trainer.epochs=3", *other).code == 0
    last = checkpoint(Path("run"))
    assert "exp_avg" in last["optimizer"]["state"][0] and last["callbacks"]["average"]["count"] == 6
    assert train("resume=run", "trainer.epochs=4").code == 0  # with the options that it has now
    assert metrics(Path("run"))[3]["learning_rate"] == "0.0"
    assert checkpoint(Path("run"))["callbacks"]["average"]["count"] == 12
    metric = ("metric=kronecker", "damping.value=0.5", "optimizer=sgd", "scheduler=constant")
    assert train("resume=run", "trainer.epochs=5", *metric).code == 0
    assert train("resume=run", "trainer.epochs=6", "damping.value=0.7").code == 0
    columns = [row["generator/damping"][:4] for row in metrics(Path("run"))]
    assert columns == ["", "", "", "", "0.5", "0.69"]  # in float32
    back = ("optimizer=momentum", "optimizer.nesterov=false")  # as at the start, not as now
    assert train("resume=run", "trainer.epochs=7", *back).code == 0
    assert checkpoint(Path("run"))["optimizer"]["param_groups"][0]["momentum"] == 0.9
    assert train("resume=run", "trainer.epochs=8", "optimizer._target_=torch.optim.Rprop").code == 0


FIXED = {
    "seed=1": "keeps its seed, which is 0, got 1", "~average": "keeps its average",
    "trainer.batch_size=10": "keeps its trainer.batch_size", "data=three_by_three": "its data",
    "algorithm=ws": "keeps its algorithm", "natural_metric=fisher": "keeps its natural_metric",
    "model.layers=[5]": "keeps its model.layers", "optimizer.lrr=1": "optimizer.lrr",
    "optimizer.lr=-1": "optimizer.lr must be a number of at least 0, got -1",
    "optimizer.lr=1e38 optimizer=sgd metric=euclidean": "(step 12) is the last good checkpoint",
}  # fmt: skip


def test_a_refused_resume_changes_nothing(command: Command, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    before = snapshot(tmp_path)
    done = command("train.py", "resume=run", "trainer.epochs=1")
    assert done.code == 0 and done.run == finished and "step 12 of" in done.out
    for options, expected in FIXED.items():
        message = command("train.py", "resume=run", "trainer.epochs=3", *options.split()).message()
        assert expected in message, message
        after = snapshot(tmp_path)
        if "diverge" in read_provenance(finished)["state"]:
            after.pop("run/provenance.json"), before.pop("run/provenance.json")
            after.pop("run/provenance_step_12.diff", None)  # of a tree with changes
        assert after == before, options
    several = command("train.py", "-m", "resume=run", "trainer.epochs=3,4").message()
    assert "takes one run" in several and not (tmp_path / "multirun").exists()
    assert "other is not a run directory" in command("train.py", "resume=other").message()
    assert snapshot(tmp_path / "other") == {}


def test_of_two_starts_one_is_refused(train: Command, finished: Path, tmp_path: Path) -> None:
    lock = finished / ".lock"
    with FileLock(lock):
        lock.write_text("process 7 on a host")
        before = snapshot(tmp_path)
        for options in ((*FINISHED, "hydra.run.dir=run"), ("resume=run", "trainer.epochs=3")):
            message = train(*options).message()
            assert "run is being trained by process 7 on a host; nothing was changed" in message
            assert snapshot(tmp_path) == before
    assert train("resume=run", "trainer.epochs=3").code == 0


# --- resume=auto ----------------------------------------------------------------------------------


def test_auto_finds_the_run_left(train: Command, interrupt: Interrupt, finished: Path) -> None:
    """By its options, wherever it is; what is finished is let be, and another start is new."""
    auto = ("resume=auto", *FINISHED)
    interrupt(8, signal.SIGTERM)
    left = train(*auto).run
    others = [train(*auto, more).run for more in ("seed=1", f"hydra.run.dir={left.parent}/new")]
    assert all(map(conftest.complete, others)) and checkpoint(left)["step"] == 8
    found = train("++resume=auto", *FINISHED)
    assert found.run == left and "resumed    from step 8 " in found.out
    assert_same_run(finished, left)
    os.chdir("run")
    again = train(*auto, f"hydra.run.dir={left}")
    assert again.run == left and "finished already" in again.out
    os.chdir("..")
    assert train(*auto).run not in (left, *others)  # all are finished: a new one
    refused = train(*auto, "hydra.run.dir=run", "seed=3").message()
    assert "holds a run of another configuration: seed is 0 there, and 3 is asked for" in refused
    assert {path.name for path in Path().iterdir()} == {"outputs", "run"}


@pytest.mark.parametrize("option", ["resume=null", "progress=false"])  # of the run, and of none
def test_a_finished_run_has_its_views_again(option: str, command: Command, finished: Path) -> None:
    """As after a kill between the last checkpoint and metrics.csv."""
    whole = (finished / "metrics.csv").read_text()
    (finished / "metrics.csv").write_text(whole[:40])
    assert command("train.py", option, f"resume={finished}").code == 0
    assert (finished / "metrics.csv").read_text() == whole


def test_amsgrad_and_cfg_of_a_saved_run(command: Command, finished: Path) -> None:
    before = snapshot(finished)
    message = command("train.py", "resume=run", "+optimizer.amsgrad=true").message()
    assert "keeps its optimizer.amsgrad, which is none, got True" in message
    message = command("train.py", "resume=run", "--cfg", "job").message()
    assert "run is in its .hydra/config.yaml" in message and snapshot(finished) == before
