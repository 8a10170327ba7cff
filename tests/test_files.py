"""Files are written whole or not at all, and only regular ones of a sane size are read."""

import os
from pathlib import Path

import pytest

from nws.errors import UserError
from nws.files import remove_temporary, write_atomically


def test_a_file_is_written_whole_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "below" / "file"
    write_atomically(file, b"first")

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"No space left.*untouched.*Make room"):
        write_atomically(file, b"second")
    assert file.read_bytes() == b"first" and list(file.parent.iterdir()) == [file]


def test_what_killed_processes_left_goes(tmp_path: Path) -> None:
    new = [".lock", ".new.pt.1.tmp", "last.pt", "my.tmp"]  # one of another process, which runs
    for name in (".last.pt.99999999.tmp", *new):
        (tmp_path / name).touch()
    remove_temporary(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == new
