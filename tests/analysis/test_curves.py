"""nws/analysis/curves.py and scripts/plot_curves.py: which runs are found, what is averaged, what the figure says."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import Command
from PIL import Image

from nws.analysis.curves import (
    by_epochs,
    by_seconds,
    count,
    differences,
    draw,
    find_runs,
    group_runs,
    read_run,
    read_runs,
    save,
    with_column,
)
from nws.errors import UserError

PLOT = "scripts/plot_curves.py"
LL = "valid/log_likelihood"
Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make("a/0", [(epoch, seconds, value), ...], seed=1, ...): a run directory with these rows and this configuration."""

    def run(
        name: str,
        rows: list[tuple[float, float, Any]],
        algorithm: str = "rws",
        lr: float = 0.1,
        seed: int = 0,
    ) -> Path:
        path = tmp_path / name
        (path / ".hydra").mkdir(parents=True)
        config = {
            "seed": seed,
            "algorithm": {"name": algorithm},
            "optimizer": {"_target_": "torch.optim.SGD", "lr": lr},
        }
        (path / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config))
        with open(path / "metrics.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["epoch", "step", "seconds", LL, "valid/samples"])
            writer.writerows(
                [epoch, round(10 * epoch), seconds, value, 50] for epoch, seconds, value in rows
            )
        return path

    return run


# --- reading and grouping ------------------------------------------------------------------------------------------


def test_a_directory_stands_for_the_runs_below_it(make: Make, tmp_path: Path) -> None:
    paths = [make(f"sweep/{job}", [(1, 1, -5)], seed=job) for job in (2, 10, 0)]
    (tmp_path / "sweep" / "empty" / ".hydra").mkdir(
        parents=True
    )  # a job that has not come to an evaluation
    (tmp_path / "sweep" / "empty" / ".hydra" / "config.yaml").write_text("seed: 5")
    assert [path.name for path in find_runs(tmp_path / "sweep")] == ["0", "2", "10"]
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


# --- averaging -----------------------------------------------------------------------------------------------------


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
    band = by_seconds([first, second], LL)
    assert band.x.tolist() == [2, 3, 4, 6]  # neither 1 nor 7: one run alone would be a mean of one
    one, other = np.array([-8, -6, -5, -3]), np.array([-9, -7, -5, -3])
    assert band.mean == pytest.approx((one + other) / 2) and band.deviation == pytest.approx(
        (one - other) / 2**0.5
    )
    late = read_run(make("c", [(1, 20, -9), (2, 30, -5)], seed=2))
    assert len(by_seconds([first, late], LL).x) == 0


def test_runs_of_one_row_give_one_point(make: Make) -> None:
    runs = [read_run(make(f"{seed}", [(1, 2 + seed, -4 - seed)], seed=seed)) for seed in (0, 2)]
    for band, x in ((by_epochs(runs, LL), 1), (by_seconds(runs, LL), 3)):
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
    assert with_column([run], LL, start=2)[0].columns["epoch"].tolist() == [4]
    with pytest.raises(
        UserError, match=f"'nope'; there are epoch, step, seconds, {LL}, valid/samples"
    ):
        with_column([run], "nope")
    with pytest.raises(UserError, match="no rows from epoch 9 on: the runs end at epoch 4"):
        with_column([run], LL, start=9)


# --- drawing -------------------------------------------------------------------------------------------------------


def test_the_figure(make: Make, tmp_path: Path) -> None:
    rows = [(epoch, 2.0 * epoch, -10 / epoch) for epoch in range(1, 5)]
    groups = {
        "mine": [read_run(make(f"a/{seed}", rows, seed=seed)) for seed in range(3)],
        "theirs": [read_run(make("b", rows, "nrws"))],
    }
    files = draw(groups, LL, title="A title", ymin=-12, ymax=0)
    text = files["svg"].decode()
    for expected in (
        "epochs",
        "training seconds",
        "log-likelihood (nats)",
        "50 importance samples",
        "A title",
    ):
        assert f"{expected}</text>" in text, expected
    assert ">mine (3 seeds)<" in text and ">theirs (1 seed)<" in text
    assert "#0072b2" in text and "#d55e00" in text and "dc:date" not in text
    assert draw(groups, LL, title="A title", ymin=-12, ymax=0) == files
    assert draw(groups, LL, title="Another", ymin=-12, ymax=0) != files
    with Image.open(io.BytesIO(files["png"])) as image:
        assert image.format == "PNG" and image.width == 1360 and round(image.info["dpi"][0]) == 200
    for name in ("x.png", "x.svg", "x"):
        assert save(files, tmp_path / name) == [tmp_path / "x.png", tmp_path / "x.svg"]
    assert (tmp_path / "x.svg").read_bytes() == files["svg"] and (
        tmp_path / "x.png"
    ).read_bytes() == files["png"]


def test_axes_that_cannot_be(make: Make, tmp_path: Path) -> None:
    groups = {"a": [read_run(make("a", [(1, 1, -8)]))]}
    with pytest.raises(
        UserError, match="needs values above 0, valid/log_likelihood goes down to -8"
    ):
        draw(groups, LL, log=True)
    assert draw(groups, "seconds", log=True, log_x=True)
    with pytest.raises(UserError, match="--ymin must be below --ymax, got 2 and 1"):
        draw(groups, LL, ymin=2, ymax=1)
    with pytest.raises(UserError, match="--ymin must be above 0"):
        draw(groups, "seconds", log=True, ymin=0)
    with pytest.raises(UserError, match=r"got x\.pdf"):
        save({}, tmp_path / "x.pdf")


# --- the command line ----------------------------------------------------------------------------------------------


def test_a_sweep_from_training_to_its_curves(
    train: Command, command: Command, tmp_path: Path
) -> None:
    sweep = ["data=three_by_three", "hydra.sweep.dir=sweep", "trainer.batch_size=6000"]
    assert train("-m", *sweep, "algorithm=nrws", "seed=0,1").code == 0
    outcome = command(PLOT, "sweep", "--column", "exact/kl", "--log")
    assert outcome.code == 0 and outcome.err == ""
    text = (tmp_path / "curves_exact_kl.svg").read_text()
    assert ">nrws (2 seeds)<" in text
    last = [float(read_run(tmp_path / "sweep" / job).columns["exact/kl"][-1]) for job in "01"]
    expected = f"nrws (2 seeds): {np.mean(last):.3f} ± {np.std(last, ddof=1):.3f} after 2 epochs"
    assert expected in outcome.out.splitlines()
    assert outcome.out.splitlines()[-2:] == ["curves_exact_kl.png", "curves_exact_kl.svg"]


def test_options(
    make: Make, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(2):
        make(f"one/{seed}", [(1, 1, -8 - seed), (2, 2, -7)], "rws", seed=seed)
        make(f"two/{seed}", [(1, 1, -6), (2, 2, -5)][: 2 - seed], "rws", lr=0.3, seed=seed)
    labels = ["--label", "low", "--label", "high"]
    outcome = command(
        PLOT, "one", "two", "--group", "argument", *labels, "--title", "T", "--output", "f/x.svg"
    )
    assert outcome.code == 0 and sorted(path.name for path in (tmp_path / "f").iterdir()) == [
        "x.png",
        "x.svg",
    ]
    assert ">low (2 seeds)<" in (tmp_path / "f" / "x.svg").read_text()
    assert "the runs of high end at epochs 1 to 2; its mean ends at the first" in outcome.err
    monkeypatch.setattr(
        "nws.analysis.curves.draw", lambda *_, **__: {"png": b"a picture"}
    )  # no more of them, which take long
    outcome = command(PLOT, "one", "two")
    assert "rws is a mean over runs that differ in optimizer.lr" in outcome.err
    assert "--group algorithm.name,optimizer.lr would" in outcome.err
    make("three", [(1, 1, "")], "nrws")
    assert "1 of 3 runs have no such rows, left out" in command(PLOT, "one", "three").err
    assert (
        "--label must be given once for each of the 2 groups (one; two)"
        in command(PLOT, "one", "two", "--group", "argument", "--label", "low").message()
    )
    assert "there are epoch, step" in command(PLOT, "one", "--column", "nope").message()
    assert "does not exist" in command(PLOT, "nowhere").message()


def test_runs_without_a_common_epoch_are_an_error_before_anything_is_written(
    make: Make, command: Command, tmp_path: Path
) -> None:
    make("a", [(0.1, 1, -50), (0.2, 2, -40)])
    make("b", [(3, 30, -30), (4, 40, -20)], seed=1)
    message = command(PLOT, str(tmp_path), "--output", "curves.png").message()
    assert "the runs of rws share no epochs" in message and "--group" in message
    assert not list(tmp_path.glob("curves*"))
