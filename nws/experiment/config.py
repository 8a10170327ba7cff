"""The configuration: sections as dictionaries, their checks, and the objects that they name.

An option has one source, the parameter of the class or function that a section's `_target_` names.
So a section is held against that signature, and the values are checked by the constructor.
"""

import difflib
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.machinery import PathFinder
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from nws.errors import UserError
from nws.experiment.boundary import describe

#: Keys that an object's section may have beside its parameters.
HYDRAS = ("_target_", "_partial_")
#: What a saved run may name: parts of machines and of learning, which call nothing by a text.
PARTS = ("models", "natural", "learning", "data", "schedules", "experiment.callbacks")
OURS = tuple(f"nws.{part}." for part in PARTS)
#: A saved run may name these, too, of the libraries of the extra `rivals`.
RIVALS = ("pytorch_optimizer.SOAP", "schedulefree.AdamWScheduleFree")
LIBRARIES = {each.partition(".")[0] for each in RIVALS}
OF_TORCH = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
DATA_ROOT = "${oc.env:NWS_DATA_ROOT,data}"  # of an exported machine


class Mistakes:
    """Collects the `UserError`s of several checks, to say them together."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def attempt(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return what a function returns; None where it raises a `UserError`, which is kept."""
        try:
            return function(*arguments, **options)
        except UserError as error:
            self.texts.append(str(error))

    def say(self) -> None:
        """Raise `UserError` where there were some, with all of them."""
        # The same one may be found twice, with another list of what there is.
        texts = [*{text.partition("; ")[0]: text for text in self.texts}.values()]
        if texts:
            head = [f"{len(texts)} mistakes in the options:"] * (len(texts) > 1)
            raise UserError("\n  ".join([*head, *texts]))


def to_dict(section: Any) -> dict[str, Any]:
    """Return a section with its interpolations resolved, as dictionaries and lists."""
    items: Any = OmegaConf.to_container(section, resolve=True)
    return {str(key): value for key, value in items.items()}


def at_batch(table: Any, batch: Any) -> Any:
    """Return a preset's value at a batch size: between those of its table linear in logarithms.

    Outside it is the nearest one's; where one is null, the next larger's. One holds for all.
    """
    if not isinstance(table, DictConfig):
        return table
    values = {int(str(size)): table[size] for size in table}
    if batch in values:
        return values[batch]
    sizes = sorted(values)
    batch = batch if type(batch) in (int, float) and batch > 0 else sizes[0]  # an error elsewhere
    if None in values.values():
        return values[next((size for size in sizes if size >= batch), sizes[-1])]
    known = np.log([values[size] for size in sizes])
    return float(f"{np.exp(np.interp(np.log(batch), np.log(sizes), known)):.3g}")


OmegaConf.register_new_resolver("at_batch", at_batch, replace=True)


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested dictionaries as one, its keys joined by dots. A list is a value."""
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    flat: dict[str, Any] = {}
    for name, each in value.items():
        flat |= flatten(each, f"{prefix}.{name}" if prefix else str(name))
    return flat


def typed(overrides: Any) -> list[str]:
    """Return a list of overrides that Hydra keeps, as they were typed."""
    listed: Any = OmegaConf.to_container(overrides, resolve=False)
    return [str(each) for each in listed]


def override_key(text: str) -> str:
    """Return the key of an override such as model.layers=[4]; of a group, as in optimizer=sgd."""
    return text.split("=", 1)[0].lstrip("+~").split("@")[0].replace("/", ".")


def own_targets(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield each `_target_` in dictionaries and lists that is not known, with its section's key."""
    if OmegaConf.is_config(value):
        value = OmegaConf.to_container(value, resolve=False)
    for name, each in value.items() if isinstance(value, dict) else enumerate(value):
        if name == "_target_" and each is not None and not is_known(str(each)):
            yield key, str(each)
        elif isinstance(each, dict | list):
            yield from own_targets(each, f"{key}.{name}".lstrip("."))


def foreign_modules(config: DictConfig) -> list[str]:
    """Return the modules that a configuration names besides ours, which `trust` has to name."""
    return sorted({target.partition(".")[0] for _, target in own_targets(config)})


def check_trust(config: DictConfig, trusted: Sequence[str], where: object) -> None:
    """Raise `UserError` where a saved configuration names code that nobody asked for.

    What a saved run names is called only if it is one of `OURS` or of `RIVALS`, an optimizer or a
    scheduler of torch, or of a module that the user names now: of `trusted`. `where` is the run.
    """
    if "${" in OmegaConf.to_yaml(config).replace(DATA_ROOT, ""):
        raise UserError(f"{where} has references (${{..}}) in its configuration, as no run does")
    trusted = [trusted] if isinstance(trusted, str | float | int) else trusted
    prefixes = tuple(f"{each}." for each in trusted)
    for key, target in own_targets(config):
        module, trusts = target.partition(".")[0], f"{target}.".startswith(prefixes)
        way = f"add 'trust=[{module}]' to train.py, or --trust {module} to others, to trust it"
        with suppress(UserError):  # what is not here is said where it is called
            if trusts:  # a module, not what it imports
                found = locate(target, key)
                home = str(getattr(getattr(found, "func", found), "__module__", None))
                trusts = f"{home}.".startswith((*prefixes, *OURS))
                way = f"{module} has it from {home}; write it as a function or class in {module}"
        if not trusts:
            raise UserError(f"{where} wants to call {target} ({key}._target_); {way}")


