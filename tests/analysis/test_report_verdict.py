"""The verdict of a report: held against scipy's tests, and its words against what was measured."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm, ttest_ind
from written import write_run

from nws.analysis.curves import group_runs
from nws.analysis.report.scores import Score, difference, measure
from nws.analysis.report.verdict import verdict
from nws.analysis.runs import Run, read_run

MACHINE = {"host": "h", "device": "cpu", "processor": "P", "threads": 1, "torch": "2"}


def test_difference_is_welchs_test() -> None:
    rng = np.random.default_rng(0)
    for sizes in ((2, 2), (3, 7), (5, 4)):
        one, other = (rng.normal(place, 1 + place, size) for place, size in enumerate(sizes))
        found = difference(Score("a", tuple(one), ()), Score("b", tuple(other), ()))
        expected = ttest_ind(one, other, equal_var=False)
        assert found.p == pytest.approx(expected.pvalue, rel=1e-12)
        assert found.value == pytest.approx(one.mean() - other.mean(), rel=1e-12)
        assert found.value / found.error == pytest.approx(expected.statistic, rel=1e-12)
        assert found.over_seeds


def test_difference_of_one_seed_is_by_the_errors_over_images() -> None:
    """Seeds share the images, so more of them do not make that error smaller."""
    found = difference(Score("a", (3.0, 3.0), (0.3, 0.3)), Score("b", (2.0,), (0.4,)))
    assert found.error == pytest.approx(0.5) and not found.over_seeds
    assert found.p == pytest.approx(2 * norm.sf(2.0), rel=1e-12)
    assert math.isnan(difference(Score("a", (3.0,), (math.nan,)), Score("b", (2.0,), (0.4,))).p)


def test_seeds_without_spread() -> None:
    same, other = Score("a", (1.0, 1.0), (1, 1)), Score("b", (2.0, 2.0), (1, 1))
    assert difference(same, same).p == 1 and difference(same, other).p == 0


def runs_of(
    folder: Path, ends: dict[str, Sequence[float]], facts: dict[str, Any] | None = MACHINE,
    seconds: float = 10.0,
) -> list[Run]:  # fmt: skip
    """Runs of algorithms with these last values; the later an algorithm, the slower it is."""
    runs = []
    for place, (name, values) in enumerate(ends.items(), 1):
        for seed, end in enumerate(values):
            rows = [(0, 0.0, -90.0), (1, place * seconds / 2, end - 4), (2, place * seconds, end)]
            path = write_run(folder, f"{name}_{seed}", rows, name, seed=seed)
            if facts is not None:
                (path / "provenance.json").write_text(json.dumps({"state": "finished"} | facts))
            runs.append(read_run(path))
    return runs


def evaluate(run: Run, value: float, error: float, **others: Any) -> None:
    row = {"split": "test", "samples": 500, "data_points": 1000, "checkpoint": "best", "seed": 0,
           "log_likelihood": value, "standard_error": error, "step": 20}  # fmt: skip
    file = run.path / "evaluation.json"
    rows = json.loads(file.read_text()) if file.is_file() else []
    file.write_text(json.dumps([*rows, row | others]))


def test_a_clear_winner(tmp_path: Path) -> None:
    found = verdict(runs_of(tmp_path, {"rws": (-25, -25.1, -24.9), "nrws": (-23, -23.1, -22.9)}))
    assert found[0].startswith("Best of 2 configurations: nrws with -23.00 ± 0.06 nats (mean ±")
    assert "over 3 seeds), on validation images" in found[0]
    assert found[1].startswith("It is 2.00 ± 0.08 nats ahead of rws (-25.00 ± 0.06 nats): beyond")
    assert "Welch's t-test: p < 0.001, limit 0.05" in found[1]
    assert found[2] == (
        "Training took 20.0 s for nrws and 10.0 s for rws (2 times as long), without evaluation."
    )
    # At 10 s nrws was half way, at -27.
    assert found[3] == (
        "After 10.0 s, when rws ended, rws led on validation images with -25.00 nats; "
        "nrws was at -27.00."
    )
    assert len(found) == 4


def test_within_the_noise(tmp_path: Path) -> None:
    """The control: the same means with seeds that differ more."""
    found = verdict(runs_of(tmp_path, {"rws": (-25, -29, -21), "nrws": (-23, -27, -19)}))
    assert (
        found[1].startswith("It is 2.00 ± 3.27 nats ahead of rws")
        and "within the noise" in found[1]
    )


def test_the_limit_is_shared_among_comparisons(tmp_path: Path) -> None:
    """p = 0.03 is beyond the noise of one comparison, but not of four (Bonferroni)."""
    ends = {"rws": (-10.0, -10.2, -9.8), "nrws": (-9.52, -9.72, -9.32)}
    two, five = runs_of(tmp_path / "two", ends), runs_of(
        tmp_path / "five", ends | dict.fromkeys(("ws", "bihm", "vimco"), (-99, -98))
    )  # fmt: skip
    p = ttest_ind(ends["nrws"], ends["rws"], equal_var=False).pvalue
    assert 0.0125 < p < 0.05
    assert "beyond the noise" in verdict(two)[1] and "limit 0.05" in verdict(two)[1]
    assert "within the noise" in verdict(five)[1] and "limit 0.013" in verdict(five)[1]
    assert verdict(five)[2] == "Within the noise of the best: rws."


def test_test_images_count_more_than_validation(tmp_path: Path) -> None:
    """All runs must have the same request; a row of an earlier checkpoint does not count."""
    runs = runs_of(tmp_path, {"rws": (-25,), "nrws": (-23,)})
    for run, value in zip(runs, (-20, -21), strict=True):
        evaluate(run, value, 0.1)
        evaluate(run, value, 0.1, split="valid", samples=9000)
    evaluate(runs[0], -1, 0.1, samples=5000)  # of one run alone
    found = verdict(runs)
    assert "rws with -20.00 ± 0.10 nats (mean ± standard error over images, one seed)" in found[0]
    assert "on 1,000 test images, 500 importance samples, best checkpoint" in found[0]
    assert "1.00 ± 0.14 nats ahead of nrws" in found[1] and "errors over images" in found[1]
    assert "one seed, the errors are those over images" in found[2]
    for run in runs:
        (run.path / "evaluation.json").unlink()
        evaluate(run, -20, 0.1, step=10)
    assert "on validation images" in verdict(runs)[0]


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, {"rws": (-25,), "nrws": (-23,)}, facts=None)
    assert verdict(runs)[-1] == "Seconds are not compared, as the machines are unknown."
    runs[0].config["trainer.evaluation_samples"] = 7
    assert verdict(runs)[-1].startswith("No verdict: they were validated with different numbers")
    runs[0].config["data.name"] = "digits"
    assert "No verdict: the runs are of different data (data.name differ)." in verdict(runs)[-1]
    other = {"rws": MACHINE, "nrws": MACHINE | {"threads": 9}}
    runs = [run for name, facts in other.items()
            for run in runs_of(tmp_path / "b", {name: (-25,)}, facts)]  # fmt: skip
    assert verdict(runs)[-1] == "Seconds are not compared, as the machines differ."


def test_runs_that_did_not_end(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, {"rws": (-25, -25.2), "nrws": (-23, -23.2)})
    lost = runs_of(tmp_path / "lost", {"nrws": (-1,)}, {"state": "diverged"})
    stopped = runs_of(tmp_path / "stopped", {"nrws": (-23.1,)}, MACHINE | {"state": "stopped"})
    found = " ".join(verdict([*runs, *lost, *stopped]))
    assert "nrws with -23.10 ± 0.06 nats" in found  # without -1
    assert "Not all runs are finished: 1 diverged, 1 stopped, of 6; those that diverged" in found
    assert verdict(lost) == ["Not all runs are finished: 1 diverged, of 1."]


def test_one_method(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, {"rws": (-25, -25.2)})
    assert verdict(runs) == [
        "rws, 2 seeds: -25.10 ± 0.10 nats (mean ± standard error over seeds), "
        "on validation images, at the best evaluation."
    ]
    assert measure(group_runs(runs)) is not None
