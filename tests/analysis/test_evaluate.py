"""scripts/evaluate.py: right figures, the table, evaluation.json, several runs, bounded memory."""

# ruff: noqa: F401, F811

from __future__ import annotations

import json
import math
import re
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from cases import STANDARD_ERRORS
from conftest import Command
from evaluated import CPU, EVALUATE, FEW, TEST, UNITS, chunks, home, rows, seen_by, trained

from nws.analysis import evaluation, sums
from nws.analysis.evaluation import Request
from nws.errors import UserError
from nws.experiment.storage.directory import find_runs
from nws.experiment.trained.loading import load_run
from nws.experiment.training.seeds import derive_seed
from nws.models.helmholtz import HelmholtzMachine
from nws.models.likelihood import TRUSTED_ESS, Z_INNER, log_sums

# --- figures ------------------------------------------------------------------------------------


def test_figures_are_those_of_enumeration(command: Command, trained: Path) -> None:
    """All those of a run of bihm, within standard errors that are exact to first order."""
    run, samples, dreams = trained / "bihm", 4_000, 20_000
    path = run / "checkpoints" / "best.pt"
    state = torch.load(path, map_location="cpu", weights_only=True)
    for name, parameter in state[
        "machine"
    ].items():  # so that q is not nearly the posterior, as it is of so small a machine
        parameter.mul_(2.5 if name.startswith("generator") else 1)
    torch.save(state, path)
    outcome = command(EVALUATE, str(run), "--samples", str(samples), "--z-samples", str(dreams))
    assert outcome.code == 0 and outcome.err == "" and outcome.run == run
    (row,) = rows(run)
    assert list(row)[:7] == [
        "split", "log_likelihood", "standard_error", "ess", "samples", "data_points",
        "bits_per_dimension",
    ]  # fmt: skip
    assert (row["split"], row["samples"], row["data_points"], row["z_samples"]) == (
        "test",
        samples,
        TEST,
        dreams,
    )
    assert (row["checkpoint"], row["seed"]) == ("best", 0) and row["step"] in (3, 6)

    loaded = load_run(run, device=CPU)
    data, machine = loaded.data, loaded.machine
    x = data.test.batch().double()
    machine = machine.double()
    log_p, log_p_tilde = (
        reference.exact_log_prob(machine, x),
        reference.exact_log_p_tilde(machine, x),
    )
    log_z = math.log(reference.exact_z(machine))
    error = ((1 / row["ess"] - 1 / samples) / TEST) ** 0.5  # Var[w] / p(x)^2 = K / ess - 1
    root_error = reference.root_error(machine, x, samples)
    z_error = reference.z_error(machine, dreams)
    assert 0 < max(error, root_error, z_error) < 0.02
    assert abs(row["log_likelihood"] - log_p.mean().item()) < STANDARD_ERRORS * error
    assert abs(row["log_z"] - log_z) < STANDARD_ERRORS * z_error
    log_p_star = log_p_tilde.mean().item() - log_z
    assert abs(row["log_p_star"] - log_p_star) < STANDARD_ERRORS * math.hypot(root_error, z_error)
    assert row["log_z_standard_error"] == pytest.approx(z_error, rel=0.1)
    assert row["standard_error"] == pytest.approx(log_p.std().item() / TEST**0.5, rel=0.05)
    expected = math.hypot(log_p_tilde.std().item() / TEST**0.5, z_error)
    assert row["log_p_star_standard_error"] == pytest.approx(expected, rel=0.05)
    assert row["bits_per_dimension"] == pytest.approx(-row["log_likelihood"] / (6 * math.log(2)))
    # negative control: the three figures are not each other's
    apart = STANDARD_ERRORS * max(error, math.hypot(root_error, z_error))
    assert log_z < -apart and (log_p - log_p_tilde).mean() > apart


