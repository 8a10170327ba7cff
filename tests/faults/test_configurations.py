"""A fuzz of the configuration, from the schemas: what they refuse is refused in words that name
the key, and what they accept is built.

`python -m pytest tests/faults/test_configurations.py --faults-long` tries thousands of inputs with
a new seed, and prints what became of them.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
import torch
from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from conftest import composed
from faults.trial import fresh_seed
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from pydantic.fields import FieldInfo

from nws.data import Dataset
from nws.errors import UserError
from nws.experiment.options.schemas.choices import CHOICES
from nws.experiment.options.schemas.run import RUN, TRAINER
from nws.experiment.options.schemas.schema import Choice
from nws.experiment.options.validation import check_configuration
from nws.experiment.process.memory import check_memory
from nws.experiment.training import build, loggers
from nws.experiment.training.settings import TrainerSettings
from nws.learning import WakeSleep

Options = dict[str, Any]
CPU = torch.device("cpu")
QUICK, LONG = 300, 4000  # examples


# --- values of a type, by rules of their own -----------------------------------------------------


def parts(kind: Any, limits: tuple[Any, ...] = ()) -> list[tuple[Any, tuple[Any, ...]]]:
    """The plain types that a type is the union of, each with its limits."""
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *more = get_args(kind)
        return parts(inner, (*more, *limits))
    if origin in (Union, UnionType):
        return [part for each in get_args(kind) for part in parts(each, limits)]
    return [(kind, limits)]


def limit(limits: tuple[Any, ...], kind: type, otherwise: float) -> float:
    """The closest limit of a kind."""
    name = {MinLen: "min_length", MaxLen: "max_length"}.get(kind, kind.__name__.lower())
    found = [getattr(each, name) for each in limits if isinstance(each, kind)]
    closest = max if kind in (Ge, Gt, MinLen) else min
    return closest(found, default=otherwise)


def is_within(value: Any, limits: tuple[Any, ...]) -> bool:
    above = value >= limit(limits, Ge, -math.inf) and value > limit(limits, Gt, -math.inf)
    return above and value <= limit(limits, Le, math.inf) and value < limit(limits, Lt, math.inf)


def fits(value: Any, kind: Any, limits: tuple[Any, ...]) -> bool:
    """Whether a value is of a plain type and within its limits: slow and obvious."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    finite = number and (isinstance(value, int) or math.isfinite(value))
    if get_origin(kind) is Literal:
        return any(type(value) is type(each) and value == each for each in get_args(kind))
    if get_origin(kind) is list:
        ((inner, inner_limits),) = parts(get_args(kind)[0])
        return (
            isinstance(value, list)
            and limit(limits, MinLen, 0) <= len(value) <= limit(limits, MaxLen, math.inf)
            and all(fits(each, inner, inner_limits) for each in value)
        )
    if kind is bool:
        return isinstance(value, bool)
    if kind in (int, float):
        return finite and is_within(value, limits) and (kind is float or value == int(value))
    if kind is str:
        return (isinstance(value, str) and value != "") or (number and isinstance(value, int))
    return kind is NoneType and value is None


def candidates(field: FieldInfo) -> list[Any]:
    """Values at and around the limits of a field, of other types, and far out."""
    found: list[Any] = [*EVERYWHERE]
    for kind, limits in parts(field.annotation, tuple(field.metadata)):
        if get_origin(kind) is Literal:
            found += get_args(kind)
        if kind in (int, float):
            edges = [limit(limits, each, math.nan) for each in (Ge, Gt, Le, Lt)]
            for edge in (each for each in edges if not math.isnan(each)):
                near = [math.nextafter(edge, way) for way in (-math.inf, math.inf)]
                found += [edge, edge - 1, edge + 1, int(edge), *near]
    return found


EVERYWHERE: tuple[Any, ...] = (
    None, True, False, "abc", "", {}, {"a": 1}, {"_target_": "no.such"}, {"_target_": None},
    [], ["abc"], [0.5], [3, 2], [3, 2.5], [-1, 2], [0.9, 0.99], [0.9, 0.99, 0.5], [True], [[3]],
    math.nan, math.inf, -math.inf, 0, 1, 2, 3, 7, 20, 3.0, 0.3, 1e-8, -0.0, -1, -0.5, 2.5, 1e4,
    10**10, 10**30, 10**400, -(10**30), 1e37, 1e39, 1e308, "1", "total_steps", "auto", "null",
)  # fmt: skip


def is_right(field: FieldInfo, value: Any) -> bool:
    kinds = parts(field.annotation, tuple(field.metadata))
    return any(fits(value, kind, limits) for kind, limits in kinds)


# --- configurations ------------------------------------------------------------------------------

BASE = {"data": "digits", "model": "toy", "logger": "none"}
GROUPS = [group for group in CHOICES if group != "model/visible"]


def section(choice: Choice) -> Options:
    """A choice as conf/ has it."""
    found: Options = {}
    if choice.schema is None or choice.schema.target:
        found["_target_"] = choice.schema.target if choice.schema else None
    if choice.schema is not None and choice.schema.partial:
        found["_partial_"] = True
    for key, value in choice.values().items():
        found[key] = section(value) if isinstance(value, Choice) else copy.deepcopy(value)
    return found


@cache
def base() -> Options:
    config = composed(*(f"{group}={choice}" for group, choice in BASE.items()))
    found: Any = OmegaConf.to_container(config)
    return dict(found)


def places(choice: Choice, prefix: str) -> list[tuple[str, FieldInfo]]:
    """The key and the field of each option of a choice, those of its functions too."""
    found = []
    fields = choice.schema.model_fields if choice.schema else {}
    for name, field in fields.items():
        key, value = f"{prefix}.{name}".lstrip("."), choice.values().get(name)
        found += [(key, field)] if not isinstance(value, Choice) else places(value, key)
    return found


