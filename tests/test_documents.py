"""README.md and docs/ as a stranger meets them.

Their commands and examples run, and the site builds.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb.cli.cli
import yaml
from conftest import CONF, ROOT, TWO_STEPS, Command, checkpoint, load_script
from documents import (
    GROUPS,
    PAGES,
    README,
    SCRIPTS,
    TEXT,
    arguments,
    blocks,
    commands,
    my_ideas,
    of,
    spans,
)
from slurm import JOB, put_commands

# --- commands -------------------------------------------------------------------------------------


def test_every_command_is_of_a_kind_that_is_checked_here() -> None:
    known = (
        ". .venv/bin/activate",
        "export NWS_DATA_ROOT=",
        "make ",
        "wandb ",
        "nws ",
        "pip install ",
        "torchrun ",  # tests/distributed/test_training.py
    )
    known += tuple(f"python {script} " for script in ("train.py", *SCRIPTS))
    assert [command for command in commands() if not command.startswith(known)] == []
    assert all(of(program) for program in known if "scripts/" not in program)


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):.*## ", makefile, re.MULTILINE))
    named = re.findall(
        r"\bmake (?:PYTHON=\S+ )?([a-z]+)", "\n".join(re.findall(r"`(make [^`]*)`", TEXT))
    )
    named += [word for command in of("make") for word in command.split()[1:]]
    named += [
        word
        for command in commands((ROOT / "CONTRIBUTING.md").read_text())
        for word in command.split()[1:]
    ]
    assert {"train", "test", "docs"} <= set(named) <= targets


@pytest.fixture
def tiny(data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Overrides that make any command short.

    An epoch has two steps, there is little to evaluate, and files take the place of downloads.
    """
    from nws.experiment.training.trainer import TrainerSettings

    monkeypatch.setattr(TrainerSettings, "steps_per_epoch", lambda self, images, kind="training": 2)
    monkeypatch.chdir(tmp_path)
    for own_images in blocks("python", PAGES["docs/data.md"]):
        exec(own_images, {})
    (tmp_path / "my_ideas.py").write_text(my_ideas())
    monkeypatch.delitem(sys.modules, "my_ideas", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    return [
        *TWO_STEPS[1:],
        "trainer.epochs=1",
        "trainer.evaluate_every=1",
        f"data.root={data_root}",
    ]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for SLURM's commands; this process stands in for its nodes.

    tests/experiment/test_launchers.py checks the script that SLURM gets.
    """
    import submitit

    put_commands(monkeypatch, tmp_path / "slurm")
    for key, value in (JOB | {"SUBMITIT_EXECUTOR": "slurm"}).items():
        monkeypatch.setenv(key, value)

    def results(job: Any) -> list[Any]:
        return [submitit.core.utils.DelayedSubmission.load(job.paths.submitted_pickle).result()]

    monkeypatch.setattr(submitit.Job, "results", results)


def shortened(text: str, tiny: list[str]) -> tuple[list[str], int]:
    """The arguments of a short form of a command, and its number of jobs.

    The tiny overrides win over the command's own. A sweep keeps two values of each key.
    """
    given, swept = [], {}
    for override in arguments(text):
        key, _, value = override.partition("=")
        if re.fullmatch(r"range\(\d+\)|[^\[{]*,.*", value):
            values = ["0", "1"] if "range" in value else value.split(",")
            swept[key] = values[: 1 if swept else 2]  # of a second key one value
            override = f"{key}={','.join(swept[key])}"
        given.append(override)
    preset = re.search(r"experiment=(fashion_mnist_sweep/\w+)", text)
    if preset and "hydra.mode=RUN" not in text:  # else one run with one rate
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
    # This process knows the overrides that keep a command short.
    given += ["hydra.launcher.n_jobs=1"] * ("launcher=joblib" in text)
    return [*given, *(override for override in tiny if override.split("=")[0] not in swept)], jobs


@pytest.mark.parametrize(
    "text", [each for each in of("python train.py") if "resume=RUN" not in each]
)
def test_training(
    command: Command, tmp_path: Path, tiny: list[str], text: str, request: pytest.FixtureRequest
) -> None:
    if "launcher=s" in text:  # SLURM's two
        request.getfixturevalue("cluster")
    given, jobs = shortened(text, tiny)
    outcome = command("train.py", *given)
    assert outcome.code == 0 and "Traceback" not in outcome.err, outcome.err
    if "--help" in text:
        assert all(f"\n{group}=" in outcome.out for group in GROUPS)
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
    if "launcher=s" in text:
        asked = {
            "partition=": "partition=NAME",
            "slurm_nodes": "gpus-per-node=4",
            "gpus_per_node=1": "gpus-per-node=1",
            "timeout_min=1440": "time=1440",
        }
        script = (tmp_path / "slurm" / "script").read_text()
        for option, line in asked.items():
            assert (f"#SBATCH --{line}\n" in script) == (option in text), line


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def finished(train: Command, kept: Path, tmp_path: Path) -> Path:
    """A run of one epoch, trained once and copied for each test."""
    if not (kept / "run").exists():
        options = ("trainer.epochs=1", "logger=wandb_offline", "average=exponential")
        assert train(f"hydra.run.dir={kept / 'run'}", *options).code == 0
    return shutil.copytree(kept / "run", tmp_path / "run", symlinks=True)


@pytest.mark.parametrize("text", [each for each in of("python train.py") if "resume=RUN" in each])
def test_resuming(command: Command, finished: Path, text: str) -> None:
    given = [each.replace("RUN", str(finished)) for each in arguments(text)]
    longer = [f"trainer.epochs={2 if 'trainer.epochs' in text else 1}", "logger=none"]
    outcome = command("train.py", *given, *longer)
    assert outcome.code == 0 and outcome.run == finished, outcome.err
    rows = (finished / "metrics.csv").read_text().splitlines()[1:]
    assert len(rows) == (3 if "trainer.epochs" in text else 2)  # with that of step 0


@pytest.mark.parametrize("text", of("python scripts/sample.py") + of("python scripts/evaluate.py"))
def test_scripts(command: Command, finished: Path, text: str) -> None:
    chain = any(word in text for word in ("inpaint", "chain", "--steps"))
    few = ["--samples", "3"] if chain or "evaluate" in text else []
    few += ["--data-points", "20"] if "evaluate" in text else []
    before = {path for path in finished.rglob("*") if path.is_file()}
    outcome = command(
        text.split()[1], *(each.replace("RUN", str(finished)) for each in arguments(text)), *few
    )
    assert outcome.code == 0 and outcome.run == finished and outcome.err == ""
    (made,) = {path for path in finished.rglob("*") if path.is_file()} - before
    assert made.name == "evaluation.json" if "evaluate" in text else made.suffix in (".png", ".gif")


@pytest.mark.parametrize("text", of("nws "))
def test_the_installed_command(
    command: Command, finished: Path, tiny: list[str], text: str
) -> None:
    given = [each.replace("RUN", str(finished)) for each in shlex.split(text)]
    given += tiny if text.startswith("nws train") else []
    outcome = command(*given)
    assert outcome.code == 0 and outcome.err == "", outcome.err


@pytest.mark.parametrize("text", of("python scripts/runs.py") + of("python scripts/diff.py"))
def test_lists_of_runs(command: Command, finished: Path, tmp_path: Path, text: str) -> None:
    for folder in ("outputs", "multirun"):
        copy = Path(shutil.copytree(finished, tmp_path / folder / "0"))
        config = copy / ".hydra" / "config.yaml"
        config.write_text(re.sub("name: rws", "name: nrws", config.read_text()))
    given = [each.replace("RUN", str(finished)) for each in arguments(text)]
    given = [each.replace("best>-26", "best>-1e9") for each in given]
    outcome = command(text.split()[1], *given)
    assert outcome.code == 0 and outcome.err == "", outcome.err


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


@pytest.mark.parametrize("text", of("python scripts/batch_sizes.py"))
def test_batch_sizes(command: Command, tiny: list[str], text: str) -> None:
    given = [
        each.replace("-260", "-1000000").replace("-255", "-1000000") for each in arguments(text)
    ]
    for batch in (2, 4):
        options = (f"hydra.run.dir={given[0]}/{batch}", f"trainer.batch_size={batch}")
        assert command("train.py", *tiny, *options, "average=exponential").code == 0
    outcome = command("scripts/batch_sizes.py", *given)
    assert outcome.code == 0 and outcome.err == "", outcome.err


@pytest.mark.parametrize("text", of("python scripts/reproduce.py"))
def test_reproducing(
    command: Command,
    tiny: list[str],
    data_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    text: str,
) -> None:
    """The command prints what it would do, and the test runs the first training.

    tests/analysis/test_reproduce.py carries out all of it.
    """
    monkeypatch.setenv("NWS_DATA_ROOT", str(data_root))
    outcome = command("scripts/reproduce.py", *arguments(text), "--dry-run")
    stand_in = " tfd" in text  # the file of the test is not the official one
    assert outcome.code == 0 and outcome.err.startswith("warning: stand-in for TFD") == stand_in
    assert len(outcome.err.splitlines()) == stand_in
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
    monkeypatch.setattr(sys.modules["benchmarks.solvers"], "SHAPES", [(8, 5, 3)])
    small = ["--layers", "12,6,3", "--batch", "4", "--repeats", "2"]
    small += ["--visible", "12,16"] if "scale" in text else []
    monkeypatch.setattr(sys, "argv", ["benchmark.py", *arguments(text), *small])
    benchmark.main()
    # The machine, the columns, two rows or more.
    assert len(capsys.readouterr().out.splitlines()) >= 4


@pytest.mark.parametrize("text", of("python examples/"))
def test_examples(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Their arguments; tests/examples/ carries them out."""
    import natural_gradient
    import worlds

    monkeypatch.setattr(sys, "argv", text.split()[1:])
    if "worlds.py" in text:
        assert set(worlds.read_arguments().names) <= {*worlds.WORLDS, "all"}
    else:
        assert natural_gradient.read_arguments().task in natural_gradient.TASKS


def test_weights_and_biases_commands(finished: Path) -> None:
    assert "wandb" in entry_points(group="console_scripts").names
    texts = [*of("wandb "), *(span for span in spans() if re.match("wandb (sync|leet) ", span))]
    assert len(texts) == 5
    shutil.copytree(finished / "wandb", finished.parent / "wandb")  # as a sweep's links
    for text in texts:  # of a run, or of a sweep, a folder of runs
        assert shlex.split(text)[1] in wandb.cli.cli.cli.commands
        folder, _, pattern = shlex.split(text)[-1].partition("/")
        assert list((finished if folder == "RUN" else finished.parent).glob(pattern)), text


@pytest.mark.parametrize("text", of("python scripts/report.py"))
def test_reporting(command: Command, finished: Path, text: str) -> None:
    given = [each.replace("RUN", str(finished)) for each in arguments(text)]
    outcome = command("scripts/report.py", *given)
    assert outcome.code == 0 and outcome.run.name == "report.html" and outcome.run.is_file()


def test_the_library_needs_torch_alone(tmp_path: Path) -> None:
    (snippet,) = [block for block in blocks("python") if "from nws import Damping" in block]
    unwanted = {"hydra", "omegaconf", "wandb", "torchvision", "sklearn", "scipy", "matplotlib"}
    code = (
        f"{snippet}\nimport sys\n"
        f"print(sorted({unwanted} & {{name.partition('.')[0] for name in sys.modules}}))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert result.returncode == 0, result.stderr
    first, last = result.stdout.splitlines()
    mean = float(re.match(r"LogLikelihood\(mean=(-[\d.]+)", first)[1])  # type: ignore[index]
    # The mean lies between its start, near -64 log 2 = -44.4,
    # and minus the entropy of these independent pixels, -34.2.
    assert -40 < mean < -34 and last == "[]"


@pytest.mark.parametrize("page", [name for name, text in PAGES.items() if blocks("python", text)])
def test_python_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks("python", PAGES[page]):
        if "from nws import Damping" not in block:  # the library's has a test of its own
            exec(compile(block, page, "exec"), {"__name__": "my_ideas"})


@pytest.mark.parametrize("page", ["README.md", "docs/natural_step.md"])
def test_the_natural_step_shown_is_the_reference(page: str) -> None:
    from nws.natural.reference import natural_direction

    (block,) = [each for each in blocks("python", PAGES[page]) if "def natural_direction" in each]
    body = block[block.index("    identity = ") :]
    assert body in (ROOT / "nws" / "natural" / "reference.py").read_text()
    shown: dict[str, Any] = {}
    exec(block, shown)
    rng = torch.Generator().manual_seed(0)
    sizes = (7, 3), (7, 2), (2, 3)
    given = *(torch.rand(size, generator=rng) for size in sizes), 0.2
    assert torch.equal(shown["natural_direction"](*given), natural_direction(*given))


def test_the_idea_in_readme_is_that_of_extending() -> None:
    (idea,) = [block for block in blocks("python", README) if "class MeanDirection" in block]
    assert idea in my_ideas()


# --- form -----------------------------------------------------------------------------------------


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= 200 and len(README.split()) <= 1800


def build_site(folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)


def test_the_site_builds_and_needs_no_network(tmp_path: Path) -> None:
    built = build_site(ROOT, tmp_path / "site")
    assert built.returncode == 0, built.stderr
    pages = {path: path.read_text() for path in (tmp_path / "site").rglob("*.html")}
    assert len(pages) > 20
    loaded = r"""<(?:script|img|iframe)[^>]*\ssrc=["']?https?:|<link[^>]*stylesheet[^>]*https?:"""
    assert [path for path, text in pages.items() if re.search(loaded, text)] == []
    theory = pages[tmp_path / "site" / "theory" / "index.html"]
    assert theory.count("<math") > 20 and "$" not in re.sub(r"<math.*?</math>", "", theory)
    assert "Rule" in pages[tmp_path / "site" / "api" / "learning" / "index.html"]


def test_the_site_does_not_build_with_a_broken_link(tmp_path: Path) -> None:
    """The control of the test above."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    (tmp_path / "nws").symlink_to(ROOT / "nws")
    with (tmp_path / "docs" / "index.md").open("a") as page:
        page.write("\n[nowhere](nowhere.md)\n")
    built = build_site(tmp_path, tmp_path / "site")
    assert built.returncode != 0 and "nowhere.md" in built.stderr
