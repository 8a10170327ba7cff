"""scripts/benchmark.py: it reports what it says, on sizes that take no time; times are no test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, load_script

Report = dict[str, Any]
Bench = Callable[..., Report]

TINY = ("--layers", "12,6,3", "--batch", "4", "--repeats", "2")
UNWANTED = (
    "hydra",
    "omegaconf",
    "wandb",
    "torchvision",
    "sklearn",
    "scipy",
    "matplotlib",
    "pandas",
)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bench:
    """bench("step", ...): the object that --json prints, from layers of a few units."""

    def run(*arguments: str) -> Report:
        module = load_script("benchmark")
        monkeypatch.setattr(module, "SHAPES", [(60, 40, 7), (20, 33, 6)])
        monkeypatch.setattr(sys, "argv", ["benchmark.py", *arguments, *TINY, "--json"])
        module.main()
        report = json.loads(capsys.readouterr().out)
        assert (
            report["device"]
            and report["dtype"] in ("float32", "float64")
            and report["threads"] >= 1
        )
        return report

    return run


def test_step(bench: Bench) -> None:
    rows = {row["algorithm"]: row for row in bench("step")["rows"]}
    assert list(rows) == ["ws", "rws", "nws", "nrws"]
    for name, row in rows.items():
        assert row["ratio_to_matmul"] == pytest.approx(row["ms"] / row["matmul_ms"])
        assert row["ratio_to_rws"] == pytest.approx(row["ms"] / rows["rws"]["ms"])
        assert row["ms_quartiles"][0] <= row["ms"] <= row["ms_quartiles"][1]
        assert (row["direction_error"] is not None) == name.startswith("n")
    # The accuracy of 0.01 is one in the norm of the matrix; this is the Euclidean one.
    assert 1e-9 < rows["nrws"]["direction_error"] < 2e-2


def test_the_error_of_a_direction_follows_the_options_of_its_solver(bench: Bench) -> None:
    def error(*options: str) -> float:
        (row,) = bench("step", "--algorithms", "nrws", *options)["rows"]
        return float(row["direction_error"])

    assert error("--iterations", "1") > 10 * error("--iterations", "3") > 0
    assert error("--accuracy", "0.3") > error("--accuracy", "1e-4")
    assert (
        error("--solver", "cholesky") < 1e-5
        and error("--solver", "cholesky", "--dtype", "float64") < 1e-12
    )


def test_solvers(bench: Bench) -> None:
    rows = bench("solvers")["rows"]
    assert {(row["n"], row["d"], row["m"], row["damping"]) for row in rows} == {
        (60, 40, 7, 0.2), (60, 40, 7, 0.05), (20, 33, 6, 0.2), (20, 33, 6, 0.05)
    }  # fmt: skip
    for shape in {(row["n"], row["damping"]) for row in rows}:
        here = [row for row in rows if (row["n"], row["damping"]) == shape]
        assert {row["solver"] for row in here} == {
            "pcg",
            "cholesky",
            "woodbury",
            "sherman_morrison",
        }
        direct = [row["relative_error"] for row in here if row["solver"] != "pcg"]
        fixed = {
            row["iterations"]: row
            for row in here
            if row["solver"] == "pcg" and row["accuracy"] is None
        }
        assert len(direct) == 3 and max(direct) < 1e-5
        assert list(fixed) == [1, 2, 3, 4, 5, 6, 8]
        assert (
            fixed[1]["relative_error"] > 1e-2 > fixed[6]["relative_error"] > 0
        )  # the reference is not pcg itself
        assert all(
            row["ms"] > 0 and row["worst_unit_error"] >= 0.1 * row["relative_error"] for row in here
        )


def test_scale(bench: Bench) -> None:
    rows = bench("scale", "--visible", "12,16")["rows"]
    assert [row["visible"] for row in rows] == [12, 16]
    assert [row["dense_bytes"] for row in rows] == [
        4 * (300 * (v + 1) ** 2 + v * 301**2) for v in (12, 16)
    ]
    assert all(row["ms"] > 0 and row["peak_bytes"] > 2**20 for row in rows)


def test_it_needs_torch_rich_and_nws_alone(tmp_path: Path) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['benchmark.py', 'step', *{TINY!r}, '--json']\n"
        f"runpy.run_path({str(ROOT / 'scripts' / 'benchmark.py')!r}, run_name='__main__')\n"
        f"print(sorted({set(UNWANTED)!r} & {{name.partition('.')[0] for name in sys.modules}}))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=dict(os.environ),
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "[]"
