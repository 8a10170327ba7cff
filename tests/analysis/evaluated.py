"""Fixtures of the tests of evaluation: a trained sweep, and chunks that are counted."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Command, raise_in_nws

from nws.analysis import evaluation, sums

EVALUATE = "scripts/evaluate.py"
CPU = torch.device("cpu")
UNITS = 6 + 3 + 2  # of the machines here
TEST, VALID = 12, 7  # images
FEW = ("--samples", "50", "--z-samples", "300")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trained")


@pytest.fixture
def trained(train: Command, home: Path, tmp_path: Path) -> Path:
    """A sweep of two runs, rws and bihm, on images of 2 x 3 pixels; trained once for all tests."""
    if not (home / "sweep").is_dir():
        rng = np.random.default_rng(0)
        parts = {"train": 60, "valid": VALID, "test": TEST}
        np.savez(
            home / "mine.npz",
            **{name: rng.integers(0, 2, (n, 2, 3), np.uint8) for name, n in parts.items()},
        )
        data = (
            "data=npz",
            f"data.path={home / 'mine.npz'}",
            "trainer.batch_size=20",
            "model.layers=[3,2]",
        )
        for algorithm in ("rws", "bihm"):
            outcome = train(
                *data, f"algorithm={algorithm}", f"hydra.run.dir={home / 'sweep' / algorithm}"
            )
            assert outcome.code == 0, outcome.err
    return Path(shutil.copytree(home / "sweep", tmp_path / "sweep"))


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """chunks(): the kinds of all chunks from now on.

    chunks(n, what): in the n-th, a signal or an error comes.

    Memory is bounded to 100 rows: two data points at 50 samples each, or 10 dreams.
    """
    monkeypatch.setattr(evaluation, "MAX_ELEMENTS", 100 * UNITS)
    originals = {name: getattr(sums, name) for name in ("log_sums", "log_z_sums")}

    def arm(stop: int = 0, what: int | BaseException = 0) -> list[str]:
        seen: list[str] = []

        def recording(name: str) -> Callable[..., Any]:
            def compute(*arguments: Any) -> Any:
                seen.append(name)
                if len(seen) == stop and isinstance(what, BaseException):
                    raise_in_nws(what)
                if len(seen) == stop:
                    os.kill(os.getpid(), what)  # type: ignore[arg-type]
                return originals[name](*arguments)

            return compute

        for name in originals:
            monkeypatch.setattr(sums, name, recording(name))
        return seen

    return arm


def rows(run: Path) -> list[dict[str, Any]]:
    return json.loads((run / "evaluation.json").read_text())


def partials(run: Path) -> list[Path]:
    return [path for path in run.iterdir() if path.name.startswith(".evaluation_")]


# 12 data points at 50 samples within 100 rows: 6 chunks; then 300 dreams at 10 a chunk: 30 chunks.
CHUNKS = ["log_sums"] * 6 + ["log_z_sums"] * 30


def seen_by(
    command: Command, chunks: Callable[..., list[str]], stop: int, run: Path, *options: str
) -> list[str]:
    seen = chunks(stop, signal.SIGINT)
    assert command(EVALUATE, str(run), *options).code == (130 if stop else 0)
    return seen
