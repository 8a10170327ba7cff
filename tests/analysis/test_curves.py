"""nws/analysis/curves.py: groups of runs, their mean and deviation."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from written import LL, Make, write_run

from nws.analysis.curves import by_epochs, count, differences, group_runs, interpolate, with_column
from nws.analysis.runs import read_run
from nws.errors import UserError


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make("a/0", [(epoch, seconds, value), ...], seed=1, ...): a run directory."""
    return partial(write_run, tmp_path)


def test_groups(make: Make) -> None:
    kinds = [("rws", 0.1, 0), ("nrws", 0.1, 0), ("rws", 0.1, 1), ("rws", 0.3, 0)]
    runs = [
        read_run(make(f"{i}", [(1, 1, -5)], algorithm, lr, seed))
        for i, (algorithm, lr, seed) in enumerate(kinds)
    ]

    def members(*keys: str) -> dict[str, list[int]]:
        return {
            name: [runs.index(run) for run in group]
            for name, group in group_runs(runs, keys).items()
        }

    assert members("algorithm.name") == {"rws": [0, 2, 3], "nrws": [1]}
    assert members("algorithm.name", "optimizer.lr") == {
        "rws, lr 0.1": [0, 2],
        "nrws, lr 0.1": [1],
        "rws, lr 0.3": [3],
    }
    assert members("optimizer._target_") == {"SGD": [0, 1, 2, 3]}
    assert len(members("argument")) == 4
    assert count([runs[0], runs[2]]) == "2 seeds" and count([runs[1]]) == "1 seed"
    # Not seeds of one thing: the same seed twice, or another learning rate.
    assert count([runs[0], runs[3]]) == "2 runs" and count([runs[2], runs[3]]) == "2 runs"
    assert differences([runs[0], runs[2]]) == [] and differences([runs[0], runs[2], runs[3]]) == [
        "optimizer.lr"
    ]
    with pytest.raises(UserError, match="'optimizer'; perhaps optimizer._target_, optimizer.lr"):
        members("optimizer")
    with pytest.raises(UserError, match="'algorithm.nam'; perhaps algorithm.name"):
        members("algorithm.nam")


# --- averaging ----------------------------------------------------------------------------------


def test_by_epochs_at_the_rows_that_all_runs_have(make: Make) -> None:
    first = read_run(make("a", [(1, 1, -8), (2, 2, -6), (3, 3, -5)]))
    second = read_run(make("b", [(1, 1, -6), (1.5, 1, -100), (3, 3, -2), (4, 9, 0)], seed=1))
    band = by_epochs([first, second], LL)
    assert band.x.tolist() == [1, 3] and band.mean.tolist() == [-7, -3.5]
    assert band.deviation == pytest.approx([2**0.5, 1.5 * 2**0.5])  # |a - b| / sqrt 2, of two
    alone = by_epochs([first], LL)
    assert alone.mean.tolist() == [-8, -6, -5] and not alone.deviation.any()


def test_by_seconds_over_the_span_that_all_runs_share(make: Make) -> None:
    first = read_run(make("a", [(1, 1, -10), (2, 3, -6), (3, 7, -2)]))
    second = read_run(make("b", [(1, 2, -9), (2, 4, -5), (3, 6, -3)], seed=1))
    band = interpolate([first, second], "seconds", LL)
    assert band.x.tolist() == [2, 3, 4, 6]  # neither 1 nor 7: one run alone would be a mean of one
    one, other = np.array([-8, -6, -5, -3]), np.array([-9, -7, -5, -3])
    assert band.mean == pytest.approx((one + other) / 2) and band.deviation == pytest.approx(
        (one - other) / 2**0.5
    )
    late = read_run(make("c", [(1, 20, -9), (2, 30, -5)], seed=2))
    assert len(interpolate([first, late], "seconds", LL).x) == 0


def test_runs_of_one_row_give_one_point(make: Make) -> None:
    runs = [read_run(make(f"{seed}", [(1, 2 + seed, -4 - seed)], seed=seed)) for seed in (0, 2)]
    for band, x in ((by_epochs(runs, LL), 1), (interpolate(runs, "seconds", LL), 3)):
        assert (
            band.x.tolist() == [x]
            and band.mean.tolist() == [-5]
            and band.deviation == pytest.approx([2**0.5])
        )


def test_rows_without_a_number_and_runs_without_the_column(make: Make) -> None:
    run = read_run(make("a", [(1, 1, -8), (2, 2, ""), (3, 3, "nan"), (4, 4, -5)]))
    assert by_epochs([run], LL).x.tolist() == [1, 4]
    empty = read_run(make("b", [(1, 1, "")]))
    assert [each.path for each in with_column([run, empty], LL)] == [run.path]
    assert with_column([run], LL, start=2)[0].metrics["epoch"].tolist() == [4]
    with pytest.raises(
        UserError, match=f"'nope'; there are epoch, step, seconds, {LL}, valid/samples"
    ):
        with_column([run], "nope")
    with pytest.raises(UserError, match="no rows from epoch 9 on: the runs end at epoch 4"):
        with_column([run], LL, start=9)