def test_draws_are_a_function_of_seed_and_chunk(command: Command, trained: Path) -> None:
    """Every data point's sum from the generator of its chunk, as nws/analysis/sums.py says."""
    run = trained / "rws"
    few = (*FEW, "--batch", "5", "--seed")
    assert command(EVALUATE, str(run), *few, "3").code == 0
    loaded = load_run(run)
    data, machine = loaded.data, loaded.machine
    parts = []
    for chunk, x in enumerate(data.test.batch().split(5)):
        rng = torch.Generator(x.device).manual_seed(derive_seed(3, 0, chunk))
        parts.append(log_sums(machine, x, 50, rng, (1,), 10**6)[0])
    assert rows(run)[0]["log_likelihood"] == (torch.cat(parts).cpu() - math.log(50)).mean().item()
    same, other = trained / "a" / "copy", trained / "b"
    shutil.copytree(run, same, ignore=shutil.ignore_patterns("evaluation.json"))
    shutil.copytree(run, other, ignore=shutil.ignore_patterns("evaluation.json"))
    assert command(EVALUATE, str(same), *few, "3").code == 0
    assert command(EVALUATE, str(other), *few, "4").code == 0
    assert rows(same) == rows(run)
    assert rows(other)[0]["log_likelihood"] != rows(run)[0]["log_likelihood"]


def test_p_star_is_for_runs_of_bihm_unless_asked(command: Command, trained: Path) -> None:
    for options, expected in (
        ((), ["bihm"]),
        (("--p-star",), ["rws", "bihm"]),
        (("--no-p-star",), []),
    ):
        assert command(EVALUATE, str(trained), *FEW, "--again", *options).code == 0
        found = [name for name in ("rws", "bihm") if "log_p_star" in rows(trained / name)[-1]]
        assert found == expected
    # figures with log p* took the place of those without, and stayed
    assert [
        [each.get("z_samples") for each in rows(trained / name)] for name in ("rws", "bihm")
    ] == [[300, None], [300, None]]
    first, again = rows(trained / "bihm")
    assert first["log_likelihood"] == again["log_likelihood"]


def test_a_single_data_point_has_no_standard_error(command: Command, trained: Path) -> None:
    run = trained / "bihm"
    outcome = command(
        EVALUATE,
        str(run),
        "--samples",
        "1",
        "--data-points",
        "1",
        "--z-samples",
        "1",
        "--split",
        "valid",
    )
    assert outcome.code == 0 and "± ?" in outcome.out
    (row,) = rows(run)
    assert "NaN" not in (run / "evaluation.json").read_text()
    assert (
        row["standard_error"]
        is row["log_p_star_standard_error"]
        is row["log_z_standard_error"]
        is None
    )
    assert (row["split"], row["data_points"], row["ess"]) == ("valid", 1, 1)


def test_parameters_that_are_not_finite_are_an_error(command: Command, trained: Path) -> None:
    path = trained / "rws" / "checkpoints" / "best.pt"
    state = torch.load(path, map_location="cpu", weights_only=True)
    state["machine"]["generator.layers.0.bias"].fill_(math.nan)
    torch.save(state, path)
    message = command(EVALUATE, str(trained / "rws"), *FEW).message()
    assert "numbers of generator.layers.0.bias are not finite" in message
    assert "last.pt beside it is good" in message and "give --checkpoint last" in message
    assert not (trained / "rws" / "evaluation.json").exists()


