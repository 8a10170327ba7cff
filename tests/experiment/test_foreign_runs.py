"""Runs of others: what they may call, and files that are odd, large, broken or of another run.

Nothing that a saved run names is called or imported unless it is nws's own, an optimizer or
scheduler of torch, or named by the user now. A command that is refused changes no file.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import SMALL, Command, complete, metrics, snapshot
from omegaconf import OmegaConf

from nws.errors import UserError
from nws.experiment.config import check_trust
from nws.experiment.loading import load_run
from nws.experiment.run import load_yaml, open_run

EVIL = """
import pathlib
pathlib.Path("evil_was_here").touch()

def call(*args, **kwargs):
    pathlib.Path("evil_was_here").touch()
"""
TOUCH = {"args": "touch evil_was_here", "command": "touch evil_was_here", "path": "precious"}
#: What a saved run may not call, by the key under which it names it.
REFUSED = {
    "data": ["os.system", "subprocess.getoutput", "shutil.rmtree", "builtins.eval", "evil.call"],
    "model": ["evil.call", "posix.system", "nws.files.os.system", "nws.nosuch.thing", "nws"],
    "model.visible": ["evil.call", "nws.experiment.run.shutil.rmtree"],
    "algorithm.weighting": ["evil.call", "functools.partial"],
    "metric": ["evil.call", "nws.experiment.provenance.subprocess.run"],
    "solver": ["evil.call", "torch.load"],
    "damping.schedule": ["evil.call", "nws.experiment.boundary.importlib.import_module"],
    "optimizer": ["evil.call", "torch.optim.Adam.__init__", "torch.optim.optimizer.os.system",
                  "torch.hub.load", "torch.optim.swa_utils.AveragedModel", "torch.optim"],
    "scheduler": ["evil.call", "torch.optim.lr_scheduler.warnings.warn", "torch.save"],
    "callbacks.mine": ["evil.call", "pathlib.Path.touch"],
    "logger": ["evil.call", "os.remove"],
    "average": ["evil.call", "hydra.utils.call"],
    "callbacks.list": ["evil.call"],
}  # fmt: skip
PAIRS = [(key, target) for key, names in REFUSED.items() for target in names]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps of a natural rule with Adam, a warmed-up rate and an average."""
    folder = tmp_path_factory.mktemp("good") / "run"
    options = ["algorithm=nrws", "optimizer=adam", "average=exponential", "device=cpu"]
    from hydra.core.global_hydra import GlobalHydra

    from nws.programs import train

    GlobalHydra.instance().clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["train.py", *SMALL, *options, f"hydra.run.dir={folder}"])
        handler = signal.getsignal(signal.SIGTERM)
        train.run()
        signal.signal(signal.SIGTERM, handler)
    return folder


@pytest.fixture
def run(good: Path, tmp_path: Path, command: Command) -> Path:
    return Path(shutil.copytree(good, tmp_path / "run"))


