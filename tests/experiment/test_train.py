"""train.py through its command line: what a run leaves, stopping and going on, bad input, sweeps, every preset."""

from __future__ import annotations

import errno
import fcntl
import gzip
import math
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from conftest import ROOT, SMALL, Command, assert_same_run, checkpoint, flatten, metrics, snapshot
from PIL import Image
from scipy.io import savemat

from nws.errors import UserError
from nws.experiment.run import RunDirectory

CONF = ROOT / "conf"
Interrupt = Callable[[int, int | BaseException], None]


def names(group: str) -> list[str]:
    """The choices of a group, those in folders of its folder too (experiment=fashion_mnist_sweep/nrws_512)."""
    return sorted(
        str(path.relative_to(CONF / group).with_suffix(""))
        for path in (CONF / group).rglob("*.yaml")
    )


# --- what a run leaves ---------------------------------------------------------------------------------------------


def test_a_run_leaves_what_the_design_says(train: Command, tmp_path: Path) -> None:
    outcome = train("trainer.images_every=1", "data.root=some/folder")
    run = outcome.run
    assert outcome.code == 0 and outcome.err == ""
    assert outcome.out.splitlines() == [
        str(run),
        str(run),
    ]  # at start and end; nothing else where there is no terminal
    assert re.fullmatch(
        r"outputs/digits_rws/\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-\d{6}", str(run.relative_to(tmp_path))
    )

    header = (run / "metrics.csv").read_text().splitlines()[0].split(",")
    assert header[:8] == [
        "epoch", "step", "seconds", "train/wake_loss", "train/dream_loss", "train/log_likelihood",
        "valid/log_likelihood", "train/ess",
    ]  # fmt: skip
    rows = metrics(run)
    assert [(row["epoch"], row["step"], row["valid/samples"]) for row in rows] == [
        ("1.0", "6", "5"),
        ("2.0", "12", "5"),
    ]
    assert all(
        -100 < float(row["valid/log_likelihood"]) < 0 < float(row["train/wake_loss"])
        for row in rows
    )

    config = yaml.safe_load((run / ".hydra" / "config.yaml").read_text())
    assert (
        config["name"] == "digits_rws"
        and config["model"]["layers"] == [5, 3]
        and config["seed"] == 0
    )
    assert config["data"]["root"] == str(tmp_path / "some" / "folder")
    assert "${" not in (run / ".hydra" / "config.yaml").read_text()

    assert sorted(path.name for path in (run / "images").iterdir()) == [
        f"{kind}_step_{step:07d}.png" for kind in ("generated", "reconstructed") for step in (6, 12)
    ]
    with Image.open(run / "images" / "generated_step_0000012.png") as image:
        assert image.format == "PNG" and 400 <= image.width == image.height <= 800
        assert len(set(image.convert("L").tobytes())) > 10
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["best.pt", "last.pt"]
    assert checkpoint(run)["step"] == 12
    assert "epoch    2.00  step      12" in (run / "train.log").read_text()
    assert not [
        path for path in run.rglob("*") if path.name.endswith(".tmp") or path.name == "wandb"
    ]


def test_a_directory_that_holds_a_run_is_refused_and_left_alone(
    train: Command, tmp_path: Path
) -> None:
    run = train("hydra.run.dir=run").run
    files = {
        path: path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and path.suffix != ".log"
    }
    message = train("hydra.run.dir=run", "seed=1").message()
    assert f"{run} holds a run already" in message and f"resume={run}" in message
    assert files == {
        path: path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and path.suffix != ".log"
    }
    sweep = ("-m", "seed=0,1", "hydra.sweep.dir=sweep")
    assert train(*sweep).code == 0
    assert "holds a run already" in train(*sweep).err


def test_a_run_that_another_start_overtook_is_refused(
    train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = RunDirectory.check_free, iter([False])
    monkeypatch.setattr(
        RunDirectory, "check_free", lambda self: original(self) if next(calls, True) else None
    )
    Path("run/.hydra").mkdir(parents=True)
    assert "holds a run already" in train("hydra.run.dir=run").message()
    assert not list(Path("run/.hydra").iterdir())


def test_of_runs_that_start_at_once_one_gets_the_directory(tmp_path: Path) -> None:
    one, other = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "run")
    one.check_free()
    other.check_free()  # neither sees the other yet
    one.claim()
    with pytest.raises(UserError, match="holds a run already"):
        other.claim()


