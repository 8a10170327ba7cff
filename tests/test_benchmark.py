"""scripts/benchmark.py reports what it says, on sizes that take no time; no test checks times."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import ROOT
from processes import together

from nws.errors import UserError
from nws.learning import Rule, WakeSleep
from nws.models import HelmholtzMachine

sys.path.append(str(ROOT / "scripts"))

import benchmark
from benchmarks import peers, solvers, steps

Bench = Callable[..., list[dict[str, Any]]]

TINY = ("--layers", "12,6,3", "--batch", "4", "--repeats", "2")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bench:
    """bench("step", ...): the rows that --json prints, from layers of a few units."""

    def run(*arguments: str) -> list[dict[str, Any]]:
        monkeypatch.setattr(solvers, "SHAPES", [(60, 40, 7), (20, 33, 6)])
        given = dict(zip(TINY[::2], TINY[1::2], strict=True))
        takes = [*benchmark.TAKES[arguments[0]], *benchmark.EACH]
        tiny = [word for key in given if key[2:] in takes for word in (key, given[key])]
        monkeypatch.setattr(sys, "argv", ["benchmark.py", *arguments, *tiny, "--json"])
        benchmark.main()
        report = json.loads(capsys.readouterr().out)
        assert list(report) == ["device", "dtype", "threads", "rows"]
        assert report["device"] and report["dtype"].startswith("float") and report["threads"] >= 1
        rows: list[dict[str, Any]] = report["rows"]
        return rows

    return run


def test_step(bench: Bench) -> None:
    rows = bench("step")
    found = [(row["algorithm"], row["metric"]) for row in rows]
    assert found == [("ws", None), ("rws", None), ("nws", "fisher"), ("nrws", "fisher")]
    for row in rows:
        assert row["ratio_to_matmul"] == pytest.approx(row["ms"] / row["matmul_ms"])
        assert row["ratio_to_rws"] == pytest.approx(row["ms"] / rows[1]["ms"])
        assert row["ms_quartiles"][0] <= row["ms"] <= row["ms_quartiles"][1]
        assert (row["direction_error"] is None) == (row["metric"] is None)
        assert min(row["wake_ms"], row["dream_ms"]) > 0
    # The accuracy of 0.01 is one in the norm of the matrix; this is the Euclidean one.
    rows += bench("step", "--algorithms", "nrws", "--lateral", "all")
    assert rows[4]["lateral"] == "all"
    assert all(1e-9 < row["direction_error"] < 2e-2 for row in rows[3:])


def test_a_step_of_each_metric(bench: Bench) -> None:
    metrics = [*steps.METRICS]
    wanted = ("--algorithms", "rws,bihm,nrws,nbihm", "--metrics", ",".join(metrics))
    others = ["adam", "muon", "schedule_free", "soap"]
    rows = bench("step", *wanted, "--optimizers", ",".join(others))
    found = [tuple(row[name] for name in ("algorithm", "metric", "optimizer")) for row in rows]
    plain = [(name, None, each) for name in ("rws", "bihm") for each in others]
    natural = [(name, metric, "sgd") for name in ("nrws", "nbihm") for metric in metrics]
    assert found == plain + natural
    with pytest.raises(UserError, match="--metrics takes .*, got nope"):
        bench("step", "--metrics", "nope")


def test_the_error_of_a_direction_follows_the_options_of_its_solver(bench: Bench) -> None:
    def error(*options: str) -> float:
        (row,) = bench("step", "--algorithms", "nrws", *options)
        return float(row["direction_error"])

    assert error("--iterations", "1") > 10 * error("--iterations", "3") > 0
    assert error("--dreams", "3") != error()  # other rows
    assert error("--solver", "cholesky", "--dtype", "float64") < 1e-12


def test_peers(bench: Bench) -> None:
    rows, precisions = bench("peers", "--precisions", "float32,bfloat16"), ("float32", "bfloat16")
    found = {(row["peer"], row["update"], row["precision"]): row for row in rows}
    assert {("nws", "rws", "float32"), ("torch", "wake", "bfloat16")} <= {*found}
    for (_, *case), row in found.items():
        assert row["ratio_to_nws"] == pytest.approx(row["ms"] / found["nws", *case]["ms"])
    peer, x = peers.TorchMachine(HelmholtzMachine((6, 4, 3))), torch.ones(5, 6)
    for precision in precisions:
        with peers.casts(x, precision):
            found = peer.q[0](x).dtype, peer.loss(x, 5, 0.5).dtype
        assert found == (getattr(torch, precision), torch.float32)


@pytest.mark.parametrize("dream_share", [0.5, 0.0])
def test_the_plain_torch_step_takes_the_same_gradients(dream_share: float) -> None:
    """On the states that a step of nws drew, in float64: sums of some ten terms, so 1e-12."""
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

    def gradients(dream_share: float) -> list[Any]:
        peer, states = peers.TorchMachine(machine), iter(bits)
        peer.loss(x, samples, dream_share, lambda probabilities: next(states)).backward()
        assert next(states, None) is None  # all were used
        layers = [*peer.p, *peer.q]
        return [peer.top.grad, *(each.weight.grad for each in layers), layers[0].bias.grad]

    p, q = (network.layers for network in machine.networks)
    expected = [p[3].bias.grad, *(each.weight.grad for each in (*p[:3], *q[:3])), p[0].bias.grad]
    torch.testing.assert_close(gradients(dream_share), expected, rtol=1e-12, atol=1e-12)
    bits[0] = 1 - bits[0]  # the control: other states
    with pytest.raises(AssertionError):
        torch.testing.assert_close(gradients(dream_share), expected, rtol=0.01, atol=1e-4)


def test_solvers(bench: Bench) -> None:
    cases: dict[Any, list[dict[str, Any]]] = {}
    for row in bench("solvers"):
        cases.setdefault((row["n"], row["d"], row["m"], row["damping"]), []).append(row)
        assert row["ms"] > 0 and row["worst_unit_error"] >= 0.1 * row["relative_error"]
    shapes = [(60, 40, 7), (20, 33, 6)]
    assert [*cases] == [(*shape, alpha) for shape in shapes for alpha in (0.2, 0.05)]
    for rows in cases.values():
        direct = {row["solver"]: row for row in rows if row["solver"] != "pcg"}
        assert [*direct] == ["cholesky", "woodbury", "sherman_morrison"]
        assert max(row["relative_error"] for row in direct.values()) < 1e-5
        pcg = [row for row in rows if row["solver"] == "pcg" and row["accuracy"] is None]
        fixed = {row["iterations"]: row["relative_error"] for row in pcg}
        assert list(fixed) == [1, 2, 3, 4, 5, 6, 8]
        assert fixed[1] > 1e-2 > fixed[6] > 0  # the reference is not pcg itself


@pytest.mark.slow
def test_scale(bench: Bench) -> None:
    """Each case has a peak of its own: a small one after a large one is small."""
    sizes = ("--visible", "3000,12", "--hidden", "300", "--most-bytes", "1e9")
    rows = bench("scale", *sizes, "--metrics", "kronecker", "--steps-before", "0")
    found = [(row["visible"], row["hidden"], row["metric"]) for row in rows]
    assert found == [(3000, 300, "kronecker"), (12, 300, "kronecker")]
    large, small = rows
    assert large["dense_bytes"] == 4 * (300 * 3001**2 + 3000 * 301**2)
    # parameters and gradients of the first layers alone, and what the control does not have
    assert large["peak_bytes"] > 4 * 4 * 3000 * 300 > 2 * small["peak_bytes"]
    assert all(row["ms"] > 0 for row in rows)
    (left_out,) = bench("scale", "--visible", "10000000", "--hidden", "4096", "--most-bytes", "1e9")
    assert left_out["ms"] is None is left_out["peak_bytes"] and left_out["model_bytes"] > 1e9
    (too_large,) = bench("scale", "--visible", "784", "--hidden", "10000000000")
    assert too_large["ms"] is None is too_large["peak_bytes"]  # not even allocated


def test_launches(bench: Bench) -> None:
    wanted = ("launches", "--algorithms", "rws,nrws", "--metrics", "kronecker,fisher")
    plain, *natural = bench(*wanted, "--iterations", "2")
    assert [row["metric"] for row in natural] == ["kronecker", "fisher"]
    counts = [row["ordinary_step"] for row in (plain, *natural)]
    assert counts == sorted(counts) and counts[0] == plain["first_step"] > 50
    assert all(row["first_step"] > row["ordinary_step"] for row in natural)  # it refreshes


def rows_in_process() -> list[dict[str, Any]]:
    sys.argv = ["benchmark.py", "processes", "--max-rows", "3", *TINY]
    rows: list[dict[str, Any]] = benchmark.benchmark_processes(benchmark.read_arguments())
    return rows


@pytest.mark.slow
def test_several_processes(bench: Bench) -> None:
    """The model's bytes are those that two send, but the solver's few and what fills up rows."""
    with pytest.raises(UserError, match="torchrun"):
        bench("processes")
    rows = together(2, rows_in_process)[0]
    assert [row["metric"] for row in rows] == ["Euclidean", "kronecker", "fisher"]
    for row in rows:
        assert row["processes"] == 2 and row["calls"] >= 1
        for kind in ("summed_mib", "joined_mib"):
            measured, model = row[kind], row[f"model_{kind}"]
            assert measured == pytest.approx(model, rel=0.4), (row["metric"], kind)
    assert rows[2]["joined_mib"] > rows[1]["joined_mib"] > 0
