"""README.md and docs/ hold what they promise: commands, examples, names, links and length."""

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import CONF, ROOT, TWO_STEPS, Command, composed
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from torch.distributed.run import get_args_parser

from nws.experiment.boundary import all_keys
from nws.natural.reference import natural_direction

PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
OTHERS = ("CONTRIBUTING.md", "CHANGELOG.md", "data/README.md")
DOCUMENTS = PAGES | {name: (ROOT / name).read_text() for name in OTHERS}
TEXT = "\n".join(PAGES.values())
GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name != "hydra")
FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LARGEST_IMAGE = 150_000  # bytes, so that a page opens at once
MOST_WORDS, MOST_WORDS_OF_README = 28_000, 1_800


def blocks(language: str, text: str) -> list[str]:
    return [block for name, block in FENCED.findall(text) if name == language]


def commands(text: str) -> list[str]:
    lines = (line.strip() for block in blocks("bash", text) for line in block.splitlines())
    return list(dict.fromkeys(line for line in lines if line))  # each once


COMMANDS = commands(TEXT)
SPANS = re.findall(r"`([^`\n]+)`", FENCED.sub("", TEXT))
NAMED = "\n".join([*SPANS, *COMMANDS])


# --- commands -------------------------------------------------------------------------------------


PARSED = 77  # the status of a program that has read its command line, and does not go on