def test_runs_of_the_same_second_have_directories_of_their_own(train: Command) -> None:
    assert len({train("trainer.epochs=0.1").run for _ in range(3)}) == 3


def test_options_without_effect_are_named(train: Command) -> None:
    outcome = train("trainer.epochs=0.1", "solver=woodbury", "damping.value=3", "+damping.x=1")
    words = "without effect with metric=euclidean: solver=woodbury, damping.value=3, +damping.x=1"
    assert outcome.code == 0 and outcome.err.splitlines() == [f"WARNING: {words}"]
    outcome = train(
        "trainer.epochs=0.1",
        "algorithm=nrws",
        "metric=kronecker",
        "solver.rank=3",
        "damping.value=3",
    )
    assert (
        outcome.code == 0
        and outcome.err == "WARNING: without effect with metric=kronecker: solver.rank=3\n"
    )


def test_an_end_below_coin_flips_is_warned_of(train: Command) -> None:
    outcome = train("optimizer=sgd", "optimizer.lr=3e3", "scheduler=constant")
    assert (
        outcome.code == 0
        and "WARNING: the run ended at" in outcome.err
        and "lower optimizer.lr" in outcome.err
    )
    assert float(metrics(outcome.run)[-1]["valid/log_likelihood"]) < 1.5 * -64 * math.log(2)


def test_the_seed_fixes_a_run(train: Command) -> None:
    def run(name: str, seed: int) -> Path:
        return train(f"hydra.run.dir={name}", f"seed={seed}").run

    first, again, other = run("a", 3), run("b", 3), run("c", 4)
    assert_same_run(first, again)
    assert metrics(first) != metrics(other)
    for key in ("rng", "machine/generator.layers.0.weight"):
        assert flatten(checkpoint(first))[f"/{key}"] != flatten(checkpoint(other))[f"/{key}"]


def test_progress_in_a_terminal(tmp_path: Path) -> None:
    """A bar with epoch, rate and bound, one line an evaluation, and Ctrl-C; W&B is on, as by default."""
    options = [
        *SMALL[:-1],
        "trainer.epochs=2000",
        "trainer.evaluate_every=10",
        "trainer.check_every=5",
    ]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, [sys.executable, str(ROOT / "train.py"), *options])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 40, 120, 0, 0))
    text, interrupted, deadline = b"", False, time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            text += os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        if (
            not interrupted and text.count(b"valid") >= 3
        ):  # the terminal's ^C may fall into the third line
            os.write(terminal, b"\x03")  # to the whole foreground group, as a keyboard does
            interrupted = True
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGINT
    os.close(terminal)

    output = text.decode()
    assert re.search(r"\repoch \d+\.\d\d/2000: .*steps/s, bound -\d+\.\d\d nats\]", output)
    lines = [line.split("\r")[-1] for line in output.split("\r\n")]
    evaluation = r"epoch +\d+\.00  step +\d+  valid +-\d+\.\d+ ± \d+\.\d+ nats \(5 samples\)  train bound .* s"
    assert sum(bool(re.fullmatch(evaluation, line)) for line in lines) >= 2
    lines = [line for line in lines if line]
    run = Path(lines[-1])
    assert Path(lines[0]) == run
    assert lines[-3].startswith("stopped by signal 2; go on with") and lines[-2].endswith(
        f"train.py resume={run}"
    )
    assert "Traceback" not in output
    state = torch.load(run / "checkpoints" / "last.pt", weights_only=True)
    assert state["wandb_id"] and list((run / "wandb").glob(f"offline-run-*-{state['wandb_id']}"))


