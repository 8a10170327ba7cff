"""Checkpoints and the files under them: whole or not at all, and nothing but tensors and plain
values.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nws.errors import UserError
from nws.experiment.checkpoints import load_checkpoint, load_parameters, save_checkpoint
from nws.files import write_atomically


def test_round_trip(tmp_path: Path) -> None:
    state = {
        "machine": {"w": torch.arange(3.0)},
        "step": 3,
        "best": -1.5,
        "rng": torch.Generator().get_state(),
    }
    path = tmp_path / "new" / "last.pt"
    save_checkpoint(path, state)
    loaded = load_checkpoint(path)
    assert loaded["step"] == 3 and loaded["best"] == -1.5
    assert torch.equal(loaded["machine"]["w"], state["machine"]["w"]) and torch.equal(
        loaded["rng"], state["rng"]
    )
    assert [file.name for file in path.parent.iterdir()] == ["last.pt"]


class Harmful:
    ran = False

    def __reduce__(self) -> Any:
        return setattr, (Harmful, "ran", True)


def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    torch.save({"machine": Harmful()}, path)
    with pytest.raises(UserError, match=r"last\.pt is not a checkpoint of nws or is damaged"):
        load_checkpoint(path)
    assert not Harmful.ran
    pickle.loads(pickle.dumps(Harmful()))
    assert Harmful.ran  # the control: it would have


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"not a checkpoint", bytes(1000)])
def test_damaged_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "last.pt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"last\.pt is not a checkpoint of nws"):
        load_checkpoint(path)


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"machine": {"w": torch.zeros(100)}})
    content = path.read_bytes()
    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        with pytest.raises(UserError):
            load_checkpoint(path)


def test_another_architecture_is_named() -> None:
    module, path = nn.Linear(3, 2), Path("last.pt")
    before = module.weight.clone()
    with pytest.raises(
        UserError,
        match=r"last\.pt is of another architecture: weight is \(2, 4\) there and \(2, 3\)",
    ):
        load_parameters(module, nn.Linear(4, 2).state_dict(), path)
    with pytest.raises(UserError, match=r"bias is missing there and \(2,\)"):
        load_parameters(module, nn.Linear(3, 2, bias=False).state_dict(), path)
    with pytest.raises(UserError, match=r"more is \(1,\) there and missing"):
        load_parameters(module, {**module.state_dict(), "more": torch.zeros(1)}, path)
    assert torch.equal(module.weight, before)


@pytest.mark.parametrize("broken", ["write", "replace", "fsync"])
def test_a_failed_write_leaves_the_good_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"good")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if broken == "write":
        monkeypatch.setattr("builtins.open", fail)
    else:
        monkeypatch.setattr(os, broken, fail)
    with pytest.raises(
        UserError, match=r"could not write .*file \(3 bytes\): No space left .* untouched"
    ):
        write_atomically(path, b"new")
    with pytest.raises(UserError, match="nothing was left in its place"):
        write_atomically(tmp_path / "other", b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"good" and [each.name for each in tmp_path.iterdir()] == ["file"]
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_path_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"good")
    with pytest.raises(UserError, match="could not write"):
        write_atomically(tmp_path / "file" / "below", b"new")
    assert (tmp_path / "file").read_bytes() == b"good"
