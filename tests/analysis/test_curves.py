"""Curves: groups of runs, their mean and deviation, and figures."""

import io
from pathlib import Path

import numpy as np
import pytest
from conftest import Command
from PIL import Image
from written import LL, Make

from nws.analysis.curves import Scale, count, curve, group_runs, scale, with_column
from nws.analysis.figures import draw
from nws.analysis.runs import read_run

PLOT = "scripts/plot_curves.py"


def test_groups(make: Make) -> None:
    kinds = [("rws", 0.1, 0), ("nrws", 0.1, 0), ("rws", 0.1, 1), ("rws", 0.3, 0)]
    runs = [read_run(make(f"{i}", [(1, 1, -5)], *kind)) for i, kind in enumerate(kinds)]

    def members(*keys: str) -> dict[str, list[int]]:
        groups = group_runs(runs, ",".join(keys))
        return {name: [runs.index(run) for run in group] for name, group in groups.items()}

    assert members("algorithm.name") == {"rws": [0, 2, 3], "nrws": [1]}
    both = {"rws, lr 0.1": [0, 2], "nrws, lr 0.1": [1], "rws, lr 0.3": [3]}
    assert members("algorithm", "lr") == members("auto") == both and len(members("argument")) == 4
    assert count([runs[0], runs[2]]) == "2 seeds" and count([runs[1]]) == "1 seed"
    # Not seeds of one thing: the same seed twice, or another learning rate.
    assert count([runs[0], runs[3]]) == "2 runs" and count([runs[2], runs[3]]) == "2 runs"
    assert list(members("run")) == [
        "rws, lr 0.1, seed 0", "nrws, lr 0.1, seed 0", "rws, lr 0.1, seed 1", "rws, lr 0.3, seed 0",
    ]  # fmt: skip
    assert group_runs(runs[:1]) == {"rws": runs[:1]}


def test_by_epochs_at_the_rows_that_all_runs_have(make: Make) -> None:
    first = read_run(make("a", [(1, 1, -8), (2, 2, -6), (3, 3, -5)]))
    second = read_run(make("b", [(1, 1, -6), (1.5, 1, -100), (3, 3, -2), (4, 9, 0)], seed=1))
    band = curve([first, second], "epoch", LL)
    assert band.index.tolist() == [1, 3] and band["mean"].tolist() == [-7, -3.5]
    expected = [2**0.5, 1.5 * 2**0.5]  # |a - b| / sqrt 2, of two
    assert band["deviation"].tolist() == pytest.approx(expected)
    alone = curve([first], "epoch", LL)
    assert alone["mean"].tolist() == [-8, -6, -5] and not alone["deviation"].any()
    between = read_run(make("c", [(0.5, 1, -8), (2.5, 2, -4)]))  # no epoch is the same
    means = curve([between, first], "epoch", LL)["mean"].tolist()
    assert means == pytest.approx([-7.5, -5.5, -4.75])
    odd = [read_run(make(f"{n}", [(n * k, k, k) for k in range(4)])) for n in (0.5, 0.6)]
    assert curve(odd, "epoch", LL).index.tolist() == [0, 0.5, 0.6, 1, 1.2, 1.5]  # they share 0


def test_by_seconds_over_the_span_that_all_runs_share(make: Make) -> None:
    first = read_run(make("a", [(1, 1, -10), (2, 3, -6), (3, 7, -2)]))
    second = read_run(make("b", [(1, 2, -9), (2, 4, -5), (3, 6, -3)], seed=1))
    band = curve([first, second], "seconds", LL)
    assert band.index.tolist() == [2, 3, 4, 6]  # neither 1 nor 7: one run alone is no mean
    one, other = np.array([-8, -6, -5, -3]), np.array([-9, -7, -5, -3])
    assert band["mean"].tolist() == pytest.approx((one + other) / 2)
    assert band["deviation"].tolist() == pytest.approx((one - other) / 2**0.5)
    late = read_run(make("c", [(1, 20, -9), (2, 30, -5)], seed=2))
    assert curve([first, late], "seconds", LL).empty


def test_rows_without_a_number_and_runs_without_the_column(make: Make) -> None:
    run = read_run(make("a", [(1, 1, -8), (2, 2, ""), (3, 3, "nan"), (4, 4, -5)]))
    assert curve([run], "epoch", LL).index.tolist() == [1, 4]
    empty = read_run(make("b", [(1, 1, "")]))
    assert [each.path for each in with_column([run, empty], LL)] == [run.path]
    assert with_column([run], LL)[0].metrics["epoch"].tolist() == [1, 4]


def test_a_curve_that_diverged_does_not_set_the_scale(make: Make) -> None:
    good = [(epoch, epoch, -300 + 10 * epoch) for epoch in range(1, 7)]
    runs = {
        "a": read_run(make("a", good)),
        "b": read_run(make("b", [(e, s, value - 20) for e, s, value in good])),
        "bad": read_run(make("bad", [(1, 1, -400), (2, 2, -1e5)])),
        "worse": read_run(make("worse", [(1, 1, -500), (2, 2, -3e6)])),
    }
    bands = {name: curve([run], "epoch", LL) for name, run in runs.items()}
    found = scale(bands, LL)
    assert found.cut == {"bad": -1e5, "worse": -3e6}
    assert found.low == pytest.approx(-310 - 0.05 * 70) and found.high == pytest.approx(-236.5)
    losses = {name: band.assign(mean=-band["mean"]) for name, band in bands.items()}
    assert scale(losses, "train/wake_loss").cut == {"bad": 1e5, "worse": 3e6}
    # controls: curves that are merely apart, a column without a best value
    assert scale({name: bands[name] for name in "ab"}, LL).cut == {}
    assert scale(bands, "learning_rate") == Scale(None, None, {})
    # a row before training sets no limit
    start = curve([read_run(make("s", [(0, 0, -540), (1, 1, -250), (2, 2, -240)]))], "epoch", LL)
    assert scale({"s": start}, LL) == Scale(pytest.approx(-250.5), pytest.approx(-239.5), {})