def is_known(target: str) -> bool:
    """Return whether a name is of `OURS` or `RIVALS`, or an optimizer or scheduler of torch."""
    if target in RIVALS:
        return True
    if not target.startswith(("nws.", "torch.optim.")):
        return False
    try:
        found = pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError):
        return False
    if target.startswith("torch.optim."):
        return isinstance(found, type) and issubclass(found, OF_TORCH)
    return callable(found) and f"{getattr(found, '__module__', '')}.".startswith(OURS)  # not posix


def locate(target: object, option: str) -> Callable[..., Any]:
    """Import what a `_target_` names, also of a file in this directory; `LIBRARIES` never are."""
    package, here = str(target).partition(".")[0], os.getcwd()
    if package in LIBRARIES:
        path = [each for each in sys.path if each not in ("", here)]
        spec, first = (PathFinder.find_spec(package, each) for each in (path, None))
        if spec is None or first is None or first.origin != spec.origin:
            what = f"the package {package}, which is not installed or which a file here hides"
            way = "pip install -c constraints.txt '.[rivals]'"
            raise UserError(f"{option}._target_={target} needs {what}: {way}")
    elif package not in ("nws", "torch") and here not in sys.path:
        sys.path.append(here)
    try:
        found = pkgutil.resolve_name(str(target))
    except Exception as error:  # a file of the user's own may raise any
        way = "; your own file must lie in the working directory, beside train.py or on PYTHONPATH"
        why = f"cannot be imported ({describe(error)}){way * isinstance(error, ImportError)}"
        raise UserError(f"{option}._target_={target} {why}") from error
    if not callable(found):
        raise UserError(f"{option}._target_ must name a function or a class, got {target}")
    return found


def parameters_of(found: Callable[..., Any]) -> tuple[list[str], bool]:
    """Return the names of what a class or function takes, and whether it takes any others."""
    try:
        taken = inspect.signature(found).parameters.values()
    except (ValueError, TypeError):  # a builtin that does not say
        return [], True
    names = [each.name for each in taken if not each.kind.name.startswith("VAR_")]
    # This library takes any names, and ignores those that it does not know.
    ignores = str(getattr(found, "__module__", "")).startswith("pytorch_optimizer.")
    return names, not ignores and any(each.kind is each.VAR_KEYWORD for each in taken)


def check_names(option: str, given: Sequence[str], taken: Sequence[str], owner: str) -> None:
    """Raise `UserError` for a key of a section that its class does not take."""
    prefix = f"{option}." if option else ""
    for name in given:
        if name not in taken:
            way = f"it takes {', '.join(taken) or 'none'}; ~{prefix}{name} leaves it out"
            for close in difflib.get_close_matches(name, taken, 1):
                way = f"did you mean {prefix}{close}?"
            raise UserError(f"{prefix}{name} is no option of {owner}; {way}")


def check_section(option: str, section: Any, more: Sequence[str] = ()) -> None:
    """Hold the keys of a section, and of those within it, against the signatures they are for.

    `more` are names that the caller takes out of the section, or gives beside it.
    """
    if not isinstance(section, dict):
        return
    if "_target_" in section:
        target = section["_target_"]
        names, takes_others = parameters_of(locate(target, option)) if target else ([], False)
        if not takes_others:
            given = [key for key in section if key not in HYDRAS]
            owner = str(target or f"{option}=none")
            check_names(option, given, [*dict.fromkeys([*names, *more])], owner)
    for key, each in section.items():
        check_section(f"{option}.{key}", each)


def make(section: dict[str, Any], option: str, *arguments: Any, **extra: Any) -> Any:
    """Return the object that a section's `_target_` names, made from its other keys.

    Sections within it become objects as well; with `_partial_: true` functions that lack the rest
    of their arguments, where they name no class. `arguments` and `extra` come beside these.
    """
    check_section(option, section, list(extra))
    options = {key: made_of(each, f"{option}.{key}") for key, each in section.items()}
    found, late = locate(options.pop("_target_"), option), options.pop("_partial_", False)
    if late and not isinstance(found, type):
        return partial(found, *arguments, **options, **extra)
    maker = getattr(found, "__init__", None) if isinstance(found, type) else found
    kinds = getattr(maker, "__annotations__", {})
    for key, each in options.items():
        kind = getattr(kinds.get(key), "__name__", str(kinds.get(key)))  # some are texts
        if isinstance(each, str) and kind in ("bool", "bool | None"):
            raise UserError(f"{option}.{key} must be true or false, got {each!r}")
        if each is None and kind in ("bool", "int", "float"):
            raise UserError(f"{option}.{key} must be of type {kind}, got null")
    try:
        return found(*arguments, **options, **extra)
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except ModuleNotFoundError as error:
        raise UserError(f"{option} needs the package {error.name}, not installed here") from error
    except Exception as error:
        inner = error.__traceback__ and error.__traceback__.tb_next
        own = {k: v for k, v in section.items() if k not in HYDRAS and not torch.is_tensor(v)}
        reason = f"cannot be made from the options {own}: {describe(error.with_traceback(inner))}"
        raise UserError(f"{option}: {section['_target_']} {reason}") from error


def made_of(value: Any, option: str) -> Any:
    """Return a value with the objects in place of its sections."""
    if isinstance(value, dict):
        if value.get("_target_") is not None:
            return make(value, option)
        return {key: made_of(each, f"{option}.{key}") for key, each in value.items()}
    return [made_of(each, option) for each in value] if isinstance(value, list) else value


def filled(value: Any, total_steps: int) -> Any:
    """Return a section in which the number stands for the value `total_steps`."""
    if isinstance(value, dict):
        return {key: filled(each, total_steps) for key, each in value.items()}
    if isinstance(value, list):
        return [filled(each, total_steps) for each in value]
    return total_steps if value == "total_steps" else value
