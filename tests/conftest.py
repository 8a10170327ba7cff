"""The command line as a user meets it, without a new process for each case, and what to compare
runs by.
"""

import csv
import itertools
import logging
import os
import re
import runpy
import shutil
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

# the mark cuda; fixtures of faults, and of runs that tests write themselves
pytest_plugins = ["simulated_cuda", "faults.trial", "written"]

ROOT = Path(__file__).parent.parent
CONF = ROOT / "conf"

# These models are tiny, so threads would only wait for each other; processes that a test starts do
# as this one does.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)

# Six steps an epoch, an evaluation each epoch, two epochs.
SMALL = (
    "model.layers=[5,3]", "trainer.batch_size=200", "trainer.epochs=2", "logger=none",
    "trainer.evaluate_every=1", "callbacks.images.every=100",
    "trainer.evaluation_samples=5", "trainer.evaluation_points=20",
)  # fmt: skip
TWO_STEPS = (
    "trainer.epochs=1e-6", "trainer.batch_size=2", "trainer.evaluation_samples=2",
    "trainer.evaluation_points=4", "logger=none", "device=cpu",
)  # fmt: skip
#: Of the run `finished`.
FINISHED = ("algorithm=nrws", "optimizer=adam", "average=exponential", "device=cpu")


def pytest_addoption(parser: pytest.Parser) -> None:
    words = "tests/faults: all of it, with a fresh seed"
    parser.addoption("--faults-long", action="store_true", help=words)


def names(group: str) -> list[str]:
    """The choices of a group, those in its folders too: fashion_mnist_sweep/exact."""
    folder = CONF / group
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml"))


def composed(*overrides: str) -> DictConfig:
    """The configuration with overrides, as Hydra composes it."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", list(overrides))


@dataclass(frozen=True)
class Outcome:
    """What a command left: exit status, output, and the run directory that it named last."""

    code: int
    out: str
    err: str

    @property
    def run(self) -> Path:
        return Path(self.out.splitlines()[-1])

    @property
    def warnings(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("WARNING")]

    def message(self) -> str:
        """The error, after checking that it is one message for a person."""
        assert self.code == 1, (self.code, self.out, self.err)
        assert "Traceback" not in self.err and "Traceback" not in self.out
        assert self.err.startswith("error: ") and self.err.count("error: ") == 1
        return self.err


Command = Callable[..., Outcome]
Interrupt = Callable[..., None]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """command("train.py", "seed=1", ...) as from a shell in tmp_path, run in this process.

    command("nws", "train", "seed=1", ...) is the installed command.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path.parent))  # for tracebacks
    monkeypatch.setenv("WANDB_MODE", "offline")  # never the network, whatever is asked for
    monkeypatch.delenv("NWS_DATA_ROOT", raising=False)  # a test names its own
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: True)  # on every CPU
    before = logging.getLogger().handlers[:]

    def run(script: str, *arguments: str) -> Outcome:
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        GlobalHydra.instance().clear()
        capfd.readouterr()
        installed = Path(script).parts[-2:] in (("nws",), ("nws", "__main__.py"))
        monkeypatch.setattr(sys, "argv", [script if installed else str(ROOT / script), *arguments])
        code: Any = 0
        try:
            if installed:
                runpy.run_module("nws", run_name="__main__")
            else:
                runpy.run_path(str(ROOT / script), run_name="__main__")
        except SystemExit as stop:
            code = stop.code
        captured = capfd.readouterr()
        for number, handler in handlers.items():  # SIGTERM ends a program as Ctrl-C does
            left = signal.signal(number, handler)
            assert left in (handler, signal.default_int_handler), "a handler was left behind"
        return Outcome(code or 0, captured.out, captured.err)

    yield run
    GlobalHydra.instance().clear()
    logs = (logging.FileHandler, MemoryHandler)
    left = [each for each in logging.getLogger().handlers if each not in before]
    assert not [each for each in left if isinstance(each, logs)], "a run's log"


@pytest.fixture
def train(command: Command) -> Command:
    """train("seed=1", ...): train.py on the digits with the SMALL settings, which arguments win
    over; train("resume=RUN", ...) without them.
    """

    def run(*arguments: str) -> Outcome:
        resumed = any(re.match("resume=(?!auto)", text) for text in arguments)
        return command("train.py", *(() if resumed else SMALL), *arguments)

    return run