@pytest.mark.parametrize(("number", "words"), [(20, 3), (2, 60)])
def test_every_entry_of_a_long_legend_is_whole(make: Make, number: int, words: int) -> None:
    run = read_run(make("a", [(1, 2, -10), (2, 4, -5)]))
    names = [f"{each}: " + "of a long name " * words for each in range(number)]
    files = draw({name: [run] for name in names}, LL)
    with Image.open(io.BytesIO(files["png"])) as image:
        grey = np.asarray(image.convert("L"))
    assert grey.shape[1] == 1360  # the legend grows downwards
    edge = np.concatenate([grey[:, :4].ravel(), grey[:, -4:].ravel(), grey[-4:].ravel()])
    assert edge.min() == 255  # nothing is cut at an edge
    text = files["svg"].decode()
    assert all(f">{each}: of a long name" in text for each in range(number))
    assert grey.shape[0] > 580 + (number > 6) * 200  # 2.9 inches and more


def test_plot(make: Make, command: Command, tmp_path: Path) -> None:
    for seed in range(2):
        make(f"one/{seed}", [(1, 1, -8 - seed), (2, 2, -7e-4)], "rws", seed=seed)
        make(f"two/{seed}", [(1, 1, -6), (2, 2, -5)][: 2 - seed], "rws", lr=0.3, seed=seed)
    given = ["--group", "argument", "--label", "low", "--label", "high"]
    outcome = command(PLOT, "one", "two", *given, "--output", "f/x.svg")
    assert outcome.code == 0 and outcome.out.splitlines()[-1] == "f/x.svg"
    assert [path.name for path in (tmp_path / "f").iterdir()] == ["x.svg"]  # what was named, alone
    assert ">low (2 seeds)<" in (tmp_path / "f" / "x.svg").read_text()
    outcome = command(PLOT, "one", "two", "--group", "algorithm")
    assert "rws is a mean over runs that differ in optimizer.lr" in outcome.err
    outcome = command(PLOT, "one", "two")
    lines = outcome.out.splitlines()
    assert lines[0] == "lr 0.1 (2 seeds): -0.0007 ± 0 after 2 epochs"
    assert lines[-2:] == ["curves_valid_log_likelihood.png", "curves_valid_log_likelihood.svg"]
    text = Path(lines[-1]).read_text()
    words = ["epochs", "training seconds", "log-likelihood (nats)", "50 importance samples"]
    assert all(f"{word}</text>" in text for word in (*words, "lr 0.1 (2 seeds)"))
    assert "#0072b2" in text and "#d55e00" in text
    make("new", [])
    outcome = command(PLOT, "one", "two", "new")
    assert "1 of 5 runs have no such rows, left out" in outcome.err
    assert Path(lines[-1]).read_text() == text  # the same bytes


def test_an_axis_with_ends_has_the_curve_that_is_cut_else(make: Make, command: Command) -> None:
    for name, last in (("one", -7), ("bad", -9000)):
        make(name, [(1, 1, -40), (2, 2, last)], lr=last)
    assert "cut: goes to -9,000" in Path(command(PLOT, "one", "bad").run).read_text()
    outcome = command(PLOT, "one", "bad", "--ymin=-9000")
    assert outcome.code == 0 and "cut" not in Path(outcome.run).read_text()
    assert command(PLOT, "one", "--column", "seconds", "--log").code == 0


def test_curves_that_cannot_be_drawn(make: Make, command: Command, tmp_path: Path) -> None:
    make("a", [(0.1, 1, -50), (0.2, 2, -40)])
    make("b", [(3, 30, -30), (4, 40, -20)], seed=1)
    (tmp_path / "file").touch()
    for arguments, expected in {
        ("a", "b"): "the runs of rws share no epochs, so they have no mean; separate them",
        ("a", "--column", "nope"): f"'nope'; there are epoch, step, seconds, {LL}, valid/s",
        ("a", "--log"): f"needs values above 0, {LL} goes down to -50",
        ("a", "--ymin", "nan"): "--ymin or --ymax must be a number",
        ("a", "--ymin", "5", "--ymax", "1"): "--ymin must be below --ymax, got 5 and 1",
        ("a", "--group", "optimizer.l"): "'optimizer.l'; perhaps optimizer.lr",
        ("nowhere",): "does not exist",
        ("a", "b", "--group", "argument", "--label", "x"): "for each of the 2 groups (a; b)",
        ("a", "--output", "file/a.png"): "is a file, expected a folder there",
        ("a", "--output", "x.pdf"): "got x.pdf; end it in either",
        ("a", "--output", ""): "expected the name of a file to write",
    }.items():
        assert expected in command(PLOT, *arguments).message(), arguments
    assert not list(tmp_path.glob("curves*"))
