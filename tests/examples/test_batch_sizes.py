"""examples/batch_sizes.py: when a target is reached, by which run, and the figure of it."""

import math
from pathlib import Path

import pytest
from batch_sizes import crossing, reach
from conftest import Command
from written import LL, Make

from nws.analysis.runs import read_run


@pytest.mark.parametrize(
    ("target", "steps"),
    [(-9.0, 10), (-8.0, 10), (-7.5, 15), (-7.0, 20), (-6.5, 37.5), (-5.9, math.inf)],
)
def test_a_target_is_crossed_between_evaluations(make: Make, target: float, steps: float) -> None:
    """Epochs of ten steps: -8 at 10, -7 at 20, -7.4 at 30, -6.2 at 40."""
    run = make("run", [(1, 1, -8), (2, 2, -7), (3, 3, -7.4), (4, 4, -6.2)])
    assert crossing(read_run(run), LL, target) == pytest.approx(steps)


def test_the_fastest_run_of_a_method_and_batch_size_counts(make: Make) -> None:
    paths = [
        make("slow", [(1, 1, -9), (3, 3, -7)], batch_size=10, lr=0.1),
        make("fast", [(1, 1, -9), (2, 2, -7)], batch_size=10, lr=0.2),
        make("never", [(1, 1, -9), (2, 2, -8.5)], batch_size=40, lr=0.2),
        make("large", [(1, 1, -9), (2, 2, -7)], batch_size=40, lr=0.4),
        make("other", [(1, 1, -7)], "nrws", batch_size=10),
    ]
    found = reach([read_run(path) for path in paths], "algorithm.name", LL, [-8.0, -7.0])
    shown = found.assign(run=[path.name for path in found["run"]])
    assert shown[["method", "target", "batch", "run", "tried", "steps"]].values.tolist() == [
        ["rws", -8.0, 10, "fast", 2, 15], ["rws", -8.0, 40, "large", 2, 15],
        ["rws", -7.0, 10, "fast", 2, 20], ["rws", -7.0, 40, "large", 2, 20],
        ["nrws", -8.0, 10, "other", 1, 10], ["nrws", -7.0, 10, "other", 1, 10],
    ]  # fmt: skip
    assert (found["images"] == found["steps"] * found["batch"]).all()


def test_batch_sizes(make: Make, command: Command, tmp_path: Path) -> None:
    for batch in (10, 40):
        make(f"runs/{batch}", [(1, 1, -9), (2, 2, -3)], batch_size=batch)
    outcome = command("examples/batch_sizes.py", "runs", "--target=-4", "--target=-8")
    assert outcome.code == 0 and outcome.err == ""
    assert outcome.out.splitlines()[3].split() == ["rws", "-8", "10", "12", "117", "0.1", "1"]
    assert outcome.out.splitlines()[-2:] == ["batch_sizes.png", "batch_sizes.svg"]
    text = (tmp_path / "batch_sizes.svg").read_text()
    assert ">rws, -4<" in text and ">rws, -8<" in text
    for arguments, expected in {
        ("runs", "--target", "-1"): "no run reaches any of -1 in valid/log_likelihood",
        ("runs", "--target", "-8", "--column", "bound"): "'bound'; there are",
    }.items():
        assert expected in command("examples/batch_sizes.py", *arguments).message()
