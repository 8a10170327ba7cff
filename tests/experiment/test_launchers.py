"""Launchers and sweepers: several processes, a cluster's script, Optuna."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from conftest import (
    ROOT,
    SMALL,
    Command,
    assert_same_run,
    checkpoint,
    complete,
    count_steps,
    metrics,
    only,
    snapshot,
)
from slurm import put_commands, run_scripts

from nws.experiment.provenance import read_provenance

AUTO = "resume=auto"


TOY = ("data=three_by_three", "trainer.batch_size=3000")


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
        package = f"hydra-{choice.split('=')[1].removesuffix('_slurm')}"
        assert f"{choice} needs {package}-" in message and f"pip install {package}-" in message
    assert list(tmp_path.iterdir()) == []


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


def test_joblib_within_an_allocation_of_slurm(
    sweep: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jobs are runs by themselves, however many tasks the allocation has."""
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    launcher = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=sweep"]
    outcome = sweep(*TOY, "algorithm=ws", "seed=0,1", "trainer.epochs=1", *launcher)
    assert outcome.code == 0, (outcome.out, outcome.err)
    assert [read_provenance(tmp_path / "sweep" / job)["state"] for job in "01"] == 2 * ["finished"]


def test_several_processes_stop_and_go_on(
    sweep: Command, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C reaches all processes of a terminal: running jobs save, the others do not start."""
    (tmp_path / "held.py").write_text(HELD)
    (tmp_path / "hold").touch()
    options = [*TOY, "algorithm=ws", "scheduler._target_=held.held", "seed=0,1,2"]
    launcher = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    process = subprocess.Popen(
        [sys.executable, ROOT / "train.py", "-m", *SMALL, *options, *launcher],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

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
    assert "Error executing job" not in output
    lines = output.splitlines()
    for name in "01":  # lines of two jobs at once: each says whose it is, but for the last
        assert lines.count(str(folder / name)) in (1, 2)  # the best one below the table too
        assert f"[{name}] three_by_three_ws, job {name}: seed={name} (nws" in output
        where = (folder / name).relative_to(tmp_path)
        assert f"[{name}]   directory  {where}" in lines
        assert f"[{name}] stopped at step 8 of 12" in lines
        assert read_provenance(folder / name)["state"] == "stopped"
        assert read_provenance(folder / name)["command"][2:4] == ["-m", SMALL[0]]

    monkeypatch.syspath_prepend(tmp_path)
    resumed = sweep(*options, AUTO)  # in this process: how the jobs are launched does not matter
    assert resumed.code == 0 and f"going on with the sweep in {folder}" in resumed.out, resumed.err
    assert all(complete(folder / name) for name in "012")
    assert_same_run(
        folder / "1",
        command("train.py", *SMALL, *options[:-1], "seed=1", "hydra.run.dir=whole").run,
    )


def test_a_cluster(
    sweep: Command, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script that SLURM would get, and a job run by it, with stand-ins for SLURM's commands."""
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        assert (
            "needs the commands sbatch and srun of SLURM, found none here"
            in sweep("seed=3", "hydra/launcher=submitit_slurm").message()
        )
    kept = put_commands(monkeypatch, tmp_path / "bin")
    run_scripts(monkeypatch, kept)
    options = (
        "hydra.launcher.partition=gpu",
        "hydra.launcher.gpus_per_node=1",
        "hydra.launcher.timeout_min=90",
    )
    outcome = sweep(*TOY, "seed=3", "hydra/launcher=submitit_slurm", *options)
    assert outcome.code == 0, (outcome.out, outcome.err)
    script = kept.read_text()
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
    ranked = sorted(good, key=lambda run: -values[run])
    assert outcome.run == ranked[0]
    table = outcome.out[outcome.out.index("\nrun ") :].splitlines()[2:]
    assert [line.split()[0] for line in table[: len(good)]] == [run.name for run in ranked]
    alphas = {config["damping"]["value"] for config in configs}
    assert len(alphas) == 4 and all(0.02 <= alpha <= 1 for alpha in alphas)
    assert "without effect" not in outcome.err  # all that is varied matters

    (folder / "optimization_results.yaml").unlink()
    steps, before = count_steps(monkeypatch), {run: snapshot(run) for run in good}
    again = sweep(*options, AUTO)  # the same search, followed again from its runs
    assert again.code == 0 and again.out.count("finished already") == len(good), again.err
    assert (folder / "optimization_results.yaml").read_text() == results
    assert {run: snapshot(run) for run in good} == before
    assert len(steps) <= 6 * len(diverged)  # these have nothing to go on from


def test_a_mistake_ends_a_search(sweep: Command, tmp_path: Path) -> None:
    outcome = sweep("hydra/sweeper=optuna", "hydra.sweeper.n_trials=3", "trainer.batch_size=1298")
    assert (
        outcome.code == 1
        and "at most the 1297 training images" in outcome.err
        and "Traceback" not in outcome.err
    )
    assert [
        path.name for path in only(tmp_path / "multirun" / "digits_rws").iterdir() if path.is_dir()
    ] == ["0"]
