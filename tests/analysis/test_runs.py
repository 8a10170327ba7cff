"""What is read of runs, in what they differ, what they are called, and tables of them."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import Command
from written import Make

from nws.analysis.curves import with_column
from nws.analysis.keys import differing_keys, find_key, label, short_names, value_text
from nws.analysis.runs import Run, frame, read_run, read_runs
from nws.analysis.summaries import means_table, print_sweep
from nws.errors import UserError
from nws.experiment.run import find_runs

RUNS = "scripts/runs.py"
ADAM = {"optimizer._target_": "torch.optim.Adam", "optimizer.lr": 0.01, "optimizer.betas": [0.9]}
SGD = {"optimizer._target_": "torch.optim.SGD", "optimizer.lr": 0.3}
RWS = {"algorithm.name": "rws", "algorithm.samples": 10, "metric._target_": None}
NRWS = {"algorithm.name": "nrws", "algorithm.samples": 10, "metric._target_": "nws.Fisher"}


def made(*overrides: str, **values: Any) -> Run:
    config = {"seed": 0, "name": "a", **values["config"]}
    metrics = pd.DataFrame({"step": []})
    return Run(Path("a"), "a", config, metrics, {"overrides": list(overrides)})


def test_a_directory_stands_for_the_runs_below_it(make: Make, tmp_path: Path) -> None:
    paths = [make(f"sweep/{job}", [(1, 1, -5)], seed=job) for job in (2, 10, 0)]
    (make("sweep/empty", []) / "metrics.csv").unlink()  # a job that has no evaluation yet
    assert [path.name for path in find_runs(tmp_path / "sweep")] == ["empty", "0", "2", "10"]
    runs, _ = read_runs([paths[0], tmp_path / "sweep"])  # each once, the first mention counts
    assert [run.path.name for run in runs] == ["2", "empty", "0", "10"]
    assert runs[0].argument == str(paths[0])
    with pytest.raises(UserError, match=r"there are no rows, as before the first evaluation"):
        with_column(runs[1:2], "valid/log_likelihood")


def test_what_a_run_says_of_itself(make: Make) -> None:
    path = make("a", [(0, 0, -1), (1, 2, -9), (2, 4, -7), (3, 6, -8)])
    run = read_run(path)
    assert (run.best["epoch"], run.last["epoch"]) == (2, 3)  # step 0 is no best
    assert frame([run])[["steps", "ms"]].values.tolist() == [[30, 200]] and run.state == "unknown"
    bare = dataclasses.replace(run, metrics=run.metrics.head(0))
    assert math.isnan(frame([bare])["seconds"][0])  # of a copy that has no rows
    kinds = '{"overrides": null, "command": 3, "git": "x", "resumed": {}, "steps": "9"}'
    for damaged in ("{", "[1]", kinds):
        (path / "provenance.json").write_text(damaged)
        assert read_run(path).provenance == {}
    late = {"state": "stopped", "steps": 40, "total_steps": 80, "epochs": 8, "training_seconds": 10}
    (path / "provenance.json").write_text(json.dumps(late))
    assert read_run(path).state == "stopped"  # after its last row
    there = frame([read_run(path)])[["epochs", "steps", "seconds", "ms"]]
    assert there.values.tolist() == [[4, 40, 10, 250]]


def test_what_follows_from_the_algorithm_tells_nothing_more() -> None:
    one, other = made(config=RWS | ADAM), made(config=NRWS | SGD | {"name": "b"})
    assert differing_keys([one, other]) == ["algorithm.name"]
    assert differing_keys([one]) == differing_keys([]) == differing_keys([one, one]) == []
    # controls: a rate that was typed, an optimizer that was, a rate that varies, a group apart
    typed = made("algorithm=nrws", "optimizer.lr=0.3", config=NRWS | SGD)
    assert differing_keys([one, typed]) == ["algorithm.name", "optimizer.lr"]
    chosen = made("algorithm=nrws", "optimizer=sgd", config=NRWS | SGD)
    assert differing_keys([one, chosen]) == ["algorithm.name", "optimizer._target_"]
    small = made("data=x", config=RWS | ADAM | {"data.name": "x", "data._target_": "load_x"})
    assert differing_keys([one, small]) == ["data.name"]
    faster = made(config=NRWS | SGD | {"optimizer.lr": 0.5})
    assert differing_keys([one, other, faster]) == ["algorithm.name", "optimizer.lr"]
    larger = made(config=NRWS | SGD | {"trainer.batch_size": 512, "seed": 1})
    expected = ["algorithm.name", "trainer.batch_size", "seed"]
    assert differing_keys([one, larger]) == expected


def test_names_of_keys_and_values() -> None:
    config = NRWS | SGD | {"damping.value": 0.32818239234032287, "model.layers": [5, 3], "seed": 3}
    keys = ["algorithm.name", "metric._target_", "optimizer.lr", "damping.value", "model.layers"]
    assert label(made(config=config), [*keys, "seed"]) == (
        "nrws, Fisher, lr 0.3, damping.value 0.3281824, layers 5-3, seed 3"
    )
    assert label(made(config=RWS), ["metric._target_"]) == "euclidean"
    clash = ["trainer.lr", "optimizer.lr", "algorithm.name", "algorithm._target_"]
    assert list(short_names(clash).values()) == clash
    with pytest.raises(UserError, match=r"'lr' is the end of several keys: trainer\.lr, opt"):
        find_key("lr", clash)


def test_means_are_over_the_runs_that_share_all_but_the_seed(make: Make) -> None:
    kinds = [("rws", 0.1, 0), ("rws", 0.1, 1), *(("nrws", 0.1, seed) for seed in range(3))]
    runs = [read_run(make(f"{i}", [(1, 1, -5)], *kind)) for i, kind in enumerate(kinds)]
    keys = differing_keys(runs)
    assert keys == ["algorithm.name", "seed"]
    values = [-1.0, -4.0, -2.0, math.nan, -math.inf]  # those that are not finite do not count
    table = means_table(runs, values, keys, "x")
    assert table is not None and list(table)[:2] == ["algorithm", "seeds"]
    assert table.values.tolist() == [["rws", "2", "-2.500 ± 2.121"], ["nrws", "1", "-2.000"]]
    assert means_table(runs[::3], [-1.0, -2.0], keys, "x") is None  # no seeds of one thing
    twice = means_table([*runs, runs[0]], [*values, -1.001], keys, "x")
    assert twice is not None and twice.values.tolist() == table.values.tolist()
    runs[3].provenance.update(state="finished", reason="see callbacks.pruning.evaluations")
    table = means_table(runs, [-1.0, -4.0, -2.0, -9.0, -2.0], keys, "x")
    assert table is not None and table.values.tolist()[1] == ["nrws", "2", "-2.000 ± 0.000"]
    assert list(table)[-1].endswith("over seeds (1 of 5 runs left out: not finished)")
    assert value_text("a._target_", "nws.a.Adam") == "Adam" != value_text("a._target_", "my.Adam")


@pytest.fixture
def folder(make: Make, tmp_path: Path) -> Path:
    """Two algorithms, two rates, one of them only started."""
    make("all/0", [(1, 2, -9), (2, 4, -8)], "rws", 0.1)
    make("all/1", [(1, 2, -7), (2, 4, math.nan)], "rws", 0.3)
    make("all/2", [(1, 1, -6)], "nrws", 0.3)
    (make("all/10", [], "nrws", 0.1) / "metrics.csv").unlink()
    facts = {"state": "diverged", "overrides": ["algorithm=nrws"]}
    (tmp_path / "all" / "2" / "provenance.json").write_text(json.dumps(facts))
    return tmp_path / "all"


def cells(line: str) -> list[str]:
    return re.split(r" {2,}", line.strip())


def test_the_table_of_runs(command: Command, folder: Path) -> None:
    outcome = command(RUNS, str(folder))
    assert outcome.code == 0 and outcome.err == ""
    head, *lines = outcome.out.splitlines()
    assert cells(head) == [
        "run", "algorithm", "lr", "state", "best valid, nats", "ms/step", "epochs", "seconds",
    ]  # fmt: skip
    assert cells(lines[0]) == ["0", "rws", "0.1", "unknown", "-8.000", "200.00", "2", "4.0"]
    assert cells(lines[1])[4] == "-7.000"  # whose last one is no number
    assert cells(lines[2])[3:6] == ["diverged", "-6.000", "100.00"]
    assert cells(lines[3])[:3] == ["10", "nrws", "0.1"]
    assert lines[4] == "4 runs: 3 unknown, 1 diverged"


def test_runs_are_sorted_and_chosen(command: Command, folder: Path) -> None:
    for option, value, expected in (
        ("--sort", "best", "2 1 0 10"), ("--sort", "run", "0 1 2 10"),
        ("--sort", "algorithm", "2 10 0 1"),
        ("--where", "lr <= 0.1 and algorithm != 'rws'", "all/10"),
        ("--where", "best >= -7 or state == 'running'", "1 2"),
    ):  # fmt: skip
        lines = command(RUNS, str(folder), option, value).out.splitlines()
        assert " ".join(line.split()[0] for line in lines[1:] if "run" not in line) == expected


def test_what_cannot_be_listed(command: Command, folder: Path) -> None:
    Path("multirun").mkdir()  # of a sweep that failed before its first run
    assert "there is no folder outputs or multirun here with" in command(RUNS).message()
    for option, value, expected in (
        ("--where", "lr > 3", "none of 4 runs has lr > 3"),
        ("--where", "lr", "it is neither true nor false"), ("--where", "lr = ", "query of pandas"),
        ("--where", "__import__('os').mkdir('x')", "--where takes a query of pandas"),
        ("--sort", "nothing", "configuration key 'nothing'"),
    ):  # fmt: skip
        assert expected in command(RUNS, str(folder), option, value).message()
    (folder / "0" / "metrics.csv").write_text("a,b\n1,2\n")
    for program in ("runs", "plot_curves", "report"):
        outcome = command(f"scripts/{program}.py", str(folder))
        assert outcome.code == 0 and "warning: left out: " in outcome.err, program
        assert "0/metrics.csv cannot be read" in outcome.err
    assert "none of 1 runs can be read" in command(RUNS, str(folder / "0")).message()


def test_runs_side_by_side(command: Command, folder: Path) -> None:
    (folder / "0" / "provenance.json").write_text(json.dumps({"torch": "2.0"}))
    outcome = command(RUNS, str(folder / "0"), str(folder / "2"), "--all")
    assert outcome.code == 0 and outcome.err == ""
    shown = {cells(line)[0]: cells(line)[1:] for line in outcome.out.splitlines()}
    assert shown["algorithm"] == ["rws", "nrws"] and shown["lr"] == ["0.1", "0.3"]
    assert shown["torch"] == ["2.0", "none"] and "seed" not in shown
    assert shown["state"] == ["unknown", "diverged"]
    assert "does not exist" in command(RUNS, str(folder / "0"), "nowhere", "--all").message()


def test_how_a_search_ends(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for job, (lr, value) in enumerate([(0.1, -9), (0.3, -7), (0.2, -8)]):
        path = make(f"search/{job}", [(1, 1, value)], lr=lr)
        overrides = [f"optimizer.lr={lr}", "name=my own", "resume=auto"]
        (path / "provenance.json").write_text(json.dumps({"overrides": overrides}))
    (make("search/3", [], lr=0.4) / "metrics.csv").unlink()
    print_sweep(tmp_path / "search")
    out = capsys.readouterr().out
    assert re.findall(r"^ *(\d) +0\.", out, re.MULTILINE) == ["0", "1", "2", "3"]
    assert out.splitlines()[-4:] == [
        "best of 4 runs: lr 0.3: -7.000 nats",
        "repeat it with",
        "  nws train optimizer.lr=0.3 'name=my own'",  # pytest is none of the scripts
        str(tmp_path / "search" / "1"),
    ]
    make("search/4", [(1, 1, -6)], data={"binarize": "none"})  # of other images
    print_sweep(tmp_path / "search")
    assert "-6.000" in (out := capsys.readouterr().out) and "best of" not in out
    print_sweep(tmp_path / "search" / "3" / "nothing")  # no run: nothing to print
    assert capsys.readouterr().out == ""