@pytest.fixture
def parse_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let programs end once their command line is read."""
    monkeypatch.syspath_prepend(ROOT / "scripts")

    for name in ("parse_args", "parse_intermixed_args"):
        original = getattr(argparse.ArgumentParser, name)

        def parse(*arguments: Any, original: Any = original, **options: Any) -> None:
            original(*arguments, **options)  # ends with status 2 where it does not fit
            raise SystemExit(PARSED)

        monkeypatch.setattr(argparse.ArgumentParser, name, parse)


def compose_overrides(words: list[str]) -> None:
    """Compose a command of train.py; of a sweep the first value of each list."""
    flags = {"-m", "--resolve", "--help", "--cfg", "job"}
    words = [word for word in words if word not in flags]
    given = []
    for override in OverridesParser.create().parse_overrides(words):
        text = str(override.input_line)
        if override.is_sweep_override() and not override.is_hydra_override():
            several = override.is_discrete_sweep()  # or an interval
            first = next(override.sweep_string_iterator()) if several else override.value().start
            text = f"{override.get_key_element()}={first}"
        given.append(text)
    composed(*given)


def read_command(words: list[str], command: Command) -> None:
    """Read a command line as its program would; an error where it does not fit."""
    if words[0] == "torchrun":
        read = get_args_parser().parse_known_args(words[1:])[0]
        words = ["python", read.training_script, *read.training_script_args]
    if words[:2] in (["python", "train.py"], ["nws", "train"]):
        compose_overrides(words[2:])
    else:
        outcome = command(*(words[1:] if words[0] == "python" else words))
        assert outcome.code == PARSED, outcome.err


PROGRAMS = ("python ", "nws ", "torchrun ")


@pytest.mark.parametrize("text", [each for each in COMMANDS if each.startswith(PROGRAMS)])
def test_every_command_composes_or_parses(text: str, parse_alone: None, command: Command) -> None:
    read_command(shlex.split(text), command)


def test_a_wrong_command_does_not(parse_alone: None, command: Command) -> None:
    """The control of the test above."""
    with pytest.raises(HydraException):
        read_command(["python", "train.py", "trainer.nope=1"], command)
    assert command("scripts/sample.py", "RUN", "--nope").code == 2


def test_every_other_command_is_known() -> None:
    targets = set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)", NAMED))
    others = (". .venv/bin/activate", "export NWS_DATA_ROOT=", "pip install ", "make ", "wandb ")
    assert [text for text in COMMANDS if not text.startswith(PROGRAMS + others)] == []
    assert {"train", "test"} <= named <= targets


# --- examples -------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [name for name, text in PAGES.items() if blocks("python", text)])
def test_python_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks("python", PAGES[page]):
        exec(compile(block, page, "exec"), {"__name__": "my_ideas"})


@pytest.mark.parametrize(
    "text", [each for each in COMMANDS if "my_ideas." in each and each.startswith("python train")]
)
def test_readers_ideas_train(command: Command, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    page = PAGES["docs/extending.md"]
    Path("my_ideas.py").write_text("\n".join(blocks("python", page)))
    monkeypatch.delitem(sys.modules, "my_ideas", raising=False)
    monkeypatch.syspath_prepend(Path.cwd())
    quiet = [each for each in TWO_STEPS if not ("logger" in text and "logger" in each)]
    outcome = command("train.py", *shlex.split(text)[2:], *quiet, "trainer.evaluate_every=1")
    assert outcome.code == 0 and (outcome.run / "checkpoints" / "last.pt").is_file(), outcome.err


@pytest.mark.parametrize("page", ["README.md", "docs/natural_step.md"])
def test_the_natural_step_shown_is_the_reference(page: str) -> None:
    (block,) = (each for each in blocks("python", PAGES[page]) if "def natural_direction" in each)
    body = block[block.index("    identity = ") :]
    assert body in (ROOT / "nws" / "natural" / "reference.py").read_text()
    shown: dict[str, Any] = {}
    exec(block, shown)
    rng = torch.Generator().manual_seed(0)
    given = *(torch.rand(size, generator=rng) for size in ((7, 3), (7, 2), (2, 3))), 0.2
    assert torch.equal(shown["natural_direction"](*given), natural_direction(*given))


def test_the_idea_in_readme_is_that_of_extending() -> None:
    (idea,) = (each for each in blocks("python", PAGES["README.md"]) if "MeanDirection" in each)
    assert idea in PAGES["docs/extending.md"]


# --- names and form -------------------------------------------------------------------------------


def test_every_option_named_exists() -> None:
    sections = "|".join([*GROUPS, "trainer", "callbacks"])
    named = set(re.findall(rf"(?<![\w./+])((?:{sections})(?:\.[a-z_]+)+)", NAMED))
    own = {"callbacks.mine", "callbacks.mine._target_"}
    assert {"metric.max_rows", "damping.schedule.final", "trainer.epochs"} <= named
    assert sorted(named - own - all_keys().keys()) == [] and "metric.nope" not in all_keys()


def test_every_choice_named_exists() -> None:
    found = re.findall(rf"(?<![\w./])({'|'.join(GROUPS)}|model/visible)=([\w/,]+)", NAMED)
    choices = {(group, choice) for group, listed in found for choice in listed.split(",")}
    choices = {each for each in choices if not re.search("[A-Z]|/$", each[1])}  # NAME is any
    missing = {each for each in choices if not (CONF / each[0] / f"{each[1]}.yaml").is_file()}
    # The reader's own is all that is not there.
    assert len(choices) > 15 and missing == {("metric", "my_metric")}


def broken(name: str, text: str) -> list[str]:
    """Return links to files that do not exist, and such files named in backticks."""
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if not link.startswith("https://")]
    files = re.findall(r"`((?:nws|conf|scripts|examples|tests|docs)/[a-z_/.]*)`", text)
    folder = (ROOT / name).parent
    lost = [link for link in links if not (folder / link).exists()]
    return lost + [path for path in files if not (ROOT / path).exists()]


def anchors(text: str) -> set[str]:
    """Return those of the headings of a page, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    for name, text in DOCUMENTS.items():
        assert broken(name, text) == []
        for image in re.findall(r"!\[[^]]*\]\(([^)]+)", text):
            assert ((ROOT / name).parent / image).stat().st_size < LARGEST_IMAGE, image
        for link, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", text):
            page = os.path.normpath(Path(name).parent / link) if link else name
            assert anchor in anchors(DOCUMENTS[page]), (link, anchor)
    control = broken("docs/index.md", "[a](nowhere.md) `nws/nope.py`")
    assert control == ["nowhere.md", "nws/nope.py"]


def test_the_documents_are_short() -> None:
    words = {name: len(text.split()) for name, text in PAGES.items()}
    assert words.pop("README.md") <= MOST_WORDS_OF_README
    assert sum(words.values()) <= MOST_WORDS


@pytest.mark.slow
def test_the_site_builds_and_needs_no_network(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    pages = {path: path.read_text() for path in (tmp_path / "site").rglob("*.html")}
    loaded = r"""<(?:script|img|iframe)[^>]*\ssrc=["']?https?:|<link[^>]*stylesheet[^>]*https?:"""
    assert [path for path, text in pages.items() if re.search(loaded, text)] == []
    theory = pages[tmp_path / "site" / "theory.html"]
    assert theory.count("<math") > 20 and "$" not in re.sub(r"<math.*?</math>", "", theory)
    assert "Rule" in pages[tmp_path / "site" / "api" / "learning.html"]
    reference = pages[tmp_path / "site" / "configuration.html"]
    assert "conf/algorithm/nrws.yaml" in reference and "evaluation_samples" in reference
    assert (tmp_path / "site" / "search" / "search_index.js").is_file()  # search from disk
