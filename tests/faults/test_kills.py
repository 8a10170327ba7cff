"""Runs are killed, stopped and left without a disk at every change to their files, and end as if
nothing had been.

`make faults` does all of it, with a fresh seed. NWS_FAULTS_SEED repeats one, and
NWS_FAULTS_SHARE=0.1 does a tenth.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from breaking import Attempt, wait_until
from campaign import AUTO, RUN, Campaign, differences
from conftest import ROOT, SMALL

if sys.platform == "win32":
    pytest.skip("there are no signals and no fork", allow_module_level=True)


@pytest.fixture(scope="module")
def campaign(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Campaign]:
    """All cases of this file share a server, a seed and their counts."""
    campaign = Campaign(tmp_path_factory.mktemp("kills"), request.config.getoption("faults_long"))
    yield campaign
    campaign.server.close()
    if campaign.long:
        print("\n" + campaign.report())


@pytest.fixture
def clean(campaign: Campaign) -> Iterator[Campaign]:
    """The campaign; the test fails where it found anything."""
    before = len(campaign.found)
    yield campaign
    assert campaign.found[before:] == []


long = pytest.mark.skipif("not config.getoption('--faults-long')", reason="make faults runs it")


def test_the_control_sees_what_is_wrong(campaign: Campaign) -> None:
    """Another seed differs, a file too many is left over, a lost run is lost; a kill is a kill."""
    assert campaign.changes > 100
    folder = campaign.new_folder("control")
    assert campaign.server.start(folder, *RUN, how="killed", at=40).code == -signal.SIGKILL
    assert campaign.server.start(folder, *RUN).code == 1  # it holds a run already
    assert differences(folder / "run", campaign.whole / "run")
    other = Campaign.__new__(Campaign)  # with counts of its own
    other.__dict__ |= campaign.__dict__ | {"found": [], "counts": campaign.counts.copy()}
    other.complete("of another configuration", folder, *AUTO, "seed=1")
    other.complete("of another seed", campaign.new_folder("control_seed"), *RUN, "seed=1")
    left = campaign.new_folder("control_left")
    (left / "run").mkdir()
    (left / "run" / "left").touch()
    other.complete("with a file too many", left)
    kinds = [line.split(": ")[:2] for line in other.found]
    assert ["of another configuration", "runs lost"] in kinds
    assert ["of another seed", "bit differences"] in kinds
    assert ["with a file too many", "leftovers"] in kinds
    assert ["with a file too many", "bit differences"] not in kinds


def test_a_run_that_is_killed_at_any_change_goes_on(clean: Campaign) -> None:
    for number, at in enumerate(clean.sample(10)):
        name = f"killed at change {at}"
        folder = clean.new_folder(name)
        killed = clean.server.start(folder, *RUN, how="killed", at=at)
        clean.counts["kills at a change"] += 1
        clean.look(name, killed, (-signal.SIGKILL,))
        by_name = number % 2 and (folder / "run" / ".hydra" / "config.yaml").exists()
        clean.complete(name, folder, *(("resume=run", "progress=false") if by_name else AUTO))


@pytest.mark.parametrize(("how", "number"), [("full", 5), ("read_only", 3)])
def test_a_run_whose_disk_fails_at_any_change_goes_on(
    clean: Campaign, how: str, number: int
) -> None:
    for at in clean.sample(number):
        name = f"{how} disk from change {at} on"
        folder = clean.new_folder(name)
        failed = clean.server.start(folder, *RUN, how=how, at=at)
        clean.counts[f"{how} disks"] += 1
        clean.look(name, failed, (0, 1))
        said = failed.err.count("error: ") == 1
        clean.note("errors without one message", failed.code == 1 and not said and failed, name)
        clean.complete(name, folder)


def test_a_run_that_is_killed_again_and_again_goes_on(clean: Campaign) -> None:
    for case in range(clean.times(1, 60)):
        name = f"killed again and again, {case}"
        folder = clean.new_folder(name)
        for _ in range(4):
            at = clean.random.randint(1, clean.changes)
            clean.counts["kills of runs that went on"] += 1
            clean.server.start(folder, *AUTO, how="killed", at=at)
        clean.complete(name, folder)


LONGER = ("resume=run", "trainer.epochs=3", "optimizer.lr=0.02", "progress=false")


def test_a_run_that_is_killed_with_new_options_takes_them_again(clean: Campaign) -> None:
    """By the same command, or by one without options once a checkpoint has the new ones."""
    whole = clean.new_folder("whole longer")
    clean.server.start(whole, *RUN)
    changes = clean.server.start(whole, *LONGER).changes
    number = clean.times(3, changes)
    for part in range(number):
        at = 1 + int(changes * (part + clean.random.random()) / number)
        name = f"killed with new options at change {at}"
        folder = clean.new_folder(name)
        shutil.copytree(clean.whole / "run", folder / "run")
        clean.server.start(folder, *LONGER, how="killed", at=at)
        clean.counts["kills with new options"] += 1
        last = torch.load(folder / "run" / "checkpoints" / "last.pt", weights_only=True)
        has_them = last["total_steps"] == 18
        clean.look(name, clean.server.start(folder, *(LONGER[:1] if has_them else LONGER)))
        clean.check(name, folder, whole)


def test_of_two_starts_at_once_one_trains(clean: Campaign) -> None:
    for case in range(clean.times(2, 20)):
        name = f"started twice at once, {case}"
        folder = clean.new_folder(name)
        arguments = RUN if case % 2 else AUTO
        both = clean.server.together(*[Attempt(str(folder), arguments)] * 2)
        clean.counts["double starts"] += 1
        codes = sorted(ending.code for ending in both)
        clean.note("double starts that both ran", codes != ([0, 1] if case % 2 else [0, 0]), name)
        for ending in both:
            clean.look(name, ending, (0, 1))
            words = ("is being trained by", "already, nothing was changed")
            whose = any(each in ending.err for each in words)
            clean.note("unclear refusals", ending.code == 1 and not whose and ending.err, name)
        clean.check(name, folder)


# --- the long campaign ----------------------------------------------------------------------------


@long
def test_a_run_that_is_killed_at_any_moment_goes_on(clean: Campaign) -> None:
    started = time.monotonic()
    clean.complete("undisturbed", clean.new_folder("undisturbed"))
    whole = time.monotonic() - started
    for case in range(clean.times(0, 150)):
        name = f"killed at a moment, {case}"
        folder = clean.new_folder(name)
        killed = clean.server.start(folder, *RUN, after=clean.random.uniform(0, whole))
        clean.counts["kills at a moment"] += killed.code == -signal.SIGKILL
        clean.look(name, killed, (0, -signal.SIGKILL))
        clean.complete(name, folder)


def program(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """train.py as a user starts it."""
    return subprocess.Popen(
        [sys.executable, ROOT / "train.py", *arguments], cwd=folder, start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@long
def test_programs_that_are_killed_at_any_moment_go_on(clean: Campaign) -> None:
    started = time.monotonic()
    process = program(clean.new_folder("program"), *RUN)
    assert process.communicate()[0].endswith("run\n")
    whole = time.monotonic() - started
    for case in range(clean.times(0, 20)):
        name = f"program killed at a moment, {case}"
        folder = clean.new_folder(name)
        process = program(folder, *RUN)
        time.sleep(clean.random.uniform(whole / 2, whole))  # the first half only imports
        process.kill()
        out = process.communicate()[0]
        clean.counts["kills of programs"] += process.returncode == -signal.SIGKILL
        clean.note("tracebacks", "Traceback" in out and out, name)
        clean.complete(name, folder)


SWEEP = (
    "-m", *SMALL, "seed=0,1,2", "hydra.sweep.dir=run", "progress=false", "resume=auto",
    "hydra/launcher=joblib", "hydra.launcher.n_jobs=2",
)  # fmt: skip


@long
def test_sweeps_that_are_killed_at_any_moment_go_on(clean: Campaign) -> None:
    """The next start comes at once, where workers of the last one may be living yet."""
    whole = clean.new_folder("whole sweep")
    started = time.monotonic()
    process = program(whole, *SWEEP)
    out = process.communicate()[0]
    assert process.returncode == 0, out
    seconds = time.monotonic() - started
    for case in range(clean.times(0, 10)):
        name = f"sweep killed at a moment, {case}"
        folder = clean.new_folder(name)
        for _ in range(2):
            process = program(folder, *SWEEP)
            time.sleep(clean.random.uniform(seconds / 3, seconds))
            process.kill()
            clean.counts["kills of sweeps"] += process.wait() == -signal.SIGKILL
        group = process.pid
        process = program(folder, *SWEEP)
        out = process.communicate()[0]
        clean.note("tracebacks", "Traceback" in out and out, name)
        clean.note("runs lost", process.returncode and out, name)
        ended = wait_until(lambda group=group: not lives(group), 5)
        clean.note("workers without a sweep", not ended, name)
        for job in "012":
            problem = differences(folder / "run" / job, whole / "run" / job)
            clean.note("bit differences", problem, f"{name}, job {job}")
        left = [str(path) for path in folder.rglob("*.tmp")]
        clean.note("leftovers", left + [str(path) for path in folder.rglob(".lock")], name)


def lives(group: int) -> bool:
    """Whether a process of a group is living."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@long
def test_a_program_that_is_stopped_for_a_while_has_its_run_to_itself(clean: Campaign) -> None:
    for case in range(clean.times(0, 10)):
        name = f"stopped for a while, {case}"
        folder = clean.new_folder(name)
        process = program(folder, *RUN)
        lock = folder / "run" / ".lock"
        assert wait_until(lambda lock=lock: lock.exists() and lock.read_text(), 60)
        time.sleep(clean.random.uniform(0, 0.4))
        process.send_signal(signal.SIGSTOP)
        clean.counts["programs stopped for a while"] += 1
        meanwhile = clean.server.start(folder, *RUN)
        refused = meanwhile.code == 1 and f"by process {process.pid} on" in meanwhile.err
        over = "already, nothing was changed" in meanwhile.err  # it was at its end
        clean.note("runs that others took", not refused and not over and meanwhile, name)
        process.send_signal(signal.SIGCONT)
        out = process.communicate()[0]
        clean.note("runs lost", process.returncode and out, name)
        clean.check(name, folder)
