"""Sweeps: their folders, wrong jobs, going on, and what starts the jobs: joblib, SLURM, Optuna."""

import re
import signal
from pathlib import Path

import conftest
import numpy as np
import pytest
import yaml
from conftest import Command, Interrupt, assert_same_run, checkpoint, complete, metrics, snapshot
from slurm import put_commands

from nws.experiment.provenance import read_provenance

AUTO = "resume=auto"
TOY = ("data=three_by_three", "trainer.batch_size=3000")


def best(run: Path) -> float:
    return max(float(row["valid/log_likelihood"]) for row in metrics(run))


def test_a_sweep_is_one_folder_of_complete_runs(train: Command, tmp_path: Path) -> None:
    """A wrong job says why, and the others go on."""
    outcome = train("-m", "trainer.batch_size=200,1298,100", "seed=0,1", "trainer.epochs=1")
    assert outcome.code == 1 and "Traceback" not in outcome.out + outcome.err
    assert "error: job 2: trainer.batch_size must be at most the 1297 training" in outcome.err
    (folder,) = (tmp_path / "multirun").glob("*/*")
    assert f"a new sweep in {folder.relative_to(tmp_path)}\n" in outcome.out
    runs = sorted(path for path in folder.iterdir() if path.is_dir())
    assert [path.name for path in runs] == ["0", "1", "4", "5"]
    configs = [yaml.safe_load((run / ".hydra" / "config.yaml").read_text()) for run in runs]
    jobs = [(200, 0), (200, 1), (100, 0), (100, 1)]
    assert [(config["trainer"]["batch_size"], config["seed"]) for config in configs] == jobs
    assert "digits_rws, job 5: rws digits trainer.batch_size=100 seed=1 (nws " in outcome.out
    values = [best(run) for run in runs]
    for run, (size, seed), value in zip(runs, jobs, values, strict=True):
        row = rf"^ *{run.name} +{size} +{seed} +finished +{value:.3f} ± "
        assert re.search(row, outcome.out, re.MULTILINE), outcome.out
    mean, deviation = np.mean(values[:2]), np.std(values[:2], ddof=1)
    assert re.search(rf"200 +2 +{mean:.3f} ± {deviation:.3f}", outcome.out)
    record = read_provenance(runs[3])
    assert record["overrides"][-1:] == ["seed=1"]
    assert "-m" in record["command"] and outcome.out.splitlines()[-1] == str(folder / "5")
    assert_same_run(runs[1], train("seed=1", "trainer.epochs=1").run)


def test_the_same_command_completes_a_stopped_sweep(train: Command, interrupt: Interrupt) -> None:
    interrupt(20, signal.SIGTERM)  # in the second job
    stopped = train("-m", "seed=0,1,2")
    assert stopped.code == 128 + signal.SIGTERM and "Traceback" not in stopped.err
    (folder,) = Path("multirun/digits_rws").iterdir()
    again = f"go on with\n  python {conftest.ROOT / 'train.py'} -m "  # as this one was started
    assert f"the sweep was stopped; {again}" in stopped.out
    assert f" seed=0,1,2 {AUTO}\n" in stopped.out and "train.py resume=" not in stopped.out
    assert complete(folder / "0") and checkpoint(folder / "1")["step"] == 8
    assert not (folder / "2").exists()

    before = snapshot(folder / "0")
    resumed = train("-m", "seed=0,1,2", AUTO)
    assert resumed.code == 0, resumed.err
    assert f"going on with the sweep in {folder}\n" in resumed.out
    assert f"finished already: step 12\n{folder.resolve() / '0'}\n" in resumed.out
    assert "resumed    from step 8 " in resumed.out
    assert snapshot(folder / "0") == before and complete(folder / "2")
    assert_same_run(folder / "1", train("seed=1", "hydra.run.dir=whole").run)
    assert "a new sweep in " in train("-m", "seed=2", AUTO).out  # the control: another command
    before = snapshot(Path())
    for options in (("seed=0,1,2",), ("seed=5", AUTO)):
        refused = train("-m", *options, f"hydra.sweep.dir={folder}")
        assert "holds a sweep, nothing was changed" in refused.message()
        assert snapshot(Path()) == before
    foreign = Path("sweep.yaml")  # of W&B
    foreign.write_text("method: grid\ncommand:\n- ${env}\n- ${program}\n")
    assert train("hydra.run.dir=mine", "trainer.epochs=0.1").code == 0
    assert "holds a sweep, nothing was changed" in train("-m", "hydra.sweep.dir=.").message()
    assert foreign.read_text().startswith("method: grid")


