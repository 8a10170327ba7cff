"""scripts/reproduce.py: the commands, a small comparison carried out and stopped, its table."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import Command, Interrupt, composed, count_steps, snapshot

from nws.analysis.runs import read_run
from nws.errors import UserError

# Eight steps and two evaluations a run.
TINY = (
    "trainer.epochs=0.06",
    "trainer.evaluate_every=0.03",
    "trainer.evaluation_samples=5",
    "model.layers=[3,1]",
)
STEPS = 8
Reproduce = Callable[..., int | str]


@pytest.fixture
def module() -> ModuleType:
    from nws.programs import reproduce

    return reproduce


@pytest.fixture
def calls() -> list[str]:
    """The commands that were carried out."""
    return []


@pytest.fixture
def reproduce(
    module: ModuleType, command: Command, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> Reproduce:
    """reproduce("three_by_three", ...): the script, its commands in this process; its status."""

    def call(line: list[str]) -> tuple[int, int | None]:
        assert line[:3] == [sys.executable, "-m", "nws"]
        calls.append(shlex.join(line[3:]))
        before = sys.argv
        outcome = command("nws", *line[3:])
        sys.argv = before
        return outcome.code, outcome.code - 128 if outcome.code > 128 else None

    def run(*arguments: str) -> int | str:
        monkeypatch.setattr(module, "call", call)
        monkeypatch.setattr(sys, "argv", ["scripts/reproduce.py", *arguments])
        try:
            module.main()
        except SystemExit as stop:
            return stop.code or 0
        return 0

    return run


def rows(folder: Path) -> dict[str, dict[str, str]]:
    """table.md: its cells by method and column."""
    lines = [
        line
        for line in (folder / "figures" / "table.md").read_text().splitlines()
        if line.startswith("|")
    ]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {each[0]: dict(zip(cells[0], each, strict=True)) for each in cells[2:]}


# --- the plan -----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["three_by_three", "fashion_mnist", "tfd"])
@pytest.mark.parametrize("quick", [False, True])
def test_every_method_is_composed_as_its_name_says(
    module: ModuleType, tmp_path: Path, what: str, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "tfd_title", lambda plan: "any")  # needs no data
    known = module.COMPARISONS[what].methods
    methods = [name for name, each in known.items() if not quick or each.get("quick", True)]
    plan = module.Plan(what, quick, tmp_path, [], methods)
    assert len(plan.steps()) == 3 * len(methods)
    expected = {"ws", "rws", "nws", "nrws", "nrws_exact", "bihm", "nbihm"}
    if what != "three_by_three":
        expected = expected - {"rws"} - ({"ws", "nws"} if quick else set()) | {
            "rws_adam",
            "rws_sgd",
            "nbihm_exact",
        }
    assert set(methods) == expected
    assert len(plan.runs(methods[0])) == ((2 if what == "three_by_three" else 1) if quick else 5)
    for name in methods:
        assert {f"experiment={what}", f"algorithm={name.split('_')[0]}", "resume=auto"} < set(
            plan.training(name)
        )
    some = {
        "fashion_mnist": methods,
        "tfd": ("rws_sgd", "nrws", "nrws_exact"),
        "three_by_three": ("rws", "nrws", "nrws_exact"),
    }  # the others are alike
    for name in (
        ("rws_sgd", "nrws", "nrws_exact") if quick and what == "fashion_mnist" else some[what]
    ):  # the quick size adds little
        overrides = [
            text for text in plan.training(name) if not text.startswith(("seed=", "hydra."))
        ]
        config = composed(*overrides)
        assert config.data.name == what and config.algorithm.name == name.split("_")[0]
        metric = "Fisher" if name.endswith("_exact") else "Kronecker"
        assert config.metric._target_ == (
            f"nws.natural.metrics.{metric}" if name.startswith("n") else None
        )
        if what != "three_by_three":
            adam = name in ("rws_adam", "bihm", "ws")
            assert config.optimizer._target_ == f"torch.optim.{'Adam' if adam else 'SGD'}"
            assert (config.trainer.batch_size, config.trainer.epochs) == (128, 1) or not quick
            assert 0 < config.optimizer.lr < 2


@pytest.mark.parametrize("method", ["rws_adam", "nrws", "nrws_exact"])
def test_one_epoch_of_faces_takes_the_settings_for_one_epoch(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(module, "tfd_title", lambda plan: "any")  # needs no data
    configs = []
    for what in ("fashion_mnist", "tfd"):
        options = module.Plan(what, True, tmp_path, [], [method]).training(method)
        given = [text for text in options if not text.startswith(("seed=", "hydra."))]
        configs.append(composed(*given))
    clothes, faces = configs
    for group in ("algorithm", "optimizer", "damping", "metric", "trainer"):
        assert clothes[group] == faces[group], group


def test_commands(module: ModuleType, tmp_path: Path) -> None:
    options = ["data.root=/d", "seed=3,7", "device=cpu"]
    plan = module.Plan("fashion_mnist", True, tmp_path / "a b", options, ["nrws"])
    assert [step.program for step in plan.steps()] == ["train", "evaluate", "sample"]
    train, evaluate, sample = (step.arguments for step in plan.steps())
    assert train[0] == "-m"
    assert {"data.root=/d", "seed=3,7", "resume=auto", "trainer.epochs=1"} < set(train)
    assert (
        train[-1] == f"hydra.sweep.dir='{tmp_path}/a b/runs/nrws'" and len(plan.runs("nrws")) == 2
    )
    runs = [f"{tmp_path}/a b/runs/nrws/{job}" for job in (0, 1)]
    assert evaluate[:2] == runs and "--samples 100 --data-points 1000 --device=cpu" in shlex.join(
        evaluate
    )
    assert (
        sample[0] == runs[0]
        and sample[-2] == f"{tmp_path}/a b/figures/fashion_mnist_samples_nrws.png"
    )
    later = module.Plan("fashion_mnist", True, tmp_path, ["trainer.epochs=3"], ["nrws"])
    assert [text for text in later.training("nrws") if text.startswith("trainer.epochs")] == [
        "trainer.epochs=3"
    ]


def test_what_is_refused(reproduce: Reproduce, tmp_path: Path) -> None:
    cases = {
        ("optimizer.lr=1,2",): "only seed may take several values, got optimizer.lr=1,2",
        ("experiment=digits",): "experiment is chosen by this script",
        ("hydra.sweep.dir=x",): "hydra.sweep.dir is chosen by this script",
        ("word",): "overrides are key=value",
        ("--quick", "optimizer.foo=3"): "training of ws: there is no option optimizer.foo",
        ("trainer.epochs=-1",): "training of ws: trainer.epochs must be a number",
        ("--methods", "ws,nope"): "takes ws, rws, nws, nrws, nrws_exact, bihm, nbihm, got nope",
    }
    for arguments, expected in cases.items():
        with pytest.raises(UserError, match=re.escape(expected)):
            reproduce("three_by_three", *arguments)
    with pytest.raises(UserError, match=r"tfd needs .*TFD_48x48\.mat .*data\.root"):
        reproduce("tfd", f"data.root={tmp_path}")
    assert reproduce("nope") == 2 and list(tmp_path.iterdir()) == []


def test_faces_that_are_not_tfds_are_not_called_tfd(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "TFD").mkdir()
    (tmp_path / "TFD" / "TFD_48x48.mat").write_bytes(b"faces")
    md5 = hashlib.md5(b"faces").hexdigest()

    def plan() -> Any:
        return module.Plan("tfd", True, tmp_path / "out", [f"data.root={tmp_path}"], ["ws"])

    other = plan()
    assert other.title == f"stand-in for TFD (not the Toronto Face Dataset: md5 {md5})"
    assert other.grid("ws").name == "stand_in_for_tfd_samples_ws.png"
    other.result({}).write()
    assert (other.figures / "table.md").read_text().startswith("# stand-in for TFD")
    monkeypatch.setattr(module, "TFD_MD5", md5)
    assert plan().title == "TFD" and plan().slug == "tfd"


# --- carrying it out ----------------------------------------------------------------------------


def test_stopped_and_gone_on_with_nothing_is_done_twice(
    reproduce: Reproduce,
    calls: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interrupt: Interrupt,
    capfd: pytest.CaptureFixture[str],
) -> None:
    steps = count_steps(monkeypatch)
    interrupt(3 * STEPS + 6, signal.SIGTERM)  # in the second run of the second method
    arguments = ("three_by_three", "--quick", *TINY, "--methods", "ws,nrws", "--output", "out")
    assert reproduce(*arguments) == 128 + signal.SIGTERM
    assert (
        f"go on with\n  python scripts/reproduce.py {shlex.join(arguments)}"
        in capfd.readouterr().out
    )
    assert [line.split()[0] for line in calls] == ["train", "evaluate", "sample", "train"]
    assert len(steps) == 3 * STEPS + 6 and "WS" in rows(tmp_path / "out")
    before = snapshot(tmp_path / "out" / "runs" / "ws")

    assert reproduce(*arguments) == 0
    assert len(steps) == 4 * STEPS and snapshot(tmp_path / "out" / "runs" / "ws") == before
    assert [line.split()[0] for line in calls[4:]] == ["train", "evaluate", "sample"]
    figures = tmp_path / "out" / "figures"
    assert sorted(path.name for path in figures.iterdir()) == [
        "report.html", "table.md", "three_by_three_exact_kl.png", "three_by_three_exact_kl.svg",
        "three_by_three_samples_nrws.png", "three_by_three_samples_ws.png",
    ]  # fmt: skip
    curves = (figures / "three_by_three_exact_kl.svg").read_text()
    assert (
        ">WS (2 seeds)<" in curves
        and ">NRWS, Kronecker (2 seeds)<" in curves
        and "quick size" in curves
    )

    def everything() -> dict[str, bytes]:  # but the page, which says at what minute it was made
        files = snapshot(tmp_path / "out")
        return {name: files[name] for name in files if name != "figures/report.html"}

    before = everything()
    (figures / "three_by_three_samples_ws.png").unlink()
    assert reproduce(*arguments) == 0  # what is gone is made again, and nothing else
    assert [line.split()[0] for line in calls[7:]] == ["sample"] and everything() == before
    with pytest.raises(
        UserError, match="holds what came of other options: what three_by_three, quick True"
    ):
        reproduce(*arguments, "trainer.epochs=0.03")

    table = rows(tmp_path / "out")
    assert list(table) == ["WS", "NRWS, Kronecker"]
    for method, cells in zip(("ws", "nrws"), table.values(), strict=True):
        runs = [tmp_path / "out" / "runs" / method / job for job in "01"]
        found = [json.loads((run / "evaluation.json").read_text())[0] for run in runs]
        values = [row["log_likelihood"] for row in found]
        expected = f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"
        assert cells["test log-likelihood (nats)"] == expected and values[0] != values[1]
        assert (cells["importance samples"], cells["test images"], cells["seeds"]) == (
            "1,000",
            "18",
            "2",
        )
        last = [read_run(run).metrics["exact/kl"].iloc[-1] for run in runs]
        kl = next(text for head, text in cells.items() if head.startswith("KL"))
        assert kl == f"{statistics.fmean(last):.3f} ± {statistics.stdev(last):.3f}"
        assert "torch" in cells["machine"] and float(cells["epochs"]) == pytest.approx(
            0.06, abs=0.01
        )


def test_a_method_that_fails_leaves_the_others(
    module: ModuleType,
    reproduce: Reproduce,
    calls: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = (
        "three_by_three",
        "--quick",
        *TINY,
        "--methods",
        "ws,nws",
        "seed=4",
        "--output",
        "out",
    )
    monkeypatch.setattr(
        "nws.analysis.comparison.draw", lambda *_, **__: {"png": b"a picture"}
    )  # not what this is about
    method = module.COMPARISONS["three_by_three"].methods["ws"]
    method.overrides.append("trainer.batch_size=1000000000")  # more images than there are
    with pytest.raises(UserError, match=r"1 steps failed:\n  train ws ended with status 1;"):
        reproduce(*arguments)
    table = rows(tmp_path / "out")
    assert list(table) == ["NWS, Kronecker"] and table["NWS, Kronecker"]["seeds"] == "1"
    assert "Missing: WS (0 of 1 seeds)" in (tmp_path / "out" / "figures" / "table.md").read_text()
    method.overrides.pop()  # mended
    assert reproduce(*arguments) == 0
    assert list(rows(tmp_path / "out")) == ["WS", "NWS, Kronecker"]
    assert sum("algorithm=nws" in line for line in calls) == 1
    text = (tmp_path / "out" / "figures" / "table.md").read_text()
    assert (
        "Missing" not in text
        and "±" not in rows(tmp_path / "out")["WS"]["test log-likelihood (nats)"]
    )


def test_a_signal_is_passed_on_and_the_child_waited_for(module: ModuleType, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = f"""
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
signal.signal(signal.SIGINT, lambda *_: sys.exit(8))
pathlib.Path({str(ready)!r}).touch()
time.sleep(60)
"""

    def press() -> None:
        while not ready.exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=press, daemon=True)
    thread.start()
    assert module.call([sys.executable, "-c", code]) == (7, signal.SIGINT)
    thread.join()
    assert signal.getsignal(signal.SIGINT) is before
    assert module.call([sys.executable, "-c", "raise SystemExit(3)"]) == (3, None)
