"""Runs of others: what they may call, and files that are odd, large or broken.

Nothing that a saved run names is called or imported unless it is a part of ours, an optimizer or
scheduler of torch, or named by the user now. A command that is refused changes no file.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import FINISHED, SMALL, Command, altered, complete, metrics, resaved, snapshot

from nws.errors import UserError
from nws.experiment.loading import load_run
from nws.files import CONF

EVIL = """
import pathlib
pathlib.Path("evil_was_here").touch()

def call(*args, **kwargs):
    pathlib.Path("evil_was_here").touch()
"""
#: What a saved run may not call, by the key under which it names it.
REFUSED = {
    "data": "os.system subprocess.getoutput shutil.rmtree builtins.eval evil.call"
    " nws.experiment.config.make nws.experiment.config.locate nws.load_run nws.load_data",
    "model": "evil.call posix.system nws.files.os.system nws.nosuch.thing nws",
    "model.visible": "evil.call nws.experiment.run.shutil.rmtree nws.files.write_atomically",
    "algorithm.weighting": "evil.call functools.partial",
    "metric": "evil.call nws.experiment.provenance.subprocess.run",
    "solver": "evil.call torch.load", "logger": "evil.call os.remove",
    "damping.schedule": "evil.call nws.experiment.boundary.importlib.import_module",
    "optimizer": "evil.call torch.optim.Adam.__init__ torch.optim.optimizer.os.system torch.optim"
    " torch.hub.load torch.optim.swa_utils.AveragedModel pytorch_optimizer.Lion",
    "scheduler": "evil.call torch.optim.lr_scheduler.warnings.warn torch.save",
    "callbacks.mine": "evil.call pathlib.Path.touch", "average": "evil.call hydra.utils.call",
}  # fmt: skip
PROGRAMS = (
    ("train.py", "resume=run", "trainer.epochs=3"), ("scripts/sample.py", "run"),
    ("scripts/evaluate.py", "run", "--samples", "2"), ("scripts/export.py", "run", "small"),
)  # fmt: skip
SAME = (*SMALL, *FINISHED, "hydra.run.dir=run")


def name_target(run: Path, key: str, target: str) -> None:
    """Have a run name what it calls, in both checkpoints, as who sends it would."""
    for name in ("last.pt", "best.pt"):
        options = {"_target_": target, "args": "touch evil_was_here", "path": "precious"}
        altered(key, options)(run / "checkpoints" / name)


@pytest.mark.parametrize("key", REFUSED)
def test_what_a_saved_run_names_is_not_called(finished: Path, command: Command, key: str) -> None:
    Path("evil.py").write_text(EVIL)
    Path("precious").mkdir()
    for number, target in enumerate(REFUSED[key].split()):
        name_target(finished, key, target)
        (finished / ".hydra" / "config.yaml").unlink(missing_ok=True)
        before = snapshot(Path())
        with pytest.raises(UserError) as refused:
            load_run(finished)
        messages = [str(refused.value)]
        programs = PROGRAMS if target == "os.system" else PROGRAMS[: number == 0]
        messages += [command(*each).message() for each in programs]
        for message in messages:
            assert f"run wants to call {target} ({key}" in message and "trust" in message, message
        assert snapshot(Path()) == before
    assert "evil" not in sys.modules and not Path("evil_was_here").exists()


def test_what_is_trusted_is_called(finished: Path, command: Command, tmp_path: Path) -> None:
    """The control: the same run, by who names the module; and what is nws's and torch's."""
    (tmp_path / "evil.py").write_text(EVIL)
    for target in ("torch.optim.adam.Adam", "nws.schedules.linear", "nws.data.load_digits"):
        name_target(finished, "logger", target)
        load_run(finished)
    name_target(finished, "data", "evil.call")
    (finished / ".hydra" / "config.yaml").unlink()
    on = ("train.py", "resume=run", "trainer.epochs=3")
    assert "wants to call evil.call" in command(*on, "trust=3").message()
    assert command(*on, "trust=[evil]").code == 1
    assert Path("evil_was_here").exists()
    sys.modules.pop("evil", None)


def test_no_saved_run_reaches_options_or_the_environment(finished: Path, command: Command) -> None:
    """By choices that lead out of conf/, by references, by links, by the working directory."""
    Path("evil.py").write_text(EVIL)
    Path("trust.yaml").write_text("# @package _global_\ntrust: [evil]\n")
    name_target(finished, "logger", "evil.call")
    (finished / ".hydra" / "config.yaml").unlink()
    out = os.path.relpath("trust", CONF / "data")
    for choices in ({"data": out}, {"hydra/job_logging": "default", "data": "digits"}, {0: 1}):
        change = resaved(lambda state, choices=choices: state.update(choices=choices))
        change(finished / "checkpoints" / "last.pt")
        message = command("train.py", "resume=run", "trainer.epochs=3").message()
        assert "wants to call evil.call" in message, message
    name_target(finished, "logger", "nws.schedules.linear")
    altered("name", "${oc.env:HOME}")(finished / "checkpoints" / "best.pt")
    with pytest.raises(UserError, match="references"):
        load_run(finished)
    Path("elsewhere").mkdir()
    (finished / "images").rename("elsewhere/images")
    (finished / "images").symlink_to(Path("elsewhere").resolve())
    assert "is a link" in command("scripts/sample.py", "run").message()
    assert os.getcwd() not in sys.path and not Path("evil_was_here").exists()


def test_a_sweep_and_a_machine_of_nws_run_nothing(command: Command, train: Command) -> None:
    Path("evil.py").write_text(EVIL)
    assert command("scripts/sample.py", "pretrained/digits").code == 0
    assert "can only be looked at" in command("train.py", "resume=pretrained/digits").message()
    altered("model._target_", "evil.call")(Path("pretrained/digits/checkpoints/best.pt"))
    message = command("scripts/sample.py", "pretrained/digits").message()
    assert "wants to call evil.call" in message
    options = ("-m", "seed=0,1", "hydra.sweep.dir=swept", "trainer.epochs=1")
    assert train(*options).code == 0
    record = Path("swept/sweep.yaml")
    record.write_text(record.read_text().replace("seed=0,1", "data._target_=evil.call"))
    assert train(*options, "resume=auto").code == 1
    assert "evil" not in sys.modules and not Path("evil_was_here").exists()


# --- files that are odd ---------------------------------------------------------------------------


LAUGHS = "a0: &a0 {x: 1}\n"  # of 9^29 words
LAUGHS += "\n".join(f"a{n}: &a{n} [{', '.join(9 * [f'*a{n - 1}'])}]" for n in range(1, 30))


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


#: What is done to config.yaml, and what every program says of it.
ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "laughs": (lambda path: path.write_text(LAUGHS), "it has aliases"),
    "deep": (lambda path: path.write_text("[" * 10**5), "is damaged"),
    "huge": (lambda path: path.write_text("a: 1\n" * 10**6), "expected at most"),
    "a pipe": (fifo, "is no regular file"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "is no regular file"),
    "no text": (lambda path: path.write_bytes(b"\xff\xfe\x00"), "config.yaml"),
    "python": (lambda path: path.write_text("a: !!python/object:os.system {}"), "is damaged"),
}


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_config_is_one_line_in_no_time(finished: Path, command: Command, kind: str) -> None:
    make, words = ODD[kind]
    make(finished / ".hydra" / "config.yaml")
    message = command("train.py", "resume=run", "trainer.epochs=3").message()
    assert words in message and "config.yaml" in message, message
    with pytest.raises(UserError, match=words):
        load_run(finished)
    assert len(metrics(finished)) == 2


@pytest.mark.parametrize("name", ["metrics.csv", "provenance.json", "checkpoints/best.pt"])
def test_a_pipe_as_a_file_hangs_nothing(finished: Path, command: Command, name: str) -> None:
    def hang(*_: object) -> None:
        pytest.fail("it hangs")  # which no program catches

    signal.signal(signal.SIGALRM, hang)
    signal.alarm(200)
    fifo(finished / name)
    plot, table = ("scripts/plot_curves.py", "run", "--out", "x.png"), ("scripts/runs.py", ".")
    for arguments in (PROGRAMS[1], plot, table, PROGRAMS[0]):  # the last one may put it right
        assert command(*arguments).code in (0, 1)
    signal.alarm(0)


# --- checkpoints that do not fit ------------------------------------------------------------------


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


WORSE: dict[str, tuple[Callable[[Path], object], str]] = {
    "emptied": (lambda file: file.write_bytes(b""), "is damaged"),
    "a bit flipped": (flipped, "is damaged"),
    "an object": (lambda file: torch.save({"version": 2, "x": Path("x")}, file), "never loads"),
    "of another version": (resaved(lambda s: s.update(version=99)), "its format is 99, this nws"),
    "without optimizer": (resaved(lambda s: s.update(optimizer={})), "is damaged"),
    "with no step": (resaved(lambda s: s.update(step=-3)), "is damaged"),
    "with no machine": (resaved(lambda s: s.update(machine=torch.zeros(3))), "is damaged"),
    "of another architecture": (altered("model.layers", [7, 2]), "does not fit this run"),
    "of another shape": (
        resaved(lambda s: s["optimizer"]["state"][0].update(exp_avg_sq=torch.tensor(1.0))),
        "exp_avg_sq of the optimizer does not fit",
    ),
    "a folder": (lambda file: (file.unlink(), file.mkdir()), "is no regular file"),
    "gone": (lambda file: file.unlink(), "expected a checkpoint at"),
}


@pytest.mark.parametrize("kind", WORSE)
def test_a_misfit_checkpoint_changes_nothing(finished: Path, command: Command, kind: str) -> None:
    """The message says what the other checkpoint is good for."""
    make, words = WORSE[kind]
    make(finished / "checkpoints" / "last.pt")
    (finished / ".mine.0.tmp").touch()  # the user's own
    before = snapshot(Path())
    message = command(*PROGRAMS[0]).message()
    assert words in message and len(message) < 900, message
    assert kind == "gone" or "best.pt beside it is good (step 12): cp " in message, message
    if kind in ("emptied", "of another architecture", "gone"):
        command("train.py", *SAME, "resume=auto", "trainer.epochs=3").message()
        command("train.py", *SAME).message()
    assert snapshot(Path()) == before


def test_a_folder_of_the_users_own_is_let_be(train: Command, tmp_path: Path) -> None:
    for number, name in enumerate(("metrics.csv", "images/mine.png")):
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
