"""A run of several processes on SLURM: the script that it gets, and a job run by it."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import SMALL, Command, checkpoint, complete, metrics, only
from slurm import put_commands, run_scripts

from nws.experiment.provenance import read_provenance


def test_a_run_on_several_nodes(
    sweep: Command, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM's commands are stand-ins, whose two tasks are on this machine."""
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        message = sweep("seed=3", "hydra/launcher=slurm_nodes").message()
        assert "hydra/launcher=slurm_nodes needs the commands sbatch and srun" in message
    kept = put_commands(monkeypatch, tmp_path / "bin")
    run_scripts(monkeypatch, kept, tasks=2)
    outcome = sweep("seed=3", "hydra/launcher=slurm_nodes", "hydra.launcher.partition=gpu")
    assert outcome.code == 0, (outcome.out, outcome.err)
    script = kept.read_text()
    for line in (
        "nodes=2",
        "ntasks-per-node=4",
        "gpus-per-node=4",
        "cpus-per-task=8",
        "mem=64GB",
        "partition=gpu",
        "job-name=digits_rws",
    ):
        assert f"#SBATCH --{line}\n" in script, line
    assert "\nexport OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\n" in script
    assert script.count("\nsrun ") == 1  # which starts a task for each process
    run = only(tmp_path / "multirun" / "digits_rws") / "0"
    assert complete(run) and read_provenance(run)["processes"] == 2
    assert (run / "train.log").read_text().count("step      12") == 1
    whole = command("train.py", *SMALL, "seed=3", "hydra.run.dir=whole").run
    assert checkpoint(run)["best"] == pytest.approx(checkpoint(whole)["best"], rel=1e-5)
    assert len(metrics(run, start=True)) == 3