def test_progress_false_is_quiet_in_a_terminal(
    train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    quiet = train("progress=false")
    assert quiet.err == "" and len(quiet.out.splitlines()) == 2
    loud = train("progress=true")  # the control: this terminal does get lines and a bar
    assert "valid" in loud.out and "steps/s" in loud.out


# --- stopping and going on -----------------------------------------------------------------------------------------

RESUMABLE = {
    "momentum_linear": ("optimizer=momentum", "scheduler=linear"),
    "adam_cosine": ("optimizer=adam", "scheduler=cosine"),
    "nadam_plateau": ("optimizer=nadam", "scheduler=plateau", "scheduler.patience=0"),
    "static_bipolar_ws": ("algorithm=ws", "data.binarize=static", "model.units=bipolar", "scheduler=exponential"),
    "multistep": (
        "scheduler._target_=torch.optim.lr_scheduler.MultiStepLR", "~scheduler.lr_lambda", "+scheduler.milestones=[3,8]",
    ),
    "onecycle": (
        "scheduler._target_=torch.optim.lr_scheduler.OneCycleLR", "~scheduler.lr_lambda", "+scheduler.max_lr=0.01",
        "+scheduler.total_steps=total_steps",
    ),
    "lbfgs": ("optimizer._target_=torch.optim.LBFGS", "optimizer.lr=0.01", "~optimizer.betas", "+optimizer.max_iter=3"),
}  # fmt: skip


@pytest.mark.parametrize("options", RESUMABLE.values(), ids=RESUMABLE.keys())
def test_a_resumed_run_ends_as_one_never_stopped(
    train: Command, interrupt: Interrupt, options: tuple[str, ...]
) -> None:
    steps = (
        25 if "optimizer._target_=torch.optim.LBFGS" in options else 10
    )  # it asks for 3 losses a step
    whole = train("hydra.run.dir=whole", "trainer.epochs=3", *options).run
    interrupt(steps, signal.SIGTERM)
    stopped = train("hydra.run.dir=stopped", "trainer.epochs=3", *options)
    assert stopped.code == 128 + signal.SIGTERM
    assert (
        f"train.py resume={stopped.run}\n" in stopped.out and "stopped by signal 15" in stopped.out
    )
    step = checkpoint(stopped.run)["step"]
    assert (
        step < 18 and step % 6 != 0 and len(metrics(stopped.run)) < 3
    )  # amid an epoch, and the control: not the end
    resumed = train("resume=stopped")
    assert resumed.code == 0 and resumed.run == stopped.run and resumed.err == ""
    assert_same_run(whole, resumed.run)


def test_a_broken_run_goes_on_from_its_last_checkpoint(
    train: Command, interrupt: Interrupt
) -> None:
    whole = train("hydra.run.dir=whole").run
    interrupt(10, MemoryError("broken"))
    assert train("hydra.run.dir=broken").code == 1
    broken = whole.with_name("broken")
    assert checkpoint(broken)["step"] == 6 and len(metrics(broken)) == 1
    # What a crash between the row and the checkpoint leaves: a row that will be written again.
    row = (broken / "metrics.csv").read_text().splitlines()[-1].replace("1.0,6,", "2.0,12,", 1)
    with open(broken / "metrics.csv", "a") as file:
        file.write(row + "\n")
    assert_same_run(whole, train("resume=broken").run)


def test_a_killed_process_goes_on(train: Command, tmp_path: Path) -> None:
    options = [
        "hydra.run.dir=killed",
        "trainer.epochs=30",
        "trainer.evaluate_every=2",
        "scheduler=cosine",
    ]
    process = subprocess.Popen([sys.executable, ROOT / "train.py", *SMALL, *options], cwd=tmp_path)
    last, deadline = tmp_path / "killed" / "checkpoints" / "last.pt", time.monotonic() + 60
    while not last.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert 12 <= checkpoint(last.parent.parent)["step"] < 180, "killed too late to be a test"
    whole = train("hydra.run.dir=whole", *options[1:]).run
    assert_same_run(whole, train("resume=killed").run)


@pytest.mark.parametrize("directory", ["a run with spaces", "lr=0.1,seed=2", "it's"])
def test_resume_takes_any_path(train: Command, tmp_path: Path, directory: str) -> None:
    run = train("trainer.epochs=1").run
    moved = run.rename(tmp_path / directory)
    outcome = train(f"resume={directory}", "trainer.epochs=2")
    assert outcome.code == 0 and outcome.run == moved, outcome.err
    assert len(metrics(moved)) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["outputs", directory])
    assert not run.exists() and "step      12" in (moved / "train.log").read_text()


def test_more_epochs_follow_the_longer_schedule(train: Command) -> None:
    """With a constant rate, the two halves are the whole; with a linear one the rest of the longer line is followed."""
    whole = train("hydra.run.dir=whole", "trainer.epochs=4", "scheduler=constant").run
    train("hydra.run.dir=part", "scheduler=constant")
    part = train("resume=part", "trainer.epochs=4").run
    assert_same_run(whole, part)
    assert yaml.safe_load((part / ".hydra" / "config.yaml").read_text())["trainer"]["epochs"] == 4

    train("hydra.run.dir=linear", "optimizer.lr=0.01")
    rows = metrics(train("resume=linear", "trainer.epochs=4").run)
    assert [float(row["learning_rate"]) for row in rows] == pytest.approx([0.005, 0, 0.0025, 0])
    torch_options = RESUMABLE["onecycle"]  # its state holds the old number of steps
    train("hydra.run.dir=cycle", *torch_options)
    longer = train("resume=cycle", "trainer.epochs=4")
    assert longer.code == 0 and len(metrics(longer.run)) == 4


