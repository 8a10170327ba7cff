"""nws/analysis/runs.py: which runs are found and what is read of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from omegaconf import OmegaConf
from written import Make

from nws.analysis.runs import (
    Run,
    differing_keys,
    find_key,
    is_bidirectional,
    label,
    read_run,
    read_runs,
    short_names,
)
from nws.errors import UserError
from nws.experiment.storage.directory import find_runs


def test_a_directory_stands_for_the_runs_below_it(make: Make, tmp_path: Path) -> None:
    paths = [make(f"sweep/{job}", [(1, 1, -5)], seed=job) for job in (2, 10, 0)]
    (tmp_path / "sweep" / "empty" / ".hydra").mkdir(
        parents=True
    )  # a job that has not come to an evaluation
    (tmp_path / "sweep" / "empty" / ".hydra" / "config.yaml").write_text("seed: 5")
    assert [path.name for path in find_runs(tmp_path / "sweep")] == ["empty", "0", "2", "10"]
    assert find_runs(paths[0]) == [paths[0]]
    runs = read_runs([paths[0], tmp_path / "sweep"])  # each once, the first mention counts
    assert [run.path.name for run in runs] == ["2", "0", "10"] and runs[0].argument == str(paths[0])


def test_what_cannot_be_read(make: Make, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        find_runs(tmp_path / "nowhere")
    (tmp_path / "bare").mkdir()
    with pytest.raises(UserError, match="no run is below it"):
        find_runs(tmp_path / "bare")
    path = make("damaged", [(1, 1, "five")])
    with pytest.raises(UserError, match="metrics.csv cannot be read.*five"):
        read_run(path)
    (path / "metrics.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="columns epoch, step and seconds"):
        read_run(path)


def test_what_a_rule_is_counts_and_its_name_only_in_older_runs() -> None:
    for algorithm, expected in (
        ({"name": "mine", "bidirectional": True}, True),
        ({"name": "bihm", "bidirectional": False}, False),
        ({"name": "nbihm"}, True),
        ({"name": "rws"}, False),
    ):
        config = OmegaConf.create({"algorithm": algorithm})
        OmegaConf.set_struct(config, True)
        assert is_bidirectional(config) is expected


# --- in what runs differ ------------------------------------------------------------------------


ADAM = {"optimizer._target_": "torch.optim.Adam", "optimizer.lr": 0.01, "optimizer.betas": [0.9]}
SGD = {"optimizer._target_": "torch.optim.SGD", "optimizer.lr": 0.3}
RWS = {"algorithm.name": "rws", "algorithm.samples": 10, "metric._target_": None}
NRWS = {"algorithm.name": "nrws", "algorithm.samples": 10, "metric._target_": "nws.Fisher"}


def made(*overrides: str, **values: Any) -> Run:
    config = {"seed": 0, "name": "a", **values["config"]}
    return Run(Path("a"), "a", config, pd.DataFrame(), {"overrides": list(overrides)})


def test_what_follows_from_the_algorithm_tells_nothing_more() -> None:
    one, other = made(config=RWS | ADAM), made(config=NRWS | SGD | {"name": "b"})
    assert differing_keys([one, other]) == ["algorithm.name"]
    assert differing_keys([one]) == differing_keys([]) == differing_keys([one, one]) == []
    # controls: a rate that was typed, an optimizer that was, a rate that varies, a group apart
    typed = made("algorithm=nrws", "optimizer.lr=0.3", config=NRWS | SGD)
    assert differing_keys([one, typed]) == ["algorithm.name", "optimizer.lr"]
    chosen = made("algorithm=nrws", "optimizer=sgd", config=NRWS | SGD)
    assert differing_keys([one, chosen]) == ["algorithm.name", "optimizer._target_"]
    faster = made(config=NRWS | SGD | {"optimizer.lr": 0.5})
    assert differing_keys([one, other, faster]) == ["algorithm.name", "optimizer.lr"]
    larger = made(config=NRWS | SGD | {"trainer.batch_size": 512, "seed": 1})
    expected = ["algorithm.name", "trainer.batch_size", "seed"]
    assert differing_keys([one, larger]) == expected


def test_labels_are_short_and_say_which_value_is_whose() -> None:
    config = NRWS | SGD | {"damping.value": 0.32818239234032287, "model.layers": [5, 3], "seed": 3}
    keys = ["algorithm.name", "metric._target_", "optimizer.lr", "damping.value", "model.layers"]
    run = made(config=config)
    assert label(run, [*keys, "seed"]) == (
        "nrws, Fisher, lr 0.3, damping.value 0.3282, layers 5-3, seed 3"
    )
    assert label(made(config=RWS), ["metric._target_"]) == "euclidean"
    assert label(made(config=RWS), ["average._target_"]) == "average none"
    clash = ["trainer.lr", "optimizer.lr", "algorithm.name", "algorithm._target_"]
    assert list(short_names(clash).values()) == clash


def test_keys_by_their_short_names() -> None:
    runs = [made(config=NRWS | SGD | {"a.x": 1, "b.x": 1})]
    for name, key in {
        "lr": "optimizer.lr",
        "algorithm": "algorithm.name",
        "optimizer": "optimizer._target_",
        "seed": "seed",
    }.items():
        assert find_key(name, runs) == key
    with pytest.raises(UserError, match="'x' is the end of several keys: a.x, b.x"):
        find_key("x", runs)
    with pytest.raises(UserError, match="'optimizer.l'; perhaps optimizer.lr"):
        find_key("optimizer.l", runs)


def test_what_a_run_says_of_itself(make: Make) -> None:
    path = make("a", [(1, 2, -9), (2, 4, -7), (3, 6, -8)])
    run = read_run(path)
    assert (run.best["epoch"], run.last["epoch"], run.steps) == (2, 3, 30)
    assert run.ms_per_step == pytest.approx(200) and run.state == "unfinished"
    for damaged in ("{", "[1]"):
        (path / "provenance.json").write_text(damaged)
        assert read_run(path).provenance == {}
    (path / "provenance.json").write_text('{"state": "stopped", "ms_per_step": 5, "steps": 34}')
    run = read_run(path)
    assert (run.state, run.ms_per_step, run.steps) == ("stopped", 5.0, 34)