@pytest.fixture
def finished(command: Command, home: Path, tmp_path: Path) -> Path:
    """A finished run of 12 steps of a natural rule with Adam and an average: run, a copy."""
    if not (home / "run").is_dir():
        outcome = command("train.py", *SMALL, *FINISHED, f"hydra.run.dir={home / 'run'}")
        assert outcome.code == 0, outcome.err
    return Path(shutil.copytree(home / "run", tmp_path / "run"))


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Interrupt:
    """interrupt(n, what): in the n-th training step from now a signal arrives (a number), or an
    exception breaks the run; of several processes with `rank` alone.
    """

    def arm(steps: int, what: int | BaseException, rank: str | None = None) -> None:
        from nws.learning import WakeSleep

        original, number = WakeSleep.step, itertools.count(1)

        def step(self: WakeSleep, *batches: Any) -> Any:
            due = next(number) == steps and rank in (None, os.environ.get("RANK"))
            if due and isinstance(what, BaseException):
                raise what
            if due:
                os.kill(os.getpid(), what)
            return original(self, *batches)

        monkeypatch.setattr(WakeSleep, "step", step)

    return arm


def idx(images: np.ndarray, magic: int = 2051) -> bytes:
    """A file of the format of MNIST, of bytes (N, H, W)."""
    return struct.pack(">4I", magic, *images.shape) + images.astype(np.uint8).tobytes()


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in the layout of the real ones, of a few small images of each source."""
    from data.data_files import write_mnist, write_tfd

    root = tmp_path_factory.mktemp("data")
    for kind in ("MNIST", "FashionMNIST"):
        write_mnist(root, packed=True, kind=kind)
    write_tfd(root)
    return root


def metrics(run: Path, start: bool = False) -> list[dict[str, str]]:
    """The rows of metrics.csv, that of step 0 only with `start`; all columns but the one that no
    two runs share.
    """
    with open(run / "metrics.csv", newline="") as file:
        return [
            {key: value for key, value in row.items() if key != "seconds"}
            for row in csv.DictReader(file)
            if start or row["step"] != "0"
        ]


def checkpoint(run: Path, name: str = "last.pt") -> dict[str, Any]:
    """A checkpoint without what no two runs share: the seconds, which are in the rows too, and
    whether the option `resume` was given.
    """
    state = torch.load(run / "checkpoints" / name, map_location="cpu", weights_only=True)
    lines = state["configuration"].splitlines()
    kept = [each for each in lines if not each.startswith(("resume:", "  root:"))]
    state["configuration"] = "\n".join(kept)
    return {key: value for key, value in state.items() if key not in ("seconds", "rows")}


def resaved(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """What changes a checkpoint in its file."""

    def save(file: Path) -> None:
        state = torch.load(file, weights_only=True)
        change(state)
        torch.save(state, file)

    return save


def altered(key: str, value: Any) -> Callable[[Path], None]:
    """The configuration in a checkpoint is another one."""

    def change(state: dict[str, Any]) -> None:
        config = OmegaConf.create(state["configuration"])
        OmegaConf.update(config, key, value, merge=False, force_add=True)
        state["configuration"] = OmegaConf.to_yaml(config)

    return resaved(change)


def complete(run: Path) -> bool:
    """Whether a run of the SMALL settings came to its end."""
    return checkpoint(run)["step"] == 12 and len(metrics(run)) == 2


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Every leaf of nested dictionaries and lists, by its path."""
    if not isinstance(value, dict | list | tuple):
        return {path: value}
    items: Any = value.items() if isinstance(value, dict) else enumerate(value)
    return {k: leaf for name, each in items for k, leaf in leaves(each, f"{path}/{name}").items()}


def bits(x: torch.Tensor) -> tuple[Any, ...]:
    return str(x.dtype), tuple(x.shape), x.contiguous().numpy().tobytes()


def flatten(value: Any) -> dict[str, Any]:
    """The leaves, tensors as their bits."""
    return {k: bits(x) if isinstance(x, torch.Tensor) else x for k, x in leaves(value).items()}


def assert_same_run(one: Path, other: Path) -> None:
    """Bit for bit the same parameters, optimizer, scheduler, random states and metrics.

    Both checkpoints are compared: the last one, and the best one, which programs load. The best
    one may have been written when the run was to be shorter, so it alone may differ in its end.
    """
    shorter = {"/total_steps", "/finished", "/configuration"}
    for name, may_differ in (("last.pt", set()), ("best.pt", shorter)):
        first, second = (flatten(checkpoint(run, name)) for run in (one, other))
        assert first.keys() == second.keys(), name
        assert {key for key in first if first[key] != second[key]} <= may_differ, name
    assert metrics(one, start=True) == metrics(other, start=True)


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file under a folder and its bytes, every folder; log and lock aside."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"a folder"
        for path in sorted(folder.rglob("*"))
        if path.suffix != ".log" and path.name != ".lock"
    }
