"""nws/analysis/sums.py: stopping and going on bit for bit, partial results, log p*."""

# ruff: noqa: F401, F811

from __future__ import annotations

import math
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from cases import STANDARD_ERRORS
from conftest import Command, snapshot
from evaluated import CHUNKS, EVALUATE, FEW, TEST, chunks, home, partials, rows, seen_by, trained

from nws.analysis import sums
from nws.errors import UserError
from nws.models.helmholtz import HelmholtzMachine

# --- stopping and going on ----------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stop", [1, 4, 20])
def test_stopped_and_gone_on_with_ends_as_never_stopped(
    command: Command, trained: Path, chunks: Callable[..., list[str]], number: int, stop: int
) -> None:
    run, other = trained / "bihm", trained / "other"
    shutil.copytree(run, other)
    assert chunks() == [] and command(EVALUATE, str(other), *FEW).code == 0
    before = snapshot(run)

    seen = chunks(stop, number)
    outcome = command(EVALUATE, str(run), *FEW)
    assert outcome.code == 128 + number and outcome.out == ""
    assert (
        outcome.err
        == f"stopped by signal {number}; what is computed is kept, and the same command goes on\n"
    )
    assert seen == CHUNKS[:stop] and len(partials(run)) == 1
    assert snapshot(run).items() >= before.items() and not (run / "evaluation.json").exists()

    seen = chunks()
    outcome = command(EVALUATE, str(run), *FEW)
    assert outcome.code == 0 and outcome.run == run
    assert seen == CHUNKS[stop:]  # what was done is not done again
    assert (run / "evaluation.json").read_bytes() == (other / "evaluation.json").read_bytes()
    assert partials(run) == partials(other) == []


def test_an_error_or_a_kill_on_the_way_costs_little(
    command: Command,
    trained: Path,
    chunks: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = trained / "bihm"
    chunks(8, RuntimeError("out of memory"))
    outcome = command(EVALUATE, str(run), *FEW)
    assert outcome.code == 70 and "RuntimeError: out of memory" in outcome.err
    (partial,) = partials(run)
    state = torch.load(partial, map_location="cpu", weights_only=True)
    assert torch.cat(state[:6], dim=1).shape == (3, TEST) and [s.shape for s in state[6:]] == [(2,)]
    # a kill leaves no chance to save at the end: what was written on the way is there
    monkeypatch.setattr(sums, "SAVE_EVERY", 0.0)
    save, written = sums.Sums._save, []

    def recording(self: Any, path: Path) -> None:
        save(self, path)
        written.append((len(torch.load(path, map_location="cpu", weights_only=True)), len(seen)))

    monkeypatch.setattr(sums.Sums, "_save", recording)
    partial.unlink()
    seen = chunks()
    assert command(EVALUATE, str(run), *FEW).code == 0
    assert written == [(count, count) for count in range(1, len(CHUNKS) + 1)]


def test_a_partial_result_is_of_one_request_and_one_checkpoint(
    command: Command, trained: Path, chunks: Callable[..., list[str]]
) -> None:
    run = trained / "rws"
    requests = [
        (), ("--seed", "1"), ("--batch", "1"), ("--data-points", "8"), ("--checkpoint", "last"),
        ("--p-star",), ("--split", "valid"), ("--samples", "49"),
    ]  # fmt: skip
    for count, options in enumerate(requests, 1):
        assert (
            seen_by(command, chunks, 2, run, *FEW, *options) == ["log_sums"] * 2
        )  # none goes on where another stopped
        assert len(partials(run)) == count
    path = run / "checkpoints" / "best.pt"
    state = torch.load(path, map_location="cpu", weights_only=True)
    state["machine"]["generator.layers.0.bias"] += 1e-3
    torch.save(state, path)
    assert (
        seen_by(command, chunks, 2, run, *FEW) == ["log_sums"] * 2
        and len(partials(run)) == len(requests) + 1
    )
    # and one that cannot be read is computed again
    for partial in partials(run):
        partial.write_bytes(b"damaged")
    assert seen_by(command, chunks, 0, run, *FEW) == ["log_sums"] * 6
    assert len(partials(run)) == len(requests)


def test_stopped_in_the_second_run_the_first_one_is_kept(
    command: Command, trained: Path, chunks: Callable[..., list[str]]
) -> None:
    seen = chunks(36 + 3, signal.SIGTERM)
    assert command(EVALUATE, str(trained), *FEW).code == 143 and len(seen) == 39
    assert len(rows(trained / "bihm")) == 1 and not (trained / "rws" / "evaluation.json").exists()
    seen = chunks()
    assert command(EVALUATE, str(trained), *FEW).code == 0 and seen == ["log_sums"] * 3


# --- log p* without a run -----------------------------------------------------------------------


def test_log_p_star_is_that_of_enumeration_whatever_the_chunks() -> None:
    machine = HelmholtzMachine([4, 3], rng=torch.Generator().manual_seed(1)).double()
    x = torch.rand(5, 4, generator=torch.Generator().manual_seed(2)).round().double()
    few, many = (sums.log_p_star(machine, x, 3_000, 0, 3_000, limit) for limit in (7_000, 2**23))
    exact = reference.exact_log_p_tilde(machine, x).mean().item()
    of_z = STANDARD_ERRORS * reference.z_error(machine, 3_000)
    of_x = STANDARD_ERRORS * reference.root_error(machine, x, 3_000)
    assert few.mean != many.mean  # other chunks, other draws
    for star in (few, many):
        assert abs(star.log_z - math.log(reference.exact_z(machine))) < of_z
        assert abs(star.mean + star.log_z - exact) < of_x
        assert (star.samples, star.z_samples, star.data_points) == (3_000, 3_000, 5)
    # negative control: log p is not log p~*
    assert reference.exact_log_prob(machine, x).mean().item() - exact > 2 * of_x
    again = sums.log_p_star(machine, x, 3_000, 0, 3_000)
    assert again == many and sums.log_p_star(machine, x, 3_000, 1, 3_000) != many


def test_log_p_star_of_nothing_is_refused() -> None:
    machine = HelmholtzMachine([4, 3])
    with pytest.raises(UserError, match=r"evaluation\.samples must be a whole number"):
        sums.log_p_star(machine, torch.zeros(1, 4), 0)
    with pytest.raises(UserError, match=r"evaluation\.z_samples must be a whole number"):
        sums.log_p_star(machine, torch.zeros(1, 4), 1, 0, 0)
    with pytest.raises(UserError, match="at least one data point"):
        sums.log_p_star(machine, torch.zeros(0, 4), 1)
