"""Sweeps: their folders, and going on with resume=auto."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import (
    ROOT,
    SMALL,
    Command,
    Interrupt,
    Outcome,
    assert_same_run,
    checkpoint,
    complete,
    count_steps,
    metrics,
    only,
    snapshot,
)

from nws.experiment.launch.sweeps import sweep_name

AUTO = "resume=auto"


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
    values = [max(float(row["valid/log_likelihood"]) for row in metrics(run)) for run in runs]
    best = runs[values.index(max(values))]
    assert outcome.run == best  # after a table by what differs
    assert re.search(r"^run +algorithm +seed +state +best valid, nats", outcome.out, re.MULTILINE)
    for job, (algorithm, seed) in enumerate(jobs):
        row = rf"^ *{job} +{algorithm} +{seed} +finished +{values[job]:.3f} ± "
        assert re.search(row, outcome.out, re.MULTILINE)
    mean, deviation = np.mean(values[:2]), np.std(values[:2], ddof=1)
    assert re.search(rf"^ws +2 +{mean:.3f} ± {deviation:.3f}$", outcome.out, re.MULTILINE)
    assert_same_run(runs[3], train("seed=1").run)  # a job is the run that it would be alone


def test_a_failing_job_does_not_stop_the_others(train: Command, tmp_path: Path) -> None:
    outcome = train("-m", "trainer.batch_size=1298,200", "name=mine")
    assert (
        outcome.code == 1
        and "at most the 1297 training images" in outcome.err
        and "Traceback" not in outcome.err
    )
    (folder,) = (tmp_path / "multirun" / "mine").iterdir()
    assert len(metrics(folder / "1")) == 2 and not (folder / "0" / "checkpoints").exists()
    assert "at most the 1297 training images" in (folder / "0" / "train.log").read_text()


@pytest.mark.parametrize(
    ("overrides", "expected", "published"),
    [
        (["seed=0,1"], "digits_rws", "published_digits_rws"),
        (["algorithm=ws,rws"], "digits", "published_digits"),
        (["data=digits,mnist", "seed=range(3)"], "rws", "published_rws"),
        (["data=digits,mnist", "algorithm=ws,rws"], "sweep", "published"),
        (["experiment=a,b"], "sweep", "sweep"),
        (["model.layers=[4,2]"], "digits_rws", "published_digits_rws"),  # a list is no sweep
    ],
)
def test_sweep_names(overrides: list[str], expected: str, published: str) -> None:
    assert sweep_name("digits_rws", "digits", "rws", overrides) == expected
    assert sweep_name("published_digits_rws", "digits", "rws", overrides) == published


def test_a_number_is_a_name_too(train: Command, tmp_path: Path) -> None:
    """Hydra hands `data.name=2026` on as a number."""
    assert train("data.name=2026", "trainer.epochs=0.1").code == 0
    (run,) = (tmp_path / "outputs").iterdir()
    assert run.name == "2026_rws"


def test_a_stopped_sweep_is_completed_by_the_same_command(
    command: Command,
    sweep: Command,
    interrupt: Interrupt,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context():
        interrupt(20, signal.SIGTERM)  # in the second job
        stopped = sweep("seed=0,1,2")
    assert stopped.code == 128 + signal.SIGTERM and "Traceback" not in stopped.err
    folder = only(tmp_path / "multirun" / "digits_rws")
    assert stopped.run == folder  # the last line
    again = f"go on with\n  python {ROOT / 'train.py'} -m "  # as this one was started
    assert f"the sweep was stopped by signal 15; {again}" in stopped.out
    assert (
        stopped.out.splitlines()[-2].endswith(f"seed=0,1,2 {AUTO}")
        and "train.py resume=" not in stopped.out
    )
    assert (
        complete(folder / "0")
        and checkpoint(folder / "1")["step"] == 8
        and not (folder / "2").exists()
    )

    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    steps, before = count_steps(monkeypatch), snapshot(folder / "0")
    resumed = sweep("seed=0,1,2", AUTO)
    assert resumed.code == 0, resumed.err
    assert only(tmp_path / "multirun" / "digits_rws") == folder
    assert f"going on with the sweep in {folder}\n" in resumed.out
    assert (
        f"finished already: step 12 of 12\n{folder / '0'}\n" in resumed.out
        and snapshot(folder / "0") == before
    )
    assert len(steps) == 4 + 12  # nothing twice
    assert complete(folder / "2")
    assert_same_run(folder / "1", command("train.py", *SMALL, "seed=1", "hydra.run.dir=whole").run)
    assert yaml.safe_load((folder / "1" / ".hydra" / "config.yaml").read_text())["resume"] is None

    other = sweep("seed=2", AUTO)  # the control: another command is another sweep
    assert "resume=auto: a new sweep in" in other.out and other.run.parent != folder


def test_of_other_configurations_and_of_jobs_that_never_saved(
    sweep: Command, tmp_path: Path
) -> None:
    assert sweep("seed=0,1", "hydra.sweep.dir=mine").code == 0
    runs = [tmp_path / "mine" / name for name in "01"]
    before = [snapshot(run) for run in runs]
    refused = sweep("seed=0", "hydra.sweep.dir=mine", "optimizer.lr=0.02", AUTO)
    assert refused.code == 1 and "Traceback" not in refused.err
    assert (
        f"{tmp_path / 'mine' / '0'} holds a run of another configuration: optimizer.lr is 0.01"
        in refused.err
    )
    assert "and 0.02 is asked for; nothing was changed" in refused.err
    refused = sweep("seed=0", "hydra.sweep.dir=mine", "+optimizer.amsgrad=true", AUTO)
    assert "optimizer.amsgrad is none there, and True is asked for" in refused.err
    assert [snapshot(run) for run in runs] == before

    for path in (runs[1] / "checkpoints").iterdir():
        path.unlink()
    assert (
        sweep("seed=0,1", "hydra.sweep.dir=mine", AUTO).code == 0
    )  # of the same configuration: the control
    assert snapshot(runs[0]) == before[0]
    assert snapshot(runs[1]).keys() == before[1].keys() and complete(runs[1])


def test_auto_finds_the_unfinished_run(
    command: Command, interrupt: Interrupt, monkeypatch: Any, tmp_path: Path
) -> None:
    def run(*arguments: str) -> Outcome:
        return command("train.py", *SMALL, "optimizer=momentum", "optimizer.lr=0.02", *arguments)

    interrupt(10, signal.SIGTERM)
    stopped = run("hydra.run.dir=outputs/digits_rws/2999-01-01_00-00-00").run
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    later = run("hydra.run.dir=outputs/digits_rws/2999-01-02_00-00-00", "seed=5").run
    (later / "checkpoints" / "last.pt").unlink()  # not finished, but of another configuration
    assert not complete(stopped)
    resumed = run(AUTO)
    assert resumed.code == 0 and resumed.run == stopped, resumed.err
    assert f"resume=auto: going on with {stopped.relative_to(tmp_path)}\n" in resumed.out
    new = run(AUTO)
    assert "no unfinished run of this configuration in outputs/digits_rws, a new one" in new.out
    assert new.run not in (stopped, later)
    assert_same_run(stopped, new.run)


def test_auto_with_a_directory_of_the_user(command: Command) -> None:
    for expected in ("digits_rws (nws ", "finished already: step 12 of 12\n"):
        outcome = command("train.py", *SMALL, "hydra.run.dir=mine", AUTO)
        assert outcome.code == 0 and outcome.out.startswith(expected)
    other = command("train.py", *SMALL, "hydra.run.dir=mine", AUTO, "seed=1")
    assert (
        "mine holds a run of another configuration: seed is 0 there, and 1 is asked for"
        in other.message()
    )
    wrong = command("train.py", *SMALL, AUTO, "foo=1")
    assert wrong.code == 1 and "foo" in wrong.err and "Traceback" not in wrong.err
