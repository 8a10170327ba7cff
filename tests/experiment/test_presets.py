"""The presets of conf/experiment/, each with every algorithm: what they choose, and training."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import CONF, TWO_STEPS, Command, checkpoint, composed, metrics, names
from omegaconf import OmegaConf

FISHER, KRONECKER = "nws.natural.metrics.Fisher", "nws.natural.metrics.Kronecker"
PLAIN, NATURAL = ("ws", "rws", "bihm", "vimco"), ("nws", "nrws", "nbihm", "nvimco")
SETS = ("three_by_three", "digits", "mnist", "fashion_mnist", "tfd")
PUBLISHED = ("published/mnist", "published/tfd", "published/three_by_three")
SGD, ADAM = "torch.optim.SGD", "torch.optim.Adam"


unresolved = cache(composed)


def compose(*overrides: str, **values: Any) -> dict[str, Any]:
    """The configuration of these overrides, resolved; `values` by key are filled in once it is
    composed, which takes long.
    """
    config = unresolved(*overrides).copy()
    for key, value in values.items():
        OmegaConf.update(config, key, value)
    resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def test_there_is_a_tuned_and_a_published_set() -> None:
    found = {name for name in names("experiment") if not name.startswith("fashion_mnist_")}
    assert found == {*SETS, "mnist_static", *PUBLISHED}


# Optimizer and learning rate of the plain and of the natural rules.
TUNED = {
    "three_by_three": ((SGD, 0.3), (SGD, 0.3)),
    "digits": ((ADAM, 0.01), (SGD, 0.1)),
    "mnist": ((ADAM, 0.003), (SGD, 0.1)),
    "fashion_mnist": ((ADAM, 0.003), (SGD, 0.1)),
    "tfd": ((ADAM, 0.03), (SGD, 0.35)),  # at batch 128
}
SEARCHED = {
    "fashion_mnist": {"rws": 0.022, "nrws": 0.3},
    "mnist": {"rws": 0.022, "nrws": 0.3},  # as Fashion-MNIST
    "tfd": {"rws": 0.01, "nrws": 0.3},
    "digits": {"rws": 0.02, "nrws": 0.2},
}


@pytest.mark.parametrize("name", SETS)
def test_tuned(name: str) -> None:
    for algorithm in (*PLAIN, *NATURAL):
        natural = algorithm in NATURAL
        if name == "fashion_mnist" or algorithm in ("rws", "nrws"):
            config = compose(f"experiment={name}", f"algorithm={algorithm}")
        else:  # all that another rule of the kind changes, its row of numbers aside
            config = compose(
                f"experiment={name}",
                f"algorithm={'nrws' if natural else 'rws'}",
                **{"algorithm.name": algorithm},
            )
        assert config["name"] == f"{name}_{algorithm}" and config["data"]["name"] == name
        target, rate = TUNED[name][natural]
        rate = SEARCHED.get(name, {}).get(algorithm, rate)
        assert (config["optimizer"]["_target_"], config["optimizer"]["lr"]) == (target, rate), (
            algorithm
        )
        assert config["metric"]["_target_"] == (KRONECKER if natural else None)


@pytest.mark.parametrize("name", [*SETS, "mnist_static"])
def test_these_presets_train_nrws_unless_told(name: str) -> None:
    assert compose(f"experiment={name}") == compose(f"experiment={name}", "algorithm=nrws")


def test_three_dreams_where_they_won_and_as_many_as_samples_elsewhere() -> None:
    three = {"digits", "fashion_mnist", "mnist", "mnist_static", "tfd"}
    for name in (name for name in names("experiment") if "sweep" not in name):
        short = name.removesuffix("_rws").removesuffix("_nrws")
        expected = 3 if short in three else None
        assert compose(f"experiment={name}")["algorithm"]["dreams"] == expected, name
    for name in three:
        for rule in (*PLAIN, *NATURAL):  # ws and nws have one sample, and so one dream
            dreams = compose(f"experiment={name}", f"algorithm={rule}")["algorithm"]["dreams"]
            assert dreams == (3 if rule in ("rws", "nrws") else None), (name, rule)
        exact = compose(f"experiment={name}", "natural_metric=fisher")["algorithm"]["dreams"]
        assert exact == (None if name in ("fashion_mnist", "mnist") else 3), name
    assert compose("experiment=tfd", "algorithm.dreams=null")["algorithm"]["dreams"] is None


@pytest.mark.parametrize("name", PUBLISHED)
def test_these_presets_train_rws_unless_told(name: str) -> None:
    assert compose(f"experiment={name}") == compose(f"experiment={name}", "algorithm=rws")


def test_faces() -> None:
    for options, expected in {
        ("algorithm=rws",): (0.01, 0.2, None),
        ("algorithm=nrws",): (0.3, 0.1, 30),
        ("algorithm=nrws", "natural_metric=fisher"): (0.6, 0.2, None),
    }.items():
        config = compose("experiment=tfd", *options)
        assert settings(config) == expected and config["algorithm"]["dreams"] == 3
        assert (config["trainer"]["batch_size"], config["trainer"]["epochs"]) == (128, 20)
    other = {"trainer.batch_size": 512}  # takes Fashion-MNIST's
    assert settings(compose("experiment=tfd", "algorithm=rws", **other)) == RWS[512]


def test_small_data() -> None:
    for algorithm, expected in {"rws": (0.02, 0.2, None), "nrws": (0.2, 0.05, 10)}.items():
        assert settings(compose("experiment=digits", f"algorithm={algorithm}")) == expected
    for algorithm in ("rws", "nrws"):
        toy = compose("experiment=three_by_three", f"algorithm={algorithm}")
        assert settings(toy) == (0.3, 0.05, None)


def test_mnist_to_its_end() -> None:
    for algorithm, expected in {"rws": (0.008, 0.2, None), "nrws": (0.2, 0.1, 10)}.items():
        config = compose("experiment=mnist_static", f"algorithm={algorithm}")
        assert settings(config) == expected and config["name"] == f"mnist_static_{algorithm}"
        assert config["data"]["binarize"] == "static" and config["algorithm"]["dreams"] == 3
        assert config["model"]["layers"] == [200, 200, 200] and config["trainer"]["epochs"] == 100
    for algorithm in (*PLAIN, *NATURAL):
        assert compose("experiment=mnist_static", f"algorithm={algorithm}")["optimizer"]["lr"] > 0


# What Fashion-MNIST was searched for: by batch size the rate, the damping and the trust region.
RWS = {32: (0.022, 0.2, None), 128: (0.09, 0.2, None), 512: (0.09, 0.2, None)}
NRWS = {32: (0.3, 0.1, None), 128: (0.9, 0.1, 30), 512: (1.4, 0.2, 10)}
NRWS_EXACT = {32: (0.3, 0.2, None), 128: (0.6, 0.2, None), 512: (1.4, 0.2, 10)}


def settings(config: dict[str, Any]) -> tuple[float, float, float | None]:
    return config["optimizer"]["lr"], config["damping"]["value"], config["metric"].get("max_kl")


@pytest.mark.parametrize(
    ("options", "metric", "by_batch"),
    [
        (("algorithm=rws",), None, RWS),
        (("algorithm=nrws",), KRONECKER, NRWS),
        (("algorithm=nrws", "natural_metric=fisher"), FISHER, NRWS_EXACT),
    ],
    ids=str,
)
def test_the_settings_follow_batch_algorithm_and_metric(
    options: tuple[str, ...],
    metric: str | None,
    by_batch: dict[int, tuple[float, float, float | None]],
) -> None:
    for batch, expected in {**by_batch, 64: by_batch[32]}.items():
        config = compose("experiment=fashion_mnist", *options, **{"trainer.batch_size": batch})
        assert settings(config) == expected, batch
        assert config["metric"]["_target_"] == metric
        assert config["optimizer"]["_target_"] == (SGD if metric else ADAM)
        assert config["scheduler"]["lr_lambda"]["warmup_steps"] == 20


def test_what_is_given_wins_over_the_tuned_settings() -> None:
    given = compose(
        "experiment=fashion_mnist", "algorithm=nrws", "optimizer=adam", "optimizer.lr=0.02",
        "damping.value=0.3", "metric.max_kl=2", "trainer.batch_size=128",
    )  # fmt: skip
    assert given["optimizer"]["_target_"] == ADAM and settings(given) == (0.02, 0.3, 2)
    other = compose("experiment=fashion_mnist_exact", "metric=diagonal")
    assert other["metric"]["_target_"] == "nws.natural.metrics.Diagonal"


@pytest.mark.parametrize("batch", [32, 128, 512])
@pytest.mark.parametrize(
    ("short", "options"),
    [
        ("rws", ("algorithm=rws",)),
        ("nrws", ("algorithm=nrws",)),
        ("exact", ("algorithm=nrws", "natural_metric=fisher")),
    ],
)
def test_the_short_name_is_the_same_run(short: str, options: tuple[str, ...], batch: int) -> None:
    size = {"trainer.batch_size": batch}
    assert compose(f"experiment=fashion_mnist_{short}", **size) == compose(
        "experiment=fashion_mnist", *options, **size
    )


@pytest.mark.parametrize("batch", [32, 128, 512])
@pytest.mark.parametrize(
    ("method", "algorithm", "metric", "optimizer"),
    [
        ("adam", "rws", None, ADAM),
        ("sgd", "rws", None, SGD),
        ("exact", "nrws", FISHER, SGD),
        ("kronecker", "nrws", KRONECKER, SGD),
    ],
)
def test_a_recorded_search_is_of_its_method(
    method: str, algorithm: str, metric: str | None, optimizer: str, batch: int
) -> None:
    name = f"fashion_mnist_sweep/{method}_{batch}"
    config = compose(f"experiment={name}")
    assert config["name"] == name.replace("/", "_")
    assert (config["algorithm"]["name"], config["trainer"]["batch_size"]) == (algorithm, batch)
    assert config["metric"]["_target_"] == metric
    assert config["optimizer"]["_target_"] == optimizer
    if method != "kronecker":  # which varies them
        assert config["metric"]["max_kl"] is None and config["damping"]["value"] == 0.2
        assert config["algorithm"]["dreams"] is None


@pytest.mark.parametrize("batch", [32, 128, 512])
def test_a_search_of_the_kronecker_metric_holds_what_its_preset_took(batch: int) -> None:
    text = (CONF / "experiment" / "fashion_mnist_sweep" / f"kronecker_{batch}.yaml").read_text()
    varied = yaml.safe_load(text)["hydra"]["sweeper"]["params"]
    rate, damping, max_kl = NRWS[batch]
    expected = {"optimizer.lr": rate, "damping.value": damping}
    if max_kl is not None:
        expected["metric.max_kl"] = max_kl
    assert {*varied} == {*expected}
    for key, value in expected.items():
        assert value in [float(each) for each in varied[key].split(",")], key


def test_warm_up_without_a_preset() -> None:
    for algorithm in ("rws", "nrws"):
        config = compose("scheduler=linear_warmup", f"algorithm={algorithm}")
        assert config["scheduler"]["lr_lambda"]["warmup_steps"] == 20


@pytest.mark.parametrize("name", PUBLISHED)
def test_published(name: str) -> None:
    toy = name.endswith("three_by_three")
    for algorithm in ("rws", "bihm", *NATURAL) if toy else ("rws", "nrws"):
        config = compose(f"experiment={name}", f"algorithm={algorithm}")
        assert config["name"] == f"published_{name.removeprefix('published/')}_{algorithm}"
        layers = [6, 1] if toy else [300, 200, 100, 75, 50, 35, 25, 20, 15, 10, 10]
        assert config["model"] == {
            "_target_": "nws.models.HelmholtzMachine",
            "visible": None, "layers": layers, "units": "bipolar", "weight_scale": 1.0,
            "hidden_bias": -1.0, "visible_bias": 0.0,
        }  # fmt: skip
        assert config["optimizer"] == {
            "_target_": SGD, "lr": 0.01 if toy else 0.002,
            "generator_lr": None, "recognition_lr": None,
        }  # fmt: skip
        assert config["damping"]["value"] == (0.1 if toy else 0.2)
        trainer = config["trainer"]
        assert (trainer["batch_size"], trainer["epochs"]) == (32, 100 if toy else 2000)
        assert config["metric"]["_target_"] == (FISHER if algorithm in NATURAL else None)
        assert config["metric"]["refresh_every"] == (100 if toy else 1000)
        if algorithm in ("rws", "nrws"):
            rule = {
                key: config["algorithm"][key]
                for key in ("samples", "recognition_wake", "recognition_dream")
            }
            assert rule == {"samples": 10, "recognition_wake": 0.5, "recognition_dream": 0.5}
            assert config["algorithm"]["baseline"] is True
    if name == "published/tfd":
        assert (config["data"]["size"], config["data"]["binarize"]) == (24, "none")


def test_published_settings_of_other_data() -> None:
    config = compose(
        "experiment=published/mnist", "data=fashion_mnist", "optimizer=nadam", "optimizer.lr=0.001"
    )
    assert (
        config["data"]["name"] == "fashion_mnist"
        and config["optimizer"]["_target_"] == "torch.optim.NAdam"
    )


PAIRS = [
    ("three_by_three", "nws"), ("fashion_mnist", "ws"), ("tfd", "bihm"),
    ("published/three_by_three", "nrws"), ("published/mnist", "nbihm"), ("published/tfd", "rws"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "algorithm"), PAIRS)
def test_a_preset_trains_with_an_algorithm(
    command: Command, data_root: Path, monkeypatch: pytest.MonkeyPatch, name: str, algorithm: str
) -> None:
    """Two steps each; every algorithm, of the pairs a few."""
    from nws.experiment.trainer import TrainerSettings

    monkeypatch.setattr(TrainerSettings, "steps_per_epoch", lambda self, images, kind="training": 2)
    options = (f"data.root={data_root}", *TWO_STEPS[1:], "trainer.epochs=1")
    outcome = command("train.py", f"experiment={name}", f"algorithm={algorithm}", *options)
    assert outcome.code == 0, outcome.err
    assert checkpoint(outcome.run)["step"] == 2 and len(metrics(outcome.run)) >= 1


@pytest.mark.parametrize(
    "preset", [f"{group}={name}" for group in ("experiment", "debug") for name in names(group)]
)
def test_presets_take_two_steps(
    command: Command, data_root: Path, monkeypatch: Any, preset: str
) -> None:
    from nws.experiment.trainer import TrainerSettings

    # Two steps whatever the size of the data.
    monkeypatch.setattr(TrainerSettings, "steps_per_epoch", lambda self, images, kind="training": 2)
    # A sweep becomes one job.
    once = ["hydra.mode=RUN", "hydra.sweeper.params={}"] if "sweep/" in preset else []
    outcome = command(
        "train.py", preset, f"data.root={data_root}", *TWO_STEPS[1:], "trainer.epochs=1", *once
    )
    assert outcome.code == 0, outcome.err
    assert checkpoint(outcome.run)["step"] == 2 and len(metrics(outcome.run)) >= 1
