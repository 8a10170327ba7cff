"""Hydra's errors of composition, in words for people."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf

from nws.experiment.options.configuration import GROUPS, PRESETS, flatten_config, override_key
from nws.experiment.options.help import Option, groups, options_of
from nws.experiment.options.schemas.choices import CHOICES, PART_SCHEMAS, schemas_of
from nws.experiment.options.schemas.run import RUN, TRAINER
from nws.experiment.options.schemas.values import Problem
from nws.experiment.process.invocation import command_line


def in_words(
    error: Exception, overrides: Sequence[str], config: DictConfig | None
) -> tuple[Problem, list[str]]:
    """Return what an error says, and the overrides without those that it is about.

    Args:
        error: Of Hydra, while it composed the overrides.
        overrides: As they were given.
        config: What the others compose, for suggestions.
    """
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, choice = error.missing_cfg_file.rpartition("/")
        problem = Problem(override_key(group), _no_choice(group, choice, error.options or ()))
        return problem, _without(group, overrides)
    if isinstance(error, OverrideParseException):
        return unreadable(error.override), [x for x in overrides if x != error.override]
    merged = re.search(r"merging override (\S+)", str(error))
    if merged:
        cause = str(error.__cause__ or error).splitlines()[0]
        problem = Problem(override_key(merged[1]), f"{merged[1]} does not fit: {cause}")
        return problem, [each for each in overrides if each != merged[1]]
    return _about_key(str(error) or type(error).__name__, overrides, config)


def _without(key: str, overrides: Sequence[str]) -> list[str]:
    return [each for each in overrides if override_key(each) != override_key(key)]


def _about_key(
    text: str, overrides: Sequence[str], config: DictConfig | None
) -> tuple[Problem, list[str]]:
    """Return what Hydra says of a key, and the overrides without it."""
    found = re.search(r"(?:override |config\. |at |argument )'([^']+)'", text)
    key = found[1].partition("=")[0].lstrip("+~") if found else ""
    given = next((each for each in overrides if override_key(each) == override_key(key)), key)
    problem = Problem(override_key(key), text.splitlines()[0])
    if "Ambiguous value" in text:
        problem = several_values(given)
    elif "Could not override" in text or "Could not delete" in text:
        problem = Problem(override_key(key), _no_option(given, key, config))
    elif "already at" in text:
        problem = Problem(override_key(key), f"{given}: {key} is there already; leave the + out")
    return problem, _without(key, overrides)


def unreadable(text: str) -> Problem:
    """Return the problem of an argument that Hydra cannot read."""
    key, equals, value = text.partition("=")
    if not equals and not text.startswith("~"):
        said = f"{text!r} is no option: give key=value, as in optimizer.lr=0.1"
    elif value and "" in value.split(","):
        said = f"{text} has a comma with no value beside it; give a value there, or leave it out"
    else:
        said = f"{text} cannot be read: quote it for the shell, and as '{key}=\"text\"' for a text"
    return Problem(override_key(text), said)


def several_values(text: str) -> Problem:
    """Return the problem of an argument of a sweep, where there is no sweep."""
    said = f"{text} has several values: add -m for a run of each"
    if not set("[]{}()'\"") & set(text):
        said += f", or write {text.partition('=')[0]}=[...] for a list"
    return Problem(override_key(text), said)


def _no_choice(group: str, choice: str, options: Sequence[str]) -> str:
    close = difflib.get_close_matches(choice, options, 1)
    meant = f"did you mean {group}={close[0]}? The" if close else "the"
    return f"{group} has no choice {choice}; {meant} choices are {', '.join(options)}"


def _no_option(given: str, key: str, config: DictConfig | None) -> str:
    """Return what to do about an option that is not there."""
    present = _present(config)
    close = suggestion(key, present)
    if given.startswith("~"):
        there = f"; did you mean ~{close}?" if close in present else ", so it cannot be removed"
        return f"there is no option {key}{there}"
    typed = given.lstrip("+")
    if _is_known(key, present):
        return f"{key} is not in the file of {key.partition('.')[0]}; give +{typed} to add it"
    having = _choices_with(key)
    if having:
        return f"there is no option {key} here, only with {having}; {_help(key)}"
    if close is None:
        own = f"; an option of a class of your own is +{typed}" if "." in key else ""
        return f"there is no option {key}; {_help(key)}{own}"
    if _is_known(close, present) and close not in present:
        close = f"+{close}"
    elif close not in present and _choices_with(close):
        close += f", with {_choices_with(close)}"
    return f"there is no option {key}; did you mean {close}?"


def _help(key: str) -> str:
    group = key.partition(".")[0]
    if group in GROUPS and "." in key:
        return f"{command_line('train', '--help', group)} lists the options of {group}"
    return f"{command_line('train', '--help')} lists the options"


def _present(config: DictConfig | None) -> dict[str, Any]:
    """Return the options that a configuration has, and the groups."""
    if config is None:
        return {}
    job = OmegaConf.masked_copy(config, [str(each) for each in config if each != "hydra"])
    found = flatten_config(OmegaConf.to_container(job, resolve=False))
    return found | dict.fromkeys([*GROUPS, *PRESETS, *CHOICES])


def _is_known(key: str, present: dict[str, Any]) -> bool:
    """Return whether the class that a configuration names at this place takes an option."""
    prefix, _, name = key.rpartition(".")
    schemas = [each for group in CHOICES for each in schemas_of(group)] + [*PART_SCHEMAS]
    target = present.get(f"{prefix}._target_")
    return any(each.target == target and name in each.model_fields for each in schemas if target)


def _choices_with(key: str) -> str:
    """Return the choices whose files have an option; else those whose classes take it."""
    have = [
        (f"{group}={choice.name}", each.added)
        for group in CHOICES
        for choice in groups()[group]
        for each in choice.options
        if key == f"{group.replace('/', '.')}.{each.key}"
    ]
    return " or ".join([name for name, added in have if not added] or [name for name, _ in have])


def suggestion(key: str, present: Iterable[str]) -> str | None:
    """Return the option that was meant, perhaps.

    Its name is close, or it has the same name in another group, or its help text begins with it.

    Args:
        key: What was given.
        present: The options that are there; those of other choices are looked at after them.
    """
    prefix, _, leaf = key.rpartition(".")
    hidden = leaf.startswith("_")
    known = dict.fromkeys([*present, *_meanings()])
    keys = [each for each in known if _leaf(each).startswith("_") == hidden]
    siblings = [each for each in keys if each.rpartition(".")[0] == prefix]
    same = [each for each in keys if _leaf(each) == leaf and not hidden]
    words = leaf.replace("_", " ").lower()
    found = [
        *_alike(leaf, siblings),
        *sorted(same, key=lambda each: -difflib.SequenceMatcher(None, key, each).ratio()),
        *(each for each in siblings if _says(_meanings().get(each, ""), words)),
        *(_alike(leaf, keys) if not siblings or not prefix else []),
    ]
    return found[0] if found else None


def _leaf(key: str) -> str:
    return key.rpartition(".")[2]


def _alike(leaf: str, keys: Sequence[str]) -> list[str]:
    """Return the key whose last word is close, if there is one."""
    by_leaf = {_leaf(each): each for each in reversed(keys)}
    return [by_leaf[each] for each in difflib.get_close_matches(leaf, by_leaf, 1, 0.75)]


def _says(meaning: str, words: str) -> bool:
    """Return whether a help text is about words: its symbol, as in `K, samples`, or in it."""
    meaning = meaning.lower()
    return meaning.partition(",")[0] == words or (len(words) > 3 and words in meaning)


@cache
def _meanings() -> dict[str, str]:
    """Return the help text of each option of each choice."""
    options: list[Option] = [*options_of(RUN), *options_of(TRAINER, "trainer.")]
    found = {each.key: each.meaning for each in options}
    for group in CHOICES:
        for choice in groups()[group]:
            prefix = group.replace("/", ".") + "."
            found |= {prefix + each.key: each.meaning for each in choice.options}
    return found