def edit(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change both copies of a run's configuration, as who sends it would."""
    for name in ("last.pt", "best.pt"):
        file = run / "checkpoints" / name
        state = torch.load(file, weights_only=True)
        config = yaml.safe_load(state["configuration"])
        change(config)
        state["configuration"] = yaml.safe_dump(config)
        torch.save(state, file)
    (run / ".hydra" / "config.yaml").write_text(state["configuration"])


PROGRAMS = {
    "resume": ("train.py", "resume=run", "trainer.epochs=3"),
    "sample": ("scripts/sample.py", "run"),
    "evaluate": ("scripts/evaluate.py", "run", "--samples", "2"),
    "export": ("scripts/export.py", "run", "small"),
}


@pytest.mark.parametrize(("key", "target"), PAIRS)
def test_what_a_saved_run_names_is_not_called(
    run: Path, command: Command, tmp_path: Path, key: str, target: str
) -> None:
    (tmp_path / "evil.py").write_text(EVIL)
    (tmp_path / "precious").mkdir()

    def change(config: dict[str, Any]) -> None:
        *groups, last = key.split(".")
        for group in groups:
            config = config.setdefault(group, {})
        config[last] = [{"_target_": target}] if last == "list" else {"_target_": target} | TOUCH

    edit(run, change)
    before = snapshot(tmp_path)
    programs = PROGRAMS if target == REFUSED[key][0] else {"resume": PROGRAMS["resume"]}
    for program in programs.values():
        message = command(*program).message()
        assert f"run wants to call {target} ({key}" in message and "trust" in message, message
        assert snapshot(tmp_path) == before
    with pytest.raises(UserError, match="wants to call"):
        load_run(run)
    assert "evil" not in sys.modules and not Path("evil_was_here").exists()


def test_what_is_trusted_is_called(run: Path, command: Command, tmp_path: Path) -> None:
    """The control: the same run, by who names the module; and what is nws's and torch's."""
    (tmp_path / "evil.py").write_text(EVIL)
    edit(run, lambda config: config.update(data={"_target_": "evil.call"}))
    assert command("train.py", "resume=run", "trainer.epochs=3", "trust=[evil]").code == 1
    assert Path("evil_was_here").exists()
    sys.modules.pop("evil", None)
    for target in (
        "torch.optim.SGD", "torch.optim.lr_scheduler.ReduceLROnPlateau", "torch.optim.adam.Adam",
        "nws.natural.metrics.Fisher", "nws.data.load_digits", "nws.schedules.linear",
    ):  # fmt: skip
        check_trust(OmegaConf.create({"x": {"_target_": target}}), [], "run")


def test_a_sweep_and_a_machine_that_comes_with_nws_run_nothing(
    command: Command, sweep: Command, tmp_path: Path
) -> None:
    (tmp_path / "evil.py").write_text(EVIL)
    assert command("scripts/sample.py", "pretrained/digits").code == 0
    edit_best = tmp_path / "pretrained" / "digits"
    state = torch.load(edit_best / "checkpoints" / "best.pt", weights_only=True)
    text = state["configuration"].replace("nws.models.HelmholtzMachine", "evil.call")
    torch.save(state | {"configuration": text}, edit_best / "checkpoints" / "best.pt")
    message = command("scripts/sample.py", "pretrained/digits").message()
    assert "wants to call evil.call" in message
    assert sweep("seed=0,1", "hydra.sweep.dir=swept", "trainer.epochs=1").code == 0
    record = tmp_path / "swept" / "sweep.yaml"
    record.write_text(record.read_text().replace("seed=0,1", "data._target_=evil.call"))
    again = sweep("seed=0,1", "hydra.sweep.dir=swept", "trainer.epochs=1", "resume=auto")
    assert again.code == 1 and "evil" not in sys.modules and not Path("evil_was_here").exists()


# --- files that are odd ---------------------------------------------------------------------------


def laughs(depth: int = 30) -> str:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} [{', '.join(9 * [f'*a{n - 1}'])}]" for n in range(1, depth)]
    return "\n".join(lines)


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


#: What is done to config.yaml, and what every program says of it.
ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "laughs": (lambda path: path.write_text(laughs()), "it has aliases"),
    "deep": (lambda path: path.write_text("[" * 10**5), "is damaged"),
    "huge": (lambda path: path.write_text("a: 1\n" * 10**6), "expected at most"),
    "a pipe": (fifo, "is no regular file"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "is no regular file"),
    "nothing": (lambda path: path.write_text(""), "is damaged"),
    "a list": (lambda path: path.write_text("- 1\n"), "is damaged"),
    "no text": (lambda path: path.write_bytes(b"\xff\xfe\x00"), "config.yaml"),
    "python": (lambda path: path.write_text("a: !!python/object:os.system {}"), "is damaged"),
}


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_configuration_is_one_line_in_no_time(
    run: Path, command: Command, tmp_path: Path, kind: str
) -> None:
    make, words = ODD[kind]
    make(run / ".hydra" / "config.yaml")
    message = command("train.py", "resume=run", "trainer.epochs=3").message()
    assert words in message and "config.yaml" in message, message
    with pytest.raises(UserError, match=words):
        open_run(run)
    assert len(metrics(run)) == 2
    if kind == "laughs":
        with pytest.raises(UserError, match=words):
            load_yaml(run / ".hydra" / "config.yaml")


@pytest.mark.parametrize("name", ["metrics.csv", "provenance.json", "checkpoints/best.pt"])
def test_a_pipe_in_place_of_a_file_hangs_nothing(run: Path, command: Command, name: str) -> None:

    def hang(*_: object) -> None:
        raise AssertionError("it hangs")

    signal.signal(signal.SIGALRM, hang)
    signal.alarm(200)
    fifo(run / name)
    for arguments in (
        ("train.py", "resume=run", "trainer.epochs=3"), ("scripts/sample.py", "run"),
        ("scripts/plot_curves.py", "run", "--out", "x.png"), ("scripts/runs.py", "."),
    ):  # fmt: skip
        assert command(*arguments).code in (0, 1)
    signal.alarm(0)


# --- checkpoints that do not fit ------------------------------------------------------------------


def resaved(**changes: Any) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        state = torch.load(file, weights_only=True)
        torch.save(state | changes, file)

    return change


def altered(**values: Any) -> Callable[[Path], None]:
    """The configuration in the checkpoint is another one."""

    def change(file: Path) -> None:
        state = torch.load(file, weights_only=True)
        config = OmegaConf.create(state["configuration"])
        for key, value in values.items():
            OmegaConf.update(config, key.replace("__", "."), value, merge=False)
        torch.save(state | {"configuration": OmegaConf.to_yaml(config)}, file)

    return change


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


class Thing:
    """An object that a checkpoint may not have."""