def test_new_options_of_the_optimizer_are_applied(train: Command) -> None:
    base = ("optimizer=momentum", "scheduler=constant", "trainer.epochs=1")
    for name in ("same", "rate", "other"):
        train(f"hydra.run.dir={name}", *base)
    before = flatten(checkpoint(train("resume=same", "trainer.epochs=2").run))
    rate = train("resume=rate", "trainer.epochs=2", "optimizer.lr=0.001", "optimizer.momentum=0.5")
    group = checkpoint(rate.run)["optimizer"]["param_groups"][0]
    assert rate.code == 0 and (group["lr"], group["momentum"]) == (0.001, 0.5)
    assert metrics(rate.run)[1]["learning_rate"] == "0.001"
    other = train("resume=other", "trainer.epochs=2", "optimizer=adam", "scheduler=linear")
    assert other.code == 0 and "exp_avg" in checkpoint(other.run)["optimizer"]["state"][0]
    config = yaml.safe_load((other.run / ".hydra" / "config.yaml").read_text())
    assert config["optimizer"] == yaml.safe_load((CONF / "optimizer" / "adam.yaml").read_text())
    assert (
        config["model"]["layers"] == [5, 3]
        and config["scheduler"]["lr_lambda"]["_target_"] == "nws.schedules.linear"
    )
    again = train(
        "resume=rate", "trainer.epochs=3"
    )  # the run's configuration is now the one with the new rate
    assert metrics(again.run)[2]["learning_rate"] == "0.001"
    assert before["/optimizer/param_groups/0/lr"] == 0.05  # the control


@pytest.mark.parametrize("sign", ["", "++"])
def test_options_written_with_plus_signs_are_applied_too(
    train: Command, interrupt: Interrupt, sign: str
) -> None:
    interrupt(4, signal.SIGTERM)
    run = train("hydra.run.dir=run", "optimizer=sgd", "scheduler=constant").run
    assert train("resume=run", f"{sign}optimizer.lr=0.001", "+optimizer.weight_decay=0.5").code == 0
    assert checkpoint(run)["step"] == 12
    (group,) = checkpoint(run)["optimizer"]["param_groups"]
    assert group["lr"] == 0.001 and group["weight_decay"] == 0.5


def test_a_new_rate_keeps_what_the_optimizer_gathered(train: Command) -> None:
    train("hydra.run.dir=run", "optimizer=momentum", "scheduler=constant", "trainer.epochs=1")
    buffer = checkpoint(Path("run"))["optimizer"]["state"][0]["momentum_buffer"]
    train(
        "resume=run",
        "trainer.epochs=1.1",
        "optimizer.lr=1e-30",
        "optimizer.momentum=1",
        "optimizer.nesterov=false",
    )
    after = checkpoint(Path("run"))["optimizer"]["state"][0]["momentum_buffer"]
    assert buffer.abs().max() > 0 and (after - buffer).norm() < (after.norm() + buffer.norm()) / 2


def test_a_finished_run_says_so_and_stays(train: Command) -> None:
    run = train().run
    before = snapshot(run)
    for arguments in ((), ("trainer.epochs=1",)):
        outcome = train(f"resume={run}", *arguments)
        assert outcome.code == 0 and outcome.run == run
        assert "nothing to do: step 12 of" in outcome.out and "trainer.epochs=N" in outcome.out
        assert snapshot(run) == before


FIXED = {
    "seed=1": "keeps its seed",
    "trainer.batch_size=10": "keeps its trainer.batch_size",
    "data=three_by_three": "keeps its data.name",
    "algorithm=ws": "keeps its algorithm.name",
    "debug=short": "keeps its debug",
    "model.layers=[5]": "another architecture",
    "model.units=bipolar": "keeps its model.units",
    "++model.weight_scale=small": "model.weight_scale must be a number",
    "optimizer.lr=-1": "Invalid learning rate: -1",
    "trainer.epochs=abc": "trainer.epochs must be",
    "device=foo": "device must be",
    "logger.mode=foo": "logger.mode must be",
}


