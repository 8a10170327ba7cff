"""The command line: bad input gets one message, and old spellings still work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from conftest import CONF, Command, assert_same_run

from nws.experiment.arguments import rename_old_keys

BAD = {
    "model.layers=0": "model.layers must be a list of layer sizes",
    "model.layers=abc": "model.layers must be a list of layer sizes",
    "model.layers=[]": "one or more hidden",
    "model.layers=[4,0]": "whole numbers of at least 1",
    "model.layers=[-3]": "whole numbers of at least 1",
    "model.layers=[2.5]": "whole numbers of at least 1",
    "model.layers=[x]": "whole numbers of at least 1",
    "model.units=ternary": "model.units must be binary or bipolar, got 'ternary'",
    "+model.foo=1": "the options of model do not fit: got an unexpected keyword argument 'foo'",
    "algorithm.samples=0": "algorithm.samples must be a whole number of at least 1, got 0",
    "algorithm.samples=1.5": "algorithm.samples must be a whole number",
    "algorithm.exponent=-1": "algorithm.weighting.exponent must be a number of at least 0, got -1",
    "algorithm.weighting._target_=math.hypot": (
        "algorithm.weighting cannot be called with log p and log q"
    ),
    "algorithm.weighting._target_=nws.nope": "nws.nope",
    "+algorithm.foo=1": "nws.learning.Rule cannot be made from the options",
    "trainer.batch_size=1298": "at most the 1297 training images, got 1298",
    "trainer.batch_size=0": "trainer.batch_size must be a whole number of at least 1, got 0",
    "trainer.epochs=0": "trainer.epochs must be a number of epochs above 0, got 0",
    "trainer.epochs=abc": "trainer.epochs must be a number of epochs above 0, got 'abc'",
    "trainer.epochs=inf": "trainer.epochs must be a number of epochs above 0, got inf",
    "trainer.evaluate_every=0": "trainer.evaluate_every must be",
    "trainer.evaluation_samples=0": "trainer.evaluation_samples must be",
    "trainer.evaluation_points=0": "trainer.evaluation_points must be",
    "~trainer.epochs": "missing a required argument: 'epochs'",
    "seed=abc": "seed must be a whole number of at least 0, got 'abc'",
    "seed=-1": "seed must be a whole number of at least 0, got -1",
    "device=foo": "device must be auto, cpu or cuda, got 'foo'",
    "optimizer.lr=abc": "'lr': 'abc'",
    "optimizer.lr=-1": "Invalid learning rate: -1",
    "optimizer._target_=torch.optim.Nope": "torch.optim.Nope",
    "optimizer._target_=torch.nn.ReLU": "torch.nn.ReLU cannot be made from the options",
    "optimizer._target_=torch.optim.SparseAdam": "torch.optim.SparseAdam cannot be made from",
    "optimizer=null": "optimizer needs the name of a file in conf/optimizer/, got null",
    "natural_metric=null": "needs the name of a file in conf/natural_metric/, got null",
    "damping=0.1": "damping needs the name of a file in conf/damping/, got 0.1",
    "model=200,100": "model needs the name of a file in conf/model/, got 200,100",
    "~optimizer": "needs a group of options optimizer, got None",
    "scheduler._target_=torch.optim.lr_scheduler.Nope": "torch.optim.lr_scheduler.Nope",
    "scheduler.lr_lambda.warmup_steps=abc": "'warmup_steps': 'abc'",
    "logger._target_=nws.Nope": "nws.Nope cannot be made from the options {}: ",
    "logger._target_=builtins.dict": "logger._target_ must be a class with start, write",
    "+logger.mode=offline": "logger=none takes no options, got mode; choose another logger",
    "data.binarize=sometimes": "data.binarize must be one of",
    "data=npz": "add data.path=FILE",
    "+data.foo=1": "has no option foo",
}


def test_bad_input_gets_one_message(train: Command, tmp_path: Path) -> None:
    for override, expected in BAD.items():
        message = train(override).message()
        assert expected in message, (override, message)
        assert not [path for path in tmp_path.rglob("*") if path.is_file()], (
            f"{override} left files"
        )


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("foo=1", r"Could not override 'foo'"),
        ("trainer.foo=1", r"Could not override 'trainer.foo'"),
        ("algorithm=nope", r"Could not find 'algorithm/nope'[\s\S]*rws"),
        ("data=nope", r"Could not find 'data/nope'[\s\S]*digits"),
    ],
)
def test_unknown_overrides_and_choices(
    train: Command, tmp_path: Path, override: str, expected: str
) -> None:
    outcome = train(override)
    assert outcome.code == 1 and re.search(expected, outcome.err) and "Traceback" not in outcome.err
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
    unused = ("solver=woodbury", "damping.value=3", "+damping.x=1", "natural_metric=fisher")
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
    assert "unknown keys epochs; there are name, seed" in train("+epochs=3").message()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_class_that_cannot_be_imported_is_named_with_the_reason(train: Command) -> None:
    message = train("model.visible={_target_: my_nothing.Nothing}").message()
    assert "No module named 'my_nothing'" in message and "working directory" in message
