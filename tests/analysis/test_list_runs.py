"""scripts/runs.py and scripts/diff.py: which runs are listed, in which order, and side by side."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from conftest import Command
from written import Make

RUNS, DIFF = "scripts/runs.py", "scripts/diff.py"


def names(out: str) -> list[str]:
    """The first cells of the lines of a table."""
    lines = out.splitlines()
    end = next(number for number, line in enumerate(lines) if re.match(r"\d+ runs?: ", line))
    return [line.split()[0] for line in lines[1:end]]


@pytest.fixture
def folder(make: Make, tmp_path: Path) -> Path:
    """Runs of two algorithms and two rates, one of them only started."""
    make("all/0", [(1, 2, -9), (2, 4, -8)], "rws", 0.1)
    make("all/1", [(1, 2, -7), (2, 4, -7.5)], "rws", 0.3)
    make("all/2", [(1, 1, -6)], "nrws", 0.3)
    (make("all/10", [], "nrws", 0.1) / "metrics.csv").unlink()
    (tmp_path / "all" / "2" / "provenance.json").write_text(
        json.dumps({"state": "diverged", "ms_per_step": 12.5, "overrides": ["algorithm=nrws"]})
    )
    return tmp_path / "all"


def test_the_table(command: Command, folder: Path) -> None:
    outcome = command(RUNS, str(folder))
    assert outcome.code == 0 and outcome.err == ""
    head, *lines = outcome.out.splitlines()
    assert re.split(r" {2,}", head.strip()) == [
        "run", "algorithm", "lr", "state", "best valid, nats", "ms/step", "epochs", "seconds",
    ]  # fmt: skip
    assert re.split(r" {2,}", lines[0].strip()) == [
        "0", "rws", "0.1", "unfinished", "-8.000", "200", "2", "4.0",
    ]  # fmt: skip
    assert re.split(r" {2,}", lines[2].strip())[3:6] == ["diverged", "-6.000", "12.5"]
    assert re.split(r" {2,}", lines[3].strip())[:4] == ["10", "nrws", "0.1", "unfinished"]
    assert lines[4] == "4 runs: 3 unfinished, 1 diverged"


def test_an_option_is_not_mistaken_for_what_came_out(command: Command, folder: Path) -> None:
    for number in (0, 1):
        file = folder / str(number) / ".hydra" / "config.yaml"
        config = yaml.safe_load(file.read_text())
        config.setdefault("trainer", {})["epochs"] = 2 + number
        file.write_text(yaml.safe_dump(config))
    head = command(RUNS, str(folder), "--keys", "trainer.epochs").out.splitlines()[0].split()
    assert head.count("epochs") == 1 and "trainer.epochs" in head


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--sort", "best"], ["2", "1", "0", "10"]),
        (["--sort", "best", "--reverse"], ["0", "1", "2", "10"]),
        (["--sort", "last"], ["2", "1", "0", "10"]),
        (["--sort", "lr"], ["0", "10", "1", "2"]),
        (["--sort", "algorithm"], ["2", "10", "0", "1"]),
        (["--where", "algorithm=rws"], ["0", "1"]),
        (["--where", "optimizer.lr>0.1"], ["1", "2"]),
        (["--where", "lr<=0.1", "--where", "algorithm!=rws"], ["all/10"]),
        (["--where", "best>=-7"], ["1", "2"]),
        (["--where", "state=diverged"], ["all/2"]),
    ],
)
def test_sorted_and_chosen(
    command: Command, folder: Path, options: list[str], expected: list[str]
) -> None:
    outcome = command(RUNS, str(folder), *options)
    assert outcome.code == 0, outcome.err
    assert names(outcome.out) == expected


def test_what_cannot_be_listed(command: Command, folder: Path, tmp_path: Path) -> None:
    assert "there is no folder outputs or multirun here" in command(RUNS).message()
    assert "none of 4 runs has lr>3" in command(RUNS, str(folder), "--where", "lr>3").message()
    assert "--where takes KEY=VALUE" in command(RUNS, str(folder), "--where", "lr").message()
    nothing = command(RUNS, str(folder), "--sort", "nothing").message()
    assert "configuration key 'nothing'" in nothing
    (folder / "0" / "metrics.csv").write_text("a,b\n1,2\n")
    outcome = command(RUNS, str(folder))
    assert outcome.code == 0 and names(outcome.out) == ["1", "2", "10"]
    assert "warning: " in outcome.err and "metrics.csv cannot be read" in outcome.err


def test_many_keys_that_differ_are_named(command: Command, make: Make, tmp_path: Path) -> None:
    for job in range(2):
        path = make(f"many/{job}", [(1, 1, -5 - job)], seed=job) / ".hydra" / "config.yaml"
        config = yaml.safe_load(path.read_text()) | {"trainer": {f"k{n}": job for n in range(7)}}
        path.write_text(yaml.safe_dump(config))
    outcome = command(RUNS, "many")
    assert outcome.out.splitlines()[0].split()[:7] == ["run", "k0", "k1", "k2", "k3", "k4", "seed"]
    assert "they differ in k5, k6 too; --keys shows them" in outcome.out
    outcome = command(RUNS, "many", "--keys", "k6,lr")
    assert outcome.out.splitlines()[0].split()[:4] == ["run", "k6", "lr", "state"]


def test_two_runs_side_by_side(command: Command, folder: Path) -> None:
    outcome = command(DIFF, str(folder / "0"), str(folder / "2"))
    assert outcome.code == 0 and outcome.err == ""
    cells = {line.split()[0]: line.split()[1:] for line in outcome.out.splitlines()[1:-1]}
    assert cells["algorithm.name"] == ["rws", "nrws"] and cells["optimizer.lr"] == ["0.1", "0.3"]
    assert cells["state"] == ["unfinished", "diverged"] and "seed" not in cells
    assert outcome.out.splitlines()[-1] == "3 of 5 keys of the configuration are the same"
    everything = command(DIFF, str(folder / "0"), str(folder / "2"), "--all").out
    assert re.search(r"^optimizer._target_ +torch.optim.SGD +torch.optim.SGD *$", everything, re.M)
    assert "two or more run directories" in command(DIFF, str(folder / "0")).message()
    assert "does not exist" in command(DIFF, str(folder / "0"), "nowhere").message()
