"""The presets of conf/: what they choose, and two steps of each."""

from pathlib import Path

import pytest
from conftest import TWO_STEPS, Command, checkpoint, composed, metrics, names

from nws.experiment.build import Settings
from nws.experiment.config import flatten, to_dict

PLAIN, NATURAL = ("ws", "rws", "bihm", "vimco"), ("nws", "nrws", "nbihm", "nvimco")
EXACT, KRONECKER = "natural_metric=fisher", "natural_metric=kronecker"
#: Rate, damping, trust region (nats) and dreams that were searched: docs/results has them.
SETTINGS: dict[tuple[str, ...], tuple[float, float, float | None, int | None]] = {
    ("digits", "algorithm=rws"): (0.02, 0.2, None, 3),
    ("digits",): (0.1, 0.05, None, 3), ("digits", KRONECKER): (0.2, 0.05, 10, 3),
    ("three_by_three",): (0.3, 0.05, None, None),
    ("tfd",): (0.1, 0.1, None, 3), ("tfd", EXACT): (0.6, 0.2, None, 3),
    ("mnist_static", KRONECKER): (0.2, 0.1, 10, 3),
    ("fashion_mnist", "algorithm=rws"): (0.022, 0.2, None, 3),
    ("fashion_mnist", "algorithm=rws", "trainer.batch_size=512"): (0.09, 0.2, None, 3),
    ("fashion_mnist", "trainer.batch_size=16"): (0.25, 0.8, None, 3),  # as 32
    ("fashion_mnist", "trainer.batch_size=64"): (0.354, 0.8, None, 3),  # (0.25 * 0.5)^(1/2)
    ("fashion_mnist", KRONECKER, "trainer.batch_size=256"): (1.12, 0.141, 10, 3),
    ("fashion_mnist", KRONECKER, "trainer.batch_size=4096"): (1.4, 0.2, 10, 3),
    ("fashion_mnist", "trainer.batch_size=512"): (0.8, 0.8, None, 3),
    ("fashion_mnist", KRONECKER, "trainer.batch_size=512"): (1.4, 0.2, 10, 3),
    ("fashion_mnist", EXACT, "trainer.batch_size=512"): (1.4, 0.2, 10, None),
    ("fashion_mnist_exact", "trainer.batch_size=512"): (1.4, 0.2, 10, None),
    ("fashion_mnist", "optimizer.lr=2", "damping.value=4", "metric.max_kl=7"): (2, 4, 7, 3),
    ("benchmark/sbn",): (0.07, 0.1, None, 3), ("published/mnist",): (0.002, 0.2, None, None),
    ("published/tfd",): (0.002, 0.2, None, None),
    ("published/fashion_mnist",): (0.002, 0.2, None, None),
    ("published/three_by_three",): (0.01, 0.1, None, None),
}  # fmt: skip


@pytest.mark.parametrize("options", SETTINGS, ids=" ".join)
def test_a_preset_has_the_settings_that_were_searched(options: tuple[str, ...]) -> None:
    found = flatten(to_dict(composed(f"experiment={options[0]}", *options[1:])))
    keys = ("optimizer.lr", "damping.value", "metric.max_kl", "algorithm.dreams")
    assert tuple(found.get(key) for key in keys) == SETTINGS[options]
    five = options[0] == "fashion_mnist" and not {"algorithm=rws", KRONECKER, EXACT} & {*options}
    assert (found.get("scheduler.lr_lambda.warmup_steps") == 5) == five
    if options[0].startswith("published/"):  # whose inverses are old
        assert found["solver._target_"].endswith(".Woodbury")
    if options[0] in ("mnist_static", "benchmark/sbn"):
        assert (found["model.layers"], found["data.binarize"]) == ([200] * 3, "static")


PRESETS = [(f"experiment={name}",) for name in names("experiment")] + [("debug=short",)]
PRESETS += [
    (f"experiment={name}", f"algorithm={algorithm}")
    for name, algorithm in zip(
        ("three_by_three", "digits", "tfd", "fashion_mnist", "mnist_static", "published/mnist",
         "published/three_by_three", "published/tfd"),
        (*PLAIN, *NATURAL), strict=True,
    )
]  # fmt: skip


@pytest.mark.parametrize("options", PRESETS, ids=" ".join)
def test_a_preset_takes_two_steps(
    command: Command, data_root: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    """Every preset, and every algorithm with one of them."""
    monkeypatch.setattr(Settings, "total_steps", lambda self, images: 2)
    once = ("hydra.mode=RUN", "hydra.sweeper.params={}") if "sweep/" in options[0] else ()
    if composed(*options).data.name == "binarized_mnist":
        once = ("data=mnist",)  # files of one's own have not the sums of binarised MNIST
    rest = (f"data.root={data_root}", "trainer.evaluate_every=1000", *TWO_STEPS[1:], *once)
    outcome = command("train.py", *options, *rest)
    assert outcome.code == 0, outcome.err
    assert checkpoint(outcome.run)["step"] == 2 and len(metrics(outcome.run)) == 1
