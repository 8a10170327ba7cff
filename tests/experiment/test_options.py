"""`train.py --help`: every key of conf/ with its default, its range and its meaning."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import CONF, Command

from nws.experiment.config import PRESETS, flatten_config
from nws.experiment.options.help import defaults, describe, groups, help_text
from nws.experiment.options.schemas.run import RUN, TRAINER


def keys(path: Path, group: str) -> dict[str, Any]:
    """What yaml finds in a file of a group, its own keys alone."""
    text = path.read_text()
    found = yaml.safe_load(text) or {}
    found = found.get(group, {}) if text.startswith("# @package _global_") else found
    flat = flatten_config({key: value for key, value in found.items() if key != "defaults"})
    return {key: value for key, value in flat.items() if key and "._" not in f".{key}"}


@pytest.mark.parametrize("group", sorted(groups().keys() - set(PRESETS)))
def test_every_key_is_shown_with_its_value(group: str) -> None:
    """Against yaml, which knows nothing of schemas."""
    for choice in groups()[group]:
        read = {each.key: each.value for each in choice.options if each.value and not each.added}
        expected = keys(CONF / group / f"{choice.name}.yaml", group)
        assert {key: yaml.safe_load(value) for key, value in read.items()} == expected, choice.name


def test_every_choice_and_key_has_a_meaning() -> None:
    found = groups()
    assert len(found) == 14 and sum(map(len, found.values())) > 60
    assert [choice.name for each in found.values() for choice in each if not choice.about] == []
    without = []
    for group, choices in found.items():
        said = [option for choice in choices for option in choice.options if option.value]
        meant = {option.key for option in said if option.meaning}
        without += [f"{group}.{option.key}" for option in said if option.key not in meant]
    assert without == []
    run = [*describe("", RUN).options, *describe("", TRAINER).options]
    assert len(run) >= 18 and [option.key for option in run if not option.meaning] == []
    assert set(defaults()) > {"data", "algorithm", "logger"}


@pytest.mark.parametrize("width", [80, 100])
def test_the_help_has_everything_and_fits_the_terminal(command: Command, width: int) -> None:
    text = help_text([], width)
    wide = [line for line in text.splitlines() if len(line) > width and " " in line.strip()]
    assert [line for line in wide if not line.startswith(("Train", "A class"))] == []
    for group, choices in groups().items():
        if group not in PRESETS:
            prefix = group.replace("/", ".")
            options = [option for each in choices for option in each.options]
            in_files = {option.key for option in options if not option.added}
            for key in {each.key for each in options if each.value and not each.added}:
                assert f"  {prefix}.{key} = " in text
            for key in {each.key for each in options} - in_files:
                assert f"  +{prefix}.{key} = " in text
        assert all(re.search(rf"^  {re.escape(each.name)}\b", text, re.M) for each in choices)
    assert "optimizer.lr = 0.01 (adam), 0.05 (momentum)" in text
    assert "  +optimizer.weight_decay = 0.0\n" in text and "  +scheduler.min_lr = 0.0 (pl" in text


def test_help_on_the_command_line(command: Command, tmp_path: Path) -> None:
    for arguments in (("--help",), ("-h",), ("algorithm=nrws", "--help")):
        shown = command("train.py", *arguments)
        assert shown.code == 0 and "  trainer.epochs = 100\n" in shown.out, shown.err
        assert shown.out.startswith("usage: python ")
    assert command("nws", "train", "--help").out.startswith("usage: nws train ")
    one = command("nws", "train", "--help", "damping").out
    assert (
        "damping.value = 0.2\n" in one
        and "damping.every = 5 (levenberg_marquardt)\n" in one
        and "trainer" not in one
    )
    assert command("train.py", "--help", "").message().endswith("; got ''\n")
    message = command("train.py", "--help", "nope").message()
    assert "--help takes the groups run, trainer, algorithm, " in message
    assert list(tmp_path.iterdir()) == []
