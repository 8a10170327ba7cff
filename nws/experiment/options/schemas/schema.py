"""What all schemas share: the kinds of values, and what each is called in a message."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic.fields import FieldInfo

MOST = 3.4e38  # numbers above are infinite in float32
LARGE = 1e12  # a limit above is not worth a word


class Says(str):
    """What a type is called in messages, where its parts do not say it well."""


class Schema(BaseModel):
    """The options of one class or function that conf/ names.

    Strict: abc is no number, 5 is not true. A field's `description` is its help text; with
    `exclude=True` a field may be given, and no file of conf/ has it.

    Attributes:
        target: The class or function, "" for options without one.
        partial: Whether the function is called later, `_partial_: true`.
        others: Whether it takes options that the schema does not have.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)
    target: ClassVar[str] = ""
    partial: ClassVar[bool] = False
    others: ClassVar[bool] = False


def _whole(value: object) -> object:
    """Take 200.0 and 2e2 for 200."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WholeNumber = Annotated[int, BeforeValidator(_whole), Le(2**62)]
#: 1, 2, 3 and so on.
Count = Annotated[WholeNumber, Ge(1)]
#: 0, 1, 2 and so on.
CountOrZero = Annotated[WholeNumber, Ge(0)]
Number = Annotated[float, Ge(-MOST), Le(MOST)]
Positive = Annotated[float, Gt(0), Le(MOST)]
NonNegative = Annotated[float, Ge(0), Le(MOST)]
#: 0 to 1, with both.
Share = Annotated[float, Ge(0), Le(1)]
#: Between 0 and 1.
InnerShare = Annotated[float, Gt(0), Lt(1)]
#: The number of steps of the run, which is filled in.
TotalSteps = Annotated[Literal["total_steps"], Says("total_steps, the run's number of steps")]


def _text(value: object) -> object:
    """Take the number 2026 for a text, as a name or a folder may be."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(_text), MinLen(1), Says("a text")]
#: An object or a function of a class or function that `_target_` names; checked by that one.
Named = Annotated[Mapping[str, Any], Says("an object or function by _target_ (docs/extending.md)")]


class Choice:
    """A file of conf/, or a part of it with a `_target_` of its own: a schema with its values.

    Args:
        schema: Of the keys; None for `_target_: null`.
        about: What the choice is, the comment on top of the file.
        notes: Help texts of keys where they differ from the schema's.
        without: Keys that the file does not have.
        values: Of keys; the others have the schema's default.
    """

    def __init__(
        self,
        schema: type[Schema] | None,
        about: str = "",
        /,
        *,
        notes: Mapping[str, str] | None = None,
        without: Collection[str] = (),
        **values: Any,
    ) -> None:
        self.schema, self.about, self.given = schema, about, values
        self.notes, self.without = notes or {}, without

    def values(self) -> dict[str, Any]:
        """Return each key that the file has with its value, in the schema's order."""
        fields = self.schema.model_fields if self.schema else {}
        found = {}
        for name, field in fields.items():
            if name in self.given or not (field.exclude or name in self.without):
                found[name] = self.given.get(name, field.default)
        return found

    def meaning(self, name: str) -> str:
        """Return the help text of a key."""
        assert self.schema is not None
        return self.notes.get(name) or self.schema.model_fields[name].description or ""


def expected(field: FieldInfo) -> str:
    """Return what a field takes, in words: `a whole number of at least 1, or null`."""
    return _words(field.annotation, tuple(field.metadata))


def _words(kind: Any, limits: tuple[Any, ...] = ()) -> str:
    said = [each for each in limits if isinstance(each, Says)]
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *more = get_args(kind)
        return _words(inner, (*more, *limits))
    if said:
        return str(said[0])
    if origin in (Union, UnionType):
        return _either(get_args(kind), limits)
    if origin is Literal:
        *names, last = [_shown(each) for each in get_args(kind)]
        return f"{', '.join(names)} or {last}" if names else last
    if origin is list:
        return _list(_words(get_args(kind)[0]), limits)
    plain = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
    return plain + _range(limits)


def _either(kinds: tuple[Any, ...], limits: tuple[Any, ...]) -> str:
    parts = [_words(each, limits) for each in kinds if each is not NoneType]
    return " or ".join([*parts, *["null"] * (NoneType in kinds)])


def _list(of: str, limits: tuple[Any, ...]) -> str:
    least = max([0, *(each.min_length for each in limits if isinstance(each, MinLen))])
    most = [each.max_length for each in limits if isinstance(each, MaxLen)]
    count = f"{least} " if most == [least] else "one or more " if least else ""
    return f"a list of {count}{of.removeprefix('a ').replace('number', 'numbers', 1)}"


def _range(limits: tuple[Any, ...]) -> str:
    """Return `of at least 0 and below 1`; the closest limits count, and `MOST` is left out."""
    low = max(_bounds(Ge, limits), default=-MOST)
    high = min(_bounds(Le, limits), default=MOST)
    above = [f"above {each:,.10g}" for each in _bounds(Gt, limits)]
    below = [f"below {each:,.10g}" for each in _bounds(Lt, limits)]
    if low > -MOST and high < LARGE and not above:
        return f" from {low:,.10g} to {high:,.10g}"
    least = above or [f"of at least {low:,.10g}"] * (low > -MOST)
    most = below or [f"at most {high:,.10g}"] * (high < LARGE)
    said = " and ".join([*least, *most])
    return f" {said}" if said else ""


def _bounds(kind: type, limits: tuple[Any, ...]) -> list[float]:
    return [getattr(each, kind.__name__.lower()) for each in limits if isinstance(each, kind)]


def _shown(value: object) -> str:
    return str(value)