def test_a_failed_resume_leaves_the_run_as_it_was(train: Command, tmp_path: Path) -> None:
    run = train().run
    before, folders = snapshot(run), sorted(tmp_path.rglob("*"))
    for override, expected in FIXED.items():
        assert expected in train(f"resume={run}", "trainer.epochs=3", override).message(), override
        assert snapshot(run) == before, override
    unknown = train(f"resume={run}", "foo=1")
    assert unknown.code == 1 and "foo" in unknown.err and "Traceback" not in unknown.err
    sweep = train("-m", f"resume={run}", "trainer.epochs=3,4").message()
    assert "takes one run" in sweep
    broken = train(
        f"resume={run}", "trainer.epochs=9", "optimizer=sgd", "optimizer.lr=1e38"
    ).message()
    assert "is not finite" in broken and "(step 12) is the last good checkpoint" in broken
    assert snapshot(run) == before and sorted(tmp_path.rglob("*")) == folders


def test_a_solver_that_fails_over_numbers_that_are_not_finite_says_where_they_began(
    train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nws.learning.wake_sleep import WakeSleep

    def step(self: WakeSleep, *batches: Any) -> Any:
        next(self.machine.parameters()).data.fill_(float("nan"))
        raise UserError("the solver's words")

    monkeypatch.setattr(WakeSleep, "step", step)
    message = train().message()
    assert (
        "the parameter of generator.layers.0.weight is not finite" in message
        and "words" not in message
    )


@pytest.mark.parametrize("override", ["data.fold=1", "data.split=both", "data.size=48"])
def test_a_resumed_run_keeps_its_faces(train: Command, data_root: Path, override: str) -> None:
    key = override.split("=")[0]
    run = train(
        "data=tfd", f"data.root={data_root}", "trainer.batch_size=10", "trainer.epochs=1"
    ).run
    before = snapshot(run)
    refused = train(f"resume={run}", "trainer.epochs=2", override).message()
    assert f"a resumed run keeps its {key}, got {override}" in refused and snapshot(run) == before
    kept = yaml.safe_load((run / ".hydra" / "config.yaml").read_text())["data"][key.split(".")[1]]
    same = train(f"resume={run}", "trainer.epochs=2", f"{key}={kept}")  # the control
    assert same.code == 0 and len(metrics(run)) == 2, same.err


def test_a_damaged_run_is_not_resumed(train: Command, tmp_path: Path) -> None:
    run = train().run
    last = run / "checkpoints" / "last.pt"
    content = last.read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"text\n"):
        last.write_bytes(damaged)
        assert (
            "last.pt is not a checkpoint of nws or is damaged" in train(f"resume={run}").message()
        )
    torch.save({"weights": torch.zeros(1)}, last)
    assert "last.pt is not a checkpoint of nws" in train(f"resume={run}").message()
    last.unlink()
    assert "expected a checkpoint at" in train(f"resume={run}").message()
    (run / ".hydra" / "config.yaml").write_text("")
    assert "config.yaml should hold the configuration" in train(f"resume={run}").message()
    (tmp_path / "other").mkdir()
    assert "other is not a run directory" in train("resume=other").message()
    before = sorted(tmp_path.iterdir())
    assert f"{tmp_path / 'missing'} does not exist" in train("resume=missing").message()
    assert sorted(tmp_path.iterdir()) == before


# --- numbers that are not finite, a full disk ----------------------------------------------------------------------


def test_not_finite_names_step_layer_and_remedy(train: Command) -> None:
    outcome = train("optimizer=sgd", "optimizer.lr=1e38", "hydra.run.dir=run")
    message = outcome.message()
    assert re.search(r"step 2: the loss of (generator|recognition) layer \d is not finite", message)
    assert (
        "a learning rate of " in message
        and "lower optimizer.lr" in message
        and "no checkpoint" in message
    )
    assert (
        "not finite" in Path("run/train.log").read_text() and not Path("run/checkpoints").exists()
    )


