"""README.md as a stranger meets it: every command runs, every option, file and link that it names exists."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import hydra
import pytest
import yaml
from conftest import ROOT, SMALL, Command, checkpoint, load_script
from omegaconf import OmegaConf
from test_sweeps import SBATCH, SLURM, SRUN
from test_train import CONF, TWO_STEPS, data_root, names  # noqa: F401  a fixture

README = (ROOT / "README.md").read_text()
GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name != "hydra")
SCRIPTS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "scripts").glob("*.py"))
LINKING = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(text: str = README) -> list[str]:
    return [
        line.strip()
        for block in blocks("bash", text)
        for line in block.splitlines()
        if line.strip()
    ]


def of(program: str) -> list[str]:
    return [command for command in commands() if command.startswith(program)]


def arguments(command: str) -> list[str]:
    return shlex.split(command)[2:]  # python, a script, then these


# --- commands ------------------------------------------------------------------------------------------------------


def test_every_command_is_of_a_kind_that_is_checked_here() -> None:
    known = (". .venv/bin/activate", "export NWS_DATA_ROOT=", "make ", "wandb ")
    known += tuple(f"python {script} " for script in ("train.py", *SCRIPTS))
    assert [command for command in commands() if not command.startswith(known)] == []
    assert all(of(program) for program in known)


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):.*## ", makefile, re.MULTILINE))
    named = re.findall(
        r"\bmake (?:PYTHON=\S+ )?([a-z]+)", "\n".join(re.findall(r"`(make [^`]*)`", README))
    )
    named += [word for command in of("make") for word in command.split()[1:]]
    named += [
        word
        for command in commands((ROOT / "CONTRIBUTING.md").read_text())
        for word in command.split()[1:]
    ]
    assert {"train", "test"} <= set(named) <= targets


@pytest.fixture
def tiny(data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:  # noqa: F811
    """Overrides that make any command short: two steps an epoch, little to evaluate, files in place of downloads."""
    from nws.experiment.trainer import TrainerSettings

    monkeypatch.setattr(TrainerSettings, "steps_per_epoch", lambda self, images, kind="training": 2)
    (own_images,) = [block for block in blocks("python") if "mine.npz" in block]
    monkeypatch.chdir(tmp_path)
    exec(own_images, {})
    (schedule,) = [block for block in blocks("python") if "def step_down" in block]
    (tmp_path / "my_ideas.py").write_text(schedule)
    monkeypatch.syspath_prepend(tmp_path)
    return [
        *TWO_STEPS[1:],
        "trainer.epochs=1",
        "trainer.evaluate_every=1",
        f"data.root={data_root}",
    ]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for SLURM's commands, and for its nodes: this process. tests/test_sweeps.py has the script that it gets."""
    import submitit

    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in {"sbatch": SBATCH, "srun": SRUN}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    settings = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "RECORD": str(folder / "script"),
        "SUBMITIT_EXECUTOR": "slurm",
    } | SLURM
    for key, value in settings.items():
        monkeypatch.setenv(key, value)

    def results(job: Any) -> list[Any]:
        return [submitit.core.utils.DelayedSubmission.load(job.paths.submitted_pickle).result()]

    monkeypatch.setattr(submitit.Job, "results", results)


def shortened(text: str, tiny: list[str]) -> tuple[list[str], int]:
    """A command with tiny overrides, which win, and two values of what it sweeps over; the number of jobs that makes."""
    given, swept = [], {}
    for override in arguments(text):
        key, _, value = override.partition("=")
        if re.fullmatch(r"range\(\d+\)|[^\[{]*,.*", value):
            values = ["0", "1"] if "range" in value else value.split(",")
            swept[key] = values[: 1 if swept else 2]  # of a second key one value
            override = f"{key}={','.join(swept[key])}"
        given.append(override)
    preset = re.search(r"experiment=(fashion_mnist_sweep/\w+)", text)
    if preset:
        config = yaml.safe_load((CONF / "experiment" / f"{preset[1]}.yaml").read_text())
        ((key, values),) = config["hydra"]["sweeper"]["params"].items()
        swept[key] = values.split(",")[:2]
        given.append(f"hydra.sweeper.params={{{key}:'{','.join(swept[key])}'}}")
    jobs = 2 if swept else 1
    if "sweeper=optuna" in text:
        jobs = 2
        given += [
            "hydra.sweeper.n_trials=2",
            *(shlex.split(span)[0] for span in spans() if "=tag(" in span),
        ]
    given += ["hydra.launcher.n_jobs=1"] * (
        "launcher=joblib" in text
    )  # in this process, which knows what is tiny
    return [*given, *(override for override in tiny if override.split("=")[0] not in swept)], jobs


