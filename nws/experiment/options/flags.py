"""What was typed behind the program's name: flags, in any place, and overrides."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from nws.errors import UserError
from nws.experiment.options.configuration import override_key

#: Hydra's flags with a word behind them, and what the word is.
WITH_WORD = {
    "--cfg": "job, hydra or all",
    "--package": "a part of the configuration",
    "--config-dir": "a folder",
    "--config-path": "a folder",
    "--config-name": "the name of a file",
    "--experimental-rerun": "a file",
}
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")  # of --info, or none
#: Hydra's flags without one.
ALONE = (
    "--help", "--hydra-help", "--version", "--resolve", "--run", "--multirun", "--shell-completion",
)  # fmt: skip
#: Their short forms.
SHORT = {
    "-h": "--help", "-c": "--cfg", "-p": "--package", "-r": "--run", "-m": "--multirun",
    "-sc": "--shell-completion", "-cp": "--config-path", "-cn": "--config-name",
    "-cd": "--config-dir", "-i": "--info",
}  # fmt: skip
#: Of these Hydra takes one at most.
APART = ("--run", "--multirun", "--cfg", "--info", "--shell-completion")
#: Flags with which nothing trains, or another configuration than ours is read.
OTHER = (
    "--cfg", "--info", "--hydra-help", "--version", "--shell-completion", "--config-path",
    "--config-name", "--experimental-rerun",
)  # fmt: skip


@dataclass(frozen=True)
class Arguments:
    """The arguments of train.py.

    Attributes:
        flags: The long name of each flag, and its word; None for one without.
        overrides: All others, as they were typed.
    """

    flags: dict[str, str | None]
    overrides: list[str]

    @property
    def multirun(self) -> bool:
        """Whether -m is among the flags."""
        return "--multirun" in self.flags

    @property
    def trains(self) -> bool:
        """Whether Hydra would train, by config.yaml."""
        return not self.flags.keys() & set(OTHER)

    @property
    def folder(self) -> Path | None:
        """The folder of --config-dir, which has choices beside those of conf/."""
        word = self.flags.get("--config-dir")
        return Path(word).resolve() if word is not None else None

    @property
    def search_path(self) -> list[str]:
        """What stands for --config-dir where Hydra takes overrides alone: one, or none."""
        return [f"hydra.searchpath=[{quote(f'file://{self.folder}')}]"] if self.folder else []

    @property
    def words(self) -> list[str]:
        """The arguments as Hydra reads them: flags come first."""
        flags = [name if word is None else f"{name}={word}" for name, word in self.flags.items()]
        return [*flags, *self.overrides]


def split(arguments: Sequence[str]) -> Arguments:
    """Return flags and overrides apart; `UserError` for a flag that is none."""
    flags: dict[str, str | None] = {}
    overrides, words = [], iter(arguments)
    for text in words:
        if text.startswith("-"):
            name, word = _flag(text, words)
            flags[name] = word
        elif flags.get("--info") == "" and text in INFO:
            flags["--info"] = text
        else:
            overrides.append(text)
    if "--info" in flags:
        flags["--info"] = flags["--info"] or "all"
    apart = [name for name in APART if name in flags]
    if len(apart) > 1:
        raise UserError(f"{apart[0]} does not go with {apart[1]}; leave one of the two out")
    found = Arguments(flags, overrides)
    if found.folder is not None and not found.folder.is_dir():
        raise UserError(
            "--config-dir must be a folder with groups like those of conf/, found none at"
            f" {found.folder}"
        )
    return found


def _flag(text: str, others: Iterator[str]) -> tuple[str, str | None]:
    """Return a flag's long name, and its word, which may be the next of the others."""
    given, equals, after = text.partition("=")
    name = SHORT.get(given, given)
    if name in WITH_WORD:
        word = after if equals else next(others, "")
        if not word or (name == "--cfg" and word not in ("job", "hydra", "all")):
            got = f"got {word}" if word else "found nothing"
            raise UserError(f"{given} takes {WITH_WORD[name]} behind it, {got}")
        return name, word
    if name == "--info" and after in ("", *INFO):
        return name, after
    if name in ALONE and not equals:
        return name, None
    raise _unknown(given, after)


def _unknown(given: str, value: str) -> UserError:
    """Return the error of a flag that is none: it is misspelt, or an option with dashes."""
    close = difflib.get_close_matches(given, [*SHORT, *ALONE, *WITH_WORD, "--info"], 1, 0.8)
    option = f"{given.lstrip('-') or 'seed'}={value or 'VALUE'}"
    way = f"did you mean {close[0]}?" if close else f"options have no dashes, as in {option}"
    return UserError(f"there is no flag {given}; {way}")


def override_value(text: str) -> str | None:
    """Return the value of an override as Hydra reads it, null as None.

    It is the text behind `=` where Hydra cannot read it, or reads something else than a text.
    """
    written = text.partition("=")[2]
    try:
        value = OverridesParser.create().parse_override(text).value()
    except HydraException:
        return written
    return value if value is None or isinstance(value, str) else written


def resume_of(overrides: Sequence[str]) -> str | None:
    """Return what the option `resume` is given: a run, auto, or None for a new run."""
    given = [override_value(text) for text in overrides if override_key(text) == "resume"]
    return given[-1] or None if given else None


def quote(value: object) -> str:
    """Return a text as Hydra reads it whatever is in it."""
    return "'" + str(value).replace("'", "\\'") + "'"
