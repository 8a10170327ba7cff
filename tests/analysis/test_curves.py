"""nws/analysis/curves.py: groups of runs, their mean and deviation."""

from __future__ import annotations

import numpy as np
import pytest
from written import LL, Make

from nws.analysis.curves import (
    Scale,
    by_epochs,
    count,
    differences,
    group_runs,
    interpolate,
    scale,
    with_column,
)
from nws.analysis.runs import read_run
from nws.errors import UserError


def test_groups(make: Make) -> None:
    kinds = [("rws", 0.1, 0), ("nrws", 0.1, 0), ("rws", 0.1, 1), ("rws", 0.3, 0)]
    runs = [
        read_run(make(f"{i}", [(1, 1, -5)], algorithm, lr, seed))
        for i, (algorithm, lr, seed) in enumerate(kinds)
    ]

    def members(*keys: str) -> dict[str, list[int]]:
        return {
            name: [runs.index(run) for run in group]
            for name, group in group_runs(runs, ",".join(keys)).items()
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
    assert (
        members("auto") == members("algorithm", "lr") == members("algorithm.name", "optimizer.lr")
    )
    assert list(members("run")) == [
        "rws, lr 0.1, seed 0", "nrws, lr 0.1, seed 0", "rws, lr 0.1, seed 1", "rws, lr 0.3, seed 0",
    ]  # fmt: skip
    again = group_runs([runs[0], runs[0]], "run")
    assert len(again) == 2 and group_runs(runs[:1], "auto") == {"rws": runs[:1]}
    with pytest.raises(UserError, match="'optimizer.l'; perhaps optimizer.lr"):
        members("optimizer.l")
    with pytest.raises(UserError, match="'algorithm.nam'; perhaps algorithm.name"):
        members("algorithm.nam")


def test_a_curve_that_diverged_does_not_set_the_scale(make: Make) -> None:
    good = [(epoch, epoch, -300 + 10 * epoch) for epoch in range(1, 7)]
    runs = {
        "a": read_run(make("a", good)),
        "b": read_run(make("b", [(e, s, value - 20) for e, s, value in good])),
        "bad": read_run(make("bad", [(1, 1, -400), (2, 2, -1e5)])),
        "worse": read_run(make("worse", [(1, 1, -500), (2, 2, -3e6)])),
    }
    bands = {name: by_epochs([run], LL) for name, run in runs.items()}
    found = scale(bands, LL)
    assert found.cut == {"bad": -1e5, "worse": -3e6}
    assert found.low == pytest.approx(-310 - 0.05 * 70) and found.high == pytest.approx(-236.5)
    losses = {name: band._replace(mean=-band.mean) for name, band in bands.items()}
    assert scale(losses, "train/wake_loss").cut == {"bad": 1e5, "worse": 3e6}
    # controls: curves that are merely apart, a column without a best value, a curve by itself
    assert scale({name: bands[name] for name in "ab"}, LL) == Scale(None, None, {})
    assert scale(bands, "learning_rate") == scale({"bad": bands["bad"]}, LL)
    assert scale({name: bands[name] for name in ("a", "bad")}, LL).cut == {"bad": -1e5}


def test_a_row_before_training_does_not_set_the_scale(make: Make) -> None:
    run = read_run(make("a", [(0, 0, -540), (1, 1, -250), (2, 2, -240)]))
    found = scale({"a": by_epochs([run], LL)}, LL)
    assert found == Scale(pytest.approx(-250.5), pytest.approx(-239.5), {})
    near = read_run(make("c", [(0, 0, -252), (1, 1, -250), (2, 2, -240)]))
    assert scale({"c": by_epochs([near], LL)}, LL) == Scale(None, None, {})  # it takes little room
    alone = read_run(make("b", [(0, 0, -540)]))
    assert scale({"b": by_epochs([alone], LL)}, LL) == Scale(None, None, {})


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
