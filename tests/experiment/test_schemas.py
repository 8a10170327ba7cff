"""The schemas are the one source: conf/, the documentation and the classes agree with them."""

from __future__ import annotations

import inspect
from typing import Literal

import pytest
from conftest import CONF, ROOT, Command, composed
from omegaconf import OmegaConf
from pydantic import Field, ValidationError

from nws.errors import UserError
from nws.experiment.launch import sweeps  # noqa: F401  its resolvers
from nws.experiment.config import locate
from nws.experiment.options.schemas.choices import CHOICES, GROUP_SCHEMAS, PART_SCHEMAS, schemas_of
from nws.experiment.options.schemas.schema import (
    Count,
    InnerShare,
    Named,
    NonNegative,
    Positive,
    Schema,
    Text,
    TotalSteps,
    expected,
)
from nws.experiment.options.schemas.tables import with_tables
from nws.experiment.options.schemas.writer import files
from nws.experiment.options.validation import check_configuration, find_problems


def test_the_files_of_conf_are_those_that_the_schemas_write() -> None:
    written = files(CONF)
    differ = [str(name) for name, text in written.items() if (CONF / name).read_text() != text]
    assert differ == [], "run: python -m nws.experiment.options.schemas"
    by_hand = {"experiment", "debug", "natural_metric", "hydra"}
    there = {path.relative_to(CONF) for path in CONF.rglob("*.yaml")}
    assert {path for path in there if path.parts[0] not in by_hand} == set(written)


def test_the_tables_of_the_documentation_are_made_from_the_schemas() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert with_tables(page) == page, "run: python -m nws.experiment.options.schemas"
    assert page.count("<!-- options: ") == 9
    assert with_tables(page.replace("| `trainer.epochs` | `100`", "| `trainer.epochs` | 7")) == page


#: What a class has as a default and a file of conf/ must give, or takes as any option.
ASIDE = {"weighting", "path", "project"}


@pytest.mark.parametrize("group", [each for each in CHOICES if each != "model/visible"])
def test_a_schema_has_the_defaults_of_its_class(group: str) -> None:
    for schema in schemas_of(group):
        assert agrees(schema, GROUP_SCHEMAS[group].taken) == [], schema.target


def test_a_schema_of_a_function_has_its_defaults() -> None:
    assert [each for schema in PART_SCHEMAS for each in agrees(schema)] == []


def agrees(schema: type[Schema], taken: tuple[str, ...] = ()) -> list[str]:
    """The fields that are not as the signature has them."""
    target = schema.target.replace("solvers.sherman_morrison", "solvers.ShermanMorrison")
    parameters = inspect.signature(locate(target, "")).parameters
    wrong = []
    for name, field in schema.model_fields.items():
        if name in taken or name in ASIDE or (name, target[-8:]) == ("forgetting", "Morrison"):
            continue
        default = parameters[name].default
        default = list(default) if isinstance(default, tuple) else default
        required = default is inspect.Parameter.empty
        if field.is_required() != required or not (required or field.default == default):
            wrong.append(f"{name}: {field.default}, {default}")
    return wrong


def test_a_default_that_differs_is_seen() -> None:
    """The control."""

    class Wrong(Schema):
        target = "nws.schedules.constant"
        warmup_steps: Count = 3

    assert agrees(Wrong) == ["warmup_steps: 3, 0"]


class Kinds(Schema):
    """One field of each kind."""

    count: Count | None = None
    rank: Count | Literal["full"] = 1
    rate: NonNegative = 0.1
    share: InnerShare = 0.5
    part: float = Field(0.1, ge=0, lt=0.5)
    scale: float = Field(1.0, ge=-2, le=2)
    betas: list[InnerShare] = Field([0.1, 0.2], min_length=2, max_length=2)
    layers: list[Count] = Field([3], min_length=1)
    steps: Positive | TotalSteps = 1.0
    flag: bool = False
    name: Text = "a"
    function: Named | None = None


def test_what_a_field_takes_is_said_in_words() -> None:
    assert {name: expected(field) for name, field in Kinds.model_fields.items()} == {
        "count": "a whole number of at least 1 or null",
        "rank": "a whole number of at least 1 or full",
        "rate": "a number of at least 0",
        "share": "a number above 0 and below 1",
        "part": "a number of at least 0 and below 0.5",
        "scale": "a number from -2 to 2",
        "betas": "a list of 2 numbers above 0 and below 1",
        "layers": "a list of one or more whole numbers of at least 1",
        "steps": "a number above 0 or total_steps, the run's number of steps",
        "flag": "true or false",
        "name": "a text",
        "function": "an object or function by _target_ (docs/extending.md) or null",
    }


@pytest.mark.parametrize(
    ("key", "right", "wrong"),
    [
        ("count", [1, 2.0, None], [0, 1.5, True, "1", float("nan"), 10**30]),
        ("rate", [0, 1e-8, 3], [-1, True, "0.1", float("inf"), 1e39, 10**400]),
        ("betas", [[0.1, 0.9]], [[0.1], [0.1, 1.0], 0.5]),
        ("flag", [True, False], [1, "true", None]),
        ("name", ["a", 2026], ["", None, 1.5, ["a"]]),
        ("steps", ["total_steps", 5], ["steps", 0]),
    ],
)
def test_schemas_are_strict(key: str, right: list[object], wrong: list[object]) -> None:
    for value in right:
        assert getattr(Kinds.model_validate({key: value}), key) in (value, str(value))
    for value in wrong:
        with pytest.raises(ValidationError):
            Kinds.model_validate({key: value})


