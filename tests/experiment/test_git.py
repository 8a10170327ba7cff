"""The code of a run as git sees it: a diff that makes the tree again, and none where nothing is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nws.experiment.storage import git
from nws.experiment.storage.git import code_of_this_process, read_code


def call(folder: Path, *arguments: str, given: bytes = b"") -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, input=given, capture_output=True).stdout.decode()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit of two files."""
    folder = tmp_path / "code"
    folder.mkdir()
    call(folder, "init", "-q")
    (folder / "solver.py").write_text("a = 1\nb = 2\n")
    (folder / "notes.txt").write_text("notes\n")
    (folder / ".gitignore").write_text("/outputs/\n")
    call(folder, "add", ".")
    call(folder, "commit", "-qm", "one")
    return folder


def test_a_clean_tree_has_a_commit_and_no_diff(repository: Path) -> None:
    (repository / "outputs").mkdir()
    (repository / "outputs" / "mine.py").write_text("ignored = True\n")
    code = read_code(repository)
    assert code is not None
    assert (code.commit, code.diff) == (call(repository, "rev-parse", "HEAD").strip(), b"")


def test_the_diff_makes_the_tree_again(repository: Path, tmp_path: Path) -> None:
    """What was edited, what was staged, and new source files, one without an end of line."""
    new = {"my ideas.py": "c = 3", "folder/other.py": "d = 4\n\ne = 5\n", "empty.py": ""}
    changed = {"solver.py": "a = 10\nb = 2\n", "notes.txt": "more\n"}
    (repository / "folder").mkdir()
    for name, text in (changed | new).items():
        (repository / name).write_text(text)
    call(repository, "add", "notes.txt")
    (repository / "data.csv").write_text("no source\n")
    before = (repository / ".git" / "index").read_bytes()
    code = read_code(repository / "folder")
    assert code is not None and b"data.csv" not in code.diff
    assert (repository / ".git" / "index").read_bytes() == before
    call(tmp_path, "clone", "-q", str(repository), "again")
    call(tmp_path / "again", "apply", given=code.diff)
    for name, text in (changed | new).items():
        assert (tmp_path / "again" / name).read_text() == text, name


def test_many_new_files_are_counted(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git, "MAX_FILES", 2)
    for number in range(5):
        (repository / f"new_{number}.py").touch()
    code = read_code(repository)
    assert code is not None and code.diff.endswith(b"# and 3 new files more\n")


def test_without_git_there_is_none(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_code(tmp_path) is None
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))  # as within a hook
    assert read_code(tmp_path) is None
    assert read_code(repository) is not None  # the control
    monkeypatch.setenv("PATH", "")
    assert read_code(repository) is None


def test_an_installed_nws_takes_the_tree_of_the_working_directory(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "outputs" / "nws").mkdir(parents=True)  # as a .venv: in the tree, not of it
    (repository / "outputs" / "nws" / "__init__.py").touch()
    monkeypatch.setattr(git, "PACKAGE", repository / "outputs" / "nws")
    for here, found in ((repository, True), (tmp_path, False)):
        code_of_this_process.cache_clear()
        monkeypatch.chdir(here)
        assert (code_of_this_process() is not None) == found
    code_of_this_process.cache_clear()
