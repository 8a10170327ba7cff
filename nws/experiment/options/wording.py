"""Hydra's errors of composition, in words for people."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from functools import cache

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf

from nws.experiment.options.configuration import GROUPS, flatten_config
from nws.experiment.options.schemas.check import Problem
from nws.experiment.options.schemas.choices import CHOICES
from nws.experiment.options.schemas.run import RUN, TRAINER
from nws.experiment.options.schemas.schema import Choice


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
        problem = Problem(group, _no_choice(group, choice, error.options or ()))
        return problem, _without(group, overrides)
    if isinstance(error, OverrideParseException):
        return about_override(error.override), [x for x in overrides if x != error.override]
    merged = re.search(r"merging override (\S+)", str(error))
    if merged:
        cause = str(error.__cause__ or error).splitlines()[0]
        problem = Problem(_key(merged[1]), f"{merged[1]} does not fit: {cause}")
        return problem, [each for each in overrides if each != merged[1]]
    return _about_key(str(error) or type(error).__name__, overrides, config)


def _without(key: str, overrides: Sequence[str]) -> list[str]:
    return [each for each in overrides if _key(each) != key]


def _about_key(
    text: str, overrides: Sequence[str], config: DictConfig | None
) -> tuple[Problem, list[str]]:
    """Return what Hydra says of a key, and the overrides without it."""
    found = re.search(r"(?:override |config\. |at |argument )'([^']+)'", text)
    key = found[1].partition("=")[0].lstrip("+~") if found else ""
    given = next((each for each in overrides if _key(each) == key), key)
    problem = Problem(key, text.splitlines()[0])
    if "Ambiguous value" in text:
        problem = about_override(given)
    elif "Could not override" in text or "Could not delete" in text:
        problem = Problem(key, _no_option(given, key, config))
    elif "already at" in text:
        problem = Problem(key, f"{given}: {key} is there already; leave the + out")
    return problem, _without(key, overrides)


def about_override(text: str) -> Problem:
    """Return the problem of an argument that is no option, or has several values."""
    key, equals, _ = text.partition("=")
    if not equals and not text.startswith("~"):
        said = f"{text!r} is no option: give key=value, as in optimizer.lr=0.1"
    elif "," in text and not set("[]{}()'\"") & set(text):
        said = (
            f"{text} has several values: add -m for a run of each, or write {key}=[...] for a list"
        )
    elif any(word in text for word in ("range(", "choice(", "interval(", "glob(")):
        said = f"{text} has several values: add -m for a run of each"
    else:
        said = f"{text} cannot be read: quote it for the shell, and as '{key}=\"text\"' for a text"
    return Problem(_key(text), said)


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~").partition("@")[0]


def _no_choice(group: str, choice: str, options: Sequence[str]) -> str:
    close = difflib.get_close_matches(choice, options, 1)
    meant = f"did you mean {group}={close[0]}? " if close else ""
    return f"{group} has no choice {choice}; {meant}The choices are {', '.join(options)}".replace(
        "; The", "; the"
    )


def _no_option(given: str, key: str, config: DictConfig | None) -> str:
    close = suggestion(key, config)
    if given.startswith("~"):
        there = f"; did you mean ~{close}?" if close else ", so it cannot be removed"
        return f"there is no option {key}{there}"
    group = key.partition(".")[0]
    if close:
        way = f"did you mean {close}?"
    elif group in (*GROUPS, "trainer") and "." in key:
        way = f"python train.py --help {group} lists the options of {group}"
    else:
        way = "python train.py --help lists the options"
    own = "" if close or "." not in key else f"; an option of a class of your own is +{given}"
    return f"there is no option {key}{_elsewhere(key)}; {way}{own}"


def _elsewhere(key: str) -> str:
    """Return the choices that have an option, where there are some."""
    group, _, inner = key.partition(".")
    choices = {
        name: each.values()
        for name, each in CHOICES.get(group, {}).items()
        if isinstance(each, Choice)
    }
    have = [f"{group}={name}" for name, values in choices.items() if inner in values]
    return f" here, only with {' or '.join(have)}" if have else ""


def suggestion(key: str, config: DictConfig | None) -> str | None:
    """Return the option that was meant, perhaps.

    Its name is close, or it has the same name in another group, or its help text has the words.
    """
    keys = list(_meanings())
    if config is not None:
        job = OmegaConf.masked_copy(config, [str(each) for each in config if each != "hydra"])
        keys = list(flatten_config(OmegaConf.to_container(job, resolve=False)))
    prefix, _, leaf = key.rpartition(".")
    siblings = [each for each in keys if each.rpartition(".")[0] == prefix]
    if "." not in key:
        siblings = [*siblings, *GROUPS, "experiment", "debug", "natural_metric"]
    words = leaf.replace("_", " ")
    found = [
        *difflib.get_close_matches(key, siblings, 1, 0.75),
        *(each for each in keys if each.rpartition(".")[2] == leaf and leaf != "_target_"),
        *(each for each in siblings if len(words) > 3 and words in _meanings().get(each, "")),
        *difflib.get_close_matches(key, keys, 1, 0.75),
    ]
    return found[0] if found else None


@cache
def _meanings() -> dict[str, str]:
    """Return the help text of each option."""
    found = dict(_described(RUN, "")) | dict(_described(TRAINER, "trainer."))
    for group, choices in CHOICES.items():
        for choice in choices.values():
            if isinstance(choice, Choice):
                found |= dict(_described(choice, group.replace("/", ".") + "."))
    return found


def _described(choice: Choice, prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in choice.values().items():
        yield prefix + name, choice.meaning(name)
        if isinstance(value, Choice):
            yield from _described(value, f"{prefix}{name}.")
