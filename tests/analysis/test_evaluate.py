"""scripts/evaluate.py: right figures, evaluation.json, the table, several runs, bounded memory."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import reference
from cases import STANDARD_ERRORS, recorded
from conftest import Command, resaved
from written import TEST

from nws.analysis import evaluation, likelihoods
from nws.analysis.evaluation import read_rows
from nws.errors import UserError
from nws.experiment.loading import load_run
from nws.models import likelihood
from nws.models.likelihood import TRUSTED_ESS, Z_INNER, Z_SAMPLES

EVALUATE = "scripts/evaluate.py"
UNITS = 6 + 3 + 2  # of the machines here
FEW = ("--samples", "50", "--z-samples", "300")
NO_STAR = ("--z-samples", "0")


def test_exact_figures(command: Command, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of bihm by enumeration, within standard errors that are exact to first order."""
    run, samples, dreams = trained / "bihm", 4_000, 20_000
    monkeypatch.setattr(likelihood, "MAX_ELEMENTS", 9_000 * UNITS)  # several chunks

    def spread(state: dict[str, Any]) -> None:  # else q is nearly the posterior
        for name, parameter in state["machine"].items():
            parameter.mul_(2.5 if name.startswith("generator") else 1)

    resaved(spread)(run / "checkpoints" / "best.pt")
    outcome = command(EVALUATE, str(run), "--samples", str(samples), "--z-samples", str(dreams))
    assert outcome.code == 0 and outcome.err == "" and outcome.run == run
    (row,) = read_rows(run)
    expected = {"split": "test", "samples": samples, "data_points": TEST, "z_samples": dreams}
    assert row.items() >= (expected | {"checkpoint": "best", "seed": 0}).items()
    loaded = load_run(run, device="cpu")
    x, machine = loaded.data.test.batch().double(), loaded.machine.double()
    log_p, tilde = reference.exact_log_prob(machine, x), reference.exact_log_p_tilde(machine, x)
    log_z = math.log(reference.exact_z(machine))
    error = ((1 / row["ess"] - 1 / samples) / TEST) ** 0.5  # Var[w] / p(x)^2 = K / ess - 1
    root_error = reference.root_error(machine, x, samples)
    z_error = reference.z_error(machine, dreams)
    assert 0 < max(error, root_error, z_error) < 0.02
    assert abs(row["log_likelihood"] - log_p.mean().item()) < STANDARD_ERRORS * error
    assert abs(row["log_z"] - log_z) < STANDARD_ERRORS * z_error
    star = tilde.mean().item() - log_z
    assert abs(row["log_p_star"] - star) < STANDARD_ERRORS * math.hypot(root_error, z_error)
    assert row["log_z_standard_error"] == pytest.approx(z_error, rel=0.1)
    assert row["standard_error"] == pytest.approx(log_p.std().item() / TEST**0.5, rel=0.05)
    expected_error = math.hypot(tilde.std().item() / TEST**0.5, z_error)
    assert row["log_p_star_standard_error"] == pytest.approx(expected_error, rel=0.05)
    assert row["bits_per_dimension"] == pytest.approx(-row["log_likelihood"] / (6 * math.log(2)))
    # negative control: the three figures are not each other's
    apart = STANDARD_ERRORS * max(error, math.hypot(root_error, z_error))
    assert log_z < -apart and (log_p - tilde).mean() > apart


