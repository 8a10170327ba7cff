"""What `--help` says of every option: its meaning, range and default, from the schemas."""

import re
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from nws.errors import UserError
from nws.experiment.options.configuration import CONF
from nws.experiment.options.schemas.algorithm import CHOICES as RULES
from nws.experiment.options.schemas.choices import CHOICES
from nws.experiment.options.schemas.run import RUN, TRAINER
from nws.experiment.options.schemas.schema import Choice, expected
from nws.experiment.options.schemas.writer import as_yaml
from nws.experiment.process.invocation import command_line

WITHOUT_KEYS = (
    "natural_metric",
    "experiment",
    "debug",
)  # groups whose files set keys of the other groups
ORDER = (
    "algorithm", "metric", "natural_metric", "solver", "damping", "model", "data", "optimizer",
    "scheduler", "average", "logger", "experiment", "debug",
)  # fmt: skip
USAGE = """usage: {train} [-m] [resume=RUN|auto] [group=choice ...] [key=value ...]
       {train} --help [GROUP ...]

Train a Helmholtz machine.
A group takes the name of a file: algorithm=nrws. A key takes a value:
optimizer.lr=0.1. With -m, every combination of values is a run: seed=0,1,2.
A class of your own, in my_ideas.py here: metric._target_=my_ideas.MyMetric.
--cfg job prints the configuration that the other arguments make, and trains
nothing. --help GROUP prints one of the groups below.
"""


@dataclass(frozen=True)
class Option:
    """A key that a choice has."""

    key: str  # dotted, without its group
    value: str  # the default, as a file of conf/ has it
    meaning: str
    takes: str  # what it may be, in words


@dataclass(frozen=True)
class Described:
    """A choice of a group, as help and documentation show it."""

    name: str
    about: str
    options: tuple[Option, ...] = ()


def describe(name: str, choice: Choice | str) -> Described:
    """Return what there is to say of a choice."""
    if isinstance(choice, str):
        (own,) = (each for each in describe(name, RULES[choice]).options if each.key == "name")
        about = f"{choice} with the natural gradient: metric=kronecker and SGD."
        return Described(name, about, (replace(own, value=name),))
    return Described(name, choice.about, tuple(_options(choice)))


def _options(choice: Choice, prefix: str = "") -> Iterator[Option]:
    for key, value in choice.values().items():
        nested = isinstance(value, Choice)
        assert choice.schema is not None
        takes = expected(choice.schema.model_fields[key])
        text = "" if nested else as_yaml(value)
        yield Option(prefix + key, text, choice.meaning(key), takes)
        if nested:
            yield from _options(value, f"{prefix}{key}.")


def groups() -> dict[str, list[Described]]:
    """Return the groups of conf/ and their choices; those of Hydra aside."""
    found = {
        group: [describe(name, choice) for name, choice in sorted(choices.items())]
        for group, choices in CHOICES.items()
    }
    for group in WITHOUT_KEYS:
        folder = CONF / group
        names = {
            str(path.relative_to(folder).with_suffix("")): path
            for path in sorted(folder.rglob("*.yaml"))
        }
        found[group] = [Described(name, _about(path)) for name, path in names.items()]
    return found


def _about(path: Path) -> str:
    """Return the comment on top of a preset."""
    lines = path.read_text().removeprefix("# @package _global_\n").splitlines()
    return " ".join(line[2:] for line in takewhile(lambda line: line.startswith("#"), lines))


def defaults() -> dict[str, str]:
    """Return the choice of each group that config.yaml makes."""
    listed: Any = OmegaConf.to_container(OmegaConf.load(CONF / "config.yaml"))
    listed = listed["defaults"]
    pairs = [pair for each in listed if isinstance(each, dict) for pair in each.items()]
    return {group: choice for group, choice in pairs if choice is not None}