# --- memory and the table -----------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--batch", "1"), ("--batch", "9")])
def test_memory_is_bounded_for_ten_thousand_samples(
    command: Command, trained: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setattr(evaluation, "MAX_ELEMENTS", 3_000 * UNITS)
    seen: list[int] = []
    wake = HelmholtzMachine.wake

    def recording(
        self: HelmholtzMachine, x: torch.Tensor, samples: int = 1, *arguments: Any
    ) -> Any:
        seen.append(len(x) * samples)
        return wake(self, x, samples, *arguments)

    monkeypatch.setattr(HelmholtzMachine, "wake", recording)
    outcome = command(EVALUATE, str(trained / "rws"), "--samples", "10000", *options)
    assert outcome.code == 0 and max(seen) <= 3_000 and sum(seen) == TEST * 10_000
    batch = options[1] if options else "1"
    said = f"test, 10,000 importance samples, {TEST} data points, {batch} at once"
    assert said in outcome.out
    assert rows(trained / "rws")[0]["batch"] == int(batch)


def test_the_table_has_a_line_for_each_run(command: Command, trained: Path) -> None:
    outcome = command(EVALUATE, str(trained), *FEW)
    lines = outcome.out.splitlines()
    assert (
        outcome.err == "" and len({str(trained / name) for name in ("bihm", "rws")} & {*lines}) == 1
    )
    assert re.split(r" {2,}", lines[0].strip()) == [
        "run", "algorithm", "log p, nats", "bits/dim", "ess", "log p*, nats", "log Z",
    ]  # fmt: skip
    found = {name: rows(trained / name)[0]["log_likelihood"] for name in ("bihm", "rws")}
    best = max(found, key=lambda name: found[name])
    assert lines[-1] == str(trained / best)
    error = rows(trained / best)[0]["standard_error"]
    assert f"best of 2 runs: {best}: {found[best]:.3f} ± {error:.3f} nats" in lines
    for line, name in zip(lines[1:3], ("bihm", "rws"), strict=True):
        (row,) = rows(trained / name)
        cells = re.split(r" {2,}", line.strip())
        assert cells[:5] == [
            name,
            name,
            f"{row['log_likelihood']:.3f} ± {row['standard_error']:.3f}",
            f"{row['bits_per_dimension']:.4f}",
            f"{row['ess']:.1f}",
        ]
        if name == "bihm":
            assert cells[5:] == [
                f"{row['log_p_star']:.3f} ± {row['log_p_star_standard_error']:.3f}",
                f"{row['log_z']:.3f} ± {row['log_z_standard_error']:.3f}",
            ]
    assert "seed 0, best checkpoint" in lines[4] and "(low)" not in outcome.out
    assert "test, 50 importance samples, 12 data points, 12 at once" in lines[4]
    assert "log Z is too small" not in outcome.out
    assert (
        "%" not in outcome.out and "\x1b" not in outcome.out
    )  # no progress bar without a terminal
    # a log Z that so many dreams could not resolve is said to be one
    (row,) = rows(trained / "bihm")
    (trained / "bihm" / "evaluation.json").write_text(
        json.dumps([row | {"log_z": -0.5 * math.log(Z_INNER * 300) - 0.1}])
    )
    assert (
        f"{trained / 'bihm'}: log Z is too small for 300 dreams"
        in command(EVALUATE, str(trained), *FEW).out
    )


def test_a_terminal_gets_a_progress_bar(
    command: Command, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for name, value in {"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(evaluation, "MAX_ELEMENTS", 300 * UNITS)
    slow, original = (0.15, sums.log_sums)  # seconds: the bar moves ten times a second at the most
    monkeypatch.setattr(
        sums, "log_sums", lambda *arguments: time.sleep(slow) or original(*arguments)
    )
    outcome = command(EVALUATE, str(trained / "rws"), *FEW)
    assert outcome.code == 0
    assert re.search(r"rws.* 50% +300/600 +samples", outcome.out)
    assert str(trained / "rws") == outcome.out.splitlines()[-1]


def test_figures_that_stand_there_are_not_computed_again(
    command: Command, trained: Path, chunks: Callable[..., list[str]]
) -> None:
    run = trained / "bihm"
    assert len(seen_by(command, chunks, 0, run, *FEW)) == 36
    before = (run / "evaluation.json").read_bytes()
    seen = chunks()
    outcome = command(EVALUATE, str(run), *FEW)
    assert (
        seen == []
        and outcome.run == run
        and "1 of 1 were in evaluation.json already" in outcome.out
    )
    assert f"{rows(run)[0]['log_p_star']:.3f} ± " in outcome.out
    assert seen_by(command, chunks, 0, run, *FEW, "--no-p-star") == []  # log p stands there
    assert (run / "evaluation.json").read_bytes() == before
    assert len(seen_by(command, chunks, 0, run, *FEW, "--again")) == 36
    assert (
        run / "evaluation.json"
    ).read_bytes() == before  # the same figures in place of the old ones
    # other requests stand beside it
    assert len(seen_by(command, chunks, 0, run, *FEW, "--seed", "1")) == 36
    assert len(seen_by(command, chunks, 0, run, *FEW, "--no-p-star", "--checkpoint", "last")) == 6
    assert [(row["seed"], row["checkpoint"]) for row in rows(run)] == [
        (0, "best"),
        (1, "best"),
        (0, "last"),
    ]
    # another checkpoint of the same name: computed again, in place of the old figure
    old = rows(run)[2]
    path = run / "checkpoints" / "last.pt"
    state = torch.load(path, map_location="cpu", weights_only=True)
    state["machine"]["generator.layers.0.bias"] += 1
    torch.save(state | {"step": 99}, path)
    assert len(seen_by(command, chunks, 0, run, *FEW, "--no-p-star", "--checkpoint", "last")) == 6
    assert len(rows(run)) == 3 and rows(run)[2]["step"] == 99
    assert rows(run)[2]["log_likelihood"] != old["log_likelihood"]


def test_rows_of_an_early_version_are_replaced(command: Command, trained: Path) -> None:
    run = trained / "rws"
    early = {"split": "test", "log_likelihood": -1.0, "samples": 50, "data_points": TEST}
    others = [early | {"samples": 60}, early | {"split": "valid"}]
    (run / "evaluation.json").write_text(json.dumps([early, *others]))
    assert command(EVALUATE, str(run), *FEW).code == 0
    assert (
        rows(run)[:2] == others and len(rows(run)) == 3 and rows(run)[2]["log_likelihood"] != -1.0
    )


def test_too_few_effective_samples_are_said(command: Command, trained: Path) -> None:
    outcome = command(EVALUATE, str(trained), "--samples", "5", "--no-p-star")
    low = [rows(trained / name)[0]["ess"] for name in ("bihm", "rws")]
    assert outcome.code == 0 and max(low) < TRUSTED_ESS
    for ess in low:
        assert f"{ess:.1f} (low)" in outcome.out
    assert "the effective sample size is below 10 in 2 of 2 runs" in outcome.out


def test_means_over_seeds(command: Command, trained: Path) -> None:
    for seed in (1, 2):
        run = trained / f"rws_{seed}"
        shutil.copytree(trained / "rws", run)
        file = run / ".hydra" / "config.yaml"
        file.write_text(file.read_text().replace("seed: 0", f"seed: {seed}"))
        state = torch.load(run / "checkpoints" / "best.pt", map_location="cpu", weights_only=True)
        state["machine"]["generator.layers.0.bias"] += seed
        torch.save(state, run / "checkpoints" / "best.pt")
    outcome = command(EVALUATE, str(trained), *FEW, "--no-p-star")
    values = [rows(trained / name)[0]["log_likelihood"] for name in ("rws", "rws_1", "rws_2")]
    mean, deviation = statistics.mean(values), statistics.stdev(values)
    assert re.search(rf"^rws +3 +{mean:.3f} ± {deviation:.3f}$", outcome.out, re.MULTILINE)
    assert re.search(r"^bihm +1 +-\d+\.\d+$", outcome.out, re.MULTILINE)


# --- several runs -------------------------------------------------------------------------------


def test_runs_of_a_sweep_are_found_in_order(trained: Path) -> None:
    for name in ("10", "2", "9"):
        shutil.copytree(trained / "rws", trained / name)
    assert [run.name for run in find_runs(trained)] == ["bihm", "rws", "2", "9", "10"]
    assert find_runs(trained / "rws") == [trained / "rws"]
    with pytest.raises(UserError, match="no run is below it"):
        find_runs(trained / "rws" / "checkpoints")
    with pytest.raises(UserError, match="does not exist"):
        find_runs(trained / "nope")


def test_a_broken_run_does_not_stop_the_others(command: Command, trained: Path) -> None:
    shutil.copytree(trained / "rws", trained / "broken")
    (trained / "broken" / "checkpoints" / "best.pt").write_bytes(b"")
    outcome = command(EVALUATE, str(trained / "nope"), str(trained), str(trained / "rws"), *FEW)
    assert outcome.run in (trained / "rws", trained / "bihm")  # the best
    message = outcome.message()
    assert message.startswith("error: 2 of 4 could not be evaluated\n")
    assert (
        f"{trained / 'nope'} does not exist" in message and "best.pt is not a checkpoint" in message
    )
    assert "best of 2 runs" in outcome.out and [  # one of them is named twice
        len(rows(trained / name)) for name in ("bihm", "rws")
    ] == [1, 1]
    assert not (trained / "broken" / "evaluation.json").exists()
    # the same command once the run is mended
    shutil.copy(trained / "rws" / "checkpoints" / "best.pt", trained / "broken" / "checkpoints")
    outcome = command(EVALUATE, str(trained), *FEW)
    assert outcome.code == 0 and "2 of 3 were in evaluation.json already" in outcome.out


@pytest.mark.parametrize("name", ["samples", "data_points", "batch", "z_samples"])
@pytest.mark.parametrize("value", [0, -1])
def test_bad_requests_are_refused_by_option(name: str, value: int) -> None:
    with pytest.raises(
        UserError,
        match=f"--{name.replace('_', '-')} must be a whole number of at least 1, got {value}",
    ):
        Request(**{name: value})  # type: ignore[arg-type]
