"""Sweeps: going on with resume=auto, stopping, several processes, a cluster's script, Optuna."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, SMALL, Command, Outcome, assert_same_run, checkpoint, metrics, snapshot

Interrupt = Callable[[int, int | BaseException], None]
AUTO = "resume=auto"
# As many steps as on the digits, whose library takes a second to import in each process.
TOY = ("data=three_by_three", "trainer.batch_size=3000")


@pytest.fixture
def sweep(command: Command) -> Command:
    """sweep("seed=0,1", ...): train.py -m on the digits with the SMALL settings."""

    def run(*arguments: str) -> Outcome:
        return command("train.py", "-m", *SMALL, *arguments)

    return run


def only(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def complete(run: Path) -> bool:
    return checkpoint(run)["step"] == 12 and len(metrics(run)) == 2


def count_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by one with each training step from now on."""
    from nws.learning.wake_sleep import WakeSleep

    original, steps = WakeSleep.step, []

    def step(self: WakeSleep, *batches: Any) -> Any:
        steps.append(1)
        return original(self, *batches)

    monkeypatch.setattr(WakeSleep, "step", step)
    return steps


# --- resume=auto: a sweep ------------------------------------------------------------------------------------------


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
    assert "the sweep was stopped by signal 15; go on with\n  python train.py -m " in stopped.out
    assert (
        stopped.out.splitlines()[-2].endswith(f"seed=0,1,2 {AUTO}")
        and "go on with\n  python train.py resume=" not in stopped.out
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
        f"{tmp_path / 'mine' / '0'} holds a run of another configuration: optimizer.lr is 0.01 there"
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


# --- resume=auto: a run --------------------------------------------------------------------------------------------


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
    for expected in ("", "finished already: step 12 of 12\n"):
        outcome = command("train.py", *SMALL, "hydra.run.dir=mine", AUTO)
        assert outcome.code == 0 and outcome.out.startswith(expected or str(outcome.run))
    other = command("train.py", *SMALL, "hydra.run.dir=mine", AUTO, "seed=1")
    assert (
        "mine holds a run of another configuration: seed is 0 there, and 1 is asked for"
        in other.message()
    )
    wrong = command("train.py", *SMALL, AUTO, "foo=1")
    assert wrong.code == 1 and "foo" in wrong.err and "Traceback" not in wrong.err


# --- launchers and sweepers ----------------------------------------------------------------------------------------


def test_a_plugin_that_is_missing(
    sweep: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for choice in (
        "hydra/launcher=joblib",
        "hydra/launcher=submitit_slurm",
        "hydra/sweeper=optuna",
    ):
        message = sweep("seed=0,1", choice).message()
        assert f"{choice} needs hydra-" in message and "pip install '.[sweep]'" in message
    assert list(tmp_path.iterdir()) == []


# A scheduler's class that waits after step 8 while there is a file `hold`; who waits is seen by a file `waiting_PID`.
HELD = """
import os, pathlib, time
from torch.optim.lr_scheduler import LambdaLR

def held(optimizer, lr_lambda):
    folder = pathlib.Path(__file__).parent
    def factor(step):
        if step == 8 and (folder / "hold").exists():
            (folder / f"waiting_{os.getpid()}").touch()
            while (folder / "hold").exists():
                time.sleep(0.01)
        return lr_lambda(step)
    return LambdaLR(optimizer, factor)
"""


def test_several_processes_stop_and_go_on(
    sweep: Command, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C reaches all of a terminal's processes: the running jobs save, the others do not start."""
    (tmp_path / "held.py").write_text(HELD)
    (tmp_path / "hold").touch()
    options = [*TOY, "algorithm=ws", "scheduler._target_=held.held", "seed=0,1,2"]
    launcher = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    process = subprocess.Popen(
        [sys.executable, ROOT / "train.py", "-m", *SMALL, *options, *launcher], env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip

    def wait_for(pattern: str, number: int) -> None:
        deadline = time.monotonic() + 120
        while (
            len(list(tmp_path.glob(pattern))) < number
            and process.poll() is None
            and time.monotonic() < deadline
        ):
            time.sleep(0.02)

    wait_for("waiting_*", 2)
    os.killpg(process.pid, signal.SIGINT)
    wait_for("multirun/*/*/stopped", 1)
    (tmp_path / "hold").unlink()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT, output
    assert (
        "stopping the sweep (signal 2)" in output
        and "the sweep was stopped by signal 2; go on with" in output
    )
    assert "Traceback" not in output
    folder = only(tmp_path / "multirun" / "three_by_three_ws")
    assert not list((folder / "2").glob("checkpoints/*"))
    assert [checkpoint(folder / name)["step"] for name in "01"] == [8, 8]
    assert all(
        output.splitlines().count(str(folder / name)) == 2 for name in "01"
    )  # at start and, saved, at the end

    monkeypatch.syspath_prepend(tmp_path)
    resumed = sweep(*options, AUTO)  # in this process: how the jobs are launched does not matter
    assert resumed.code == 0 and f"going on with the sweep in {folder}" in resumed.out, resumed.err
    assert all(complete(folder / name) for name in "012")
    assert_same_run(
        folder / "1",
        command("train.py", *SMALL, *options[:-1], "seed=1", "hydra.run.dir=whole").run,
    )


SBATCH = """#!/bin/bash
cp "${@: -1}" "$RECORD"; echo "Submitted batch job 7"
"""
SRUN = """#!/bin/bash
while [[ "$1" == -* ]]; do [[ "$1" == --unbuffered ]] && shift || shift 2; done
exec "$@"
"""
SLURM = {
    "SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "here",
    "SLURM_CPUS_PER_TASK": "1",
}  # fmt: skip


def test_a_cluster(
    sweep: Command, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script that SLURM would get, and a job run by it, with stand-ins for SLURM's commands."""
    import submitit

    def run_the_script(job: Any) -> list[Any]:
        text = (tmp_path / "script").read_text().replace("%j", "7").replace("%t", "0")
        subprocess.run(["bash", "-c", text], env={**os.environ, **SLURM}, check=True, timeout=90)
        outcome, result = submitit.core.utils.pickle_load(job.paths.result_pickle)
        assert outcome == "success", result
        return [result]

    monkeypatch.setattr(submitit.Job, "results", run_the_script)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        assert (
            "found no sbatch and srun here"
            in sweep("seed=3", "hydra/launcher=submitit_slurm").message()
        )
    (tmp_path / "bin").mkdir()
    for name, text in {"sbatch": SBATCH, "srun": SRUN}.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("RECORD", str(tmp_path / "script"))
    options = (
        "hydra.launcher.partition=gpu",
        "hydra.launcher.gpus_per_node=1",
        "hydra.launcher.timeout_min=90",
    )
    outcome = sweep(*TOY, "seed=3", "hydra/launcher=submitit_slurm", *options)
    assert outcome.code == 0, (outcome.out, outcome.err)
    script = (tmp_path / "script").read_text()
    for line in (
        "partition=gpu",
        "gpus-per-node=1",
        "time=90",
        "cpus-per-task=2",
        "mem=8GB",
        "job-name=three_by_three_rws",
    ):
        assert f"#SBATCH --{line}\n" in script, line
    assert "\nexport OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\n" in script and "\nsrun " in script
    run = only(tmp_path / "multirun" / "three_by_three_rws") / "0"
    assert_same_run(run, command("train.py", *SMALL, *TOY, "seed=3", "hydra.run.dir=whole").run)


def test_a_search_by_optuna(
    sweep: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (
        "hydra/sweeper=optuna",
        "hydra.sweeper.n_trials=4",
        "algorithm=nrws",
        "optimizer.lr=choice(0.1,1e38)",
    )
    outcome = sweep(*options)
    assert outcome.code == 0, outcome.err
    folder = only(tmp_path / "multirun" / "digits_nrws")
    results = (folder / "optimization_results.yaml").read_text()
    best, runs = yaml.safe_load(results), [folder / str(number) for number in range(4)]
    configs = [yaml.safe_load((run / ".hydra" / "config.yaml").read_text()) for run in runs]
    diverged = [
        run for run, config in zip(runs, configs, strict=True) if config["optimizer"]["lr"] == 1e38
    ]
    good = [run for run in runs if run not in diverged]
    assert diverged and good and not any((run / "checkpoints").exists() for run in diverged)
    values = {run: max(float(row["valid/log_likelihood"]) for row in metrics(run)) for run in good}
    assert (
        best["best_value"] == pytest.approx(max(values.values()))
        and best["best_params"]["optimizer.lr"] == 0.1
    )
    chosen = configs[runs.index(max(values, key=values.__getitem__))]
    assert best["best_params"]["damping.value"] == chosen["damping"]["value"]
    assert all(0.003 <= config["solver"]["accuracy"] <= 0.1 for config in configs)

    (folder / "optimization_results.yaml").unlink()
    steps, before = count_steps(monkeypatch), {run: snapshot(run) for run in good}
    again = sweep(*options, AUTO)  # the same search, followed again from its runs
    assert again.code == 0 and again.out.count("finished already") == len(good), again.err
    assert (folder / "optimization_results.yaml").read_text() == results
    assert {run: snapshot(run) for run in good} == before
    assert len(steps) <= 6 * len(diverged)  # these have nothing to go on from


def test_a_mistake_ends_a_search(sweep: Command, tmp_path: Path) -> None:
    outcome = sweep("hydra/sweeper=optuna", "hydra.sweeper.n_trials=3", "algorithm.samples=0")
    assert (
        outcome.code == 1
        and "algorithm.samples must be" in outcome.err
        and "Traceback" not in outcome.err
    )
    assert [
        path.name for path in only(tmp_path / "multirun" / "digits_rws").iterdir() if path.is_dir()
    ] == ["0"]