MISSPELT = ("foo", "lrr", "layer", "_target", "samples ", "1")


@st.composite
def inputs(draw: st.DrawFn) -> tuple[Options, dict[str, Any], set[str]]:
    """A configuration, what was changed in it, and the keys that must be refused."""
    config, options = copy.deepcopy(base()), [*places(RUN, ""), *places(TRAINER, "trainer")]
    for group in draw(st.lists(st.sampled_from(GROUPS), max_size=3, unique=True)):
        rules = {name: each for name, each in CHOICES[group].items() if isinstance(each, Choice)}
        choice = rules[draw(st.sampled_from(sorted(rules)))]
        config[group] = section(choice)
        if "path" in config[group]:
            config[group]["path"] = "nothing"
        options += places(choice, group) * 3  # what was chosen is changed more often
    changes: dict[str, Any] = {}
    wrong: set[str] = set()
    for _ in range(draw(st.integers(0, 4))):
        key, field = draw(st.sampled_from(options))
        kind = draw(st.sampled_from(["any", "any", "any", "missing", "misspelt"]))
        if key.startswith("logger"):  # which hands options on to W&B
            kind = "any"
        if kind == "misspelt":
            key = ".".join([*key.split(".")[:-1], draw(st.sampled_from(MISSPELT))])
            wrong.add(key)
        elif kind == "any":
            changes[key] = draw(st.sampled_from(candidates(field)))
            wrong -= {key}
            wrong |= {key} if not is_right(field, changes[key]) else set()
        put(config, key, changes.get(key, 1), kind == "missing")
        if kind == "missing":
            changes[key] = "~"
            wrong -= {key}
            wrong |= {key} if field.is_required() else set()
    return config, changes, wrong


def put(config: Options, key: str, value: Any, remove: bool) -> None:
    *path, name = key.split(".")
    for each in path:
        config = config[each]
    if remove:
        config.pop(name, None)
    else:
        config[name] = value


# --- the property --------------------------------------------------------------------------------


@cache
def digits(binarize: str, name: str) -> Dataset:
    return build.build_data(
        OmegaConf.create({"data": {"_target_": "nws.data.load_digits", "root": "x",
                                   "binarize": binarize, "name": name}}), CPU,
    )  # fmt: skip


def build_all(config: Any) -> None:
    """Everything that a run makes before its directory."""
    trainer = TrainerSettings(**OmegaConf.to_container(config.trainer))
    own = config.data._target_ in ("nws.data.load_digits", "nws.data.load_three_by_three")
    choice = config.data.get("binarize", "resample"), config.data.get("name", "digits")
    data = digits(*choice) if own else digits("static", "digits")
    check_memory(config, data, CPU)
    total_steps = trainer.total_steps(len(data.train))
    rule = build.build_rule(config, total_steps)
    machine = build.build_machine(config, data)
    build.without_exact(data, machine)
    metrics = build.build_metrics(config, total_steps, machine)
    WakeSleep(machine, rule, torch.Generator(), metrics)
    optimizer = build.build_optimizer(config, total_steps, machine)
    build.build_scheduler(config, total_steps, optimizer)
    build.build_average(config, total_steps, machine)
    loggers.build_logger(config)


def judge(case: tuple[Options, dict[str, Any], set[str]]) -> str:
    """What became of a configuration; the property is asserted."""
    plain, changes, wrong = case
    config = OmegaConf.create(plain)
    said = ""
    try:
        check_configuration(config)
    except UserError as error:
        said = str(error)
    if said:
        missed = [key for key in wrong if key.split(".")[-1] not in said]
        assert missed == [], f"{missed} not named in: {said}"
        named = wrong or any(key.split(".")[0] in said for key in changes)
        assert named, f"{changes} were refused as: {said}"
        return "refused" if wrong else "refused for several keys together"
    assert not wrong, f"{wrong} accepted: {changes}"
    try:
        build_all(config)
    except UserError:
        return "accepted, and refused by what needs the data"
    return "accepted and built"


def test_what_the_schemas_refuse_is_refused_and_what_they_accept_is_built(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    long = bool(request.config.getoption("--faults-long"))
    number = fresh_seed(long)
    counts: Counter[str] = Counter()

    @seed(number)
    @settings(max_examples=LONG if long else QUICK, deadline=None, database=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(inputs())
    def tried(case: tuple[Options, dict[str, Any], set[str]]) -> None:
        counts[judge(case)] += 1

    tried()
    with capsys.disabled():
        if long:
            print(f"\nconfigurations, seed {number}: {counts.total()} tried, {dict(counts)}")
    assert counts["refused"] > counts.total() / 5 and counts["accepted and built"] > 20


def test_the_rules_of_values_tell_right_from_wrong() -> None:
    """The control: what `is_right` says of some fields, by hand."""
    fields = TRAINER.schema.model_fields if TRAINER.schema else {}
    size, points = fields["batch_size"], fields["evaluation_points"]
    assert [
        each for each in (0, 1, 2.0, 2.5, True, "1", None, math.nan) if is_right(size, each)
    ] == [1, 2.0]
    assert is_right(points, None) and not is_right(points, 0)
    assert len(candidates(size)) > len(EVERYWHERE)


def test_a_wrong_value_that_is_accepted_is_found() -> None:
    """The control: the property fails where the schemas would take too much, or say nothing."""
    config = copy.deepcopy(base())
    with pytest.raises(AssertionError, match="accepted"):
        judge((config, {"seed": 1}, {"seed"}))
    config["seed"] = -1
    with pytest.raises(AssertionError, match="not named"):
        judge((config, {"seed": -1}, {"nope"}))
