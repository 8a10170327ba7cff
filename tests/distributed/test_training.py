"""`train.py` and `evaluate.py` in several processes, as torchrun starts them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, SMALL, Command, Interrupt, Outcome, checkpoint, complete, leaves, metrics
from hydra.core.global_hydra import GlobalHydra
from processes import free_port, together

from nws.errors import UserError
from nws.experiment.boundary import errors_for_people
from nws.experiment.provenance import read_provenance

CLOSE = 1e-5  # relative, of parameters and figures in float32 after 12 steps
# 201 does not divide by 2, and neither do the layers of 5 and 3 units.
OPTIONS = (*SMALL, "trainer.batch_size=201", "algorithm=nrws", "callbacks.images.every=0.5")


def start(program: str, arguments: tuple[str, ...]) -> tuple[Any, list[str]]:
    """Run a program in this process, one of several; return its exit status and what it wrote."""
    from nws.programs import evaluate, train

    written: list[str] = []

    def see(event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(given[1], str) and set(given[1]) & set("wax+"):
            written.append(str(given[0]))

    sys.addaudithook(see)
    GlobalHydra.instance().clear()
    sys.argv = [str(ROOT / program), *arguments]
    try:
        with errors_for_people():
            (train if program == "train.py" else evaluate).run()
    except SystemExit as stop:
        return stop.code or 0, written
    return 0, written


@pytest.fixture
def processes(tmp_path: Path, capfd: pytest.CaptureFixture[str], command: Command) -> Any:
    """processes("train.py", ...) as under torchrun with 2 processes: exit codes, and an outcome."""

    def run(program: str, *arguments: str) -> tuple[list[Any], Outcome]:
        capfd.readouterr()
        results = together(2, start, program, arguments, may_die=True)
        results = [each if isinstance(each, tuple) else (each, []) for each in results]
        outcome = Outcome(results[0][0], *capfd.readouterr())
        assert "Traceback" not in outcome.out + outcome.err, outcome.err
        # The first process alone writes and speaks.
        assert [path for path in results[1][1] if path != os.devnull] == []
        assert results[0][1] or results[0][0] != 0  # the control
        return [code for code, _ in results], outcome

    return run


def assert_close(one: Path, other: Path) -> None:
    """The same run but for rounding."""
    first, second = (checkpoint(run) for run in (one, other))
    for part in ("machine", "optimizer", "metrics"):
        a, b = numbers(first[part]), numbers(second[part])
        assert a.keys() == b.keys()
        for key in a:
            scale = max(1.0, float(a[key].abs().max()))
            assert float((a[key] - b[key]).abs().max()) <= CLOSE * scale, (part, key)
    rows = [metrics(run, start=True) for run in (one, other)]
    for old, new in zip(*rows, strict=True):
        for key in set(old) - {"generator/residual", "recognition/residual"}:
            if old[key]:
                assert float(new[key]) == pytest.approx(float(old[key]), rel=CLOSE, abs=1e-6), key
    assert first["best"] == pytest.approx(second["best"], rel=CLOSE)
    torch.testing.assert_close(first["rng"], second["rng"], rtol=0, atol=0)


def numbers(value: Any) -> dict[str, torch.Tensor]:
    """The floating-point numbers of a nested state that are no coordinates of a basis."""
    tensors = {key: x for key, x in leaves(value).items() if isinstance(x, torch.Tensor)}
    kept = {key: x for key, x in tensors.items() if x.is_floating_point() and x.numel()}
    return {key: x.double() for key, x in kept.items() if not key.endswith("vectors")}


def test_two_processes_do_what_one_does(processes: Any, command: Command, tmp_path: Path) -> None:
    whole = command("train.py", *OPTIONS, "hydra.run.dir=whole")
    codes, outcome = processes("train.py", *OPTIONS)
    assert codes == [0, 0], outcome.err
    assert complete(outcome.run) and outcome.run.parent == tmp_path / "outputs" / "digits_nrws"
    assert len(list(outcome.run.parent.iterdir())) == 1  # one directory, whose name has the time
    assert_close(whole.run, outcome.run)
    both = (outcome, whole)
    shown = [[line.split("  ")[0] for line in each.out.splitlines()[:-1]] for each in both]
    names = [{path.relative_to(each.run) for path in each.run.rglob("*")} for each in both]
    assert shown[0] == shown[1] and names[0] == names[1]
    log = (outcome.run / "train.log").read_text()
    assert log.count("processes 2") == 1 and log.count("step      12") == 1
    assert ", processes 2\n" in outcome.out and ", processes 1\n" in whole.out
    assert read_provenance(outcome.run)["processes"] == 2


def test_a_run_goes_on_with_one_process_and_with_two(
    processes: Any, command: Command, interrupt: Interrupt
) -> None:
    """1 process to step 3, 2 to step 8, where a signal reaches one of them, 1 to the end."""
    whole = command("train.py", *OPTIONS, "hydra.run.dir=whole").run
    auto = (*OPTIONS, "resume=auto", "hydra.run.dir=parts")
    interrupt(3, signal.SIGTERM)
    run = command("train.py", *auto).run
    assert checkpoint(run)["step"] == 3
    interrupt(5, signal.SIGTERM, rank="1")
    codes, outcome = processes("train.py", *auto)
    assert codes == [128 + signal.SIGTERM] * 2
    assert outcome.run == run and checkpoint(run)["step"] == 8
    assert outcome.out.count("stopped by signal 15; go on with") == 1
    assert command("train.py", f"resume={run}").code == 0
    assert complete(run)
    assert_close(whole, run)


def test_a_killed_process_ends_the_others(processes: Any, interrupt: Interrupt) -> None:
    interrupt(8, signal.SIGKILL, rank="1")
    codes, outcome = processes("train.py", *OPTIONS, "hydra.run.dir=run")
    assert codes == [1, -signal.SIGKILL]
    assert "another process of this run has ended" in outcome.message()
    run = Path("run").resolve()
    assert read_provenance(run)["state"] == "failed" and checkpoint(run)["step"] == 6


def test_evaluation_is_shared_out(processes: Any, command: Command) -> None:
    """log p, log p* and log Z of bihm: the same draws, so the same figures."""
    run = command("train.py", *SMALL, "algorithm=bihm", "hydra.run.dir=run").run
    arguments = ("--samples=20", "--data-points=230", "--z-samples=2000")
    alone = command("scripts/evaluate.py", str(run), *arguments)
    one = json.loads((run / "evaluation.json").read_text())
    (run / "evaluation.json").unlink()
    codes, outcome = processes("evaluate.py", str(run), *arguments)
    assert codes == [0, 0] and one == json.loads((run / "evaluation.json").read_text())
    assert outcome.out == alone.out


def test_mistakes_have_one_message(processes: Any, interrupt: Interrupt, tmp_path: Path) -> None:
    cases = {
        ("-m", "seed=0,1"): "torchrun starts the processes of one run",
        ("resume=nowhere",): "does not exist",  # which the first process alone sees
    }
    for arguments, reason in cases.items():
        codes, outcome = processes("train.py", *SMALL, *arguments)
        assert codes == [1, 1] and reason in outcome.message()
    assert not list(tmp_path.rglob("*.pt"))
    interrupt(2, UserError("a mistake that one process alone sees"), rank="1")
    codes, outcome = processes("train.py", *SMALL)
    assert codes == [1, 1] and "a mistake that one process alone sees" in outcome.message()


DYING = """
import os, signal
from torch.optim.lr_scheduler import LambdaLR

def dying(optimizer, lr_lambda):
    def factor(step):
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
        if step == 8 and first and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return lr_lambda(step)
    return LambdaLR(optimizer, factor)
"""


@pytest.mark.slow
def test_torchrun_starts_again(command: Command, tmp_path: Path) -> None:
    """With --max-restarts and resume=auto a run goes on by itself after a process has died."""
    (tmp_path / "dying.py").write_text(DYING)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    found = subprocess.run(
        [
            *torchrun, "--max-restarts=1", f"--master-port={free_port()}", ROOT / "train.py",
            *SMALL, "resume=auto", "scheduler._target_=dying.dying",
        ],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}"}, cwd=tmp_path, capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip
    assert found.returncode == 0 and "Traceback" not in found.stdout + found.stderr, found.stderr
    assert found.stderr.count("error: ") <= 1  # torchrun may end the other one before it has seen
    assert "resumed    from step 6" in found.stdout
    run = Path(found.stdout.splitlines()[-1])
    assert complete(run)
    assert_close(command("train.py", *SMALL, "hydra.run.dir=whole").run, run)
