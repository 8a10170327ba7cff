"""The check of values and names of options by a schema, and what it says of them."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import PydanticUndefined

from nws.experiment.options.schemas.choices import CHOICES
from nws.experiment.options.schemas.run import RUN, TRAINER
from nws.experiment.options.schemas.schema import LARGE, Choice, Schema, expected
from nws.experiment.options.schemas.writer import as_yaml

Options = Mapping[str, Any]
#: What Hydra's instantiate takes besides the options of a class.
SPECIAL = ("_target_", "_partial_", "_recursive_", "_convert_", "_args_")


class Problem(NamedTuple):
    """What is wrong with a key: what was expected, what came, and what to do."""

    key: str
    text: str


def check_values(
    schema: type[Schema], options: Options, prefix: str = "", missing: bool = True
) -> Iterator[Problem]:
    """Yield what is wrong with values, by a schema; keys that are `missing` too, where asked."""
    given = {name: value for name, value in options.items() if name in schema.model_fields}
    try:
        schema.model_validate(given)
        return
    except ValidationError as error:
        found = error.errors(include_url=False)
    for name in dict.fromkeys(str(each["loc"][0]) for each in found if each["loc"]):
        key = f"{prefix}.{name}" if prefix else name
        if name in given:
            yield Problem(key, f"{key} must be {_needs(schema, name, key, given[name])}")
        elif missing:
            yield Problem(key, f"{key} is missing; it must be {_needs(schema, name, key)}")
    for each in found:
        if not each["loc"]:  # of several keys
            text = each["msg"].removeprefix("Value error, ")
            yield Problem(prefix, text)


_NOTHING = object()


def _needs(schema: type[Schema], name: str, key: str, came: object = _NOTHING) -> str:
    """Return what a field takes, what came, what it means, and an example."""
    field = schema.model_fields[name]
    got = "" if came is _NOTHING else f", got {'null' if came is None else repr(came)}"
    if isinstance(came, int | float) and LARGE < came < math.inf:
        got += ", which is too large"
    meaning = (field.description or "").split("\n")[0].rstrip(".")
    return f"{expected(field)}{got} ({meaning}){_example(schema, name, key)}"


def _example(schema: type[Schema], name: str, key: str) -> str:
    """Return a value to give: the default, or that of a choice."""
    field = schema.model_fields[name]
    made = [each.values().get(name) for each in _choices() if each.schema is schema]
    for value in (*(field.examples or []), field.default, *made):
        empty = value is None or value is PydanticUndefined or isinstance(value, Choice)
        if not empty and "${" not in str(value):
            return f"; for instance {key}={as_yaml(value).replace(', ', ',')}"
    return ""


def _choices() -> list[Choice]:
    listed = [each for group in CHOICES.values() for each in group.values()]
    return [RUN, TRAINER, *(each for each in listed if isinstance(each, Choice))]


def check_names(
    prefix: str, options: Iterable[str], known: Iterable[str], reason: str = ""
) -> Iterator[Problem]:
    """Yield the keys that are not known, with those that were meant, perhaps."""
    names = [name for name in known if not name.startswith("_")]
    before = f"{prefix}." if prefix else ""
    for name in options:
        if name not in names and name not in SPECIAL:
            key = f"{before}{name}"
            said = reason.format(name) or f"there is no option {key}"
            close = difflib.get_close_matches(name, names, 1)
            there = f"the options are {', '.join(before + each for each in names)}"
            way = f"did you mean {before}{close[0]}?" if close else there if names else ""
            yield Problem(key, f"{said}; {way or 'leave it out'}" + f" (~{key})" * bool(reason))