def help_text(asked: list[str], width: int | None = None) -> str:
    """Return what `--help` prints.

    Args:
        asked: Groups, and `trainer`; none for everything.
        width: In columns; None for the terminal's, 100 at most.

    Raises:
        UserError: For a word that is no group.
    """
    width = width or min(100, shutil.get_terminal_size().columns)
    sections = {"run": ("The run", [Described("", "", tuple(_options(RUN)))])}
    sections |= {"trainer": ("trainer", [Described("", "", tuple(_options(TRAINER, "trainer.")))])}
    found = groups()
    order = sorted(found, key=lambda group: ORDER.index(group.split("/")[0]))
    sections |= {group: (group, found[group]) for group in order}
    unknown = [word for word in asked if word not in sections]
    if unknown:
        there = ", ".join(sections)
        raise UserError(f"--help takes the groups {there}; got {', '.join(unknown)}")
    parts = [] if asked else [USAGE.format(train=command_line("train")).strip()]
    for name in asked or sections:
        parts.append("\n".join(_section(*sections[name], width)))
    return "\n\n".join(parts)


def _section(group: str, choices: list[Described], width: int) -> Iterator[str]:
    if choices[0].name:
        yield from _choices(group, choices, width)
    else:
        yield group
    if group not in WITHOUT_KEYS:
        yield from _keys(group, choices, width)


def _choices(group: str, choices: list[Described], width: int) -> Iterator[str]:
    default = defaults().get(group)
    yield f"{group}=" + (f"   default: {default}" if default else "")
    for choice in choices:
        name = f"  {choice.name:12} "
        if len(name) > 15:
            yield name.rstrip()
            name = " " * 15
        yield from _wrap(name, choice.about, width, 15)


def _keys(group: str, choices: list[Described], width: int) -> Iterator[str]:
    inner = group.replace("/", ".")
    keys = dict.fromkeys(option.key for choice in choices for option in choice.options)
    for key in keys:
        said = [(c.name, o) for c in choices for o in c.options if o.key == key]
        if any(option.value for _, option in said):  # else only a place for others
            dotted = f"{inner}.{key}" if choices[0].name else key
            everywhere = len(said) == sum(bool(choice.options) for choice in choices)
            yield from _wrap("  ", f"{dotted} = {values_of(said, everywhere)}", width, 8)
            yield from _meanings(said, width)


def values_of(said: list[tuple[str, Option]], everywhere: bool) -> str:
    """Return the defaults of a key: `0.2`, or `50 (diagonal, kronecker), 1 (fisher)`."""
    if len(said) > 1 and all(name == option.value for name, option in said):
        return "(the name of the choice)"
    found: dict[str, list[str]] = {}
    for name, option in said:
        found.setdefault(option.value, []).append(name)
    if len(found) == 1 and everywhere:
        return next(iter(found))
    return ", ".join(f"{value} ({', '.join(names)})" for value, names in found.items())


def _meanings(said: list[tuple[str, Option]], width: int) -> Iterator[str]:
    found: dict[str, list[str]] = {}
    for name, option in said:
        text, line, lines = option.meaning.partition("\n")
        takes = "" if option.takes in text else f" ({option.takes})"
        found.setdefault(text + takes + line + lines, []).append(name)
    for meaning, names in found.items():
        label = f"{', '.join(names)}: " if len(found) > 1 else ""
        yield from _wrap("      ", label + meaning, width, 6)


def _wrap(start: str, text: str, width: int, indent: int) -> Iterator[str]:
    """Wrap a text behind its start; lines of its own stay so."""
    for number, line in enumerate(text.splitlines() or [""]):
        first = start if number == 0 else " " * (indent + 2)
        rest = " " * (indent if number == 0 else indent + 13)
        words = re.sub(r"^ +(\w+) +", r"\1   ", line) if number else line
        yield from textwrap.wrap(
            words, width, initial_indent=first, subsequent_indent=rest, break_long_words=False
        ) or [first.rstrip()]
