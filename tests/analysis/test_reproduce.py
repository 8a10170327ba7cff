"""scripts/reproduce.py: its commands, and a small comparison carried out."""

import shlex
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import ROOT, Command, composed

REPRODUCE = "scripts/reproduce.py"
TINY = ("trainer.epochs=0.02", "trainer.evaluate_every=0.01", "trainer.evaluation_samples=5")


@pytest.mark.parametrize("what", ["fashion_mnist", "three_by_three", "tfd"])
def test_every_method_is_composed_as_its_name_says(command: Command, what: str) -> None:
    lines = command(REPRODUCE, what, "--quick", "--dry-run").out.splitlines()
    words = [shlex.split(line)[1:] for line in lines]
    programs = ["train"] * 4 + ["evaluate"] + ["sample"] * 4 + ["plot_curves", "report"]
    assert [Path(each[0]).stem for each in words] == programs
    metrics = [None, *(f"nws.natural.metrics.{x}" for x in ("Adaptive", "Kronecker", "Fisher"))]
    for line, metric, name in zip(words, metrics, ("rws", *["nrws"] * 3), strict=False):
        others = ("hydra.", "algorithm=", "seed=")
        given = [text for text in line[2:] if not text.startswith(others)]
        config = composed(*given, f"algorithm={name}")
        assert config.metric._target_ == metric and config.data.name == what
        assert (config.trainer.epochs, config.trainer.batch_size) == (1, 128)
    assert not Path("reproduce").exists()


def test_a_comparison_runs_and_goes_on(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    failing, popen = ["sample"], subprocess.Popen

    def call(line: list[str], **options: Any) -> Any:
        if line[:3] != [sys.executable, "-m", "nws"]:  # git, by the training
            return popen(line, **options)
        calls.append(line[3])
        program = failing.pop() if line[3] in failing else ""
        code = 1 if program else command("nws", *line[3:]).code
        return nullcontext(SimpleNamespace(wait=lambda: code))

    monkeypatch.setattr(subprocess, "Popen", call)
    arguments = ("three_by_three", "--quick", "--methods", "kronecker", "--output", "an out", *TINY)
    message = command(REPRODUCE, *arguments).message()
    assert message.splitlines()[0] == "error: sample failed, see above; go on with"
    assert message.splitlines()[1] == f"  python {ROOT / REPRODUCE} {shlex.join(arguments)}"
    metrics = sorted(Path("an out").rglob("metrics.csv"))
    everything = ["train", "evaluate", "sample", "plot", "report"]
    assert len(metrics) == 1 and calls == everything  # all that can be done is done
    before = [path.read_bytes() for path in metrics]
    outcome = command(REPRODUCE, *arguments)
    assert outcome.code == 0 and calls[5:] == everything
    assert [path.read_bytes() for path in metrics] == before  # with its seconds: not trained again
    made = {path.name for path in Path("an out").iterdir()}
    assert made == {"runs", "samples_kronecker.png", "curves.png", "report.html"}
