"""The check of options against the schemas: all that is wrong with them, in words."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from nws.errors import UserError
from nws.experiment.options.configuration import locate
from nws.experiment.options.schemas.choices import (
    GROUP_SCHEMAS,
    PART,
    PART_SCHEMAS,
    PARTS,
    Group,
    schemas_of,
)
from nws.experiment.options.schemas.run import RunOptions, TrainerOptions
from nws.experiment.options.schemas.schema import Schema
from nws.experiment.options.schemas.values import (
    SPECIAL,
    Options,
    Problem,
    check_names,
    check_values,
)

Schemas = Sequence[type[Schema]]


def check_group(group: str, options: Options) -> Iterator[Problem]:
    """Yield what is wrong with the options of a group whose class `_target_` names."""
    yield from _check_named(group, options, GROUP_SCHEMAS[group], schemas_of(group))


def _check_named(key: str, options: Options, spec: Group, schemas: Schemas) -> Iterator[Problem]:
    """Yield what is wrong with the options of a class or function that `_target_` names.

    One that has a schema is checked by it. Another one is checked by its signature, and by what all
    classes of the group take.
    """
    target = options.get("_target_", _default_target(key, options))
    if target is None and spec.null:
        if key == "logger":  # the other groups keep the options of the class that is not there
            yield from check_names(key, options, [], "logger=none takes no options")
        return
    if not isinstance(target, str) or not target:
        yield _no_target(key, target, spec, spec.schemas or schemas)
        return
    try:
        function = locate(target, key)
    except UserError as error:
        yield Problem(f"{key}._target_", str(error))
        return
    schema = _schema_of(function, target, schemas)
    own = _own_options(key, options)
    if schema is not None:
        yield from check_values(schema, own, key)
        yield from _check_partial(key, options, schema)
    else:
        yield from _check_common(key, own, spec, function)
    yield from _check_signature(key, own, spec, function, schema)
    for name, value in own.items():
        yield from _check_part(f"{key}.{name}", value, schema, name)


def _own_options(key: str, options: Options) -> Options:
    """Return the options that a class gets; a metric's memory of 1 is what any has anyway."""
    aside = {*SPECIAL, *["memory"] * (key == "metric" and options.get("memory") == 1)}
    return {name: value for name, value in options.items() if name not in aside}


def _default_target(group: str, options: Options) -> object:
    """Return what runs of earlier versions mean without `_target_`."""
    if group == "data":
        return f"nws.data.load_{options.get('name')}"
    return "nws.models.HelmholtzMachine" if group == "model" else ""


def _no_target(key: str, target: object, spec: Group, schemas: Schemas) -> Problem:
    name = f"{key}._target_"
    example = f"; for instance {name}={schemas[0].target}" if schemas else ""
    said = f"is missing; it must name {spec.what}" if target == "" else (
        f"must name {spec.what}, got {'null' if target is None else repr(target)}"
    )  # fmt: skip
    return Problem(name, f"{name} {said}{example}")


def _schema_of(function: object, target: str, schemas: Schemas) -> type[Schema] | None:
    for each in schemas:
        if each.target == target or _located(each.target) is function:
            return each
    return None


@cache
def _located(target: str) -> object:
    try:
        return locate(target, "")
    except UserError:  # of a package that is not installed
        return None


def whole_numbers(group: str, options: Options) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a good group whose whole numbers are written as floats, and the numbers."""
    known: dict[str, type[Schema]] = {"trainer": TrainerOptions, "": RunOptions}
    schema = known.get(group)
    if schema is None:
        target = options.get("_target_", _default_target(group, options))
        named = isinstance(target, str)
        schema = _schema_of(_located(target), target, schemas_of(group)) if named else None
        schema = schema or GROUP_SCHEMAS[group].common
    fields = schema.model_fields if schema else {}
    for name in fields.keys() & options.keys():
        value = options[name]
        kind: Any = fields[name].annotation
        if fields[name].metadata:
            kind = Annotated[(kind, *fields[name].metadata)]
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        try:
            whole = adapter.validate_python(value, strict=True)
        except ValidationError:
            continue
        if isinstance(whole, int | list) and repr(whole) != repr(value):
            yield f"{group}.{name}".lstrip("."), whole


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", str(function))


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # of a builtin
        return None


def _check_common(
    key: str, options: Options, spec: Group, function: Callable[..., Any]
) -> Iterator[Problem]:
    """Yield what is wrong with the options that all classes of a group take."""
    if spec.common is not None:
        own = (_parameters(function) or {}) if spec.own_first else {}
        shared = {name: value for name, value in options.items() if name not in own}
        yield from check_values(spec.common, shared, key, missing=False)


def _check_partial(key: str, options: Options, schema: type[Schema]) -> Iterator[Problem]:
    partial = options.get("_partial_", False)
    if partial is not schema.partial:
        said = "true: the function is called later" if schema.partial else "left out"
        yield Problem(f"{key}._partial_", f"{key}._partial_ must be {said}, got {partial!r}")


def _check_signature(
    key: str, options: Options, spec: Group, function: Callable[..., Any],
    schema: type[Schema] | None,
) -> Iterator[Problem]:  # fmt: skip
    """Yield options that a class does not take, and those that it needs and does not get."""
    parameters = _parameters(function)
    if schema is not None and not schema.others:
        yield from check_names(key, options, schema.model_fields)
    elif parameters is not None:
        names = dict(list(parameters.items())[spec.given or 0 :])
        fields = [] if schema is None else list(schema.model_fields)
        if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            known = dict.fromkeys([*fields, *names, *spec.taken])
            reason = "" if fields else f"{key}._target_={_name(function)} takes no option {{}}"
            yield from check_names(key, options, known, reason)
        yield from _check_kinds(key, options, names, fields, function)
        if not fields and spec.given is not None:
            given = {*options, *spec.keywords}
            yield from _check_needed(key, given, names, _name(function))


def _check_kinds(
    key: str, options: Options, names: Mapping[str, inspect.Parameter], aside: Iterable[str],
    function: Callable[..., Any],
) -> Iterator[Problem]:  # fmt: skip
    """Yield options of another kind than the default in the signature, or a number's in torch's."""
    of_torch = str(function.__module__).startswith("torch.")
    for name in sorted(names.keys() & options.keys() - {*aside}):
        value, default = options[name], names[name].default
        if isinstance(default, bool):
            wrong, kind = not (value is None or isinstance(value, bool)), "true or false"
        else:
            annotated = names[name].annotation in ("int", "float")
            number = annotated or isinstance(default, int | float)
            text = isinstance(value, str) and value != "total_steps"
            wrong, kind = of_torch and number and (text or isinstance(value, bool)), "a number"
        if wrong:
            yield Problem(f"{key}.{name}", f"{key}.{name} must be {kind}, got {value!r}")


def _check_needed(
    key: str, given: Iterable[str], names: Mapping[str, inspect.Parameter], called: str
) -> Iterator[Problem]:
    """Yield the arguments that a class needs and does not get."""
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    for name, each in names.items():
        if each.default is each.empty and each.kind in kinds and name not in given:
            text = f"{key}.{name} is missing; {called} needs it: +{key}.{name}=VALUE"
            yield Problem(f"{key}.{name}", text)


def _check_part(
    key: str, value: object, schema: type[Schema] | None, name: str
) -> Iterator[Problem]:
    """Yield what is wrong with an option that is an object or a function by itself."""
    if isinstance(value, Mapping) and ("_target_" in value or (schema and name in PARTS)):
        yield from _check_named(key, value, PARTS.get(name, PART), PART_SCHEMAS)
