"""examples/natural_gradient.py: its searches, its runs, and what it writes."""

import gzip
import math
import struct
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from cases import assert_close
from conftest import Command
from sklearn.datasets import load_digits
from supervised.methods import METHODS, Run, Settings, train, updates
from supervised.search import SEARCH_SEEDS, score, search
from supervised.tasks import TASKS, falling
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from nws.errors import UserError

SINGLE = 1e-4  # differences of weights in float32, of some 1e-3


def test_a_quick_comparison_and_going_on_with_it(command: Command, tmp_path: Path) -> None:
    methods = ("sgd", "same", "covariance")
    line = ("examples/natural_gradient.py", "digits", "--quick", "--methods", ",".join(methods))
    first = command(*line)
    assert all((method.label in first.out) == (name in methods) for name, method in METHODS.items())
    assert first.out.splitlines()[-1] == "natural_gradient/digits_quick"
    folder = tmp_path / "natural_gradient" / "digits_quick"
    runs = sorted((folder / "runs").iterdir())
    assert len(runs) == first.err.count(" CPU s)") >= 3 * first.err.count("at an edge") == 9
    rows = pd.read_csv(folder / "results.csv")
    assert len(rows) == len(methods) * 3 and set(rows["seed"]) == {0}
    assert set(pd.read_csv(folder / "search.csv")["method"]) == set(methods)
    assert (folder / "digits.png").read_bytes()[1:4] == b"PNG"
    assert (folder / "results.md").read_text().count("\n") == 2 + len(methods)
    runs[0].unlink()  # as if it had been stopped there
    kept = {path: path.stat().st_mtime_ns for path in runs[1:]}
    assert command(*line).err.count(" CPU s)") == 1
    assert {path: path.stat().st_mtime_ns for path in runs[1:]} == kept
    runs[0].write_text('{"settings":')
    assert "move it away, and the run is made again" in command(*line).err
    wrong = command(*line[:-1], "sgd,newton").message()
    assert "--methods must be of sgd, " in wrong and "got newton" in wrong


def test_a_run_is_its_settings(tmp_path: Path) -> None:
    task = TASKS["digits"](tmp_path).quick()
    settings = [Settings("other", 0.1, 0.1, seed) for seed in (0, 0, 1)]
    losses = [train(task, each)["rows"][-1]["test_loss"] for each in settings]
    assert losses[0] == losses[1] != losses[2]


def test_digits_share_no_image(tmp_path: Path) -> None:
    task, official = TASKS["digits"](tmp_path), load_digits()
    parts = [task.train[0], task.unlabelled, task.valid[0], task.test[0]]
    assert [len(each) for each in parts] == [700, 597, 250, 250]
    assert torch.equal(torch.cat(parts), torch.from_numpy(official.data).float() / 16)
    labels = torch.cat([task.train[1], task.valid[1], task.test[1]])
    assert labels.tolist() == [*official.target[:700], *official.target[-500:]]


def numbers(inputs: Tensor) -> list[int]:
    """Which images these are."""
    pixels = (inputs * 255).round().long()
    return (pixels @ torch.tensor([65536, 256, 1])).tolist()


def test_images_of_fashion_mnist_have_their_own_labels(tmp_path: Path) -> None:
    """Image k has the three bytes of k as its pixels, the test images from 60,000, and the label
    k // 7 % 10.
    """
    folder = tmp_path / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    for part, span in {"train": range(60_000), "t10k": range(60_000, 70_000)}.items():
        content = struct.pack(">4I", 2051, len(span), 1, 3)
        content += b"".join(k.to_bytes(3, "big") for k in span)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(content)
        content = struct.pack(">2I", 2049, len(span)) + bytes(k // 7 % 10 for k in span)
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(content))
    task = TASKS["fashion"](tmp_path)
    starts = {0: (task.train, 10_000), 50_000: (task.valid, 5_000), 60_000: (task.test, 10_000)}
    for first, ((inputs, labels), count) in starts.items():
        assert numbers(inputs) == [*range(first, first + count)]
        assert labels.tolist() == [k // 7 % 10 for k in numbers(inputs)]
    assert task.classifies and numbers(task.unlabelled) == [*range(10_000, 20_000)]
    task = TASKS["autoencoder"](tmp_path)
    assert torch.equal(*task.train) and numbers(task.test[0]) == [*range(60_000, 65_000)]
    assert not task.classifies and numbers(task.unlabelled) == [*range(10_000, 15_000)]
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UserError, match="two files of labels"):
        TASKS["fashion"](tmp_path)


