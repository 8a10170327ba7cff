"""scripts/benchmark.py reports what it says it reports, on sizes that take no time.

No test checks the times themselves.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, load_script
from processes import together

from nws.errors import UserError
from nws.learning import Rule, WakeSleep
from nws.models import HelmholtzMachine

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
        monkeypatch.setattr(sys.modules["benchmarks.solvers"], "SHAPES", [(60, 40, 7), (20, 33, 6)])
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
    assert {name: row["metric"] for name, row in rows.items()} == {
        "ws": None, "rws": None, "nws": "fisher", "nrws": "fisher"
    }  # fmt: skip
    # The accuracy of 0.01 is one in the norm of the matrix; this is the Euclidean one.
    assert 1e-9 < rows["nrws"]["direction_error"] < 2e-2


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_step_of_each_metric(bench: Bench, optimizer: str) -> None:
    wanted = ("--algorithms", "rws,bihm,nrws,nbihm", "--metrics", "fisher,kronecker,diagonal")
    rows = bench("step", *wanted, "--optimizer", optimizer)["rows"]
    assert [(row["algorithm"], row["metric"]) for row in rows] == [
        ("rws", None), ("bihm", None),
        ("nrws", "fisher"), ("nrws", "kronecker"), ("nrws", "diagonal"),
        ("nbihm", "fisher"), ("nbihm", "kronecker"), ("nbihm", "diagonal"),
    ]  # fmt: skip
    for row in rows:
        assert row["ratio_to_rws"] == pytest.approx(row["ms"] / rows[0]["ms"])
        exact = row["metric"] == "fisher"
        assert 1e-9 < row["direction_error"] < 2e-2 if exact else row["direction_error"] is None


@pytest.mark.parametrize(
    "options", [("--metrics", "fisher,nope"), ("--algorithms", "nope")], ids=lambda each: each[0]
)
def test_unknown_names_are_refused(bench: Bench, options: tuple[str, str]) -> None:
    with pytest.raises(UserError, match=f"{options[0]} takes .*, got nope"):
        bench("step", *options)


def test_the_optimizer_takes_its_step_in_what_is_timed() -> None:
    module = load_script("benchmark")
    for name in ("sgd", "adam"):
        rng = torch.Generator().manual_seed(0)
        machine = HelmholtzMachine((4, 3, 2), rng=rng).double()
        before = [each.detach().clone() for each in machine.parameters()]
        module.full_step(WakeSleep(machine, Rule("rws", 3), rng), torch.ones(2, 4), name)()
        pairs = [pair for pair in zip(before, machine.parameters(), strict=True) if pair[0].numel()]
        assert not any(torch.equal(old, new) for old, new in pairs)
        assert all((old - new).abs().max() < 1e-7 for old, new in pairs)  # hardly


def test_peers(bench: Bench) -> None:
    rows = bench("peers")["rows"]
    found = {(row["peer"], row["update"]): row for row in rows}
    assert {("nws", "rws"), ("torch", "rws"), ("nws", "wake"), ("torch", "wake")} <= {*found}
    for (_, update), row in found.items():
        assert row["ratio_to_nws"] == pytest.approx(row["ms"] / found["nws", update]["ms"])


@pytest.mark.parametrize("dream_share", [0.5, 0.0])
def test_the_plain_torch_step_takes_the_same_gradients(dream_share: float) -> None:
    """On the states that a step of nws drew, in float64: sums of some ten terms, so 1e-12."""
    load_script("benchmark")
    peers = sys.modules["benchmarks.peers"]
    machine, samples = HelmholtzMachine((6, 4, 3, 2)).double(), 5
    for parameter in machine.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(1))
    x = torch.rand(3, 6, generator=torch.Generator().manual_seed(2)).double().round()
    options = {"recognition_wake": 1 - dream_share, "recognition_dream": dream_share}
    rule, rng = Rule("mine", samples, **options), torch.Generator().manual_seed(0)
    WakeSleep(machine, rule, rng).step(x)
    rng.manual_seed(0)
    bits = list(machine.wake(x, samples, rng).value_blocks[1:])
    if dream_share:
        bits += reversed(machine.dream(len(x) * samples, rng).value_blocks)

    def gradients(samples: int, dream_share: float) -> dict[str, torch.Tensor]:
        peer, states = peers.TorchMachine(machine), iter(bits)
        peer.loss(x, samples, dream_share, lambda probabilities: next(states)).backward()
        assert next(states, None) is None  # all were used
        return {
            **{f"generator.{i}": each.weight.grad for i, each in enumerate(peer.p)},
            **{f"recognition.{i}": each.weight.grad for i, each in enumerate(peer.q)},
            "generator.bias": peer.p[0].bias.grad, "recognition.bias": peer.q[0].bias.grad,
            "generator.top": peer.top.grad,
        }  # fmt: skip

    p, q = (network.layers for network in machine.networks)
    expected = {
        **{f"generator.{i}": p[i].weight.grad for i in range(3)},
        **{f"recognition.{i}": q[i].weight.grad for i in range(3)},
        "generator.bias": p[0].bias.grad, "recognition.bias": q[0].bias.grad,
        "generator.top": p[3].bias.grad,
    }  # fmt: skip
    torch.testing.assert_close(gradients(samples, dream_share), expected, rtol=1e-12, atol=1e-12)
    # the control: another share of the wake phase
    wrong = dream_share + 0.1 if dream_share else None
    if wrong:
        with pytest.raises(AssertionError):
            torch.testing.assert_close(gradients(samples, wrong), expected, rtol=0.01, atol=1e-4)
    bits[0] = 1 - bits[0]  # and other states
    with pytest.raises(AssertionError):
        torch.testing.assert_close(gradients(samples, dream_share), expected, rtol=0.01, atol=1e-4)


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
        # The reference is not pcg itself.
        assert fixed[1]["relative_error"] > 1e-2 > fixed[6]["relative_error"] > 0
        assert all(
            row["ms"] > 0 and row["worst_unit_error"] >= 0.1 * row["relative_error"] for row in here
        )


def test_scale(bench: Bench) -> None:
    """Each case has a peak of its own: a small one after a large one is small."""
    sizes = ("--visible", "3000,12", "--hidden", "900")
    rows = bench("scale", *sizes, "--metrics", "kronecker", "--steps-before", "0")["rows"]
    assert [(row["visible"], row["hidden"], row["metric"]) for row in rows] == [
        (3000, 900, "kronecker"), (12, 900, "kronecker")
    ]  # fmt: skip
    large, small = rows
    assert large["dense_bytes"] == 4 * (900 * 3001**2 + 3000 * 901**2)
    # parameters and gradients of the first layers alone, and what the control does not have
    assert large["peak_bytes"] > 4 * 4 * 3000 * 900 > 2 * small["peak_bytes"]
    assert all(row["ms"] > 0 for row in rows)


def test_scale_leaves_out_what_is_too_large(bench: Bench) -> None:
    sizes = ("--visible", "10000000", "--hidden", "4096", "--most-bytes", "1e9")
    (row,) = bench("scale", *sizes)["rows"]
    assert row["ms"] is None and row["peak_bytes"] is None and row["model_bytes"] > 1e9


def test_the_model_of_memory() -> None:
    """The terms that grow with the parameters, from machines whose rows are few."""
    load_script("benchmark")
    scale = sys.modules["benchmarks.scale"]
    floats = {}
    for metric in (None, "kronecker", "fisher"):
        options = argparse.Namespace(batch=1, device="cpu", dtype="float32")
        floats[metric] = scale.model_bytes(options, [9216, 4096, 100], "nrws", metric) / 4
    machine = 2 * (9216 * 4096 + 4096 * 100)
    assert floats[None] == pytest.approx(2 * machine, rel=0.02)
    assert floats["kronecker"] == pytest.approx(2 * machine, rel=0.02)
    assert floats["fisher"] == pytest.approx(4 * machine + 3 * 9216 * 4097, rel=0.02)


def test_a_case_that_fails_is_one_message(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    load_script("benchmark")
    scale = sys.modules["benchmarks.scale"]
    with pytest.raises(UserError, match="a case of scale failed: .*no_such_program"):
        scale._in_child(["no_such_program.py"])
    assert scale._in_child(["-c", "import os; os.kill(os.getpid(), 9)"]) == {}


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


def test_launches(bench: Bench) -> None:
    """A batch of any size takes as many, a machine with more layers takes more."""
    wanted = ("launches", "--algorithms", "rws,nrws", "--metrics", "kronecker,fisher")
    small = bench(*wanted, "--iterations", "2")["rows"]
    assert [(row["algorithm"], row["metric"]) for row in small] == [
        ("rws", None), ("nrws", "kronecker"), ("nrws", "fisher")
    ]  # fmt: skip
    counts = [row["ordinary_step"] for row in small]
    assert counts == sorted(counts) and counts[0] == small[0]["first_step"] > 50
    assert all(row["first_step"] > row["ordinary_step"] for row in small[1:])  # it refreshes


def test_the_counter_counts_what_does_work() -> None:
    load_script("benchmark")
    count = sys.modules["benchmarks.launches"].count_launches
    x = torch.ones(2, 3)
    assert count(lambda: x.T[0].unflatten(0, (1, -1))) == 0
    assert count(lambda: (x + 1).sum()) == 2
    assert count(lambda: torch._foreach_add_([x, x.clone()], 1.0)) == 2


def test_several_processes(bench: Bench) -> None:
    """The model's bytes are those that two processes send, but for the solver's few, and for what
    fills up the shorter share of rows.
    """
    with pytest.raises(UserError, match="torchrun"):
        bench("processes")
    options = ("processes", "--max-rows", "3")
    report = together(2, run_in_process, options)[0]
    assert [row["metric"] for row in report["rows"]] == ["Euclidean", "kronecker", "fisher"]
    for row in report["rows"]:
        assert row["processes"] == 2 and row["calls"] >= 1
        for kind in ("summed_mib", "joined_mib"):
            measured, model = row[kind], row[f"model_{kind}"]
            assert measured == pytest.approx(model, rel=0.35), (row["metric"], kind)
    exact = report["rows"][2]
    assert exact["joined_mib"] > exact["summed_mib"] > 0


def run_in_process(arguments: tuple[str, ...]) -> Report:
    module, output = load_script("benchmark"), io.StringIO()
    sys.argv = ["benchmark.py", *arguments, *TINY, "--json"]
    with contextlib.redirect_stdout(output):
        module.main()
    return json.loads(output.getvalue() or "{}")


def test_the_model_of_several_processes(bench: Bench) -> None:
    rows = bench("processes", "--predict", "1,8")["rows"]
    for one, eight in zip(rows[::2], rows[1::2], strict=True):
        assert (one["processes"], eight["processes"]) == (1, 8)
        assert one["talk_ms"] == one["sent_mib"] == 0 < eight["talk_ms"]
        assert eight["work_ms"] < one["work_ms"]
