"""A run of several processes on SLURM: the script that it gets, and a job run by it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL, Command, checkpoint, complete, metrics, only

from nws.experiment.provenance import read_provenance

SBATCH = """#!/bin/bash
cp "${@: -1}" "$RECORD"; echo "Submitted batch job 7"
"""
# As srun does, it starts each task.
SRUN = """#!/bin/bash
while [[ "$1" == -* ]]; do [[ "$1" == --unbuffered ]] && shift || shift 2; done
for task in $(seq 0 $((SLURM_NTASKS - 1))); do
  SLURM_PROCID=$task SLURM_LOCALID=$task "$@" & tasks="$tasks $!"
done
wait $tasks
"""
JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_NTASKS": "2",
    "SLURM_NODEID": "0",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_JOB_NODELIST": "localhost",
    "SLURM_CPUS_PER_TASK": "1",
}


def test_a_run_on_several_nodes(
    sweep: Command, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM's commands are stand-ins, whose two tasks are on this machine."""
    import submitit

    def run_the_script(job: Any) -> list[Any]:
        text = (tmp_path / "script").read_text().replace("%j", "7").replace("%t", "0")
        subprocess.run(["bash", "-c", text], env={**os.environ, **JOB}, check=True, timeout=100)
        outcome, result = submitit.core.utils.pickle_load(job.paths.result_pickle)
        assert outcome == "success", result
        return [result]

    monkeypatch.setattr(submitit.Job, "results", run_the_script)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        message = sweep("seed=3", "hydra/launcher=slurm_nodes").message()
        assert "hydra/launcher=slurm_nodes needs the commands sbatch and srun" in message
    (tmp_path / "bin").mkdir()
    for name, text in {"sbatch": SBATCH, "srun": SRUN}.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("RECORD", str(tmp_path / "script"))
    outcome = sweep("seed=3", "hydra/launcher=slurm_nodes", "hydra.launcher.partition=gpu")
    assert outcome.code == 0, (outcome.out, outcome.err)
    script = (tmp_path / "script").read_text()
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