def test_no_figure_twice(command: Command, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained / "bihm"
    monkeypatch.setattr(likelihood, "MAX_ELEMENTS", 100 * UNITS)
    seen = [recorded(monkeypatch, evaluation, name) for name in ("log_sums", "log_z_sums")]

    def computed(*options: str) -> list[int]:
        """Chunks of images, and of dreams."""
        before = [len(calls) for calls in seen]
        outcome = command(EVALUATE, str(run), *FEW, *options)
        assert outcome.code == 0 and outcome.run == run
        found = [len(calls) - count for calls, count in zip(seen, before, strict=True)]
        assert ("1 of 1 were in evaluation.json already" in outcome.out) == (not any(found))
        return found

    # 12 images at 50 samples within 100 rows: 6 chunks; then 300 dreams at 10 a chunk: 30 chunks
    assert computed() == [6, 30] and computed() == [0, 0] and computed("--seed", "1") == [6, 30]
    # every chunk has a random stream of its own
    assert len({call[3 - n].initial_seed() for n in (0, 1) for call in seen[n]}) == 12 + 60
    assert computed(*NO_STAR, "--checkpoint", "last") == [6, 0]
    assert computed(*NO_STAR, "--split", "valid", "--data-points", "3") == [2, 0]
    loaded = load_run(run, device="cpu")
    images = [evaluation.fingerprint(loaded.machine, loaded.data.valid.first(n)) for n in (3, 2)]
    assert read_rows(run)[3]["fingerprint"] == images[0] != images[1]
    requests = [(row["seed"], row["checkpoint"], row["data_points"]) for row in read_rows(run)]
    assert requests == [(0, "best", 12), (1, "best", 12), (0, "last", 12), (0, "best", 3)]
    # another checkpoint of the same name: computed again, in place of the old figure
    shift = resaved(lambda state: state["machine"]["generator.layers.0.bias"].add_(1))
    shift(run / "checkpoints" / "last.pt")
    old = read_rows(run)[2]
    assert computed(*NO_STAR, "--checkpoint", "last") == [6, 0] and len(read_rows(run)) == 4
    assert read_rows(run)[3]["log_likelihood"] != old["log_likelihood"]


def test_a_single_data_point_has_no_standard_error(command: Command, trained: Path) -> None:
    run, one = trained / "bihm", ("--samples=1", "--data-points=1", "--z-samples=1")
    assert command(EVALUATE, str(run), *one).code == 0
    (row,) = read_rows(run)
    assert "NaN" not in (run / "evaluation.json").read_text()
    assert row["standard_error"] is row["log_p_star_standard_error"] is None
    assert row["log_z_standard_error"] is None and (row["data_points"], row["ess"]) == (1, 1)


def test_what_is_no_list_of_rows_is_left_alone(trained: Path) -> None:
    file = trained / "rws" / "evaluation.json"
    for text in ("3", "[3]", "[{}]", "{}3"):
        file.write_text(text)
        with pytest.raises(UserError, match="is not the list that evaluate.py writes"):
            read_rows(file.parent)


def test_the_table_has_a_line_for_each_run(command: Command, trained: Path) -> None:
    outcome = command(EVALUATE, str(trained), "--samples", "50")
    lines = outcome.out.splitlines()
    assert outcome.err == "" and re.split(r" {2,}", lines[0].strip()) == [
        "run", "algorithm", "log p, nats", "bits/dim", "ess", "log p*, nats", "log Z",
    ]  # fmt: skip
    found = {name: read_rows(trained / name)[0] for name in ("bihm", "rws")}
    best = max(found, key=lambda name: found[name]["log_likelihood"])
    assert lines[-1] == str(trained / best)
    for line, (name, row) in zip(lines[1:3], found.items(), strict=True):
        cells = re.split(r" {2,}", line.strip())
        assert cells[:5] == [
            name, name, f"{row['log_likelihood']:.3f} ± {row['standard_error']:.3f}",
            f"{row['bits_per_dimension']:.4f}", f"{row['ess']:.1f}",
        ]  # fmt: skip
        assert len(cells) == (7 if name == "bihm" else 5)  # log p* is for bidirectional rules
    assert found["rws"]["z_samples"] == 0 and found["bihm"]["z_samples"] == Z_SAMPLES
    assert "test, 50 importance samples, 12 data points, seed 0, best checkpoint" in lines
    assert "(low)" not in outcome.out and "log Z is too small" not in outcome.out
    # a log Z that so many dreams could not resolve, and too few effective samples, are said
    small = found["bihm"] | {"log_z": -0.5 * math.log(Z_INNER * Z_SAMPLES) - 0.1}
    (trained / "bihm" / "evaluation.json").write_text(json.dumps([small]))
    out = command(EVALUATE, str(trained), "--samples", "50").out
    assert f"{trained / 'bihm'}: log Z is too small for 100000 dreams" in out
    outcome = command(EVALUATE, str(trained), "--samples", "5", *NO_STAR, "--data-points", "13")
    assert "--data-points 13 is more than the 12 images there are" in outcome.out
    low = [read_rows(trained / name)[-1]["ess"] for name in ("bihm", "rws")]
    assert max(low) < TRUSTED_ESS and all(f"{ess:.1f} (low)" in outcome.out for ess in low)
    assert "the effective sample size is below 10 in 2 of 2 rows" in outcome.out


def test_several_numbers_of_samples(command: Command, trained: Path, tmp_path: Path) -> None:
    """A row for each, the bound grows with K, and a figure of it."""
    several = ("--samples", "400", "2", "20", *NO_STAR, "--plot", "bound.svg")
    outcome = command(EVALUATE, str(trained), *several)
    assert outcome.code == 0 and outcome.out.splitlines()[-2] == "bound.svg"
    text = (tmp_path / "bound.svg").read_text()
    assert all(f">{word}<" in text for word in ("bihm", "rws", "importance samples"))
    for name in ("bihm", "rws"):
        found = read_rows(trained / name)
        assert [row["samples"] for row in found] == [2, 20, 400]
        values = [row["log_likelihood"] for row in found]
        # two samples are about (1 / ess - 1 / K) / 2 too low, whose noise is far below that
        assert values[0] < values[1] and values[0] < values[2]
    assert re.search(r"^ *rws +rws +20 +-", outcome.out, re.M)
    best = max(("bihm", "rws"), key=lambda name: read_rows(trained / name)[2]["log_likelihood"])
    assert outcome.run == trained / best


def test_a_broken_run_does_not_stop_the_others(command: Command, trained: Path) -> None:
    shutil.copytree(trained / "rws", trained / "broken")
    (trained / "broken" / "checkpoints" / "best.pt").write_bytes(b"")
    outcome = command(EVALUATE, str(trained), str(trained / "rws"), *FEW)  # one is named twice
    assert outcome.run in (trained / "rws", trained / "bihm")  # the best
    message = outcome.message()
    assert message.startswith("error: 1 of 3 could not be evaluated\n")
    assert str(trained / "broken") in message and "best.pt is damaged" in message
    assert [len(read_rows(trained / name)) for name in ("bihm", "rws")] == [1, 1]
    assert not (trained / "broken" / "evaluation.json").exists()


def test_a_run_that_fails_at_the_second_request_is_one_run(
    command: Command, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evaluate(loaded: Any, request: Any) -> Any:
        if request.samples == 5:
            raise UserError("too many")
        return evaluation.evaluate(loaded, request)

    monkeypatch.setattr(likelihoods, "evaluate", evaluate)
    outcome = command(EVALUATE, str(trained), "--samples", "3", "5", "--z-samples", "300")
    assert outcome.message().startswith("error: 2 of 2 could not be evaluated\n")


def test_what_is_refused_before_work_is_spent(command: Command, trained: Path) -> None:
    run = trained / "rws"
    for arguments, expected in {
        ("--samples", "5", "0"): "--samples must be a whole number of at least 1, got 0",
        ("--data-points=-3",): "--data-points must be a whole number of at least 1, got -3",
        ("--seed", "99999999999999999999"): "--seed must be a whole number of at least 0",
        ("--device", "foo"): "device must be one of auto, cpu, cuda, got 'foo'",
        ("--plot", "a.pdf"): "a figure is written as .png and .svg, got a.pdf",
        (str(trained / "nope"),): "does not exist",
    }.items():
        assert expected in command(EVALUATE, str(run), *arguments).message()
