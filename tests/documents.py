"""What the tests of README.md and docs/ share: the pages, and what is in them."""

from __future__ import annotations

import re
import shlex
from typing import Any

import yaml
from conftest import CONF, ROOT

PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
DOCUMENTS = PAGES | {
    name: (ROOT / name).read_text()
    for name in ("CONTRIBUTING.md", "CHANGELOG.md", "data/README.md")
}
README, TEXT = PAGES["README.md"], "\n".join(PAGES.values())
GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name != "hydra")
PROGRAMS = [*(ROOT / "scripts").glob("*.py"), *(ROOT / "examples").glob("*.py")]
SCRIPTS = sorted(str(path.relative_to(ROOT)) for path in PROGRAMS)


def blocks(language: str, text: str = TEXT) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(text: str = TEXT) -> list[str]:
    lines = [line.strip() for block in blocks("bash", text) for line in block.splitlines()]
    return list(dict.fromkeys(line for line in lines if line))  # each once


def my_ideas() -> str:
    """What a reader puts into my_ideas.py: the examples of docs/extending.md, in one file."""
    return "\n".join(blocks("python", PAGES["docs/extending.md"]))


def of(program: str) -> list[str]:
    return [command for command in commands() if command.startswith(program)]


def arguments(command: str) -> list[str]:
    return shlex.split(command)[2:]  # python, a script, then these


def spans() -> list[str]:
    """What the pages set in backticks within their text."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", TEXT, flags=re.M | re.S))


def code_spans() -> str:
    return "\n".join([*spans(), *commands()])


def keys(value: Any, prefix: str = "") -> set[str]:
    if not isinstance(value, dict):
        return {prefix}
    return {prefix}.union(
        *(keys(each, f"{prefix}.{name}" if prefix else str(name)) for name, each in value.items())
    )


def options() -> set[str]:
    known = keys(yaml.safe_load((CONF / "config.yaml").read_text()))
    for path in CONF.rglob("*.yaml"):
        inner = str(path.parent.relative_to(CONF)).replace("/", ".")  # model.visible
        everywhere = path.read_text().startswith("# @package _global_")
        known |= keys(yaml.safe_load(path.read_text()), "" if everywhere else inner)
    return known


def broken(name: str, text: str) -> list[str]:
    """Links to files that do not exist, and files named in backticks that do not exist."""
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if not link.startswith("https://")]
    files = re.findall(r"`((?:nws|conf|scripts|examples|tests)/[a-z_/.]*)`", text)
    files += re.findall(r"`(train\.py|constraints\.txt|pyproject\.toml|mkdocs\.yml)`", text)
    folder = (ROOT / name).parent
    lost = [link for link in links if not (folder / link).exists()]
    return lost + [path for path in files if not (ROOT / path).exists()]


def anchors(text: str) -> set[str]:
    """Of the headings of a page, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\s-]", "", heading).lower().replace(" ", "-") for heading in headings}
