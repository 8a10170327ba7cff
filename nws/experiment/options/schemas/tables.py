"""The tables of options in docs/configuration.md, from the schemas."""

from __future__ import annotations

import re

from nws.experiment.options.help import Option, describe, groups, keys_of
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
        for key, said, values in keys_of(found[name], prefix, "`"):
            takes = dict.fromkeys(x.takes.replace(" (docs/extending.md)", "") for _, x in said)
            cells = f"`{key}`", values, _cell("; ".join(takes)), _cell(_meaning(said))
            rows.append(f"| {' | '.join(cells)} |\n")
    return HEAD + "".join(rows)


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