@pytest.mark.parametrize("text", [each for each in of("python train.py") if "RUN" not in each])
def test_training(
    command: Command, tmp_path: Path, tiny: list[str], text: str, request: pytest.FixtureRequest
) -> None:
    if "submitit" in text:
        request.getfixturevalue("cluster")
    given, jobs = shortened(text, tiny)
    outcome = command("train.py", *given)
    assert outcome.code == 0 and "Traceback" not in outcome.err, outcome.err
    if "--help" in text:
        assert all(f"{group}: " in outcome.out for group in GROUPS)
        return
    runs = [path.parents[1] for path in tmp_path.rglob("checkpoints/last.pt")]
    assert len(runs) == jobs and (
        outcome.run in runs or list(tmp_path.rglob("optimization_results.yaml"))
    )
    assert all(
        run.relative_to(tmp_path).parts[0] == ("outputs" if jobs == 1 else "multirun")
        for run in runs
    )
    assert all(checkpoint(run)["step"] == 2 or "debug" in text for run in runs)
    if "submitit" in text:
        script = (tmp_path / "slurm" / "script").read_text()
        assert "#SBATCH --partition=NAME\n" in script and "#SBATCH --gpus-per-node=1\n" in script


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def finished(train: Command, kept: Path, tmp_path: Path) -> Path:
    """A run of one epoch, trained once and copied for each test."""
    if not (kept / "run").exists():
        assert (
            train(f"hydra.run.dir={kept / 'run'}", "trainer.epochs=1", "logger=wandb_offline").code
            == 0
        )
    return shutil.copytree(kept / "run", tmp_path / "run", symlinks=True)


@pytest.mark.parametrize("text", [each for each in of("python train.py") if "RUN" in each])
def test_resuming(command: Command, finished: Path, text: str) -> None:
    given = [each.replace("RUN", str(finished)) for each in arguments(text)]
    longer = [f"trainer.epochs={2 if 'trainer.epochs' in text else 1}", "logger=none"]
    outcome = command("train.py", *given, *longer)
    assert outcome.code == 0 and outcome.run == finished, outcome.err
    rows = (finished / "metrics.csv").read_text().splitlines()[1:]
    assert len(rows) == (2 if "trainer.epochs" in text else 1)


@pytest.mark.parametrize("text", of("python scripts/sample.py") + of("python scripts/evaluate.py"))
def test_scripts(command: Command, finished: Path, text: str) -> None:
    few = ["--samples", "3", "--data-points", "20"] if "evaluate" in text else ["--samples", "3"]
    before = {path for path in finished.rglob("*") if path.is_file()}
    outcome = command(
        text.split()[1], *(each.replace("RUN", str(finished)) for each in arguments(text)), *few
    )
    assert outcome.code == 0 and outcome.run == finished and outcome.err == ""
    (made,) = {path for path in finished.rglob("*") if path.is_file()} - before
    assert made.name == "evaluation.json" if "evaluate" in text else made.suffix in (".png", ".gif")


@pytest.mark.parametrize("text", of("python scripts/plot_curves.py"))
def test_curves(
    command: Command, finished: Path, tiny: list[str], tmp_path: Path, text: str
) -> None:
    given = [each.replace("RUN", str(finished)) for each in arguments(text)]
    if given[0] != str(finished):
        run = f"hydra.run.dir={given[0]}/2026-01-01_00-00-00/0"
        assert command("train.py", *tiny, run, "data=three_by_three", "model=toy").code == 0
    outcome = command("scripts/plot_curves.py", *given)
    assert outcome.code == 0 and outcome.err == "", outcome.err
    drawn = [Path(line) for line in outcome.out.splitlines()[-2:]]
    assert [path.suffix for path in drawn] == [".png", ".svg"] and all(
        (tmp_path / path).is_file() for path in drawn
    )


@pytest.mark.parametrize("text", of("python scripts/reproduce.py"))
def test_reproducing(command: Command, tiny: list[str], tmp_path: Path, text: str) -> None:
    """What it would do, of which the first training is done; tests/test_reproduce.py carries out all of it."""
    outcome = command("scripts/reproduce.py", *arguments(text), "--dry-run")
    assert outcome.code == 0 and outcome.err == ""
    lines = outcome.out.splitlines()
    programs = [line.split()[1].removeprefix(f"{ROOT}/") for line in lines]
    assert len(lines) >= 9 and set(programs) == {
        "train.py",
        "scripts/evaluate.py",
        "scripts/sample.py",
    }
    assert "/path/to/folder" not in text or "data.root=/path/to/folder" in lines[0]
    done = command("train.py", *shlex.split(lines[0])[2:], *tiny, "seed=0")
    assert done.code == 0 and done.run.is_relative_to(tmp_path / "reproduce"), done.err
    assert checkpoint(done.run)["step"] == 2


