"""What `--help` says of every option: its meaning, unit and default, from the comments of conf/."""

import re
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nws.errors import UserError
from nws.experiment.configuration import CONF
from nws.experiment.invocation import command_line

LINE = re.compile(r"(?P<indent> *)(?P<key>\w+):(?: (?!#)(?P<value>.*?))?(?: # (?P<comment>.*))?$")
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
    """A key of a file of conf/, as the file describes it."""

    key: str  # dotted, without its group
    value: str  # the default, as it is written
    meaning: str


@dataclass(frozen=True)
class Choice:
    """A file of a group of conf/."""

    name: str
    about: str
    options: tuple[Option, ...]


def read_choice(path: Path, name: str, group: str = "") -> Choice:
    """Read a file of conf/ by its lines.

    A comment belongs to the key in its line, or to the next key. Those at the top are of the file.
    Keys with an underscore in front (`_target_`) and the defaults list are left out.
    """
    lines = path.read_text().splitlines()
    everywhere = lines[0].startswith("# @package")
    lines = lines[everywhere:]
    top = next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))
    options = tuple(_options(lines[top:]))
    if everywhere:  # keys of the group's own alone
        inside = (each for each in options if each.key.startswith(f"{group}."))
        options = tuple(
            Option(each.key.removeprefix(f"{group}."), each.value, each.meaning) for each in inside
        )
    return Choice(name, _join(line[2:] for line in lines[:top]), options)


def _options(lines: list[str]) -> Iterator[Option]:
    above: list[str] = []  # comment lines that wait for their key
    parents: list[tuple[int, str]] = []
    for line in lines:
        if line.lstrip().startswith("#"):
            above.append(line.lstrip()[2:])
            continue
        match = LINE.match(line)
        if match is None:  # an entry of the defaults list, or an empty line
            above = []
            continue
        indent, key = len(match["indent"]), match["key"]
        parents = [parent for parent in parents if parent[0] < indent]
        path = ".".join([*(parent for _, parent in parents), key])
        parents.append((indent, key))
        comments, above = [match["comment"] or "", *above], []
        value = (match["value"] or "").strip()
        if not path.startswith(("_", "defaults", "hydra")) and "._" not in path:
            yield Option(path, value, _join(comments))


def _join(lines: Iterator[str] | list[str]) -> str:
    """Join the lines of a comment; those that are indented stay lines of their own."""
    text = ""
    for line in filter(None, lines):
        text += ("\n" if line.startswith(" ") else " ") + line.rstrip()
    return text.strip()


def groups() -> dict[str, list[Choice]]:
    """Return the groups of conf/ and their choices; those of the plugins of Hydra aside."""
    found: dict[str, list[Choice]] = {}
    for path in sorted(CONF.glob("*/**/*.yaml")):
        group = str(path.parent.relative_to(CONF))
        if group.split("/")[0] in WITHOUT_KEYS:  # fashion_mnist_sweep/nrws_512 is a choice
            group = group.split("/")[0]
        if not group.startswith("hydra"):
            name = str(path.relative_to(CONF / group).with_suffix(""))
            found.setdefault(group, []).append(read_choice(path, name, group))
    return found


def defaults() -> dict[str, str]:
    """Return the choice of each group that config.yaml makes."""
    pairs = re.findall(r"^  - ([\w/]+): (\w+)", (CONF / "config.yaml").read_text(), re.MULTILINE)
    return {group: choice for group, choice in pairs if choice != "null"}


def help_text(asked: list[str], width: int | None = None) -> str:
    """Return what `--help` prints.

    Args:
        asked: Groups, and `trainer`; none for everything.
        width: In columns; None for the terminal's, 100 at most.

    Raises:
        UserError: For a word that is no group.
    """
    width = width or min(100, shutil.get_terminal_size().columns)
    run = read_choice(CONF / "config.yaml", "config").options
    trainer = [option for option in run if option.key.startswith("trainer.")]
    rest = [option for option in run if not option.key.startswith("trainer")]
    sections = {"run": ("The run", [Choice("", "", tuple(rest))])}
    sections |= {"trainer": ("trainer", [Choice("", "", tuple(trainer))])}
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


def _section(group: str, choices: list[Choice], width: int) -> Iterator[str]:
    if choices[0].name:
        yield from _choices(group, choices, width)
    else:
        yield group
    if group not in WITHOUT_KEYS:
        yield from _keys(group, choices, width)


def _choices(group: str, choices: list[Choice], width: int) -> Iterator[str]:
    default = defaults().get(group)
    yield f"{group}=" + (f"   default: {default}" if default else "")
    for choice in choices:
        name = f"  {choice.name:12} "
        if len(name) > 15:
            yield name.rstrip()
            name = " " * 15
        yield from _wrap(name, choice.about, width, 15)


def _keys(group: str, choices: list[Choice], width: int) -> Iterator[str]:
    inner = group.replace("/", ".")
    keys = dict.fromkeys(option.key for choice in choices for option in choice.options)
    for key in keys:
        said = [(c.name, o) for c in choices for o in c.options if o.key == key]
        if any(option.value for _, option in said):  # else only a place for others
            dotted = f"{inner}.{key}" if choices[0].name else key
            everywhere = len(said) == sum(bool(choice.options) for choice in choices)
            yield from _wrap("  ", f"{dotted} = {_values(said, everywhere)}", width, 8)
            yield from _meanings(said, width)


def _values(said: list[tuple[str, Option]], everywhere: bool) -> str:
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
        if option.meaning:
            found.setdefault(option.meaning, []).append(name)
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
