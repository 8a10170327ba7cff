"""scripts/natural_gradient.py: its searches, its runs, and what it writes."""

from __future__ import annotations

import csv
import gzip
import json
import math
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nws.analysis.supervised.methods import METHODS, Settings, train
from nws.analysis.supervised.search import SEARCH_SEEDS, score, search
from nws.analysis.supervised.tasks import load_task
from nws.data.embedded import digits_labels
from nws.data.mnist import fashion_mnist_labels
from nws.errors import UserError

Script = Callable[..., None]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Script:
    """The program with its results in a folder of the test."""
    from nws.programs import natural_gradient as module

    def run(*given: str) -> None:
        line = ["natural_gradient.py", *given, "--output", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", line)
        module.main()

    return run


def test_a_quick_comparison_and_going_on_with_it(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("digits", "--quick", "--methods", "sgd,same,covariance")
    script(*given)
    first = capsys.readouterr()
    methods = ("sgd", "same", "covariance")
    assert all((method.label in first.out) == (name in methods) for name, method in METHODS.items())
    folder = tmp_path / "digits_quick"
    runs = sorted((folder / "runs").iterdir())
    assert len(runs) == len(first.err.splitlines()) >= 3 * len(methods)
    rows = list(csv.DictReader((folder / "results.csv").open()))
    assert len(rows) == len(methods) * 3 and {row["seed"] for row in rows} == {"0"}
    content = json.loads((folder / "results.json").read_text())
    assert set(content["searches"]) == set(methods)
    assert (folder / "digits.png").read_bytes()[1:4] == b"PNG"
    runs[0].unlink()  # as if it had been stopped there
    kept = {path: path.stat().st_mtime_ns for path in runs[1:]}
    script(*given)
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert {path: path.stat().st_mtime_ns for path in runs[1:]} == kept


def test_wrong_methods_are_refused(script: Script) -> None:
    with pytest.raises(UserError, match="--methods must be of sgd, .*; got newton"):
        script("digits", "--methods", "sgd,newton")


def test_a_run_is_its_settings(tmp_path: Path) -> None:
    task = load_task("digits", tmp_path, quick=True)
    runs = [train(task, Settings("other", 0.1, 0.1, seed))["rows"][-1] for seed in (0, 0, 1)]
    losses = [each["test_loss"] for each in runs]
    assert losses[0] == losses[1] != losses[2]


def test_parts_share_no_image(tmp_path: Path) -> None:
    task = load_task("digits", tmp_path)
    parts = [task.train[0], task.unlabelled, task.valid[0], task.test[0]]
    assert sum(map(len, parts)) == len(digits_labels()) == 1797
    assert [len(each) for each in parts] == [700, 597, 250, 250]
    from sklearn.datasets import load_digits as official

    both = official()
    assert torch.equal(torch.cat(parts), torch.from_numpy(both.data).float() / 16)
    labels = torch.cat([task.train[1], task.valid[1], task.test[1]])
    assert labels.tolist() == [*both.target[:700], *both.target[-500:]]


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of Fashion-MNIST's size whose images are their numbers, the test images from 60,000.

    Image k has the three bytes of k as its pixels, and the label k // 7 % 10.
    """
    root = tmp_path_factory.mktemp("numbered")
    folder = root / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    for part, numbers in {"train": range(60_000), "t10k": range(60_000, 70_000)}.items():
        pixels = b"".join(k.to_bytes(3, "big") for k in numbers)
        content = struct.pack(">4I", 2051, len(numbers), 1, 3) + pixels
        (folder / f"{part}-images-idx3-ubyte").write_bytes(content)
        content = struct.pack(">2I", 2049, len(numbers)) + bytes(k // 7 % 10 for k in numbers)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(content)
    return root


def numbers(inputs: Tensor) -> list[int]:
    """Which images these are."""
    pixels = (inputs * 255).round().long()
    return (pixels @ torch.tensor([65536, 256, 1])).tolist()


def test_images_of_fashion_mnist_have_their_own_labels(numbered: Path) -> None:
    task = load_task("fashion", numbered)
    assert task.classifies
    for part, first, count in (
        (task.train, 0, 10_000), (task.valid, 50_000, 5_000), (task.test, 60_000, 10_000),
    ):  # fmt: skip
        inputs, labels = part
        assert numbers(inputs) == [*range(first, first + count)]
        assert labels.tolist() == [k // 7 % 10 for k in numbers(inputs)]
    assert numbers(task.unlabelled) == [*range(10_000, 20_000)]


def test_the_autoencoder_is_to_give_its_inputs(numbered: Path) -> None:
    task = load_task("autoencoder", numbered)
    assert not task.classifies
    for part, first in ((task.train, 0), (task.valid, 50_000), (task.test, 60_000)):
        inputs, targets = part
        assert torch.equal(inputs, targets) and numbers(inputs) == [*range(first, first + 5_000)]
    assert numbers(task.unlabelled) == [*range(10_000, 15_000)]


class Valley:
    """Runs whose score is known: least at a rate of 0.11 and a damping of 0.5."""

    def __init__(self) -> None:
        self.made: list[Settings] = []

    def get(self, settings: Settings) -> dict[str, Any]:
        self.made.append(settings)
        if settings.lr > 0.3 and settings.seed > SEARCH_SEEDS[0]:  # a rate that diverges at times
            return {"settings": vars(settings), "epochs": 3, "rows": [{"epoch": 0}]}
        value = math.log(settings.lr / 0.11) ** 2
        if settings.damping is not None:
            value += math.log(settings.damping / 0.5) ** 2
        rows = [{"epoch": epoch, "valid_loss": value} for epoch in range(4)]
        return {"settings": vars(settings), "epochs": 3, "rows": rows}


@pytest.mark.parametrize("method", ["sgd", "same"])
def test_a_search_comes_to_the_valley(method: str) -> None:
    """Within the finest factors of the best: the fourth root of 2, the square root of 3."""
    runs = Valley()
    best, tried = search(runs, method)  # type: ignore[arg-type]
    assert abs(math.log(best.lr / 0.11)) <= math.log(2) / 4 + 1e-3
    if best.damping is not None:
        assert abs(math.log(best.damping / 0.5)) <= math.log(3) / 2 + 1e-3
    assert len(tried) == len(runs.made) == len(set(runs.made)) < 40
    assert len(search(Valley(), method, limit=3)[1]) < len(tried)  # type: ignore[arg-type]


def test_a_rate_that_diverges_at_times_is_not_taken() -> None:
    runs = Valley()
    best, tried = search(runs, "same")  # type: ignore[arg-type]
    diverged = [each for each in tried if score(each) == math.inf]
    assert best.lr < 0.3 and METHODS["same"].lr > 0.3 and diverged


def test_a_run_that_diverged_loses() -> None:
    rows = [{"epoch": epoch, "valid_loss": 1.0, "valid_error": 5.0} for epoch in range(3)]
    assert score({"epochs": 2, "rows": rows}) == pytest.approx(5.001)
    assert score({"epochs": 3, "rows": rows}) == math.inf
    worse = [*rows[:-1], rows[-1] | {"valid_loss": 1.1}]  # than the untrained network
    assert score({"epochs": 2, "rows": worse}) == math.inf


def test_a_search_whose_start_diverges_looks_for_a_calmer_one() -> None:
    class Steep(Valley):
        def get(self, settings: Settings) -> dict[str, Any]:
            run = super().get(settings)
            return run if settings.lr < 0.2 else {**run, "rows": run["rows"][:1]}

    best, tried = search(Steep(), "same")  # type: ignore[arg-type]
    assert METHODS["same"].lr > 0.2 > best.lr
    assert score(tried[0]) == math.inf and math.isfinite(score(tried[-1]))


def test_labels_are_read_and_damage_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchvision.datasets.FashionMNIST.mirrors", [])  # never the network
    folder = tmp_path / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    with pytest.raises(UserError, match="expected train-labels-idx1-ubyte"):
        fashion_mnist_labels(tmp_path)
    content = (2049).to_bytes(4, "big") + (3).to_bytes(4, "big") + bytes([7, 0, 9])
    (folder / "train-labels-idx1-ubyte").write_bytes(content)
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(content))
    train_labels, test_labels = fashion_mnist_labels(tmp_path)
    assert train_labels.tolist() == test_labels.tolist() == [7, 0, 9]
    for damaged in (gzip.compress(content)[:-9], gzip.compress(content[:-1])):
        (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(damaged)
        with pytest.raises(UserError, match="replace it by a good copy"):
            fashion_mnist_labels(tmp_path)