def test_a_search_by_optuna(train: Command, tmp_path: Path) -> None:
    search = ("-m", "hydra/sweeper=search", "hydra.sweeper.n_trials=4", "algorithm=nrws")
    options = (*search, "optimizer.lr=choice(0.1,1e38)", "trainer.epochs=1")
    outcome = train(*options)
    assert outcome.code == 0, outcome.err
    (folder,) = (tmp_path / "multirun" / "digits_nrws").iterdir()
    results = (folder / "optimization_results.yaml").read_text()
    found, runs = yaml.safe_load(results), [folder / str(number) for number in range(4)]
    good = [run for run in runs if len(metrics(run)) == 1]
    assert 0 < len(good) < 4 and outcome.err.count("error: job") == 4 - len(good)
    configs = [yaml.safe_load((run / ".hydra/config.yaml").read_text()) for run in good]
    alphas = {config["damping"]["value"] for config in configs}
    assert len(alphas) == len(good) and all(0.02 <= alpha <= 1 for alpha in alphas)
    values = [best(run) for run in good]
    assert found["best_value"] == pytest.approx(max(values))
    chosen = configs[int(np.argmax(values))]
    assert found["best_params"]["damping.value"] == chosen["damping"]["value"]

    (folder / "optimization_results.yaml").unlink()
    before = {run: snapshot(run) for run in good}
    again = train(*options, AUTO)  # the same search, followed again from its runs
    assert again.code == 0 and again.out.count("finished already") == len(good), again.err
    assert (folder / "optimization_results.yaml").read_text() == results
    assert {run: snapshot(run) for run in good} == before
    mistake = train(*search, "trainer.batch_size=1298")
    assert mistake.code == 1 and mistake.err.count("at most the 1297 training images") <= 2
    assert "Traceback" not in mistake.err


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "tasks"), [("slurm", 1), ("slurm_nodes", 2)])
def test_a_cluster(
    train: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str, tasks: int
) -> None:
    """The script that SLURM would get, and a job run by it, with stand-ins for SLURM's commands."""
    kept = put_commands(monkeypatch, tmp_path / "bin", tasks)
    options = ("hydra.launcher.partition=gpu", "hydra.launcher.timeout_min=90")
    outcome = train("-m", *TOY, "seed=3", f"hydra/launcher={launcher}", *options)
    assert outcome.code == 0, (outcome.out, outcome.err)
    script = kept.read_text()
    lines = ["partition=gpu", "time=90", "job-name=three_by_three_rws"]
    lines += ["cpus-per-task=2", "mem=8GB"] if tasks == 1 else [
        "nodes=2", "ntasks-per-node=4", "gpus-per-node=4", "cpus-per-task=8", "mem=64GB",
    ]  # fmt: skip
    assert all(f"#SBATCH --{line}\n" in script for line in lines), script
    assert "\nexport OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\n" in script
    assert script.count("\nsrun ") == 1
    (run,) = (tmp_path / "multirun" / "three_by_three_rws").glob("*/0")
    assert complete(run) and read_provenance(run)["processes"] == tasks
    whole = train(*TOY, "seed=3", "hydra.run.dir=whole").run
    if tasks == 1:
        assert_same_run(run, whole)
    assert checkpoint(run)["best"] == pytest.approx(checkpoint(whole)["best"], rel=1e-5)


def test_a_sweep_is_repeated_with_its_config_dir(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "my own" / "experiment"
    folder.mkdir(parents=True)
    (folder / "quick.yaml").write_text("# @package _global_\nseed: 3\n")
    own = ("-m", "--config-dir", "my own", "experiment=quick", "optimizer.lr=0.01,0.02")
    out = command("train.py", *own, *conftest.TWO_STEPS).out
    typed = "repeat it with\n  python .*train.py --config-dir 'my own' experiment=quick "
    assert re.search(typed, out)