def test_faces_have_their_expressions_and_the_unlabelled_ones(data_root: Path) -> None:
    """Face k has the expression k (classes count from 0) and a grey of 30 k + 10."""
    task = TASKS["faces"](data_root)
    parts = zip((task.train, task.valid, task.test), ([1, 6], [2], [3, 4]), strict=True)
    for (inputs, labels), numbers in parts:
        assert labels.tolist() == [k - 1 for k in numbers]
        assert (inputs[:, 0] * 255).round().tolist() == [30 * k + 10 for k in numbers]
    assert (task.unlabelled[:, 0] * 255).round().tolist() == [10, 160]
    run = train(task, Settings("unlabelled", 0.1, 0.1, 0))
    assert run["rows"][-1]["train_loss"] < run["rows"][0]["train_loss"]


def test_a_convolutional_network_is_filters_and_then_units(tmp_path: Path) -> None:
    """Against its sums written out: a 13 x 13 image, then 5 x 5 places, then one."""
    task = replace(TASKS["digits"](tmp_path), sizes=(169, 4, 3), filters=(2, 3))
    model, image = task.model().double(), torch.rand(1, 169, dtype=torch.float64)
    first, second, *dense = [each for each in model if list(each.parameters())]
    maps = image.view(1, 13, 13)
    for layer in (first, second):
        patches = maps.unfold(1, 5, 2).unfold(2, 5, 2)  # (inputs, size, size, 5, 5)
        sums = torch.einsum("ixykl,oikl->oxy", patches, layer.weight) + layer.bias[:, None, None]
        maps = torch.tanh(sums)
    hidden = torch.tanh(maps.flatten() @ dense[0].weight.mT + dense[0].bias)
    assert_close(model(image)[0], hidden @ dense[1].weight.mT + dense[1].bias)
    assert [layer.weight.shape[0] for layer in (first, second, *dense)] == [2, 3, 4, 3]


@pytest.mark.parametrize("method", ["sgd", "same", "unlabelled"])
def test_the_rate_follows_the_schedule(method: str, tmp_path: Path) -> None:
    """A rate of 0 after three updates stops a network, and one that halves halves the step."""
    task, moves = TASKS["digits"](tmp_path).quick(), {}
    inputs, targets = (each[:50] for each in task.train)
    for name, factors in {"stop": [1, 1, 1, 0], "half": [1, 1, 1, 0.5], "stay": [1] * 4}.items():
        torch.manual_seed(0)
        model = task.model()
        settings = Settings(method, 0.1, None if method == "sgd" else 0.1, 0)
        schedule = replace(task, schedule=[*factors, 0].__getitem__)
        update = updates(schedule, model, settings, torch.Generator().manual_seed(0))
        for _ in range(3):
            update(inputs, targets)
        before = parameters_to_vector(model.parameters()).clone()
        update(inputs, targets)
        moves[name] = parameters_to_vector(model.parameters()) - before
    assert not moves["stop"].any() and moves["stay"].any()
    assert_close(2 * moves["half"], moves["stay"], SINGLE)
    assert [falling(step) for step in (0, 200, 220, 300)] == [1, 1, 1 / 2, 1 / 6]


def valley(settings: Settings) -> Run:
    """A run whose score is known: least at a rate of 0.11 and a damping of 0.5."""
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
    best, tried = search(valley, method)
    assert abs(math.log(best.lr / 0.11)) <= math.log(2) / 4 + 1e-3
    if best.damping is not None:
        assert abs(math.log(best.damping / 0.5)) <= math.log(3) / 2 + 1e-3
    made = {Settings(**each["settings"]) for each in tried}
    assert len(tried) == len(made) < 40 and math.isfinite(score(tried[-1]))
    assert len(search(valley, method, limit=3)[1]) < len(tried)
    single = search(valley, method, limit=1, seeds=1, start=(0.2, 0.7))[1]
    assert [each["settings"]["lr"] for each in single] == [0.2 if method == "same" else 0.05]
    if method == "same":  # it starts at 0.5, where runs diverge
        assert best.lr < 0.2 and any(math.isinf(score(each)) for each in tried)


def test_a_run_that_diverged_loses() -> None:
    rows = [{"epoch": epoch, "valid_loss": 1.0, "valid_error": 5.0} for epoch in range(3)]
    assert score({"epochs": 2, "rows": rows}) == pytest.approx(5.001)
    assert score({"epochs": 3, "rows": rows}) == math.inf
    worse = [*rows[:-1], rows[-1] | {"valid_loss": 1.1}]  # than the untrained network
    assert score({"epochs": 2, "rows": worse}) == math.inf
