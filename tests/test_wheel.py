"""The wheel, installed into a fresh environment: it needs nothing of the repository."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import torch
from conftest import CONF, ROOT, TWO_STEPS, Command

import nws
from nws.experiment.invocation import PROGRAMS, SCRIPTS, command_line


def call(*command: object, folder: Path) -> str:
    """The output of a command that succeeds, in a folder of its own, without this repository."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    line = [*map(str, command)]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_needs_nothing_of_the_repository(tmp_path: Path) -> None:
    """Built without a network by hatchling; a .pth file adds torch and others behind it."""
    pip, bin = [sys.executable, "-m", "pip"], tmp_path / "environment" / "bin"
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path]
    call(*pip, *build, ROOT, folder=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"nws/{path.relative_to(ROOT)}" for path in CONF.rglob("*.yaml")} <= names
    assert not [name for name in names if name.startswith(("tests", "scripts", "examples", "conf"))]
    venv.create(bin.parent, with_pip=False)
    call(*pip, "--python", bin / "python", "install", "--no-deps", "--no-index", wheel,
         folder=tmp_path)  # fmt: skip
    (site,) = bin.parent.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(str(Path(torch.__file__).parents[1]))

    where = call(bin / "python", "-c", "import nws; print(nws.__file__)", folder=tmp_path)
    assert Path(where).is_relative_to(bin.parent)
    assert call(bin / "nws", "--version", folder=tmp_path) == f"nws {nws.__version__}\n"
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=sweep")
    swept = ("trainer.epochs=0.003", "seed=0,1")  # of 648 steps an epoch
    call(bin / "nws", "train", "-m", *TWO_STEPS[1:], *launcher, *swept, folder=tmp_path)
    drawn = call(bin / "nws", "sample", "sweep/1", "--count", "4", folder=tmp_path)
    assert drawn.splitlines()[-1] == str(tmp_path / "sweep" / "1")
    call(bin / "nws", "sample", "pretrained/digits", "--count", "4", folder=tmp_path)
    call(bin / "nws", "report", "sweep", folder=tmp_path)


def test_the_command_s_own_words(command: Command) -> None:
    shown = command("nws", "--help").out
    assert all(f"\n  {program} " in shown for program in PROGRAMS) and shown == command("nws").out
    assert command("nws", "--version").out == f"nws {nws.__version__}\n"
    wrong = command("nws", "trian")
    assert wrong.code == 2 and "invalid choice: 'trian' (choose from" in wrong.err
    assert command("nws", "sample", "--help").out.startswith("usage: nws sample ")
    for program in PROGRAMS:
        assert f'launch("nws.programs.{program}")' in (ROOT / SCRIPTS[program]).read_text()


@pytest.mark.parametrize(("started", "train", "plot"), [
    ("train.py", "python train.py", "python scripts/plot_curves.py"),
    ("scripts/sample.py", "python train.py", "python scripts/plot_curves.py"),
    ("nws report", "nws train", "nws plot"), ("/usr/bin/pytest", "nws train", "nws plot"),
    ("python -m nws train", "python -m nws train", "python -m nws plot"),
])  # fmt: skip
def test_a_command_is_named_as_the_user_started(
    monkeypatch: pytest.MonkeyPatch, started: str, train: str, plot: str
) -> None:
    monkeypatch.setattr(sys, "argv", [started])
    names = [command_line(program, "a b") for program in ("train", "plot")]
    assert names == [f"{train} 'a b'", f"{plot} 'a b'"]
