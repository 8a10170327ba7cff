"""The tables of options in docs/configuration.md, from the schemas."""

from __future__ import annotations

import re

from nws.experiment.options.help import Described, Option, describe, groups
from nws.experiment.options.schemas.run import RUN, TRAINER

#: Around a table in the page: the groups that it is of, `run` for the keys beside the groups.
PLACE = re.compile(r"(<!-- options: ([\w/ ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
HEAD = "| option | default | what it takes | what it is |\n| --- | --- | --- | --- |\n"


def with_tables(page: str) -> str:
    """Return the text of a page with its tables as the schemas have them."""
    return PLACE.sub(lambda found: found[1] + table(found[2].split()) + found[3], page)


def table(names: list[str]) -> str:
    """Return the table of some groups' options."""
    found = groups() | {"trainer": [describe("", TRAINER)], "run": [describe("", RUN)]}
    rows = []
    for name in names:
        prefix = "" if name == "run" else name.replace("/", ".") + "."
        rows += [_row(prefix, key, found[name]) for key in _keys(found[name])]
    return HEAD + "".join(rows)


def _keys(choices: list[Described]) -> list[str]:
    """Return the keys that choices have, each once."""
    return list(dict.fromkeys(each.key for choice in choices for each in choice.options))


def _row(prefix: str, key: str, choices: list[Described]) -> str:
    said = [(x.name, each) for x in choices for each in x.options if each.key == key]
    takes = dict.fromkeys(x.takes.replace(" (docs/extending.md)", "") for _, x in said)
    own = [each for each in choices if [x.key for x in each.options] not in ([], ["name"])]
    everywhere = len(said) >= len(own)
    cells = (
        f"`{prefix}{key}`",
        _default(said, everywhere),
        _cell("; ".join(takes)),
        _cell(_meaning(said)),
    )
    return f"| {' | '.join(cells)} |\n"


def _default(said: list[tuple[str, Option]], everywhere: bool) -> str:
    """Return `10` of all choices, or `10` (bihm, rws), `1` (ws)."""
    found: dict[str, list[str]] = {}
    for name, option in said:
        found.setdefault(option.value, []).append(name)
    if len(said) > 1 and all(name == option.value for name, option in said):
        return "the name of the choice"
    shown = {
        value: f" ({', '.join(names)})" * (len(found) > 1 or not everywhere)
        for value, names in found.items()
    }
    return ", ".join(f"`{value}`{names}" for value, names in shown.items() if value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


def _meaning(said: list[tuple[str, Option]]) -> str:
    """Return the meaning of a key; where choices differ, that of each."""
    found: dict[str, list[str]] = {}
    for name, option in said:
        found.setdefault(_sentence(option.meaning), []).append(f"`{name}`")
    if len(found) == 1:
        return next(iter(found))
    parts = (f"{', '.join(names)}: {text[0].lower()}{text[1:]}" for text, names in found.items())
    return " ".join(parts)


def _sentence(text: str) -> str:
    """Return a meaning as a sentence; its lines, `  resample   drawn again`, behind each other."""
    text = re.sub(r"\.?\n +(\w+) +", r"; `\1`: ", text)
    return f"{text[0].upper()}{text[1:].rstrip('.')}."
