"""Sections of the configuration as dictionaries, and the objects that their `_target_` names."""

import os
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf

from nws.errors import UserError
from nws.experiment.process.own_code import describe_error, is_library, own_place
from nws.files import PACKAGE

#: The folder of config.yaml: in an installed nws within the package, in the repository beside it.
CONF = (PACKAGE if (PACKAGE / "conf").is_dir() else PACKAGE.parent) / "conf"
#: The groups of options that every run has.
GROUPS = (
    "trainer", "algorithm", "data", "model", "metric", "solver", "damping", "optimizer",
    "scheduler", "average", "logger",
)  # fmt: skip
#: Those of them that runs of earlier versions lack.
LATER = ("average",)
#: Groups whose files set keys of the other groups.
PRESETS = ("experiment", "debug", "natural_metric")
#: The keys beside the groups.
KEYS = ("name", "seed", "device", "progress", "verbosity", "resume", *PRESETS, "tuned")


def override_key(text: str) -> str:
    """Return the key of an override such as model.layers=[4]; of a group, as in optimizer=sgd."""
    return text.split("=", 1)[0].lstrip("+~").split("@")[0].replace("/", ".")


def resolve_paths(config: DictConfig) -> None:
    """Make the paths of the data absolute, so that a run works from any working directory."""
    for key in ("root", "path"):
        if config.data.get(key) is not None:
            config.data[key] = str(Path(str(config.data[key])).expanduser().resolve())


def to_dict(section: DictConfig) -> dict[str, Any]:
    """Return a section with its interpolations resolved, as dictionaries and lists."""
    items: Any = OmegaConf.to_container(section, resolve=True)
    return {str(key): value for key, value in items.items()}


def flatten_config(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested dictionaries as one, its keys joined by dots. A list is a value."""
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    flat: dict[str, Any] = {}
    for name, each in value.items():
        flat |= flatten_config(each, f"{prefix}.{name}" if prefix else str(name))
    return flat


def locate(target: object, group: str) -> Callable[..., Any]:
    """Import the function or class that a group's `_target_` names; `UserError` for others."""
    import_from_here()
    try:
        found = pkgutil.resolve_name(str(target))
    except Exception as error:  # a file of the user's own may raise any
        raise UserError(
            f"{group}._target_={target} cannot be imported ({describe_error(error)})"
            f"{_where_it_looked(str(target), error)}"
        ) from error
    if not callable(found):
        raise UserError(f"{group}._target_ must name a function or a class, got {target}")
    return found


def _where_it_looked(target: str, error: Exception) -> str:
    """Return what to do about a name that cannot be imported, by the file that was found for it."""
    module = sys.modules.get(target.partition(".")[0].partition(":")[0])
    if own_place(error):
        return ""  # the line says it
    if module is None:
        where = "in the working directory, beside train.py, or on PYTHONPATH"
        return f"; a file of your own has to lie {where}"
    found = getattr(module, "__file__", None)
    if found is None or is_library(Path(found).resolve()):
        what = found or "a module built into Python"
        return f"; {what} was found. A file of your own needs a name that no library has"
    return f"; {found} was found, look at the name"


def instantiate(
    section: DictConfig | dict[str, Any], total_steps: int = 1, *arguments: Any, **extra: Any
) -> Any:
    """Return the object that a section's `_target_` names, made from its options and the others.

    The value `total_steps` in the options stands for the number. Raises `UserError` where the
    class does not take the options, in the class's own words.
    """
    import_from_here()
    options = to_dict(section) if isinstance(section, DictConfig) else dict(section)
    filled = _fill_in(options, total_steps)
    target = options.pop("_target_", "an object without _target_")
    try:
        return hydra.utils.instantiate(filled, _partial_=True)(*arguments, **extra)
    except Exception as error:
        source = error.__cause__ if isinstance(error, InstantiationException) else error
        if isinstance(source, UserError):
            raise source from None
        reason = _reason(source or error)
        raise UserError(f"{target} cannot be made from the options {options}: {reason}") from error


def _reason(error: BaseException) -> str:
    """Return why an object could not be made, in its class's own words."""
    text = str(error).strip()
    if not text or own_place(error):
        return f"{describe_error(error)}; NWS_DEBUG=1 shows the traceback"
    first, *rest = text.splitlines()
    if first.endswith(":") and rest:  # Hydra's, of a name that cannot be imported
        return f"{first} {rest[0]}; a file of your own has to lie in the working directory"
    return first


def import_from_here() -> None:
    """Let a `_target_` name a user's own file in the working directory."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def _fill_in(value: Any, total_steps: int) -> Any:
    if isinstance(value, dict):
        return {key: _fill_in(each, total_steps) for key, each in value.items()}
    return total_steps if value == "total_steps" else value
