"""scripts/batch_sizes.py: where a curve crosses a target, and which run counts."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from conftest import Command
from written import LL, Make

from nws.analysis.batch_sizes import crossing, reach
from nws.analysis.runs import read_run

BATCH_SIZES = "scripts/batch_sizes.py"


@pytest.mark.parametrize(
    ("target", "steps"),
    [(-9.0, 10), (-8.0, 10), (-7.5, 15), (-7.0, 20), (-6.5, 37.5), (-5.9, math.inf)],
)
def test_a_target_is_crossed_on_the_straight_line_between_evaluations(
    make: Make, target: float, steps: float
) -> None:
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
    rows = [(e.method, e.target, e.batch_size, e.run.path.name, e.tried) for e in found]
    assert rows == [
        ("rws", -8.0, 10, "fast", 2),
        ("rws", -8.0, 40, "large", 2),
        ("rws", -7.0, 10, "fast", 2),
        ("rws", -7.0, 40, "large", 2),
        ("nrws", -8.0, 10, "other", 1),
        ("nrws", -7.0, 10, "other", 1),
    ]
    assert [(each.steps, each.images) for each in found[:2]] == [(15, 150), (15, 600)]


def test_the_command_prints_a_table_and_draws_it(
    make: Make, command: Command, tmp_path: Path
) -> None:
    for batch in (10, 40):
        make(f"runs/{batch}", [(1, 1, -9), (2, 2, -7)], batch_size=batch)
    outcome = command(BATCH_SIZES, "runs", "--target", "-8")
    assert outcome.code == 0 and outcome.err == ""
    assert outcome.out.splitlines()[1].split() == ["rws", "-8", "10", "15", "150", "0.1", "1"]
    assert outcome.out.splitlines()[-2:] == ["batch_sizes.png", "batch_sizes.svg"]
    assert ">rws, -8 nats<" in (tmp_path / "batch_sizes.svg").read_text()
    (tmp_path / "hand.svg").write_text("drawn by hand")
    named = command(BATCH_SIZES, "runs", "--target", "-8", "--output", "hand.png")
    assert named.out.splitlines()[-1] == "hand.png" and (tmp_path / "hand.png").is_file()
    assert (tmp_path / "hand.svg").read_text() == "drawn by hand"


def test_every_target_is_drawn(make: Make, command: Command, tmp_path: Path) -> None:
    """Also more of them than there are simple dashes."""
    make("runs/0", [(1, 1, -9), (2, 2, -3)])
    targets = [f"--target=-{nats}" for nats in range(4, 9)]
    assert command(BATCH_SIZES, "runs", *targets, "--output", "five.svg").code == 0
    text = (tmp_path / "five.svg").read_text()
    assert all(f">rws, -{nats} nats<" in text for nats in range(4, 9))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("runs", "--target", "-1"), "no run reaches any of -1 in valid/log_likelihood"),
        (("runs", "--target", "-8", "--column", "bound"), "has no column 'bound'; there are"),
        (("none", "--target", "-8"), "none"),
    ],
)
def test_mistakes(make: Make, command: Command, arguments: tuple[str, ...], expected: str) -> None:
    make("runs/0", [(1, 1, -9), (2, 2, -7)])
    assert expected in command(BATCH_SIZES, *arguments).message()
