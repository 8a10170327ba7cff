"""`nws.load_run`, and the machines that come with nws."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import SMALL, Command, checkpoint, snapshot

import nws
from nws.data import Dataset
from nws.errors import UserError
from nws.experiment.storage import pretrained
from nws.experiment.run import RunDirectory, open_run
from nws.experiment.trained import loading

CPU = torch.device("cpu")


def no_data(*_: object) -> Dataset:
    raise AssertionError("the data were read")


def test_a_run_is_loaded_and_its_data_only_when_they_are_asked_for(
    train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = train().run
    with monkeypatch.context() as patch:
        patch.setattr(loading, "build_data", no_data)
        run = nws.load_run(str(path), "last", device="cpu")
        assert isinstance(run, nws.LoadedRun) and run.state["step"] == 12
        assert run.config.trainer.batch_size == 200 and run.directory.path == path
        found, saved = run.machine.state_dict(), checkpoint(path)["machine"]
        assert all(found[name].equal(saved[name]) for name in found)
        with pytest.raises(AssertionError, match="the data were read"):
            _ = run.data
    assert run.data is run.data and run.data.name == "digits" and run.shape == (8, 8)
    assert run.device == run.data.train.bytes.device == CPU


def test_mistakes(train: Command, tmp_path: Path) -> None:
    path = train("trainer.epochs=1").run
    for options, message in {
        ("first",): "checkpoint must be best or last, got 'first'",
        ("best", "mean"): "weights must be plain or average, got 'mean'",
        ("best", "average"): "has no averaged weights; a run has them with average=exponential",
        ("best", "plain", "gpu"): "device must be auto, cpu or cuda, got 'gpu'",
    }.items():
        with pytest.raises(UserError, match=message):
            nws.load_run(path, *options)
    config = path / ".hydra" / "config.yaml"
    config.write_text(config.read_text().replace("load_digits", "load_three_by_three"))
    with pytest.raises(UserError, match="64 visible units, and the images of digits have 9 pixels"):
        _ = nws.load_run(path).data
    with pytest.raises(AttributeError, match="module 'nws' has no attribute 'nope'"):
        _ = nws.nope


# --- machines that come with nws ------------------------------------------------------------------


@pytest.mark.parametrize("name", pretrained.names())
def test_a_machine_that_comes_with_nws_is_small_and_of_no_machine(name: str) -> None:
    folder = pretrained.FOLDER / name
    assert sum(map(len, snapshot(folder).values())) < 2_000_000
    assert set(snapshot(folder)) == {
        ".hydra/choices.yaml", ".hydra/config.yaml", "checkpoints/best.pt"
    }  # fmt: skip
    config = (folder / ".hydra" / "config.yaml").read_text()
    assert "root: ${oc.env:NWS_DATA_ROOT,data}" in config and ": /" not in config
    readme = (pretrained.FOLDER / "README.md").read_text()
    assert f"\n| `{name}` | " in readme


def test_the_digits_are_as_good_as_they_are_said_to_be(tmp_path: Path) -> None:
    run = nws.load_run(tmp_path / "pretrained" / "digits", device="cpu")
    rng = torch.Generator().manual_seed(0)
    found = nws.log_likelihood(run.machine, run.data.valid.batch(), 50, rng)
    # The draws alone make less than 0.05 nats: 0.2 is 4 standard errors of these.
    assert abs(found.mean - -23.12) < 0.2, found
    assert run.data.name == "digits" and run.config.algorithm.name == "nrws"


def test_the_first_minute(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture without data, in the working directory; the second time nothing is copied."""
    with monkeypatch.context() as patch:
        patch.setattr(loading, "build_data", no_data)
        drawn = command("nws", "sample", "pretrained/digits")
    folder = tmp_path / "pretrained" / "digits"
    assert drawn.code == 0 and drawn.run == folder, drawn.err
    assert "comes with nws, to pretrained/digits\n" in drawn.out
    assert (folder / "images" / "samples_seed_0.png").is_file()
    again = command("nws", "sample", "pretrained/digits", "reconstruct")
    assert again.code == 0 and "copied" not in again.out, again.err
    evaluated = command("nws", "evaluate", "pretrained/digits", "--samples", "2")
    assert evaluated.code == 0 and (folder / "evaluation.json").is_file(), evaluated.err
    assert "images" not in [path.name for path in (pretrained.FOLDER / "digits").iterdir()]


def test_other_folders_named_pretrained(command: Command, tmp_path: Path) -> None:
    message = command("nws", "sample", "pretrained/nope").message()
    assert f"{tmp_path}/pretrained/nope does not exist; the machines that come" in message
    assert "pretrained/digits" in message and not (tmp_path / "pretrained").exists()
    own = tmp_path / "pretrained" / "mine"
    assert command("train.py", *SMALL, "trainer.epochs=1", f"hydra.run.dir={own}").code == 0
    assert open_run(own)[0].path == own
    (tmp_path / "pretrained" / "digits").write_text("a file of the user's")
    with pytest.raises(UserError, match="does not exist"):
        open_run(tmp_path / "pretrained" / "digits")
    assert isinstance(RunDirectory(own), RunDirectory)
