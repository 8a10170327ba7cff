"""Flags of the command line: anywhere among the options, and `--config-dir` with all of them."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path

import pytest
from conftest import CONF, SMALL, Command, Interrupt, assert_same_run, complete, only

from nws import distributed
from nws.experiment.launch.arguments import agree_on_arguments
from nws.experiment.options.flags import quote, resume_of, split

OWN = ("algorithm=nrws", "metric=my_metric")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for --config-dir: a metric that conf/ does not have."""
    found = tmp_path / "my conf, mine"
    (found / "metric").mkdir(parents=True)
    text = (CONF / "metric" / "diagonal.yaml").read_text()
    (found / "metric" / "my_metric.yaml").write_text(text)
    return found


def printed(out: str) -> list[str]:
    """The command that a stopped run prints, without `python train.py`."""
    return shlex.split(out.partition("go on with\n")[2].splitlines()[0])[2:]


def test_a_run_with_choices_of_one_s_own_goes_on_as_it_says(
    command: Command, folder: Path, interrupt: Interrupt, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = command("train.py", "--config-dir", str(folder), *SMALL, *OWN)
    assert complete(whole.run), whole.err
    with monkeypatch.context():
        interrupt(8, signal.SIGTERM)
        stopped = command("train.py", *SMALL, "-cd", str(folder), *OWN, "hydra.run.dir=stopped")
    resumed = command("train.py", *printed(stopped.out))
    assert resumed.code == 0 and resumed.run == stopped.run, resumed.err
    assert_same_run(resumed.run, whole.run)
    more = ("metric.max_rows=100", "trainer.epochs=2.2")
    for flag in ([f"--config-dir={folder}", "X"], ["X", f"--config-dir={folder}"]):
        words = [f"resume={stopped.run}" if word == "X" else word for word in flag]
        again = command("train.py", *words, *more)
        assert again.code == 0 and again.run == stopped.run, again.err


def test_resume_auto_finds_a_run_with_choices_of_one_s_own(
    command: Command, folder: Path, interrupt: Interrupt, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--config-dir", str(folder), *SMALL, *OWN)
    with monkeypatch.context():
        interrupt(8, signal.SIGTERM)
        stopped = command("train.py", *arguments)
    again = command("train.py", *arguments, "resume=auto")
    assert f"resume=auto: going on with {stopped.run.relative_to(Path.cwd())}" in again.out
    assert again.run == stopped.run and complete(again.run), again.err


@pytest.mark.parametrize("auto", ["++resume=auto", "resume='auto'", 'resume="auto"'])
def test_however_auto_is_written_the_run_goes_on(
    command: Command, interrupt: Interrupt, monkeypatch: pytest.MonkeyPatch, auto: str
) -> None:
    with monkeypatch.context():
        interrupt(8, signal.SIGTERM)
        stopped = command("train.py", *SMALL)
    again = command("train.py", *SMALL, auto)
    assert again.run == stopped.run and complete(again.run), again.err


def test_a_sweep_takes_its_flags_anywhere_and_goes_on_as_it_says(
    command: Command, folder: Path, interrupt: Interrupt, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (*SMALL, *OWN, "-m", "seed=0,1", "--config-dir", str(folder), "name=mine")
    with monkeypatch.context():
        interrupt(14, signal.SIGTERM)
        stopped = command("train.py", *arguments)
    assert stopped.code == 128 + signal.SIGTERM, stopped.err
    resumed = command("train.py", *printed(stopped.out))
    assert resumed.code == 0, resumed.err
    directory = only(Path("multirun/mine"))
    assert complete(directory / "0") and complete(directory / "1")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process that takes itself for the first of two."""
    monkeypatch.setattr(distributed, "start", lambda: None)
    monkeypatch.setattr(distributed, "size", lambda: 2)
    monkeypatch.setattr(distributed, "send", lambda value: value)


def test_processes_of_a_run_with_flags_share_its_directory(folder: Path, alone: None) -> None:
    given = [*OWN, "--config-dir", str(folder), "logger=none"]
    words = agree_on_arguments(given, CONF)
    assert words[0] == f"--config-dir={folder}" and words[-1].startswith("hydra.run.dir='outputs/")


WRONG = {
    ("--seed", "1"): "there is no flag --seed; options have no dashes, as in seed=VALUE",
    ("--seed=1",): "there is no flag --seed; options have no dashes, as in seed=1",
    ("--multrun", "seed=0,1"): "there is no flag --multrun; did you mean --multirun?",
    ("--config-dir",): "--config-dir takes a folder behind it, found nothing",
    ("-cd", "nope"): "--config-dir must be a folder with groups like those of conf/, found none at",
    ("-m", "--cfg", "job", "seed=0,1"): "--multirun does not go with --cfg; leave one of the two",
    ("--cfg", "seed=1"): "--cfg takes job, hydra or all behind it, got seed=1",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_a_wrong_flag_is_one_message(
    command: Command, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    assert WRONG[arguments] in command("train.py", *arguments).message()
    assert list(tmp_path.iterdir()) == []


def test_flags_are_told_from_options() -> None:
    found = split(["seed=1", "--info", "-cd=.", "defaults", "a", "--package", "b"])
    assert found.overrides == ["seed=1", "a"]
    flags = ["--info=defaults", "--config-dir=.", "--package=b"]
    assert found.words == [*flags, "seed=1", "a"]
    assert split(["--info", "seed=1"]).words == ["--info=all", "seed=1"]
    assert not found.trains and split(["-m"]).trains and split(["a", "-m"]).multirun


def test_the_value_of_resume_is_read_as_hydra_reads_it() -> None:
    read = {
        "resume=auto": "auto", "++resume=auto": "auto", "resume='auto'": "auto",
        "resume=null": None, "resume=": None, "~resume": None, "+resume=a/b": "a/b",
        "resume=2026": "2026", "resume=a(b": "a(b", "resume=a,b": "a,b",
        f"resume={quote('/it' + chr(39) + 's [1]')}": "/it's [1]",
    }  # fmt: skip
    for text, expected in read.items():
        assert resume_of(["seed=1", text]) == expected, text
    assert resume_of(["resumed=1"]) is None
