"""Stand-ins for SLURM's commands: sbatch keeps the script, which runs on this machine."""

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
JOB = "JOB_ID=7 PROCID=0 LOCALID=0 NODEID=0 JOB_NUM_NODES=1 JOB_NODELIST=localhost CPUS_PER_TASK=1"


def put_commands(monkeypatch: pytest.MonkeyPatch, folder: Path, tasks: int) -> Path:
    """Put the commands on PATH; a job's script runs here, in so many tasks. Return its place."""
    folder.mkdir()
    for name, text in {"sbatch": SBATCH, "srun": SRUN}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("RECORD", str(folder / "script"))
    import submitit

    def results(job: Any) -> list[Any]:
        words = [f"SLURM_{word}" for word in f"{JOB} NTASKS={tasks}".split()]
        subprocess.run(["env", *words, "bash", folder / "script"], check=True, timeout=100)
        outcome, result = submitit.core.utils.pickle_load(job.paths.result_pickle)
        assert outcome == "success", result
        return [result]

    monkeypatch.setattr(submitit.Job, "results", results)
    return folder / "script"
