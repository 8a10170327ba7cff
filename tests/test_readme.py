"""README.md as a stranger meets it: every command runs, every option, file and link that it names exists."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, SMALL, Command
from test_train import CONF, TWO_STEPS, data_root  # noqa: F401  a fixture

README = (ROOT / "README.md").read_text()
GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name != "hydra")
LINKING = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(text: str = README) -> list[str]:
    return [line.strip() for block in blocks("bash", text) for line in block.splitlines() if line.strip()]


def of(program: str) -> list[str]:
    return [command for command in commands() if command.startswith(program)]


def arguments(command: str) -> list[str]:
    return shlex.split(command)[2:]  # python, a script, then these


# --- commands ------------------------------------------------------------------------------------------------------


def test_every_command_is_of_a_kind_that_is_checked_here() -> None:
    known = (". .venv/bin/activate", "export NWS_DATA_ROOT=", "make ", "wandb ")
    scripts = ("train.py", "scripts/sample.py", "scripts/evaluate.py", "scripts/benchmark.py")
    known += tuple(f"python {script} " for script in scripts)
    assert [command for command in commands() if not command.startswith(known)] == []
    assert all(of(program) for program in known)


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):.*## ", makefile, re.MULTILINE))
    named = re.findall(r"\bmake (?:PYTHON=\S+ )?([a-z]+)", "\n".join(re.findall(r"`(make [^`]*)`", README)))
    named += [word for command in of("make") for word in command.split()[1:]]
    named += [word for command in commands((ROOT / "CONTRIBUTING.md").read_text()) for word in command.split()[1:]]
    assert {"train", "test"} <= set(named) <= targets


@pytest.fixture
def tiny(data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:  # noqa: F811
    """Overrides that make any command short: two steps an epoch, little to evaluate, files in place of downloads."""
    from nws.trainer import TrainerSettings

    monkeypatch.setattr(TrainerSettings, "steps_per_epoch", lambda self, images: 2)
    (own_images,) = [block for block in blocks("python") if "mine.npz" in block]
    monkeypatch.chdir(tmp_path)
    exec(own_images, {})
    return [*TWO_STEPS[1:], "trainer.epochs=1", "trainer.evaluate_every=1", f"data.root={data_root}"]


def shortened(text: str, tiny: list[str]) -> tuple[list[str], int]:
    """A command with tiny overrides, which win, and two values at most of each that it sweeps over; the jobs it makes."""
    given, swept, jobs = [], set(), 1
    for override in arguments(text):
        key, _, value = override.partition("=")
        if re.fullmatch(r"range\(\d+\)|[^\[]*,.*", value):
            override, jobs = f"{key}={'0,1' if 'range' in value else ','.join(value.split(',')[:2])}", 2 * jobs
            swept.add(key)
        given.append(override)
    preset = re.search(r"experiment=(fashion_mnist_sweep/\w+)", text)
    if preset:
        config = yaml.safe_load((CONF / "experiment" / f"{preset[1]}.yaml").read_text())
        (values,) = config["hydra"]["sweeper"]["params"].values()
        jobs = len(values.split(","))
    return [*given, *(override for override in tiny if override.split("=")[0] not in swept)], jobs


@pytest.mark.parametrize("text", [each for each in of("python train.py") if "RUN" not in each])
def test_training(command: Command, tmp_path: Path, tiny: list[str], text: str) -> None:
    given, jobs = shortened(text, tiny)
    outcome = command("train.py", *given)
    assert outcome.code == 0 and "Traceback" not in outcome.err, outcome.err
    if "--help" in text:
        assert all(f"{group}: " in outcome.out for group in GROUPS)
        return
    runs = [path.parents[1] for path in tmp_path.rglob("checkpoints/last.pt")]
    assert outcome.run in runs and len(runs) == jobs
    assert all(run.relative_to(tmp_path).parts[0] == ("outputs" if jobs == 1 else "multirun") for run in runs)


@pytest.mark.parametrize("text", [each for each in of("python train.py") if "RUN" in each])
def test_resuming(train: Command, text: str) -> None:
    run = train("trainer.epochs=1").run
    given = [each.replace("RUN", str(run)) for each in arguments(text)]
    longer = [f"trainer.epochs={2 if 'trainer.epochs' in text else 1}"]
    outcome = train(*given, *longer)
    assert outcome.code == 0 and outcome.run == run, outcome.err
    rows = (run / "metrics.csv").read_text().splitlines()[1:]
    assert len(rows) == (2 if "trainer.epochs" in text else 1)


@pytest.fixture
def finished(train: Command) -> Path:
    return train("hydra.run.dir=run", "trainer.epochs=0.5").run


@pytest.mark.parametrize("text", of("python scripts/sample.py") + of("python scripts/evaluate.py"))
def test_scripts(command: Command, finished: Path, text: str) -> None:
    few = ["--samples", "3", "--data-points", "20"] if "evaluate" in text else []
    outcome = command(text.split()[1], *(each.replace("RUN", str(finished)) for each in arguments(text)), *few)
    assert outcome.code == 0 and outcome.run == finished and outcome.err == ""


@pytest.mark.parametrize("text", of("python scripts/benchmark.py"))
def test_benchmarks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str) -> None:
    spec = importlib.util.spec_from_file_location("benchmark", ROOT / "scripts" / "benchmark.py")
    assert spec is not None and spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    monkeypatch.setattr(benchmark, "SHAPES", [(8, 5, 3)])
    small = ["--layers", "12,6,3", "--batch", "4", "--repeats", "2"]
    small += ["--visible", "12,16"] if "--visible" in text else []
    monkeypatch.setattr(sys, "argv", ["benchmark.py", *arguments(text), *small])
    benchmark.main()
    assert len(capsys.readouterr().out.splitlines()) >= 4  # the machine, the columns, two rows or more


def test_weights_and_biases_commands(train: Command) -> None:
    assert "wandb" in entry_points(group="console_scripts").names
    run = train("trainer.epochs=0.2", "logger=wandb_offline").run
    for text in of("wandb sync"):
        pattern = shlex.split(text)[-1]
        assert pattern.startswith("RUN/") and list(run.glob(pattern.removeprefix("RUN/"))), text


def test_the_library_needs_torch_alone(tmp_path: Path) -> None:
    (snippet,) = [block for block in blocks("python") if "WakeSleep" in block]
    unwanted = {"hydra", "omegaconf", "wandb", "torchvision", "sklearn"}
    code = f"{snippet}\nimport sys\nprint(sorted({unwanted} & {{name.partition('.')[0] for name in sys.modules}}))"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert result.returncode == 0, result.stderr
    first, last = result.stdout.splitlines()
    mean = float(re.match(r"LogLikelihood\(mean=(-[\d.]+)", first)[1])  # type: ignore[index]
    # Between where it starts, near 64 log 2 = 44.4, and the entropy of these independent pixels, 34.2.
    assert -40 < mean < -34 and last == "[]"


# --- names ---------------------------------------------------------------------------------------------------------


def code_spans() -> str:
    return "\n".join([*re.findall(r"`([^`\n]+)`", README), *commands()])


def test_every_choice_of_a_group_exists() -> None:
    named = re.findall(rf"(?<![\w.])({'|'.join(GROUPS)})=([\w/,]+)", README)
    choices = {(group, choice) for group, listed in named for choice in listed.split(",")}
    assert ("algorithm", "nrws") in choices and len(choices) > 15
    missing = {(group, choice) for group, choice in choices if not (CONF / group / f"{choice}.yaml").is_file()}
    assert missing == set()


def test_every_choice_is_named() -> None:
    """In the tables of the natural rules and the list of groups: a new choice is to be written down."""
    spans = set(re.findall(r"`([\w]+)`", README))
    skipped = {"experiment", "debug"}
    named = {f"{group}/{path.stem}": path.stem for group in GROUPS for path in (CONF / group).glob("*.yaml")}
    assert [key for key, name in named.items() if key.split("/")[0] not in skipped and name not in spans] == []
    for path in (CONF / "experiment").glob("*.yaml"):
        assert f"experiment={path.stem}" in README


def keys(value: Any, prefix: str = "") -> set[str]:
    if not isinstance(value, dict):
        return {prefix}
    return {prefix}.union(*(keys(each, f"{prefix}.{name}" if prefix else str(name)) for name, each in value.items()))


def test_every_option_exists() -> None:
    known = keys(yaml.safe_load((CONF / "config.yaml").read_text()))
    for group in GROUPS:
        for path in (CONF / group).glob("*.yaml"):
            known |= keys(yaml.safe_load(path.read_text()), group)
    named = set(re.findall(rf"(?<![\w./+])((?:{'|'.join(GROUPS)}|trainer)(?:\.\w+)+)", code_spans()))
    named |= set(re.findall(r"(?<![\w.+-])([a-z_]+)=", "\n".join(commands()))) - {*GROUPS, "sync"}
    named -= {"data.root"} - known
    assert {"metric.max_rows", "damping.schedule.final", "trainer.epochs", "seed"} <= named
    assert sorted(named - known) == []


def test_every_flag_of_the_scripts_exists() -> None:
    flags = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", README)) - {"--help"}  # argparse's own
    sources = "".join(path.read_text() for path in (ROOT / "scripts").glob("*.py"))
    assert len(flags) > 5 and [flag for flag in sorted(flags) if f'"{flag}"' not in sources] == []


def test_every_column_of_metrics_exists(train: Command) -> None:
    listed = README.split("| column of `metrics.csv` |")[1].split("\n\n")[0]
    named = set(re.findall(r"`([\w/]+)`", listed)) - {"pcg", "three_by_three"}
    outcome = train(
        "data=three_by_three", "algorithm=nrws", "damping=levenberg_marquardt", "model=toy", "trainer.epochs=0.1"
    )
    assert named == set((outcome.run / "metrics.csv").read_text().splitlines()[0].split(","))


def test_modules_are_listed_in_an_order_in_which_each_imports_from_above() -> None:
    listed = re.findall(r"`nws/(\w+)\.py`", README.split("## How the code is laid out")[1].split("## ")[0])
    assert sorted(listed) == sorted(path.stem for path in (ROOT / "nws").glob("*.py") if path.stem != "__init__")
    for position, name in enumerate(listed):
        imported = re.findall(r"^\s*from nws\.(\w+) import", (ROOT / "nws" / f"{name}.py").read_text(), re.MULTILINE)
        assert set(imported) <= set(listed[:position]), name


@pytest.mark.parametrize("document", LINKING)
def test_files_and_links_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if not link.startswith("https://")]
    files = re.findall(r"`((?:nws|conf|scripts|tests|data)/[a-z_/.]*)`", text)
    files += re.findall(r"`(train\.py|constraints\.txt|pyproject\.toml)`", text)
    assert links + files and [path for path in links + files if not (ROOT / path).exists()] == []
    assert all((ROOT / image).stat().st_size < 150_000 for image in re.findall(r"!\[[^]]*\]\(([^)]+)", text))


@pytest.mark.parametrize("document", LINKING)
def test_nothing_is_left_to_fill_in(document: str) -> None:
    assert re.findall(r"TODO-NUMBER\S*", (ROOT / document).read_text()) == []


def test_this_file_sees_the_blocks() -> None:
    """The control of the others: with the settings of a small run, and a wrong option, they do find something."""
    assert len(commands()) > 20 and len(blocks("python")) == 2 and "logger=none" in SMALL
    assert commands("```bash\nmake a\n\nmake b\n```\n") == ["make a", "make b"]
    assert not (CONF / "algorithm" / "nope.yaml").exists()