def test_not_finite_keeps_the_last_good_checkpoint(
    train: Command, command: Command, monkeypatch: Any
) -> None:
    from nws.learning.wake_sleep import WakeSleep

    original, calls = WakeSleep.step, 0

    def step(self: WakeSleep, *batches: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 9:  # a gradient, whose step the parameters show before any loss does
            result = original(self, *batches)
            self.machine.recognition.layers[1].weight.grad[0, 0] = torch.nan
            return result
        return original(self, *batches)

    monkeypatch.setattr(WakeSleep, "step", step)
    message = train("trainer.check_every=1", "hydra.run.dir=run").message()
    assert "step 9: the parameter of recognition.layers.1.weight is not finite" in message
    assert "last.pt (step 6) is the last good checkpoint" in message
    assert checkpoint(Path("run"))["step"] == 6
    assert all(value.isfinite().all() for value in checkpoint(Path("run"))["machine"].values())
    assert command("scripts/sample.py", "run").code == 0


def test_a_full_disk_keeps_the_good_checkpoint(
    train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train("hydra.run.dir=run", "scheduler=constant").run
    before, replace = snapshot(run), os.replace

    def full(source: Any, target: Any) -> None:
        if str(target).endswith("last.pt"):
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    message = train("resume=run", "trainer.epochs=4").message()
    assert (
        "could not write" in message
        and "No space left on device" in message
        and "untouched" in message
    )
    after = snapshot(run)
    kept = ("checkpoints/last.pt", ".hydra/config.yaml")
    assert [after[name] for name in kept] == [before[name] for name in kept]
    assert not [name for name in after if name.endswith(".tmp")]
    monkeypatch.undo()
    monkeypatch.chdir(run.parent)
    assert_same_run(
        train("resume=run", "trainer.epochs=4").run,
        train("trainer.epochs=4", "scheduler=constant").run,
    )


def test_a_file_size_limit_in_a_real_process(tmp_path: Path) -> None:
    """The write itself fails here, half-way, and with it the log's."""
    code = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000)); sys.argv = sys.argv[1:]"
    code += "; runpy.run_path(sys.argv[0], run_name='__main__')"
    process = subprocess.run(
        [sys.executable, "-c", code, ROOT / "train.py", *SMALL, "hydra.run.dir=run"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert process.returncode == 1 and process.stdout == f"{tmp_path / 'run'}\n"
    assert re.fullmatch(
        r"error: could not write .*: File too large; nothing was left in its place\..*\n",
        process.stderr,
    )
    assert not list(tmp_path.rglob("*.tmp")) and not list((tmp_path / "run").rglob("*.pt"))


# --- bad input -----------------------------------------------------------------------------------------------------

BAD = {
    "model.layers=0": "model.layers must be a list of layer sizes",
    "model.layers=abc": "model.layers must be a list of layer sizes",
    "model.layers=[]": "one or more hidden",
    "model.layers=[4,0]": "whole numbers of at least 1",
    "model.layers=[-3]": "whole numbers of at least 1",
    "model.layers=[2.5]": "whole numbers of at least 1",
    "model.layers=[x]": "whole numbers of at least 1",
    "model.units=ternary": "model.units must be binary or bipolar, got 'ternary'",
    "+model.foo=1": "the options of model do not fit: got an unexpected keyword argument 'foo'",
    "algorithm.samples=0": "algorithm.samples must be a whole number of at least 1, got 0",
    "algorithm.samples=1.5": "algorithm.samples must be a whole number",
    "algorithm.exponent=-1": "algorithm.exponent must be a number of at least 0, got -1",
    "+algorithm.foo=1": "the options of algorithm do not fit",
    "trainer.batch_size=1298": "at most the 1297 training images, got 1298",
    "trainer.batch_size=0": "trainer.batch_size must be a whole number of at least 1, got 0",
    "trainer.epochs=0": "trainer.epochs must be a number of epochs above 0, got 0",
    "trainer.epochs=abc": "trainer.epochs must be a number of epochs above 0, got 'abc'",
    "trainer.epochs=inf": "trainer.epochs must be a number of epochs above 0, got inf",
    "trainer.evaluate_every=0": "trainer.evaluate_every must be",
    "trainer.evaluation_samples=0": "trainer.evaluation_samples must be",
    "trainer.evaluation_points=0": "trainer.evaluation_points must be",
    "~trainer.epochs": "missing a required argument: 'epochs'",
    "seed=abc": "seed must be a whole number of at least 0, got 'abc'",
    "seed=-1": "seed must be a whole number of at least 0, got -1",
    "device=foo": "device must be auto, cpu or cuda, got 'foo'",
    "optimizer.lr=abc": "'lr': 'abc'",
    "optimizer.lr=-1": "Invalid learning rate: -1",
    "optimizer._target_=torch.optim.Nope": "torch.optim.Nope",
    "optimizer._target_=torch.nn.ReLU": "torch.nn.ReLU cannot be made from the options",
    "optimizer._target_=torch.optim.SparseAdam": "takes dense gradients, got torch.optim.SparseAdam",
    "optimizer=null": "optimizer needs the name of a file in conf/optimizer/, got null",
    "damping=0.1": "damping needs the name of a file in conf/damping/, got 0.1",
    "model=200,100": "model needs the name of a file in conf/model/, got 200,100",
    "~optimizer": "needs a group of options optimizer, got None",
    "scheduler._target_=torch.optim.lr_scheduler.Nope": "torch.optim.lr_scheduler.Nope",
    "scheduler.lr_lambda.warmup_steps=abc": "'warmup_steps': 'abc'",
    "logger.mode=foo": "logger.mode must be one of online, offline, disabled, got 'foo'",
    "data.binarize=sometimes": "data.binarize must be one of",
    "data=npz": "add data.path=FILE",
    "+data.foo=1": "has no option foo",
}


def test_bad_input_gets_one_message(train: Command, tmp_path: Path) -> None:
    for override, expected in BAD.items():
        message = train(override).message()
        assert expected in message, (override, message)
        assert not [path for path in tmp_path.rglob("*") if path.is_file()], (
            f"{override} left files"
        )


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("foo=1", r"Could not override 'foo'"),
        ("trainer.foo=1", r"Could not override 'trainer.foo'"),
        ("algorithm=nope", r"Could not find 'algorithm/nope'[\s\S]*rws"),
        ("data=nope", r"Could not find 'data/nope'[\s\S]*digits"),
    ],
)
def test_unknown_overrides_and_choices(
    train: Command, tmp_path: Path, override: str, expected: str
) -> None:
    outcome = train(override)
    assert outcome.code == 1 and re.search(expected, outcome.err) and "Traceback" not in outcome.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_cuda(train: Command) -> None:
    assert "torch sees no CUDA device; use device=cpu" in train("device=cuda").message()


