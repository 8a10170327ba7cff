"""Runs are killed, stopped and left without a disk, and end as if nothing had been.

`make faults` does it at every change to their files and at hundreds of moments, with a fresh seed;
NWS_FAULTS_SEED repeats one.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
import sklearn.datasets  # what a run imports late, once for all forks
import torch
import torchvision.utils
from conftest import SMALL, assert_same_run
from faults.breaking import Ending, begin, end, start
from faults.trial import Trial

if sys.platform == "win32":
    pytest.skip("there are no signals and no fork", allow_module_level=True)

pytestmark = pytest.mark.slow
assert sklearn.datasets and torchvision.utils

RUN = (*SMALL, "hydra.run.dir=run", "progress=false")
AUTO = (*RUN, "resume=auto")
LONGER = ("resume=run", "trainer.epochs=3", "optimizer.lr=0.02", "progress=false")
SWEEP = (
    "-m", *SMALL, "seed=0,1", "hydra.sweep.dir=run", "progress=false", "resume=auto",
    "hydra/launcher=joblib", "hydra.launcher.n_jobs=2",
)  # fmt: skip


@dataclass
class Whole:
    """What nothing disturbed: its folder, its ending, and how long it took."""

    folder: Path
    ending: Ending
    seconds: float


@dataclass
class Case:
    """A folder in which something is disturbed, at a `part` of what is undisturbed."""

    folder: Path
    whole: Whole
    part: float
    rng: Random
    group: int = 0  # of processes, which outlive nothing

    def breaks(self, how: str, *arguments: str) -> Ending:
        """A start that breaks at the change to files that the part stands for."""
        changes = self.whole.ending.changes
        return start(self.folder, *arguments, how=how, at=1 + int(self.part * changes))


def undisturbed(folder: Path, *commands: tuple[str, ...]) -> Whole:
    folder.mkdir()
    for command in commands:
        started = time.monotonic()
        ending = start(folder, *command)
        assert (ending.code, ending.err) == (0, ""), ending
    return Whole(folder, ending, time.monotonic() - started)


# --- what disturbs a run; each returns the command that completes it ------------------------------


def killed(case: Case) -> tuple[str, ...]:
    assert case.breaks("killed", *RUN).code == -signal.SIGKILL
    started = (case.folder / "run" / ".hydra" / "config.yaml").exists()
    return ("resume=run", "progress=false") if started and case.rng.random() < 0.5 else AUTO


def without_a_disk(case: Case) -> tuple[str, ...]:
    ending = case.breaks(case.rng.choice(["full", "read_only"]), *RUN)
    assert ending.code in (0, 1) and "Traceback" not in ending.err, ending
    assert ending.code == 0 or ending.err.count("error: ") == 1, ending
    return AUTO


def killed_again_and_again(case: Case) -> tuple[str, ...]:
    for _ in range(4):
        case.part = case.rng.random()
        case.breaks("killed", *AUTO)
    return AUTO


def killed_at_a_moment(case: Case) -> tuple[str, ...]:
    process, said = begin(case.folder, *RUN)
    time.sleep(case.part * case.whole.seconds)
    os.kill(process, signal.SIGKILL)
    assert "Traceback" not in end(process, said).err
    return AUTO


def killed_with_new_options(case: Case) -> tuple[str, ...]:
    """They are given again, unless a checkpoint has them."""
    start(case.folder, *RUN)
    case.breaks("killed", *LONGER)
    last = torch.load(case.folder / "run" / "checkpoints" / "last.pt", weights_only=True)
    return LONGER[:1] if last["total_steps"] == 18 else LONGER


def started_twice(case: Case) -> tuple[str, ...]:
    """One trains; the other is refused, or with resume=auto waits and finds it finished."""
    command = case.rng.choice([RUN, AUTO])
    both = [end(*each) for each in [begin(case.folder, *command) for _ in range(2)]]
    codes = sorted(each.code for each in both)
    assert codes == ([0, 1] if command == RUN else [0, 0]), both
    words = ("is being trained by", "already, nothing was changed")
    assert all(any(word in each.err for word in words) for each in both if each.code), both
    return AUTO


def stopped_for_a_while(case: Case) -> tuple[str, ...]:
    """What does not run holds its directory all the same."""
    process, said = begin(case.folder, *RUN)
    lock = case.folder / "run" / ".lock"
    deadline = time.monotonic() + 100
    while not (lock.exists() and lock.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(case.part * case.whole.seconds / 2)
    os.kill(process, signal.SIGSTOP)
    other = start(case.folder, *RUN)
    words = (f"by process {process} on", "already, nothing was changed")
    assert other.code == 1 and any(word in other.err for word in words), other
    os.kill(process, signal.SIGCONT)
    assert end(process, said).code == 0
    return AUTO


def a_sweep(case: Case) -> tuple[str, ...]:
    """Of two processes: killed and started again while workers may live, or ended by Ctrl-C."""
    assert "[1] digits_rws, job 1: " in case.whole.ending.out  # whose line it is
    process, said = begin(case.folder, *SWEEP)
    case.group = process
    time.sleep(case.rng.uniform(0.2, 1) * case.whole.seconds)
    how = signal.SIGKILL if case.part < 0.5 else signal.SIGINT
    os.kill(process, how) if case.part < 0.5 else os.killpg(process, how)
    ending = end(process, said)
    assert ending.code in (0, -how, 128 + how), ending
    # Between two jobs Ctrl-C interrupts joblib's own code, which shows its traceback: not ours.
    for traceback in (ending.out + ending.err).split("Traceback")[1:]:
        assert case.part >= 0.5 and "joblib" in traceback and "nws/" not in traceback, ending
    return SWEEP


#: Each with how often it is tried; with --faults-long 0 stands for every change to files.
FAULTS: dict[Callable[[Case], tuple[str, ...]], tuple[int, int]] = {
    killed: (8, 0), without_a_disk: (6, 0), killed_again_and_again: (1, 60),
    killed_at_a_moment: (3, 150), killed_with_new_options: (3, 0), started_twice: (2, 20),
    stopped_for_a_while: (1, 10), a_sweep: (2, 20),
}  # fmt: skip


@pytest.mark.parametrize("disturb", FAULTS)
def test_a_disturbed_run_ends_as_if_nothing_had_been(
    disturb: Callable[[Case], tuple[str, ...]], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    long = bool(pytestconfig.getoption("faults_long"))
    commands = {killed_with_new_options: (RUN, LONGER), a_sweep: (SWEEP,)}
    whole = undisturbed(tmp_path / "whole", *commands.get(disturb, (RUN,)))
    seed, found = Trial(long).seed, []
    tried = FAULTS[disturb][long] or whole.ending.changes
    for number in range(tried):
        rng = Random(f"{seed} {disturb.__name__} {number}")
        case = Case(tmp_path / str(number), whole, (number + rng.random()) / tried, rng)
        case.folder.mkdir()
        try:
            check(case, start(case.folder, *disturb(case)))
            shutil.rmtree(case.folder)
        except (AssertionError, OSError, RuntimeError, LookupError, EOFError) as error:
            found.append(f"case {number}: {type(error).__name__}: {str(error)[:500]}")
    print(f"{disturb.__name__}: {len(found)} of {tried} wrong, seed {seed}", file=sys.stderr)
    assert not found, "\n".join([f"seed {seed}", *found])


def check(case: Case, ending: Ending) -> None:
    """The run is complete, and bit for bit the undisturbed one, with the same files."""
    assert ending.code == 0 and "Traceback" not in ending.out + ending.err, ending
    assert names(case.folder) == names(case.whole.folder)
    if case.group:
        with pytest.raises(ProcessLookupError):  # no worker is left
            os.killpg(case.group, 0)
    for last in (case.whole.folder / "run").rglob("last.pt"):
        run = last.parent.parent.relative_to(case.whole.folder)
        assert_same_run(case.whole.folder / run, case.folder / run)


def names(folder: Path) -> set[str]:
    """All files and folders below a folder, without those of logs and code.

    A start that is killed before it goes on with a run may leave a new folder without files.
    """
    below = [path for path in folder.rglob("*") if path.suffix not in (".log", ".diff")]
    aside = {path for path in below if path.is_dir() and path.is_relative_to(folder / "outputs")}
    return {str(path.relative_to(folder)) for path in below if path not in aside}


def test_the_control_sees_what_is_wrong(tmp_path: Path) -> None:
    """Another seed, a file too many, a run that was not completed."""
    whole = undisturbed(tmp_path / "whole", RUN)
    assert whole.ending.changes > 60
    for name, options in {"seed": (*RUN, "seed=1"), "left": RUN, "lost": RUN}.items():
        case = Case(tmp_path / name, whole, 0.5, Random(0))
        case.folder.mkdir()
        ending = case.breaks("killed" if name == "lost" else "", *options)
        if name == "left":
            check(case, ending)
            (case.folder / "run" / "left").touch()
        with pytest.raises(AssertionError):
            check(case, ending)
