"""scripts/plot_curves.py: from runs to their curves, its options and warnings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import Command
from written import Make

from nws.analysis.runs import read_run

PLOT = "scripts/plot_curves.py"


def test_a_sweep_from_training_to_its_curves(
    train: Command, command: Command, tmp_path: Path
) -> None:
    sweep = ["data=three_by_three", "hydra.sweep.dir=sweep", "trainer.batch_size=6000"]
    assert train("-m", *sweep, "algorithm=nrws", "seed=0,1").code == 0
    outcome = command(PLOT, "sweep", "--column", "exact/kl", "--log")
    assert outcome.code == 0 and outcome.err == ""
    text = (tmp_path / "curves_exact_kl.svg").read_text()
    assert ">nrws (2 seeds)<" in text
    last = [float(read_run(tmp_path / "sweep" / job).metrics["exact/kl"].iloc[-1]) for job in "01"]
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
    assert outcome.code == 0
    assert [path.name for path in (tmp_path / "f").iterdir()] == ["x.svg"]  # what was named, alone
    assert ">low (2 seeds)<" in (tmp_path / "f" / "x.svg").read_text()
    assert "the runs of high end at epochs 1 to 2; its mean ends at the first" in outcome.err
    monkeypatch.setattr(
        "nws.analysis.figures.draw", lambda *_, **__: {"png": b"a picture"}
    )  # no more of them, which take long
    outcome = command(PLOT, "one", "two", "--group", "algorithm")
    assert "rws is a mean over runs that differ in optimizer.lr" in outcome.err
    assert "--group auto would separate" in outcome.err
    outcome = command(PLOT, "one", "two")
    assert "lr 0.1 (2 seeds): " in outcome.out and "lr 0.3 (2 seeds): " in outcome.out
    outcome = command(PLOT, "one", "two", "--group", "run")
    assert "lr 0.1, seed 1: -7.000 after 2 epochs" in outcome.out
    make("bad", [(1, 1, -40), (2, 2, -9000)], "rws", lr=9.0)
    outcome = command(PLOT, "one", "bad")
    assert "cut, for it would flatten the others: lr 9, to -9,000.0; --ymin=-9000.00" in outcome.out
    assert "cut" not in command(PLOT, "one", "bad", "--ymin=-9000.0").out
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
