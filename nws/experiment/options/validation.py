"""The whole configuration is checked before anything is built: every problem at once, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nws.errors import UserError
from nws.experiment.options.configuration import GROUPS, KEYS, LATER
from nws.experiment.options.schemas.check import check_group, whole_numbers
from nws.experiment.options.schemas.choices import GROUP_SCHEMAS
from nws.experiment.options.schemas.programs import HYDRA
from nws.experiment.options.schemas.run import RunOptions, TrainerOptions
from nws.experiment.options.schemas.values import Problem, check_names, check_values


def check_configuration(config: DictConfig, groups: Sequence[str] = ()) -> None:
    """Raise `UserError` with all that is wrong with a configuration, after its interpolations.

    Whole numbers that are written as floats (2e2) become whole.

    Args:
        config: The configuration, new or saved.
        groups: The groups that are looked at; none for everything.
    """
    raise_for(find_problems(config, groups))
    _round(config, groups)


def raise_for(problems: Sequence[Problem]) -> None:
    """Raise `UserError` where there are problems, with all of them."""
    texts = list(dict.fromkeys(each.text for each in problems))
    if len(texts) == 1:
        raise UserError(texts[0])
    if texts:
        raise UserError("\n  ".join([f"{len(texts)} problems with the options:", *texts]))


def find_problems(config: DictConfig, groups: Sequence[str] = ()) -> list[Problem]:
    """Return all that is wrong with a configuration, or with some of its groups."""
    absent = [name for name in groups or GROUPS if not _is_there(config, name)]
    problems = [_absent(name) for name in absent]
    quiet = bool(absent)  # what cannot be resolved refers to a group that is not there
    if not groups:
        problems += check_names("", map(str, config), [*KEYS, *GROUPS])
        values = _resolve(config, "", KEYS, problems, quiet)
        _add(problems, check_values(RunOptions, values, missing=not quiet))
    for name in groups or GROUPS:
        if name not in absent and config.get(name) is not None:
            values = _resolve(config[name], name, list(map(str, config[name])), problems, quiet)
            _add(problems, _check_section(name, values))
    return problems


def _absent(name: str) -> Problem:
    way = f"leave ~{name} out, or add {name}=CHOICE"
    if name == "trainer":  # no group of files
        way = "leave ~trainer or trainer=VALUE out, and name the option, as in trainer.epochs=10"
    return Problem(name, f"the options of {name} are missing; {way}")


def _add(problems: list[Problem], found: Iterable[Problem]) -> None:
    """Add problems, those of keys with a problem already aside."""
    known = {each.key for each in problems}
    problems += [each for each in found if each.key not in known]


def _is_there(config: DictConfig, name: str) -> bool:
    found = config.get(name)
    return isinstance(found, DictConfig) or (name in LATER and found is None)


def _check_section(name: str, values: dict[str, Any]) -> Iterator[Problem]:
    if name in GROUP_SCHEMAS:
        yield from check_group(name, values)
    else:
        yield from check_values(TrainerOptions, values, name)
        yield from check_names(name, values, TrainerOptions.model_fields)


def _resolve(
    section: DictConfig, prefix: str, keys: Sequence[str], problems: list[Problem], quiet: bool
) -> dict[str, Any]:
    """Return the values of keys without interpolations; what cannot be resolved is a problem."""
    values = {}
    for key in keys:
        if key not in section:
            continue
        try:
            value = section[key]
            plain = isinstance(value, DictConfig) or OmegaConf.is_list(value)
            values[key] = OmegaConf.to_container(value, resolve=True) if plain else value
        except OmegaConfBaseException as error:
            name = f"{prefix}.{key}" if prefix else key
            reason = str(error).splitlines()[0]
            if not quiet:  # else it refers to a group that is not there
                problems.append(Problem(name, f"{name} has no value: {reason}"))
    return values


def _round(config: DictConfig, groups: Sequence[str]) -> None:
    """Turn 200.0 into 200 where a schema takes a whole number."""
    sections = {group: config.get(group) for group in groups or GROUPS}
    if not groups:
        sections[""] = OmegaConf.create({"seed": config.seed})
    for group, section in sections.items():
        if section is not None:
            values: Any = OmegaConf.to_container(section, resolve=True)
            for key, value in whole_numbers(group, values):
                OmegaConf.update(config, key, value, merge=False)


def check_hydra(hydra_config: DictConfig) -> list[Problem]:
    """Return what is wrong with the options of Hydra's launcher and sweeper."""
    problems: list[Problem] = []
    for part in ("launcher", "sweeper"):
        section = hydra_config[part]
        for schema in HYDRA:
            if section.get("_target_") == schema.target:
                keys = [key for key in schema.model_fields if key in section]
                values = _resolve(section, f"hydra.{part}", keys, problems, False)
                values = {key: getattr(value, "name", value) for key, value in values.items()}
                problems += check_values(schema, values, f"hydra.{part}", missing=False)
    return problems
