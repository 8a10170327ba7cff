"""What README.md and docs/ name exists: choices, options, flags, columns, files, links, anchors."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import hydra
import pytest
from conftest import CONF, ROOT, SMALL, Command, names
from documents import (
    DOCUMENTS,
    GROUPS,
    PAGES,
    SCRIPTS,
    anchors,
    blocks,
    broken,
    code_spans,
    commands,
    keys,
    options,
    spans,
)
from omegaconf import OmegaConf
from torch.distributed.run import get_args_parser


def test_every_choice_of_a_group_exists() -> None:
    named = re.findall(rf"(?<![\w./])({'|'.join(GROUPS)}|model/visible)=([\w/,]+)", code_spans())
    choices = {(group, choice) for group, listed in named for choice in listed.split(",")}
    # A NAME stands for any choice.
    choices = {each for each in choices if not re.search("[A-Z]|/$", each[1])}
    assert {("algorithm", "nrws"), ("experiment", "published/three_by_three")} <= choices
    assert len(choices) > 15
    missing = {
        (group, choice)
        for group, choice in choices
        if not (CONF / group / f"{choice}.yaml").is_file()
    }
    assert missing == {("metric", "my_metric")}, "the reader's own is all that is not there"


def test_every_choice_is_named() -> None:
    """In the tables, the lists of choices, or a command: a new choice is to be written down."""
    named = set(spans()) | set(re.findall(r"=([\w/,]+)", code_spans()))
    searches = r"fashion_mnist_sweep/[a-z]+_\d+"  # METHOD_BATCH
    assert {"fashion_mnist_sweep/METHOD_BATCH", "published/tfd"} <= named and "nope" not in named
    choices = [
        (group, choice.removeprefix("visible/"))
        for group in GROUPS
        for choice in names(group)
        if not re.fullmatch(searches, choice)
    ]
    assert len(choices) > 50 and [each for each in choices if each[1] not in named] == []


def test_every_file_for_hydra_itself_is_named() -> None:
    files = [str(path.relative_to(ROOT)) for path in (CONF / "hydra").rglob("*.yaml")]
    assert len(files) >= 3 and [path for path in files if path not in spans()] == []


def test_every_plugin_exists() -> None:
    from nws.experiment.launch.arguments import PLUGINS, SETTINGS

    named = set(re.findall(r"hydra/\w+=\w+", code_spans()))
    assert set(SETTINGS) <= named <= set(PLUGINS)
    assert all((CONF / f"{file.replace('=', '/')}.yaml").is_file() for file in SETTINGS.values())
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    asked = {
        re.findall(r"\[(\w+)\]", span)[0] for span in spans() if span.startswith("pip install")
    }
    assert asked == {"sweep", "tensorboard"} <= set(extras)


def test_every_option_named_exists() -> None:
    known = options() | {"algorithm.exponent"}  # a short form, translated when it is read
    named = set(
        re.findall(rf"(?<![\w./+])((?:{'|'.join(GROUPS)}|trainer)(?:\.\w+)+)", code_spans())
    )
    named |= set(re.findall(r"(?<![\w./+-])([a-z_]+)=", "\n".join(commands()))) - {*GROUPS, "sync"}
    assert {"metric.max_rows", "damping.schedule.final", "trainer.epochs", "seed"} <= named
    assert sorted(named - known) == []


def test_every_option_is_documented() -> None:
    """In docs/configuration.md, or its parent there (algorithm.weighting and all below it)."""
    described = set(re.findall(r"`([\w.]+)`", PAGES["docs/configuration.md"]))
    groups = "algorithm|metric|solver|damping|model|data|trainer|optimizer|average|logger"
    asked = re.compile(rf"({groups})\.[a-z]")
    missing = {
        key
        for key in options()
        if asked.match(key) and "._" not in key and "._" not in f".{key.split('.')[-1]}"
        if not described & {".".join(key.split(".")[:n]) for n in (2, 3, 4)}
    }
    assert missing == set() and "metric.nope" not in described


def test_every_option_of_hydra_exists() -> None:
    from nws.experiment.launch.arguments import PLUGINS, SETTINGS

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
    flags = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", code_spans()))
    # of Hydra, W&B, TensorBoard, and torchrun
    known = {"--config-dir", "--cfg", "--resolve", "--summary", "--logdir"}
    known |= {option.replace("_", "-") for option in get_args_parser()._option_string_actions}
    for script in SCRIPTS:
        shown = set(re.findall(r"--[a-z][a-z-]+", command(script, "--help").out))
        assert shown > {"--help"}, script
        known |= shown
    assert len(flags) > 20 and sorted(flags - known) == []


def test_every_script_is_named() -> None:
    from nws.experiment.process import invocation

    words = {script: f"nws {program} " for program, script in invocation.SCRIPTS.items()}
    text = "\n".join(commands())
    assert len(SCRIPTS) >= 6
    for script in SCRIPTS:
        assert f"python {script} " in text or words.get(script, script) in text


def test_every_column_of_metrics_exists(train: Command) -> None:
    listed = PAGES["docs/runs.md"].split("| column of `metrics.csv` |")[1].split("\n\n")[0]
    named = set(re.findall(r"`([\w/]+)`", listed)) - {"pcg", "three_by_three"}
    outcome = train(
        "data=three_by_three",
        "algorithm=nrws",
        "metric=fisher",
        "damping=levenberg_marquardt",
        "model=toy",
        "trainer.epochs=0.1",
        "optimizer.recognition_lr=0.05",
        "average=exponential",
        "trainer.noise_batches=2",
        "algorithm.samples_schedule={_target_: nws.schedules.constant, _partial_: true}",
    )
    assert named == set((outcome.run / "metrics.csv").read_text().splitlines()[0].split(","))


def test_every_package_is_named() -> None:
    packages = [path.parent.name for path in (ROOT / "nws").glob("*/__init__.py")]
    page = PAGES["docs/architecture.md"]
    assert len(packages) >= 6 and [name for name in packages if f"`nws/{name}`" not in page] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_files_and_links_exist(name: str) -> None:
    text = DOCUMENTS[name]
    assert broken(name, text) == []
    images = re.findall(r"!\[[^]]*\]\(([^)]+)", text)
    assert all(((ROOT / name).parent / image).stat().st_size < 150_000 for image in images)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_anchors_exist(name: str) -> None:
    """MkDocs checks those of docs/ too; this adds the other documents."""
    for link, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", DOCUMENTS[name]):
        page = DOCUMENTS[os.path.normpath(Path(name).parent / link) if link else name]
        assert anchor in anchors(page), (link, anchor)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_nothing_is_left_to_fill_in(name: str) -> None:
    assert re.findall(r"TODO\S*|FIXME\S*|@[A-Z]\w*@", DOCUMENTS[name]) == []


def test_this_file_sees_the_blocks() -> None:
    """The control: the other tests find blocks, and a wrong choice, link, option or anchor."""
    assert len(commands()) > 20 and len(blocks("python")) > 8 and "logger=none" in SMALL
    assert commands("```bash\nmake a\n\nmake b\n```\n") == ["make a", "make b"]
    assert not (CONF / "algorithm" / "nope.yaml").exists() and "metric.nope" not in options()
    assert broken("docs/index.md", "[a](nowhere.md) `nws/nope.py`") == ["nowhere.md", "nws/nope.py"]
    assert anchors("# A & b: `c`\n```bash\n# no heading\n```\n") == {"a--b-c"}
