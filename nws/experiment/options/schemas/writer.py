"""The files of conf/ as text, written from the schemas."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nws.experiment.options.schemas.choices import CHOICES
from nws.experiment.options.schemas.run import RUN, TRAINER
from nws.experiment.options.schemas.schema import Choice

WIDTH = 100  # columns of a comment
NATURAL = """# @package _global_
# Natural {rule}: {rule} with the running Kronecker metric, followed by plain SGD. metric=fisher is
# the exact metric of the publication (Varady, Volpi, Malago & Ay 2022).
defaults:
  - {rule}@algorithm
  - _self_
  - override /metric: ${{natural_metric}} # kronecker, unless an experiment says fisher
  - override /optimizer: sgd
algorithm:
  name: {name}
"""
#: The part of config.yaml that the schemas write is between these keys.
FIRST, AFTER = "name: ", "hydra:"


def files(conf: Path) -> dict[Path, str]:
    """Return each file that the schemas write, relative to `conf`, and its text."""
    found = {Path("config.yaml"): _config((conf / "config.yaml").read_text())}
    for group, choices in CHOICES.items():
        for name, choice in choices.items():
            if isinstance(choice, Choice):
                text = "\n".join([*_comment(choice.about), *_keys(choice)]) + "\n"
            else:
                text = NATURAL.format(rule=choice, name=name)
            found[Path(group) / f"{name}.yaml"] = text
    return found


def _config(text: str) -> str:
    """Return config.yaml with the keys of a run and the group `trainer` in their place."""
    start, end = text.index(f"\n{FIRST}") + 1, text.index(f"\n{AFTER}") + 1
    trainer = [f"  {line}" for line in _keys(TRAINER)]
    return text[:start] + "\n".join([*_keys(RUN), "", "trainer:", *trainer]) + "\n\n" + text[end:]


def _keys(choice: Choice) -> Iterator[str]:
    """Yield the lines of a choice: `_target_`, then each key with its meaning."""
    if choice.schema is None or choice.schema.target:
        yield f"_target_: {choice.schema.target if choice.schema else 'null'}"
    if choice.schema is not None and choice.schema.partial:
        yield "_partial_: true"
    for key, value in choice.values().items():
        yield from _key(key, value, choice.meaning(key))


def _key(key: str, value: Any, meaning: str) -> Iterator[str]:
    line = f"{key}:" if isinstance(value, Choice) else f"{key}: {as_yaml(value)}"
    if "\n" in meaning or len(line) + len(meaning) + 3 > WIDTH:
        yield from _comment(meaning[0].upper() + meaning[1:])
        yield line
    else:
        yield f"{line} # {meaning}"
    if isinstance(value, Choice):
        yield from (f"  {inner}" for inner in _keys(value))


def _comment(text: str) -> Iterator[str]:
    """Yield a text as lines of a comment; lines that are indented stay lines of their own."""
    for line in text.splitlines():
        yield from (
            [f"# {line}"]
            if line[0] == " "
            else (f"# {each}" for each in textwrap.wrap(line, WIDTH - 2, break_on_hyphens=False))
        )


def as_yaml(value: Any) -> str:
    """Return a plain value as YAML has it in a line."""
    if isinstance(value, list):
        return f"[{', '.join(map(as_yaml, value))}]"
    names = {None: "null", True: "true", False: "false"}
    plain = value is None or isinstance(value, bool)
    return names[value] if plain else str(value)