def idx(images: int, side: int = 28) -> bytes:
    grey = torch.randint(
        0, 256, (images, side, side), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )
    return struct.pack(">4I", 2051, images, side, side) + grey.numpy().tobytes()


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in the layout of the real ones, of a few images instead of MNIST, Fashion-MNIST and TFD."""
    root = tmp_path_factory.mktemp("data")
    files = {
        "train-images-idx3-ubyte.gz": gzip.compress(idx(10_100), 1),
        "t10k-images-idx3-ubyte.gz": gzip.compress(idx(50), 1),
    }
    for kind in ("MNIST", "FashionMNIST"):
        (root / kind / "raw").mkdir(parents=True)
        for name, content in files.items():
            (root / kind / "raw" / name).write_bytes(content)
    faces = np.random.default_rng(0).integers(0, 256, (80, 48, 48), dtype=np.uint8)
    (root / "TFD").mkdir()
    folds = np.repeat(
        np.arange(80, dtype=np.uint8)[:, None] % 4, 5, axis=1
    )  # unlabelled, train, valid, test
    savemat(root / "TFD" / "TFD_48x48.mat", {"images": faces, "folds": folds})
    return root


def test_truncated_data(train: Command, data_root: Path, tmp_path: Path) -> None:
    raw = tmp_path / "data" / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for path in (data_root / "FashionMNIST" / "raw").iterdir():
        (raw / path.name).write_bytes(path.read_bytes())
    packed = raw / "train-images-idx3-ubyte.gz"
    packed.write_bytes(packed.read_bytes()[:5000])
    message = train("data=fashion_mnist", f"data.root={tmp_path / 'data'}").message()
    assert f"{packed} is damaged" in message and "fetch it anew" in message
    assert "found none at" in train("data=npz", "data.path=none.npz").message()


# --- sweeps --------------------------------------------------------------------------------------------------------


def test_a_sweep_is_one_folder_of_complete_runs(train: Command, tmp_path: Path) -> None:
    outcome = train("-m", "algorithm=ws,rws", "seed=0,1")
    assert outcome.code == 0, outcome.err
    (folder,) = (tmp_path / "multirun").glob("*/*")
    assert (
        folder.parent.name == "digits"
    )  # the sweep is over the algorithm: it is no part of the name
    runs = sorted(path for path in folder.iterdir() if path.is_dir())
    assert [path.name for path in runs] == ["0", "1", "2", "3"]
    configs = [yaml.safe_load((run / ".hydra" / "config.yaml").read_text()) for run in runs]
    jobs = [("ws", 0), ("ws", 1), ("rws", 0), ("rws", 1)]
    assert [(config["algorithm"]["name"], config["seed"]) for config in configs] == jobs
    assert all(len(metrics(run)) == 2 and checkpoint(run)["step"] == 12 for run in runs)
    assert Path(outcome.out.splitlines()[-1]) == runs[-1]
    assert_same_run(runs[3], train("seed=1").run)  # a job is the run that it would be alone


def test_a_failing_job_does_not_stop_the_others(train: Command, tmp_path: Path) -> None:
    outcome = train("-m", "algorithm.samples=0,2", "name=mine")
    assert (
        outcome.code == 1
        and "algorithm.samples must be" in outcome.err
        and "Traceback" not in outcome.err
    )
    (folder,) = (tmp_path / "multirun" / "mine").iterdir()
    assert len(metrics(folder / "1")) == 2 and not (folder / "0" / "checkpoints").exists()
    assert "algorithm.samples must be" in (folder / "0" / "train.log").read_text()


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["seed=0,1"], "digits_rws"),
        (["algorithm=ws,rws"], "digits"),
        (["data=digits,mnist", "seed=range(3)"], "rws"),
        (["data=digits,mnist", "algorithm=ws,rws"], "sweep"),
        (["experiment=a,b"], "sweep"),
        (["model.layers=[4,2]"], "digits_rws"),  # a list is no sweep
    ],
)
def test_sweep_names(overrides: list[str], expected: str) -> None:
    from nws.experiment.sweeps import sweep_name

    assert sweep_name("digits_rws", "digits", "rws", overrides) == expected
    longer = (
        "published"
        if expected == "sweep" and "experiment=a,b" not in overrides
        else f"published_{expected}"
    )
    expected = "sweep" if "experiment=a,b" in overrides else longer
    assert sweep_name("published_digits_rws", "digits", "rws", overrides) == expected


# --- every preset, every optimizer ---------------------------------------------------------------------------------

TWO_STEPS = (
    "trainer.epochs=1e-6", "trainer.batch_size=2", "trainer.evaluation_samples=2", "trainer.evaluation_points=4",
    "logger=none", "device=cpu",
)  # fmt: skip


@pytest.mark.parametrize(
    "preset", [f"{group}={name}" for group in ("experiment", "debug") for name in names(group)]
)
def test_presets_take_two_steps(
    command: Command, data_root: Path, monkeypatch: Any, preset: str
) -> None:
    from nws.experiment.trainer import TrainerSettings

    # Two steps whatever the size of the data.
    monkeypatch.setattr(TrainerSettings, "steps_per_epoch", lambda self, images, kind="training": 2)
    once = (
        ["hydra.mode=RUN", "hydra.sweeper.params={}"] if "sweep/" in preset else []
    )  # one job of a sweep
    outcome = command(
        "train.py", preset, f"data.root={data_root}", *TWO_STEPS[1:], "trainer.epochs=1", *once
    )
    assert outcome.code == 0, outcome.err
    assert checkpoint(outcome.run)["step"] == 2 and len(metrics(outcome.run)) >= 1


@pytest.mark.parametrize("group", ["optimizer", "scheduler", "model"])
def test_group_choices_train(train: Command, group: str) -> None:
    before = None
    for name in names(group):
        outcome = train(f"{group}={name}", "trainer.epochs=0.5", f"hydra.run.dir={name}")
        assert outcome.code == 0, (name, outcome.err)
        assert checkpoint(outcome.run)["step"] == 3
        after = checkpoint(outcome.run)["machine"]["generator.layers.0.weight"]
        assert after.isfinite().all()
        assert (
            before is None
            or group == "model"
            or not torch.equal(after, before)
            or group == "scheduler"
        )
        before = after


OPTIMIZERS = sorted(
    name
    for name, each in vars(torch.optim).items()
    if isinstance(each, type)
    and issubclass(each, torch.optim.Optimizer)
    and each is not torch.optim.Optimizer
)


def test_every_torch_optimizer_trains(train: Command) -> None:
    assert {"SGD", "Adam", "LBFGS", "Rprop"} <= set(OPTIMIZERS)
    start = None
    for name in OPTIMIZERS:
        options = (
            f"optimizer._target_=torch.optim.{name}",
            "~optimizer.betas",
            "trainer.epochs=0.5",
            f"hydra.run.dir={name}",
        )
        outcome = train(*options, "scheduler=plateau")
        if name in ("SparseAdam", "Muon"):  # for sparse gradients; for matrices alone
            assert name in outcome.message()
            continue
        assert outcome.code == 0, (name, outcome.err)
        state = checkpoint(outcome.run)
        assert state["step"] == 3 and state["optimizer_class"] == name
        weight = state["machine"]["generator.layers.0.weight"]
        assert weight.isfinite().all() and (start is None or not torch.equal(weight, start))
        start = weight
