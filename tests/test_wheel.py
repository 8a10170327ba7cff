"""The wheel, installed into a fresh environment: it needs nothing of the repository."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import torch
from conftest import CONF, ROOT, SMALL, TWO_STEPS, Command, Interrupt, complete

import nws
from nws.experiment.invocation import PROGRAMS, SCRIPTS, command_line, start_command
from nws.experiment.storage import pretrained
from nws.programs.command import module_of


def call(*command: object, folder: Path) -> str:
    """The output of a command that succeeds, in a folder of its own, without this repository."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without a network, by the hatchling that is here."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(ROOT)], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of a fresh environment with the wheel.

    Torch and the others are those of this environment, which a .pth file adds behind the fresh one.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(str(Path(torch.__file__).parents[1]))
    return folder / "bin"


def test_the_wheel_has_what_is_no_code(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert wheel.name.startswith(f"nws-{nws.__version__}-")
    conf = {f"nws/{path.relative_to(ROOT)}" for path in CONF.rglob("*.yaml")}
    assert len(conf) > 60 and conf <= names
    assert {"nws/py.typed", "nws/analysis/page.html", "nws/analysis/page.css"} <= names
    for name in pretrained.names():
        assert f"nws/pretrained/{name}/checkpoints/best.pt" in names
        assert f"nws/pretrained/{name}/.hydra/config.yaml" in names
    assert not [name for name in names if name.startswith(("tests", "scripts", "examples", "conf"))]


def test_the_installed_command_trains_and_samples_from_any_folder(
    installed: Path, tmp_path: Path
) -> None:
    command, python = installed / "nws", installed / "python"
    where = call(python, "-c", "import nws; print(nws.__file__)", folder=tmp_path)
    assert Path(where).is_relative_to(installed.parent)
    assert call(command, "--version", folder=tmp_path) == f"nws {nws.__version__}\n"
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=sweep")
    swept = ("trainer.epochs=0.003", "seed=0,1")  # of 648 steps an epoch
    call(command, "train", "-m", *TWO_STEPS[1:], *launcher, *swept, folder=tmp_path)
    for job in "01":
        run = tmp_path / "sweep" / job
        state = torch.load(run / "checkpoints" / "last.pt", map_location="cpu", weights_only=True)
        assert state["step"] == 2
    drawn = call(command, "sample", "sweep/1", "--count", "4", folder=tmp_path)
    assert drawn.splitlines()[-1] == str(tmp_path / "sweep" / "1")
    assert (tmp_path / "sweep" / "1" / "images" / "samples_4_images_seed_0.png").is_file()


def test_the_command_s_own_words(command: Command) -> None:
    shown = command("nws", "--help").out
    assert all(f"\n  {program} " in shown for program in PROGRAMS) and shown == command("nws").out
    assert command("nws", "--version").out == f"nws {nws.__version__}\n"
    assert command("nws", "trian").message().endswith("no program trian; did you mean nws train?\n")
    assert command("nws", "plot_curve").message().endswith("; did you mean nws plot?\n")
    assert "no program xyz; the programs are train, sample, " in command("nws", "xyz").message()
    assert command("nws", "plot_curves", "--help").out.startswith("usage: nws plot ")
    assert command("nws", "sample", "--help").out.startswith("usage: nws sample ")


@pytest.mark.parametrize(
    ("started", "train", "plot"),
    [
        ("train.py", "python train.py 'a b'", "python scripts/plot_curves.py 'a b'"),
        ("./train.py", "python ./train.py 'a b'", "python ./scripts/plot_curves.py 'a b'"),
        ("scripts/sample.py", "python train.py 'a b'", "python scripts/plot_curves.py 'a b'"),
        ("/r/scripts/plot_curves.py", "python /r/train.py 'a b'", None),
        ("nws report", "nws train 'a b'", "nws plot 'a b'"),
        ("python -m nws train", "python -m nws train 'a b'", "python -m nws plot 'a b'"),
        ("/usr/bin/pytest", "nws train 'a b'", "nws plot 'a b'"),
        ("mine/sample.py", "nws train 'a b'", "nws plot 'a b'"),
    ],
)
def test_a_command_to_type_is_named_as_the_user_started(
    monkeypatch: pytest.MonkeyPatch, started: str, train: str, plot: str | None
) -> None:
    monkeypatch.setattr(sys, "argv", [started])
    assert command_line("train", "a b") == train
    assert plot is None or command_line("plot", "a b") == plot


@pytest.mark.parametrize("started", ["nws", "/somewhere/nws/__main__.py"])
def test_a_stopped_run_says_how_the_installed_command_goes_on(
    command: Command, interrupt: Interrupt, monkeypatch: pytest.MonkeyPatch, started: str
) -> None:
    name = "nws" if started == "nws" else "python -m nws"
    with monkeypatch.context():
        interrupt(3, signal.SIGTERM)
        stopped = command(started, "train", *SMALL)
    assert f"go on with\n  {name} train resume={stopped.run}\n" in stopped.out
    again = command(started, *stopped.out.splitlines()[-2].split()[len(name.split()) :])
    assert again.code == 0 and complete(stopped.run), again.err


def test_a_comparison_starts_the_programs_as_it_was_started(command: Command) -> None:
    shown = command("nws", "reproduce", "three_by_three", "--quick", "--dry-run").out
    lines = [line.split()[:2] for line in shown.splitlines()]
    programs = ["train", "evaluate", "sample", "plot", "report"]
    assert [list(each) for each in dict.fromkeys(map(tuple, lines))] == [
        ["nws", program] for program in programs
    ]
    assert start_command("sample", "RUN") == [sys.executable, "-m", "nws", "sample", "RUN"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_exists(program: str) -> None:
    module = __import__(module_of(program), fromlist=["run"])
    assert callable(module.run)
    script = ROOT / SCRIPTS[program]
    assert f'launch("{module_of(program)}")' in script.read_text()
