"""Stand-ins for SLURM's commands: sbatch keeps the script, which runs on this machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

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
    "SLURM_NTASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_JOB_NODELIST": "localhost",
    "SLURM_CPUS_PER_TASK": "1",
}


def put_commands(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Put the commands into a new folder and on PATH; return where sbatch keeps its script."""
    folder.mkdir()
    for name, text in {"sbatch": SBATCH, "srun": SRUN}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("RECORD", str(folder / "script"))
    return folder / "script"


def run_scripts(monkeypatch: pytest.MonkeyPatch, script: Path, tasks: int = 1) -> None:
    """Let the result of a job be that of its script, run here with so many tasks."""
    import submitit

    def results(job: Any) -> list[Any]:
        text = script.read_text().replace("%j", "7").replace("%t", "0")
        job_of = {**os.environ, **JOB, "SLURM_NTASKS": str(tasks)}
        subprocess.run(["bash", "-c", text], env=job_of, check=True, timeout=100)
        outcome, result = submitit.core.utils.pickle_load(job.paths.result_pickle)
        assert outcome == "success", result
        return [result]

    monkeypatch.setattr(submitit.Job, "results", results)