@pytest.mark.parametrize("group", [each for each in CHOICES if each != "model/visible"])
def test_every_choice_is_right(group: str) -> None:
    for name in CHOICES[group]:
        more = [f"{group}.path=x"] if name in ("npz", "folder") else []
        assert find_problems(composed(f"{group}={name}", *more)) == []


def test_whole_numbers_become_whole() -> None:
    config = composed("trainer.evaluation_points=20.0", "model.layers=[2e1,3]", "metric=kronecker")
    config.metric.max_rows = 32.0
    check_configuration(config)
    found = [config.trainer.evaluation_points, *config.model.layers, config.metric.max_rows]
    assert found == [20, 20, 3, 32] and all(type(each) is int for each in found)


def test_classes_without_a_schema_are_checked_by_their_signature() -> None:
    bare = ("~optimizer.betas", "~optimizer.fused")
    own = ("optimizer._target_=torch.optim.Adagrad", *bare)
    assert find_problems(composed(*own, "+optimizer.lr_decay=0.1")) == []
    with pytest.raises(UserError, match="Adagrad takes no option decay"):
        check_configuration(composed(*own, "+optimizer.decay=0.1"))
    with pytest.raises(UserError, match=r"optimizer\.lr must be a number of at least 0"):
        check_configuration(composed(*own, "optimizer.lr=abc"))
    multistep = ("scheduler._target_=torch.optim.lr_scheduler.MultiStepLR", "~scheduler.lr_lambda")
    with pytest.raises(UserError, match=r"scheduler\.milestones is missing"):
        check_configuration(composed(*multistep))
    assert find_problems(composed(*multistep, "+scheduler.milestones=[3,8]")) == []


def test_options_of_torch_that_conf_does_not_have_are_checked_too() -> None:
    assert find_problems(composed("+optimizer.weight_decay=0.1", "+optimizer.amsgrad=true")) == []
    for wrong in ("+optimizer.weight_decay=abc", "+optimizer.amsgrad=5", "+optimizer.amsgrd=true"):
        assert len(find_problems(composed(wrong))) == 1


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["optimizer=momentum", "optimizer.momentum=0"], "optimizer.nesterov needs an optimizer"),
        (["algorithm=vimco", "algorithm.samples=1"], "vimco needs algorithm.samples of at least 2"),
        (
            ["algorithm=bihm", "algorithm.samples=1"],
            "weighs recognition's one sample by 1 - 1/K = 0",
        ),
        (["algorithm=ws", "algorithm.recognition_dream=0"], "nothing would train recognition"),
        (["~algorithm.weighting._partial_"], "algorithm.weighting._partial_ must be true"),
        (["optimizer.lr=${nope}"], "optimizer.lr has no value: Interpolation key 'nope' not found"),
    ],
)
def test_options_that_do_not_go_together(overrides: list[str], expected: str) -> None:
    with pytest.raises(UserError) as error:
        check_configuration(composed(*overrides))
    assert expected in str(error.value)


def test_too_many_states_leave_the_exact_figure_out(train: Command) -> None:
    outcome = train("data=three_by_three", "model.layers=[30,3]", "trainer.epochs=0.01")
    assert outcome.code == 0 and "exact/kl" not in (outcome.run / "metrics.csv").read_text()
    assert "model=toy" in outcome.err and "have too many states" in outcome.err


@pytest.mark.parametrize("content", ["a: [1", "- 1", "model: {a: 1}", "\x00"])
def test_a_damaged_choices_file_is_one_message(train: Command, content: str) -> None:
    run = train("trainer.epochs=0.2").run
    (run / ".hydra" / "choices.yaml").write_text(content)
    message = train(f"resume={run}", "trainer.epochs=1").message()
    assert "choices.yaml is damaged" in message and "delete the file" in message


@pytest.mark.parametrize("content", ["overrides: [1", "- 1", "overrides: 3"])
def test_a_damaged_sweep_file_is_one_message(sweep: Command, content: str) -> None:
    first = sweep("seed=0,1", "trainer.epochs=0.1", "resume=auto")
    assert first.code == 0, first.err
    (first.run.parent / "sweep.yaml").write_text(content)
    message = sweep("seed=0,1", "trainer.epochs=0.1", "resume=auto").message()
    assert "sweep.yaml is damaged" in message


def test_saved_runs_are_checked_too(train: Command) -> None:
    run = train("trainer.epochs=0.2").run
    file = run / ".hydra" / "config.yaml"
    config = OmegaConf.load(file)
    config.optimizer.lr = "fast"
    OmegaConf.save(config, file)
    message = train(f"resume={run}", "trainer.epochs=1").message()
    assert "optimizer.lr must be a number of at least 0, got 'fast'" in message