WORSE: dict[str, tuple[Callable[[Path], object], str]] = {
    "emptied": (lambda file: file.write_bytes(b""), "is damaged"),
    "truncated": (lambda file: file.write_bytes(file.read_bytes()[:-100]), "is damaged"),
    "a bit flipped": (flipped, "is damaged"),
    "text": (lambda file: file.write_text("weights\n"), "is damaged"),
    "a list": (lambda file: torch.save([1, 2], file), "its format is none"),
    "an object": (lambda file: torch.save({"version": 2, "x": Thing()}, file), "never loads"),
    "of another version": (resaved(version=99), "its format is 99, this nws reads 2"),
    "without rows": (resaved(rows=None), "is damaged"),
    "with other rows": (resaved(rows="1,2\n3,4\n"), "is damaged"),
    "with rows of other keys": (resaved(rows=[{"a": 1}]), "is damaged"),
    "without optimizer": (resaved(optimizer={}), "is damaged"),
    "with an emptied optimizer": (
        lambda file: resaved(
            optimizer={
                "state": {}, "param_groups": torch.load(file)["optimizer"]["param_groups"]
            }
        )(file),
        "optimizer",
    ),
    "with another step": (resaved(step="six"), "is damaged"),
    "with a step beyond": (resaved(step=-3), "is damaged"),
    "with no number of seconds": (resaved(seconds=float("nan")), "is damaged"),
    "without callbacks": (resaved(callbacks=7), "is damaged"),
    "with other random numbers": (resaved(rng=torch.zeros(3)), "is damaged"),
    "with no text of a configuration": (resaved(configuration=3), "is damaged"),
    "with no machine": (resaved(machine=torch.zeros(3)), "is damaged"),
    "of another architecture": (altered(model__layers=[7, 2]), "is of another run"),
    "of another seed": (altered(seed=7), "is of another run"),
    "of another algorithm": (altered(algorithm__name="rws"), "is of another run"),
    "a folder": (lambda file: (file.unlink(), file.mkdir()), "is no regular file"),
    "gone": (lambda file: file.unlink(), "expected a checkpoint at"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WORSE)
def test_a_checkpoint_that_does_not_fit_changes_nothing(
    run: Path, command: Command, tmp_path: Path, kind: str
) -> None:
    """The message says what the other checkpoint is good for."""
    make, words = WORSE[kind]
    make(run / "checkpoints" / "last.pt")
    before = snapshot(tmp_path)
    same = (*SMALL, "algorithm=nrws", "optimizer=adam", "average=exponential", "device=cpu")
    for arguments in (
        ("resume=run", "trainer.epochs=3"),
        (*same, "resume=auto", "hydra.run.dir=run", "trainer.epochs=3"),
        (*same, "hydra.run.dir=run"),
    ):
        message = command("train.py", *arguments).message()
        assert snapshot(tmp_path) == before, arguments
        if arguments[0] == "resume=run":
            assert words in message and len(message) < 900, message
            own = ("is of another run" in words) or kind == "gone"
            assert own or "best.pt beside it is good (step 12): cp " in message, message


def test_both_checkpoints_gone(run: Path, command: Command, tmp_path: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    before = snapshot(tmp_path)
    same = (*SMALL, "algorithm=nrws", "optimizer=adam", "average=exponential", "device=cpu")
    for arguments in (
        ("resume=run",), (*same, "resume=auto", "hydra.run.dir=run"), (*same, "hydra.run.dir=run"),
    ):  # fmt: skip
        message = command("train.py", *arguments).message()
        assert "checkpoint" in message or "move it away" in message, message
        assert snapshot(tmp_path) == before


def test_a_folder_of_the_users_own_is_let_be(train: Command, tmp_path: Path) -> None:
    for number, name in enumerate(("metrics.csv", "images/mine.png", "provenance.json")):
        file = tmp_path / f"mine_{number}" / name
        file.parent.mkdir(parents=True)
        file.write_text("precious")
        before = snapshot(tmp_path)
        for options in ((), ("resume=auto",)):
            message = train(*options, f"hydra.run.dir=mine_{number}").message()
            assert "nothing was changed; move it away" in message, message
            assert snapshot(tmp_path) == before
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "ideas.txt").write_text("mine")
    assert train("hydra.run.dir=notes").code == 0  # which none of its files is in the way of
    assert (tmp_path / "notes" / "ideas.txt").read_text() == "mine" and complete(tmp_path / "notes")


@pytest.mark.parametrize("name", ["../../etc", "/etc", "a/../../b", "..", "~/x"])
def test_a_name_stays_below_the_working_folder(train: Command, tmp_path: Path, name: str) -> None:
    (tmp_path / "here").mkdir()
    os.chdir(tmp_path / "here")
    before = snapshot(tmp_path.parent)
    outcome = train(f"name='{name}'", "trainer.epochs=1")
    if outcome.code == 0:
        assert outcome.run.is_relative_to(tmp_path / "here")
    else:
        assert "name" in outcome.message() and snapshot(tmp_path.parent) == before
