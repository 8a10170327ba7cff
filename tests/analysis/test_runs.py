"""nws/analysis/runs.py: which runs are found and what is read of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from written import Make, write_run

from nws.analysis.runs import find_runs, flatten, is_bidirectional, is_finished, read_run, read_runs
from nws.errors import UserError


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make("a/0", [(epoch, seconds, value), ...], seed=1, ...): a run directory."""
    return partial(write_run, tmp_path)


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


def test_a_run_is_finished_at_its_last_step(make: Make) -> None:
    path = make("a", [(1, 1, -5)])
    assert not is_finished(path)
    (path / "checkpoints").mkdir()
    for step, expected in ((9, False), (10, True)):
        state = {"machine": {}, "step": step, "total_steps": 10}
        torch.save(state, path / "checkpoints" / "last.pt")
        assert is_finished(path) is expected
    (path / "checkpoints" / "last.pt").write_bytes(b"damaged")
    assert not is_finished(path)


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


def test_flatten() -> None:
    assert flatten({"a": {"b": 1, "c": {"d": [2]}}, "e": None}) == {
        "a.b": 1, "a.c.d": [2], "e": None,
    }  # fmt: skip
