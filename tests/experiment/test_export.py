"""`nws export`: a small copy of a run that samples and is evaluated as the run itself."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Command, checkpoint, snapshot

import nws
from nws.data import Dataset
from nws.errors import UserError
from nws.experiment.trained import loading
from nws.experiment.trained.export import export_run


def no_data(*_: object) -> Dataset:
    raise AssertionError("the data were read")


def test_a_copy_is_the_run_in_half_precision(
    train: Command, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = train("average=exponential").run
    before = snapshot(path)
    made = command("scripts/export.py", str(path), "small")
    copy = tmp_path / "small"
    assert made.code == 0 and made.run == copy, made.err
    likelihoods = re.search(r"log-likelihood (-[\d.]+) nats before, (-[\d.]+) after", made.out)
    assert likelihoods is not None
    assert abs(float(likelihoods[1]) - float(likelihoods[2])) < 0.02
    assert before == snapshot(path), "the run stays as it is"
    assert set(snapshot(copy)) == {
        ".hydra/choices.yaml", ".hydra/config.yaml", "checkpoints/best.pt"
    }  # fmt: skip
    assert "root: ${oc.env:NWS_DATA_ROOT,data}" in (copy / ".hydra" / "config.yaml").read_text()
    kept, whole = checkpoint(copy, "best.pt"), checkpoint(path, "best.pt")
    assert set(kept) == {"version", "machine", "shape", "step", "total_steps", "best"}
    for name, parameter in kept["machine"].items():
        # float16 has 11 bits: half a step is 2^-11 of the value
        assert parameter.dtype == torch.float16
        assert parameter.float().allclose(whole["machine"][name], rtol=2**-11, atol=1e-7)
    with monkeypatch.context() as patch:
        patch.setattr(loading, "build_data", no_data)
        assert command("scripts/sample.py", "small", "--count", "4").code == 0
    asked = ("--samples", "3", "--data-points", "20")
    assert command("scripts/evaluate.py", "small", *asked).code == 0
    assert "expected a checkpoint" in command("train.py", "resume=small").message()

    again = command("scripts/export.py", str(path), "small")
    assert "small is there already, nothing was changed" in again.message()
    averaged = command("scripts/export.py", str(path), "mean", "--weights", "average")
    assert averaged.code == 0
    other = checkpoint(tmp_path / "mean", "best.pt")["machine"]
    assert any(not each.equal(kept["machine"][name]) for name, each in other.items())


def test_what_half_precision_cannot_hold_is_refused(train: Command, tmp_path: Path) -> None:
    run = nws.load_run(train("trainer.epochs=1").run)
    with torch.no_grad():
        next(run.machine.parameters())[0, 0] = 1e6
    with pytest.raises(UserError, match="a parameter is not finite in half precision"):
        export_run(run, tmp_path / "small")
    assert not (tmp_path / "small").exists()


def test_machines_that_come_with_nws_have_the_best_checkpoint_alone(command: Command) -> None:
    last = command("nws", "sample", "pretrained/digits", "--checkpoint", "last").message()
    assert "last.pt, found none; best.pt beside it is good" in last
    assert "give --checkpoint best" in last and "the run has saved none yet" not in last
    resumed = command("nws", "train", "resume=pretrained/digits").message()
    assert "copies by nws export have none" in resumed and "logger" not in resumed


def test_of_ones_own_images_the_file_name_stays(
    train: Command, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "deep").mkdir()
    rng = np.random.default_rng(0)
    np.save(tmp_path / "deep" / "mine.npy", rng.integers(0, 256, (300, 4, 4), dtype=np.uint8))
    run = train("data=npz", "data.path=deep/mine.npy", "trainer.batch_size=50").run
    assert command("nws", "export", str(run), "small").code == 0
    text = (tmp_path / "small" / ".hydra" / "config.yaml").read_text()
    assert "path: mine.npy\n" in text and str(tmp_path) not in text
    assert command("nws", "sample", "small", "--count", "4").code == 0
    (tmp_path / "deep" / "mine.npy").rename(tmp_path / "mine.npy")
    asked = ("--samples", "3", "--data-points", "10")
    assert command("nws", "evaluate", "small", *asked).code == 0
