"""An error in a file of the user's own names the file and the line. It is no defect of nws."""

from __future__ import annotations

import sched
import sys
from pathlib import Path

import pytest
from conftest import Command

from nws.errors import UserError
from nws.experiment.process.own_code import describe_error, own_place

METRIC = """from nws.natural import Metric
class MyMetric(Metric):
    def __init__(self):
        {constructor}

    def update(self, rows, alpha):
        {update}

    def direction(self, gradients):
        return gradients


def load():
    return 1 / 0
"""
OPTIONS = ("algorithm=nrws", "metric=fisher", "metric._target_=my_ideas.MyMetric")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file my_ideas.py, which is not there yet."""
    monkeypatch.delitem(sys.modules, "my_ideas", raising=False)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path / "my_ideas.py"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import os\nclass MyMetric\n", "my_ideas.py line 2: SyntaxError: expected ':'"),
        ("x = torhc\n", "my_ideas.py line 1: NameError: name 'torhc' is not defined"),
        ("import os\nimport no_such\n", "my_ideas.py line 2: ModuleNotFoundError: No module named"),
        ("class Metric: pass\n", "my_ideas.py was found, look at the name"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_imported(
    train: Command, own: Path, text: str, expected: str
) -> None:
    own.write_text(text)
    message = train(*OPTIONS).message()
    assert expected in message and "metric._target_=my_ideas.MyMetric cannot be imported" in message
    assert "has to lie" not in message


def test_a_file_that_is_not_there(train: Command, own: Path) -> None:
    assert "a file of your own has to lie in the working directory" in train(*OPTIONS).message()


def test_a_file_with_the_name_of_a_library(train: Command, own: Path) -> None:
    own.with_name("sched.py").write_text("class MyMetric: pass\n")
    message = train(*OPTIONS[:2], "metric._target_=sched.MyMetric").message()
    assert f"{sched.__file__} was found. A file of your own needs a name" in message
    message = train(*OPTIONS[:2], "metric._target_=time.MyMetric").message()
    assert "a module built into Python was found" in message


@pytest.mark.parametrize(
    ("constructor", "expected"),
    [
        ("assert False", "my_ideas.py line 4: AssertionError"),
        ("[][3]", "my_ideas.py line 4: IndexError: list index out of range"),
        ("int('x')", "my_ideas.py line 4: ValueError: invalid literal"),
    ],
)
def test_an_error_in_a_constructor(
    train: Command, own: Path, monkeypatch: pytest.MonkeyPatch, constructor: str, expected: str
) -> None:
    own.write_text(METRIC.format(constructor=constructor, update="pass"))
    assert f"{expected}" in train(*OPTIONS).message()
    monkeypatch.setenv("NWS_DEBUG", "1")
    with pytest.raises(UserError) as caught:
        train(*OPTIONS)
    assert own_place(caught.value.__cause__ or caught.value) == "my_ideas.py line 4"


def test_an_error_while_it_trains(train: Command, own: Path, tmp_path: Path) -> None:
    own.write_text(METRIC.format(constructor="pass", update="self.alhpa"))
    message = train(*OPTIONS, "hydra.run.dir=run").message()
    assert message.startswith("error: my_ideas.py line 7: AttributeError: 'MyMetric' object has no")
    log = tmp_path / "run" / "train.log"
    assert f"; its traceback is in {log}" in message and "Traceback" in log.read_text()


def test_a_wrong_value_given_to_torch_is_the_users(train: Command, own: Path) -> None:
    own.write_text(METRIC.format(constructor="import torch", update="import torch; torch.eye('a')"))
    assert "my_ideas.py line 7: TypeError" in train(*OPTIONS).message()


def test_an_error_in_a_data_set(train: Command, own: Path) -> None:
    own.write_text(METRIC.format(constructor="pass", update="pass"))
    message = train("~data", "+data={_target_: my_ideas.load, name: mine}").message()
    assert "my_ideas.py line 14: ZeroDivisionError: division by zero" in message


def test_errors_of_others_have_no_place() -> None:
    """The control: an error of nws, one of a library that nws called, and one without traceback."""
    from nws.experiment.storage.kinds import read_json
    from nws.models.units import find_units

    for call in (lambda: find_units("no such"), lambda: read_json(Path("/no/such"))):
        with pytest.raises((UserError, OSError)) as caught:
            call()
        assert own_place(caught.value) == ""
    assert (
        own_place(ValueError("no traceback")) == "" and describe_error(ValueError()) == "ValueError"
    )
    with pytest.raises(ZeroDivisionError) as own:
        1 / 0  # noqa: B018
    assert "test_own_code.py line" in own_place(own.value)


def test_an_error_after_a_resume_is_not_blamed_on_the_checkpoint(
    train: Command, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.write_text(METRIC.format(constructor="pass", update="pass"))
    assert train(*OPTIONS, "hydra.run.dir=run", "trainer.epochs=1").code == 0
    own.write_text(METRIC.format(constructor="pass", update="self.alhpa"))
    monkeypatch.delitem(sys.modules, "my_ideas")
    message = train("resume=run", "trainer.epochs=2").message()
    assert "my_ideas.py line 7: AttributeError" in message and "damaged" not in message


@pytest.mark.parametrize("value", ["x", "0", "-2", ""])
def test_processes_of_an_environment_that_is_wrong(
    train: Command, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", value)
    expected = (
        f"WORLD_SIZE must be a whole number of at least 1, as torchrun sets it, got {value!r}"
    )
    assert expected in train().message()
