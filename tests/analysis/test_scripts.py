"""scripts/sample.py, scripts/evaluate.py: a run is all they need, bad input gets one message."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import SMALL, Command, snapshot
from PIL import Image

SAMPLE, EVALUATE = "scripts/sample.py", "scripts/evaluate.py"


@pytest.fixture
def run(train: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run on a user's file, given by a relative path; the scripts start elsewhere."""
    import numpy as np

    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "mine.npz",
        **{part: rng.integers(0, 2, (n, 4, 6), np.uint8) for part, n in SPLITS.items()},
    )
    outcome = train(
        "data=npz", "data.path=mine.npz", "trainer.batch_size=20", "hydra.run.dir=a run"
    )
    assert outcome.code == 0, outcome.err
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    yield outcome.run
    assert list(elsewhere.iterdir()) == []


SPLITS = {"train": 60, "valid": 15, "test": 12}


def test_sample(command: Command, run: Path) -> None:
    outcome = command(SAMPLE, str(run), "--count", "6", "--columns", "3", "--seed", "1")
    assert outcome.code == 0 and outcome.run == run and outcome.err == ""
    path = run / "images" / "samples_6_images_seed_1.png"
    assert str(path) in outcome.out
    first = path.read_bytes()
    with Image.open(path) as image:
        assert image.format == "PNG" and image.width > 3 * 56 and image.height > 2 * 36
        assert len(set(image.convert("L").tobytes())) > 3  # probabilities are grey
    command(SAMPLE, "../a run/", "--count", "6", "--columns", "3", "--seed", "1")
    assert path.read_bytes() == first  # a seed fixes the draws
    command(SAMPLE, str(run), "--count", "6", "--columns", "3", "--seed", "2")
    assert (run / "images" / "samples_6_images_seed_2.png").read_bytes() != first
    command(SAMPLE, str(run), "--count", "6", "--binary", "--checkpoint", "last")
    with Image.open(run / "images" / "binary_samples_6_images_last_seed_0.png") as image:
        side = 2 * (image.width // 6)  # without the caption below
        grid = image.convert("L").crop((0, 0, side, side))
        assert len(set(grid.tobytes())) == 3  # black, white, and the frame between the images
    outcome = command(SAMPLE, str(run), "--count", "2", "--output", str(run / "new" / "mine.png"))
    assert outcome.code == 0 and (run / "new" / "mine.png").is_file()


def test_evaluate(command: Command, run: Path) -> None:
    outcome = command(EVALUATE, str(run), "--samples", "50")
    assert outcome.code == 0 and outcome.run == run and outcome.err == ""
    (row,) = json.loads((run / "evaluation.json").read_text())
    assert set(row) == {
        "split", "log_likelihood", "standard_error", "ess", "samples", "data_points",
        "bits_per_dimension", "seed", "checkpoint", "batch", "device", "step", "fingerprint",
        "weights",
    }  # fmt: skip
    assert (row["split"], row["samples"], row["data_points"]) == ("test", 50, 12)
    assert (
        -60 < row["log_likelihood"] < -24 * math.log(2) / 2
        and row["standard_error"] > 0
        and 1 <= row["ess"] <= 50
    )
    assert row["bits_per_dimension"] == pytest.approx(-row["log_likelihood"] / (24 * math.log(2)))
    assert f"{row['log_likelihood']:.3f} ± {row['standard_error']:.3f}" in outcome.out

    command(
        EVALUATE, str(run), "--samples", "50", "--again"
    )  # the same figure again replaces the old one
    command(EVALUATE, str(run), "--samples", "50", "--split", "valid", "--data-points", "7")
    rows = json.loads((run / "evaluation.json").read_text())
    assert [(each["split"], each["data_points"]) for each in rows] == [
        ("test", 12),
        ("valid", 7),
    ] and rows[0] == row


def test_bad_input(command: Command, run: Path, tmp_path: Path) -> None:
    before = snapshot(run)
    cases = {
        (SAMPLE, "--count", "0"): "--count must be a whole number of at least 1, got 0",
        (SAMPLE, "--count=-5"): "--count must be a whole number of at least 1, got -5",
        (SAMPLE, "--columns", "0"): "--columns must be",
        (SAMPLE, "--seed=-1"): "--seed must be",
        (SAMPLE, "--device", "foo"): "device must be auto, cpu or cuda, got 'foo'",
        (SAMPLE, "--output", "/dev/null/image.png"): "/dev/null is a file, expected a folder there",
        (EVALUATE, "--samples", "0"): "--samples must be a whole number of at least 1, got 0",
        (EVALUATE, "--data-points", "0"): "--data-points must be",
        (
            EVALUATE,
            "--data-points=-3",
        ): "--data-points must be a whole number of at least 1, got -3",
        (EVALUATE, "--seed=-1"): "--seed must be",
        (EVALUATE, "--batch", "0"): "--batch must be",
        (EVALUATE, "--z-samples", "0"): "--z-samples must be",
        (EVALUATE, "--device", "foo"): "device must be auto, cpu or cuda, got 'foo'",
    }
    for (script, *options), expected in cases.items():
        assert expected in command(script, str(run), *options).message(), options
    for script in (SAMPLE, EVALUATE):
        assert "missing does not exist" in command(script, str(tmp_path / "missing")).message()
        assert "is not a run directory" in command(script, str(tmp_path / "elsewhere")).message()
        assert command(script).code == command(script, str(run), "--nope").code == 2
    assert not (tmp_path / "missing").exists() and snapshot(run) == before


def test_damaged_runs(command: Command, run: Path, tmp_path: Path) -> None:
    (run / "evaluation.json").write_text("[{")
    assert (
        "evaluation.json is not the list" in command(EVALUATE, str(run), "--samples", "2").message()
    )
    assert (run / "evaluation.json").read_text() == "[{"

    config = run / ".hydra" / "config.yaml"
    good = config.read_text()
    config.write_text(good.replace("- 5\n", "- 4\n"))
    for script in (SAMPLE, EVALUATE):
        message = command(script, str(run)).message()
        assert "another architecture" in message and "5" in message and "4" in message
    sections = yaml.safe_load(good)
    del sections["model"]
    config.write_text(yaml.safe_dump(sections))
    assert "the options of model are missing" in command(SAMPLE, str(run)).message()
    config.write_text("{")
    assert "cannot be read" in command(SAMPLE, str(run)).message()
    config.write_text(good)
    best = run / "checkpoints" / "best.pt"
    best.write_bytes(best.read_bytes()[:-200])
    assert "damaged" in command(SAMPLE, str(run)).message()
    assert command(SAMPLE, str(run), "--checkpoint", "last").code == 0
    best.unlink()
    assert f"expected a checkpoint at {best}" in command(EVALUATE, str(run)).message()
    (tmp_path / "mine.npz").unlink()
    assert (
        f"none at {tmp_path / 'mine.npz'}"
        in command(EVALUATE, str(run), "--checkpoint", "last").message()
    )


def test_an_unfinished_run_is_sampled(
    command: Command, train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nws.learning import WakeSleep

    original, calls = WakeSleep.step, 0

    def step(self: WakeSleep, *batches: Any) -> object:
        nonlocal calls
        calls += 1
        if calls == 7:  # between two evaluations, as another process would find it
            assert command(SAMPLE, "run", "--count", "4").code == 0
        return original(self, *batches)

    monkeypatch.setattr(WakeSleep, "step", step)
    assert command("train.py", *SMALL, "hydra.run.dir=run").code == 0
    assert Path("run/images/samples_4_images_seed_0.png").is_file()