@pytest.mark.parametrize("text", of("python scripts/benchmark.py"))
def test_benchmarks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    benchmark = load_script("benchmark")
    monkeypatch.setattr(benchmark, "SHAPES", [(8, 5, 3)])
    small = ["--layers", "12,6,3", "--batch", "4", "--repeats", "2"]
    small += ["--visible", "12,16"] if "scale" in text else []
    monkeypatch.setattr(sys, "argv", ["benchmark.py", *arguments(text), *small])
    benchmark.main()
    assert (
        len(capsys.readouterr().out.splitlines()) >= 4
    )  # the machine, the columns, two rows or more


def test_weights_and_biases_commands(finished: Path) -> None:
    assert "wandb" in entry_points(group="console_scripts").names
    texts = [*of("wandb sync"), *(span for span in spans() if span.startswith("wandb sync"))]
    assert len(texts) == 2
    for text in texts:  # of a run, or of a sweep, a folder of runs
        folder, _, pattern = shlex.split(text)[-1].partition("/")
        assert list((finished if folder == "RUN" else finished.parent).glob(pattern)), text


def test_the_library_needs_torch_alone(tmp_path: Path) -> None:
    (snippet,) = [block for block in blocks("python") if "WakeSleep" in block]
    unwanted = {"hydra", "omegaconf", "wandb", "torchvision", "sklearn", "scipy", "matplotlib"}
    code = f"{snippet}\nimport sys\nprint(sorted({unwanted} & {{name.partition('.')[0] for name in sys.modules}}))"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert result.returncode == 0, result.stderr
    first, last = result.stdout.splitlines()
    mean = float(re.match(r"LogLikelihood\(mean=(-[\d.]+)", first)[1])  # type: ignore[index]
    # Between where it starts, near 64 log 2 = 44.4, and the entropy of these independent pixels, 34.2.
    assert -40 < mean < -34 and last == "[]"


# --- names ---------------------------------------------------------------------------------------------------------


def spans() -> list[str]:
    """What README sets in backticks amid its text."""
    return re.findall(r"`([^`\n]+)`", README)


def code_spans() -> str:
    return "\n".join([*spans(), *commands()])


def test_every_choice_of_a_group_exists() -> None:
    named = re.findall(rf"(?<![\w./])({'|'.join(GROUPS)})=([\w/,]+)", README)
    choices = {(group, choice) for group, listed in named for choice in listed.split(",")}
    assert {("algorithm", "nrws"), ("experiment", "published/three_by_three")} <= choices and len(
        choices
    ) > 15
    missing = {
        (group, choice)
        for group, choice in choices
        if not (CONF / group / f"{choice}.yaml").is_file()
    }
    assert missing == set()


def test_every_choice_is_named() -> None:
    """In the tables, the list of groups, or a command: a new choice is to be written down."""
    named = set(spans()) | set(re.findall(r"=([\w/,]+)", code_spans()))
    searches = r"fashion_mnist_sweep/[a-z]+_\d+"  # METHOD_BATCH
    assert {"fashion_mnist_sweep/METHOD_BATCH", "published/tfd"} <= named and "nope" not in named
    choices = [
        (group, choice)
        for group in GROUPS
        for choice in names(group)
        if not re.fullmatch(searches, choice)
    ]
    assert len(choices) > 50 and [each for each in choices if each[1] not in named] == []


def test_every_file_for_hydra_itself_is_named() -> None:
    files = [str(path.relative_to(ROOT)) for path in (CONF / "hydra").rglob("*.yaml")]
    assert len(files) == 3 and [path for path in files if path not in spans()] == []


def test_every_plugin_exists() -> None:
    from nws.experiment.sweeps import PLUGINS, SETTINGS

    named = set(re.findall(r"hydra/\w+=\w+", code_spans()))
    assert set(SETTINGS) <= named <= set(PLUGINS)
    assert all((CONF / f"{file.replace('=', '/')}.yaml").is_file() for file in SETTINGS.values())
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    asked = {
        re.findall(r"\[(\w+)\]", span)[0] for span in spans() if span.startswith("pip install")
    }
    assert asked == {"sweep"} <= set(extras)


