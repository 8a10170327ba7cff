"""Mistakes on the command line: each is one line for a person, and leaves nothing behind."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, SMALL, TWO_STEPS, Command, Interrupt

WRONG = {
    # names
    "trainer.epoch=3": "trainer.epoch is no option; did you mean trainer.epochs?",
    "+optimizer.lrr=1": "optimizer.lrr is no option of torch.optim.Adam; did you mean",
    "+trainer.patience=3": "trainer.patience is no option of nws.experiment.build.Settings",
    "+average.memory=3": "average.memory is no option of average=none",
    "+trainr.epochs=3": "trainr is no option of train.py; did you mean trainer?",
    "+metric.rank=3 metric=fisher": "metric.rank is no option of nws.natural.metrics.Fisher",
    "+callbacks.mine.every=3": "callbacks.mine needs a _target_",
    "callbacks.images=false": "images needs a _target_", "hydra.run.dir=/proc/x": "/proc/x",
    "+callbacks.logger={_target_:nws.experiment.callbacks.Patience}": "part of nws has this name",
    "progress=no": "progress must be true or false", "trainer.batch_size=1e308": "got 1e+308",
    "+data.sise=3": "data.sise is no option", "~model.layers": "model.layers must be a list of",
    "-m seed=0,1 hydra.sweep.subdir=a/b": "hydra.sweep.subdir must be one folder",
    "callbacks.patience={_target_:a.B,of:1}": "patience.of is no option; write '~callbacks.pat",
    "+scheduler.lr_lambda.finl=3": "scheduler.lr_lambda.finl is no option of nws.schedules.linear",
    "optimiser=adam": "optimiser is no option; did you mean optimizer?",
    "lr=3": "lr is no option; did you mean optimizer.lr", "callbacks=null": "be a section, got",
    "optimizer.momentum=0.9": "is no option; it is an option of optimizer=momentum, optim",
    "trainer.epochs": "expected key=value, as in trainer.epochs=3, got trainer.epochs; give train",
    "scheduler=plateau scheduler.patience=null": "scheduler.patience must be of type int, got null",
    "--epochs 3": "expected key=value, as in trainer.epochs=3, got --epochs; did you mean train",
    "algorithm=nrsw": "algorithm=nrsw is no choice; did you mean algorithm=nrws?",
    "logger=null": "logger=null is no choice; the choices are none", "seed=0,1": "seed",
    "-m metric=fisher,foo": "metric=foo is no choice; the choices are adaptive diagonal",
    "~optimizer._target_": "optimizer._target_ has no value; choose optimizer=NAME",
    # values, at least one of each group
    "seed=-1": "seed must be a whole number of at least 0 and", "~optimizer.lr": "optimizer.lr",
    "device=tpu": "device must be one of auto, cpu, cuda, got 'tpu'",
    "device=cuda": "torch sees no CUDA device", "model.mask=local": "model.mask must be a function",
    "trainer.epochs=nan": "trainer.epochs must be a number above 0 and at most 1e+09, got nan",
    "trainer.batch_size=2000": "trainer.batch_size must be at most the 1297 training images",
    "trainer.evaluation_samples=1e18": "trainer.evaluation_samples must be a whole number",
    "algorithm.samples=0": "algorithm.samples must be a whole number of at least 1 and at most",
    "experiment=digits algorithm.name=mine": "optimizer.lr has no value; give optimizer.lr=VALUE",
    "model.visible={_target_:nws.models.Nosuch}": "model.visible._target_=nws.models.Nosuch",
    "data.binarize=sometimes": "data.binarize must be one of resample, static, threshold, none",
    "model.units=ternary": "model.units must be binary or bipolar, got 'ternary'",
    "metric=fisher solver=pcg solver.tolerance=2": "solver.tolerance",
    "optimizer.lr=-1": "optimizer.lr must be a number of at least 0, got -1",
    "optimizer=soap +optimizer.precondition_freq=3": "is no option of pytorch_optimizer.SOAP; did",
    "optimizer=muon +optimizer.biases.lr=1": "optimizer.biases must be null or a section such as",
    "optimizer=muon optimizer.biases=null": "only supports 2D parameters",
    "optimizer=schedule_free +optimizer.biases={_target_:torch.optim.Adam}": "beside another opt",
    "optimizer=sgd +optimizer.biases={_target_:torch.optim.LBFGS}": "LBFGS takes no steps beside",
    "optimizer.fused=maybe": "optimizer.fused must be true or false", "data=npz": "data.path",
    "optimizer.betas=[0.9]": "optimizer: torch.optim.Adam cannot be made from the options",
    "trainer.precision=half": "trainer.precision must be one of float32, tf32, bfloat16, auto",
    "--resolve": "error: The --resolve flag can only be used in conjunction with --cfg",
    "scheduler.lr_lambda.warmup_steps=-1": "warmup_steps must be a number of at least 0, got -1",
    "average=tail average.start=1": "average.start must be a number of at least 0 and below 1",
    "callbacks.patience.evaluations=0": "callbacks.patience.evaluations must be a whole number",
    "callbacks.images.every=0": "callbacks.images.every must be a number above 0 epochs",
    "logger=wandb_offline logger.mode=off": "logger.mode must be one of online, offline, disabled",
    "model.generator.lateral=some": "must be one of none, visible, hidden",
    "model.recognition.lateral=visible": "model.recognition.lateral must be one of none, hidden",
    "+model.recognition.skip=maybe": "model.skip must be one of True, False, got 'maybe'",
    "+model.generator.deep=2": "an option of model.generator or model.recognition must be one of",
    "model.generator.lateral=null": "model.generator.lateral must be none, visible, hidden, all or",
    "model.mask={_target_:nws.models.masks.local,_partial_:true,width:2}": "width must be odd",
    "metric=fisher solver=woodbury model.generator.lateral=hidden": "no form for units that see",
    # classes of another kind
    "metric._target_=builtins.dict": "metric._target_ must make a nws.natural.Metric, got a dict",
    "logger._target_=builtins.dict": "logger._target_ must make a nws.experiment.callbacks",
    "optimizer._target_=torch.optim.Nosuch": "optimizer._target_=torch.optim.Nosuch cannot be",
    # what is missing
    "optimizer.lr=???": "optimizer.lr has no value (???)", "progress=???": "progress has no value",
    "optimizer.lr=null": "optimizer.lr has no value; give",
    "seed=${nosuch}": "nosuch", "model.layers=5": "model.layers must be a list of sizes",
    "name=../../etc": "error: name must be a folder below outputs/, got '../../etc'",
    "name=???": "Missing mandatory value: name", "name=null": "a folder below outputs/, got None",
    # several at once
    "seed=-1 trainer.epochs=0 optimizer.lr=-1 +metric.rnk=3 algorithm.samples=0": "4 mistakes in",
    # ways to go on
    "resume=nowhere": "nowhere does not exist; a run prints its directory",
    "resume=pretrained/nosuch": "the machines that come with nws are pretrained/binarized_mnist",
    "-m seed=0,1 hydra/launcher=ray": "hydra/launcher",  # whose plugin is missing
}  # fmt: skip


@pytest.mark.parametrize("options", WRONG)
def test_a_mistake_leaves_one_line_alone(command: Command, tmp_path: Path, options: str) -> None:
    own = options.split("=")[0]
    words = [word for word in TWO_STEPS if word.split("=")[0] != own]
    message = command("train.py", *words, *options.split()).message()
    assert WRONG[options] in message, message
    assert len(message) < 1000 and "Error executing job" not in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["x", "0", ""])
def test_a_wrong_environment(train: Command, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", value)
    message = train().message()
    assert f"WORLD_SIZE={value} processes were to meet" in message and "torchrun" in message


def test_nws_debug_raises_a_defect(
    train: Command, interrupt: Interrupt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it is one line, and its traceback is in a file, as of a run that broke."""
    interrupt(1, ZeroDivisionError("a defect"))
    monkeypatch.setenv("NWS_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        train()


ENDS = [
    (MemoryError(), 1, "there is not enough memory; lower trainer.batch_size"),
    (OSError(28, "No space left on device", "x.pt"), 1, "x.pt: No space left on device"),
    (BrokenPipeError(), 141, ""),
    (RecursionError("deep"), 1, "RecursionError: deep"),
]


@pytest.mark.parametrize(("error", "code", "words"), ENDS)
def test_how_a_program_ends(
    train: Command, interrupt: Interrupt, error: BaseException, code: int, words: str
) -> None:
    interrupt(3, error)
    outcome = train()
    assert outcome.code == code and words in outcome.err and "Traceback" not in outcome.err


SHELL = {
    f"PYTHONIOENCODING=ascii python {ROOT}/train.py {{}} > out": 0,
    f"python {ROOT}/train.py {{}} >&-": 0,
    f"python {ROOT}/train.py --help | head -1 > out": 0,
    f"python {ROOT}/train.py {{}} > /dev/full": 1,
}


@pytest.mark.slow
@pytest.mark.parametrize("line", SHELL)
def test_output_of_all_kinds(tmp_path: Path, line: str) -> None:
    text = line.format(shlex.join([*SMALL, "hydra.run.dir=run"])).replace("python ", "$PYTHON ")
    environment = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    bash = ["bash", "-c", text]
    done = subprocess.run(bash, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == SHELL[line] and "Traceback" not in done.stderr, done.stderr
    assert SHELL[line] or "--help" in line or (tmp_path / "run" / "metrics.csv").exists()


def test_a_refused_start_leaves_no_log(command: Command, tmp_path: Path) -> None:
    np.save("images.npy", np.arange(100 * 36, dtype=np.uint8).reshape(100, 6, 6))
    own = "data=npz", "data.path=images.npy"
    message = command("train.py", *TWO_STEPS, *own, "trainer.batch_size=5000").message()
    assert "at most the 80 training images" in message
    assert [each.name for each in tmp_path.iterdir()] == ["images.npy"]
    run = command("train.py", *TWO_STEPS, *own).run
    log = (run / "train.log").read_text()
    assert log.index("split at random") < log.index("  algorithm ")
