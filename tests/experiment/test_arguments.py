"""The command line: bad input gets one message, and old spellings still work."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import CONF, ROOT, Command, assert_same_run

from nws.experiment.launch.arguments import rename_old_keys

BAD = {
    "model.layers=0": "model.layers must be a list of one or more whole numbers of at least 1, got",
    "model.layers=abc": "model.layers must be a list",
    "model.layers=[]": "model.layers must be a list of one or more whole numbers of at least 1",
    "model.layers=[4,0]": "whole numbers of at least 1, got [4, 0]",
    "model.layers=[-3]": "whole numbers of at least 1",
    "model.layers=[2.5]": "whole numbers of at least 1",
    "model.layers=[x]": "whole numbers of at least 1",
    "~model.layers": "model.layers is missing; it must be a list of one or more whole numbers",
    "model.units=ternary": "model.units must be binary or bipolar or an object or function by",
    "model.weight_scale=-1": "model.weight_scale must be a number from 0 to 1,000,000, got -1",
    "model.weight_scale=nan": "model.weight_scale must be a number from 0 to 1,000,000, got nan",
    "model.hidden_bias=nan": "model.hidden_bias must be a number from -1,000,000",
    "+model.foo=1": "there is no option model.foo; the options are model.layers, model.units",
    "+model.layer=1": "there is no option model.layer; did you mean model.layers?",
    "algorithm.samples=0": "algorithm.samples must be a whole number of at least 1, got 0",
    "algorithm.samples=1.5": "algorithm.samples must be a whole number",
    "algorithm.samples=10000000000": "this run would take 2.62 TiB of memory or more, and",
    "model.layers=[100000,100000,100000]": "lower model.layers",
    "algorithm.exponent=-1": "algorithm.weighting.exponent must be a number of at least 0, got -1",
    "algorithm.baseline=abc": "algorithm.baseline must be true or false, got 'abc'",
    "algorithm.baseline=5": "algorithm.baseline must be true or false, got 5",
    "algorithm.weighting._target_=math.hypot": "math.hypot",
    "algorithm.weighting._target_=nws.nope": "algorithm.weighting._target_=nws.nope cannot be",
    "+algorithm.foo=1": "there is no option algorithm.foo; the options are algorithm.name",
    "~algorithm": "the options of algorithm are missing",
    "trainer.batch_size=1298": "at most the 1297 training images, got 1298",
    "trainer.batch_size=0": "trainer.batch_size must be a whole number of at least 1, got 0",
    "trainer.epochs=0": "trainer.epochs must be a number above 0, got 0 (passes over",
    "trainer.epochs=abc": "trainer.epochs must be a number above 0, got 'abc'",
    "trainer.epochs=inf": "trainer.epochs must be a number above 0, got inf",
    "trainer.evaluate_every=0": "trainer.evaluate_every must be",
    "trainer.evaluation_samples=0": "trainer.evaluation_samples must be",
    "trainer.evaluation_points=0": "trainer.evaluation_points must be",
    "~trainer.epochs": "trainer.epochs is missing; it must be a number above 0",
    "seed=abc": "seed must be a whole number of at least 0, got 'abc'",
    "seed=-1": "seed must be a whole number of at least 0, got -1",
    "device=foo": "device must be auto, cpu or cuda, got 'foo'",
    "progress=maybe": "progress must be true or false, got 'maybe'",
    "optimizer.lr=abc": "optimizer.lr must be a number of at least 0, got 'abc'",
    "optimizer.lr=true": "optimizer.lr must be a number of at least 0, got True",
    "optimizer.lr=-1": "optimizer.lr must be a number of at least 0, got -1",
    "optimizer.betas=[0.9,0.999,0.5]": "optimizer.betas must be a list of 2 numbers",
    "optimizer._target_=torch.optim.Nope": "torch.optim.Nope",
    "optimizer._target_=torch.nn.ReLU": "optimizer._target_=ReLU takes no option lr",
    "optimizer._target_=torch.optim.SparseAdam": "SparseAdam takes no option fused",
    "optimizer._target_=torch.optim.RMSprop": "2 problems with the options:\n"
    "  optimizer._target_=RMSprop takes no option betas; leave out optimizer.betas by"
    " ~optimizer.betas\n  optimizer._target_=RMSprop takes no option fused; leave out"
    " optimizer.fused by ~optimizer.fused\n",
    "optimizer=null": "optimizer needs the name of a file in conf/optimizer/, got null",
    "natural_metric=null": "needs the name of a file in conf/natural_metric/, got null",
    "damping=0.1": "damping needs the name of a file in conf/damping/, got 0.1",
    "damping.value=1e39": "above 0 and at most 10,000,000, got 1e+39, which is too large",
    "model/visible=null": "model/visible needs the name of a file in conf/model/visible/, got null;"
    " leave it out for the default",
    "++experiment=null": "experiment needs the name of a file in conf/experiment/, got null",
    "trainer=null": "the options of trainer are missing; leave ~trainer or trainer=VALUE out, and",
    "~trainer": "name the option, as in trainer.epochs=10\n",
    "model.visible={a: 1}": "; for instance model.visible._target_=nws.models.gaussian.Gaussian",
    "algorithm.weighting={_target_: null}": "=nws.learning.weighting.tempered",
    "model=200,100": "model needs the name of a file in conf/model/, got 200,100",
    "~optimizer": "the options of optimizer are missing; leave ~optimizer out",
    "scheduler._target_=torch.optim.lr_scheduler.Nope": "torch.optim.lr_scheduler.Nope",
    "scheduler._target_=null": "scheduler._target_ must name one of torch.optim.lr_scheduler",
    "scheduler.lr_lambda.warmup_steps=abc": "scheduler.lr_lambda.warmup_steps must be a whole",
    "logger._target_=nws.Nope": "logger._target_=nws.Nope cannot be imported",
    "logger._target_=builtins.dict": "logger._target_ must be a class with start, write",
    "+logger.mode=offline": "logger=none takes no options; leave out logger.mode by ~logger.mode",
    "data.binarize=sometimes": "data.binarize must be resample, static, threshold or none",
    "data.root=null": "data.root must be a text, got null",
    "data.name=[digits]": "data.name must be a text, got ['digits']",
    "data=npz": "for instance data.path=FILE",
    "+data.foo=1": "there is no option data.foo; the options are data.name",
    "+foo=1": "there is no option foo; the options are name, seed",
    "name=${foo}": "name has no value: Interpolation key 'foo' not found",
}


def test_bad_input_gets_one_message(train: Command, tmp_path: Path) -> None:
    for override, expected in BAD.items():
        message = train(override).message()
        assert expected in message, (override, message)
        assert not list(tmp_path.iterdir()), f"{override} left something"


HELP = f"python {ROOT / 'train.py'} --help"  # as the test starts it
UNKNOWN = {
    "foo=1": f"there is no option foo; {HELP} lists the options",
    "trainer.foo=1": f"there is no option trainer.foo; {HELP} trainer lists",
    "optimizer.foo=1": f"there is no option optimizer.foo; {HELP} optimizer lists the options of"
    " optimizer; an option of a class of your own is +optimizer.foo=1\n",
    "scheduler.bar=1": f"there is no option scheduler.bar; {HELP} scheduler lists the options of",
    "optimizer.learning_rate=1": "no option optimizer.learning_rate; did you mean optimizer.lr?",
    "optimizer.momentm=1": "did you mean optimizer.momentum, with optimizer=momentum?",
    "optimizer._target=x": "did you mean optimizer._target_?",
    "optimiser.lr=1": "there is no option optimiser.lr; did you mean optimizer.lr?",
    "optimzer=sgd": "there is no option optimzer; did you mean optimizer?",
    "model/visibl=gaussian": "there is no option model/visibl; did you mean model/visible?",
    "algorithm.K=1": "there is no option algorithm.K; did you mean algorithm.samples?",
    "epochs=3": "there is no option epochs; did you mean trainer.epochs?",
    "epohcs=3": "there is no option epohcs; did you mean trainer.epochs?",
    "data.path=x": "there is no option data.path here, only with data=folder or data=npz",
    "optimizer.weight_decay=0.1": "optimizer.weight_decay is not in the file of optimizer; give"
    " +optimizer.weight_decay=0.1 to add it\n",
    "optimizer.weigth_decay=0.1": "did you mean +optimizer.weight_decay?",
    "scheduler.min_lr=0.1": "no option scheduler.min_lr here, only with scheduler=plateau",
    "~model.foo": "there is no option model.foo, so it cannot be removed",
    "~optimizer.beta": "there is no option optimizer.beta; did you mean ~optimizer.betas?",
    "algorithm=rwss": "algorithm has no choice rwss; did you mean algorithm=rws? The choices are",
    "data=nope": "data has no choice nope; the choices are digits, fashion_mnist",
    "seed=1,2": "seed=1,2 has several values: add -m for a run of each, or write seed=[...]",
    "seed=range(3)": "seed=range(3) has several values: add -m for a run of each\n",
    "seed=1,": "seed=1, has a comma with no value beside it; give a value there, or leave it out",
    "optimizer.lr=[1": "optimizer.lr=[1 cannot be read",
    "word": "'word' is no option: give key=value",
    "+optimizer.lr=1": "optimizer.lr is there already; leave the + out",
}


def test_unknown_options_and_choices_get_suggestions(train: Command, tmp_path: Path) -> None:
    for override, expected in UNKNOWN.items():
        message = train(override).message()
        assert expected in message and "hydra" not in message.lower(), (override, message)
        assert list(tmp_path.iterdir()) == []


def test_the_installed_command_names_itself(command: Command) -> None:
    assert "; nws train --help lists the options" in command("nws", "train", "foo=1").message()


def test_all_mistakes_are_named_at_once(train: Command, tmp_path: Path) -> None:
    mistakes = ("lr=1", "model.layres=[3]", "trainer.epochs=abc", "algorithm.baseline=5", "seed=-1")
    message = train(*mistakes).message()
    assert message.startswith("error: 5 problems with the options:\n  there is no option lr; ")
    for key in ("model.layres", "trainer.epochs", "algorithm.baseline", "seed"):
        assert f"{key} must be" in message or f"no option {key}" in message
    assert list(tmp_path.iterdir()) == []


SWEEPS = {
    ("seed=range(0)",): "seed=range(0) has no values, so that the sweep has no job",
    ("seed=1,",): "seed=1, has a comma with no value beside it",
    ("model/visible=null,gaussian",): "model/visible needs the name of a file in conf/model/",
    ("seed=0,1,-1",): "seed must be a whole number of at least 0, got -1",
    ("algorithm=rws,rwss",): "algorithm has no choice rwss",
    ("optimizer.lr=interval(0.01,0.1)",): "is an interval, which needs hydra/sweeper=optuna",
    ("hydra/launcher=joblib", "hydra.launcher.n_jobs=0", "seed=0,1"): "n_jobs must be jobs at once",
    ("hydra/sweeper=optuna", "hydra.sweeper.n_trials=0"): "n_trials must be a whole number of at",
    ("hydra/sweeper=optuna", "hydra.sweeper.n_trials=abc"): "n_trials=abc does not fit",
    (
        "hydra/sweeper=optuna",
        "optimizer.lr=interval(0.1,0.01)",
    ): "must be an interval from a lower to a higher number; try interval(0.01,0.1)",
    ("hydra/sweeper=optuna", "optimizer.lr=interval(-0.1,0.1)"): "optimizer.lr must be a number of",
}


def test_a_sweep_is_checked_as_a_whole(sweep: Command, tmp_path: Path) -> None:
    for arguments, expected in SWEEPS.items():
        message = sweep(*arguments).message()
        assert expected in message, (arguments, message)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_cuda(train: Command) -> None:
    assert "torch sees no CUDA device; use device=cpu" in train("device=cuda").message()


def test_truncated_data(train: Command, data_root: Path, tmp_path: Path) -> None:
    raw = tmp_path / "data" / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for path in (data_root / "FashionMNIST" / "raw").iterdir():
        (raw / path.name).write_bytes(path.read_bytes())
    packed = raw / "train-images-idx3-ubyte.gz"
    packed.write_bytes(packed.read_bytes()[:5000])
    message = train("data=fashion_mnist", f"data.root={tmp_path / 'data'}").message()
    assert f"{packed} is damaged" in message and "run again to download it" in message
    assert "found none at" in train("data=npz", "data.path=none.npz").message()


def test_options_without_effect_are_named(train: Command) -> None:
    unused = ("solver=woodbury", "damping.value=3", "natural_metric=fisher")
    outcome = train("trainer.epochs=0.1", *unused)
    words = f"without effect with metric=euclidean: {', '.join(unused)}"
    assert outcome.code == 0 and outcome.err.splitlines() == [f"WARNING: {words}"]
    outcome = train(
        "trainer.epochs=0.1",
        "algorithm=nrws",
        "metric=kronecker",
        "solver.rank=3",
        "damping.value=3",
    )
    assert (
        outcome.code == 0
        and outcome.err == "WARNING: without effect with metric=kronecker: solver.rank=3\n"
    )


def test_keys_of_earlier_versions() -> None:
    renamed = {
        ("seed=1", "metric.kind=fisher,diagonal"): ["seed=1", "metric=fisher,diagonal"],
        ("solver=pcg", "solver.name=auto", "solver.rank=3"): ["solver=auto", "solver.rank=3"],
        ("metric=fisher", "++metric.kind=kronecker"): ["metric=kronecker"],
        ("metric.kind=mean", "metric=fisher"): ["metric=mean"],  # in any order, as ever
        ("-m", "solver.rank=3"): ["-m", "solver.rank=3"],
    }
    for given, expected in renamed.items():
        assert rename_old_keys(list(given), CONF) == expected


def test_a_run_by_keys_of_earlier_versions(train: Command) -> None:
    new = train("algorithm=nrws", "metric=diagonal", "hydra.run.dir=new")
    wrong = train("algorithm=nrws", "solver.name=lu").message()
    assert "solver.name must be one of auto, cholesky, minres, pcg" in wrong and "got 'lu'" in wrong
    old = train("algorithm=nrws", "metric.kind=diagonal", "hydra.run.dir=old")
    assert old.code == 0, old.err
    assert_same_run(old.run, new.run)


def test_an_unknown_key_is_an_error_also_with_a_plus(train: Command, tmp_path: Path) -> None:
    assert "there is no option epochs; the options are name, seed" in train("+epochs=3").message()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_class_that_cannot_be_imported_is_named_with_the_reason(train: Command) -> None:
    message = train("model.visible={_target_: my_nothing.Nothing}").message()
    assert "No module named 'my_nothing'" in message and "working directory" in message