def keys(value: Any, prefix: str = "") -> set[str]:
    if not isinstance(value, dict):
        return {prefix}
    return {prefix}.union(
        *(keys(each, f"{prefix}.{name}" if prefix else str(name)) for name, each in value.items())
    )


def test_every_option_exists() -> None:
    known = keys(yaml.safe_load((CONF / "config.yaml").read_text()))
    for group in GROUPS:
        for path in (CONF / group).glob("*.yaml"):
            known |= keys(yaml.safe_load(path.read_text()), group)
    named = set(
        re.findall(rf"(?<![\w./+])((?:{'|'.join(GROUPS)}|trainer)(?:\.\w+)+)", code_spans())
    )
    named |= set(re.findall(r"(?<![\w./+-])([a-z_]+)=", "\n".join(commands()))) - {*GROUPS, "sync"}
    named -= {"data.root"} - known
    assert {"metric.max_rows", "damping.schedule.final", "trainer.epochs", "seed"} <= named
    assert sorted(named - known) == []


def test_every_option_of_hydra_exists() -> None:
    from nws.experiment.sweeps import PLUGINS, SETTINGS

    known = set()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        for plugin in PLUGINS:
            config = hydra.compose(
                "config", [SETTINGS.get(plugin, plugin)], return_hydra_config=True
            )
            known |= keys(OmegaConf.to_container(config.hydra, resolve=False), "hydra")
    named = set(re.findall(r"hydra\.[a-z]+\.\w+", code_spans()))
    assert {"hydra.sweeper.n_trials", "hydra.launcher.partition", "hydra.launcher.n_jobs"} <= named
    assert sorted(named - known) == []


def test_every_flag_of_the_scripts_exists(command: Command) -> None:
    """Those of commands are taken when these are run."""
    flags = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", README))
    known = set()
    for script in SCRIPTS:
        shown = set(re.findall(r"--[a-z][a-z-]+", command(script, "--help").out))
        assert shown > {"--help"}, script
        known |= shown
    assert len(flags) > 20 and sorted(flags - known) == []


def test_every_script_is_named() -> None:
    assert (
        len(SCRIPTS) == 5
        and [script for script in SCRIPTS if f"python {script} " not in "\n".join(commands())] == []
    )


def test_every_column_of_metrics_exists(train: Command) -> None:
    listed = README.split("| column of `metrics.csv` |")[1].split("\n\n")[0]
    named = set(re.findall(r"`([\w/]+)`", listed)) - {"pcg", "three_by_three"}
    outcome = train(
        "data=three_by_three",
        "algorithm=nrws",
        "damping=levenberg_marquardt",
        "model=toy",
        "trainer.epochs=0.1",
    )
    assert named == set((outcome.run / "metrics.csv").read_text().splitlines()[0].split(","))


def test_modules_are_listed_in_an_order_in_which_each_imports_from_above() -> None:
    listed = re.findall(
        r"`nws/(\w+)\.py`", README.split("## How the code is laid out")[1].split("## ")[0]
    )
    assert sorted(listed) == sorted(
        path.stem for path in (ROOT / "nws").glob("*.py") if path.stem != "__init__"
    )
    for position, name in enumerate(listed):
        imported = re.findall(
            r"^\s*from nws\.(\w+) import", (ROOT / "nws" / f"{name}.py").read_text(), re.MULTILINE
        )
        assert set(imported) <= set(listed[:position]), name


@pytest.mark.parametrize("document", LINKING)
def test_files_and_links_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if not link.startswith("https://")]
    files = re.findall(r"`((?:nws|conf|scripts|tests|data)/[a-z_/.]*)`", text)
    files += re.findall(r"`(train\.py|constraints\.txt|pyproject\.toml)`", text)
    assert links + files and [path for path in links + files if not (ROOT / path).exists()] == []
    assert all(
        (ROOT / image).stat().st_size < 150_000
        for image in re.findall(r"!\[[^]]*\]\(([^)]+)", text)
    )


@pytest.mark.parametrize("document", LINKING)
def test_nothing_is_left_to_fill_in(document: str) -> None:
    assert re.findall(r"TODO-NUMBER\S*", (ROOT / document).read_text()) == []


def test_this_file_sees_the_blocks() -> None:
    """The control of the others: with the settings of a small run, and a wrong option, they do find something."""
    assert len(commands()) > 20 and len(blocks("python")) == 3 and "logger=none" in SMALL
    assert commands("```bash\nmake a\n\nmake b\n```\n") == ["make a", "make b"]
    assert not (CONF / "algorithm" / "nope.yaml").exists()
