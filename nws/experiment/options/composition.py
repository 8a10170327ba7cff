"""What a command line composes, checked before Hydra starts: every mistake at once, in words.

Hydra stops at the first mistake, and says it in its own terms. Here the configuration is composed
without the arguments that cannot be, so that all of them are named. Of a sweep, each value of each
key is looked at, the others at their first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nws.errors import UserError
from nws.experiment.options.configuration import GROUPS
from nws.experiment.options.schemas.check import Problem
from nws.experiment.options.validation import check_hydra, find_problems, raise_for
from nws.experiment.options.wording import about_override, in_words

#: Flags of Hydra with which nothing trains, or another configuration than ours is read.
OTHER = (
    "--cfg", "-c", "--info", "-i", "--hydra-help", "--version", "--shell-completion", "-sc",
    "--config-path", "-cp", "--config-name", "-cn", "--experimental-rerun",
)  # fmt: skip
MOST_VALUES = 100  # of a swept key; the jobs check the rest


def check_command(arguments: Sequence[str], conf: Path) -> None:
    """Raise `UserError` with all that is wrong with the arguments of train.py.

    Args:
        arguments: As Hydra will read them.
        conf: The folder of config.yaml.
    """
    words = {each.partition("=")[0] for each in arguments}
    if not words & set(OTHER):
        given, folder = _overrides(arguments)
        with hydra.initialize_config_dir(str(conf), job_name="train", version_base="1.3"):
            found = Composition(folder)
            found.check(given, bool(words & {"-m", "--multirun"}))
        raise_for(found.problems)


def _overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides, and one that adds the folder of --config-dir, if there is one."""
    rest, folder = [], []
    words = iter(arguments)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in ("--config-dir", "-cd"):
            path = Path(value if equals else next(words, ".")).resolve()
            folder = [f"hydra.searchpath=[file://{path}]"]
        elif flag in ("--package", "-p"):
            next(words, None)
        elif not word.startswith("-"):
            rest.append(word)
    return rest, folder


def _split(overrides: Sequence[Override]) -> tuple[list[str], list[Override]]:
    """Return the overrides with one value, as they were given, and those with several."""
    swept = [each for each in overrides if each.is_sweep_override()]
    return [each.input_line or "" for each in overrides if each not in swept], swept


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


class Composition:
    """What is wrong with a command's overrides.

    Args:
        folder: Overrides that are added to all others.

    Attributes:
        problems: What was found.
    """

    def __init__(self, folder: Sequence[str] = ()) -> None:
        self.folder = list(folder)
        self.problems: list[Problem] = []
        self.parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())

    def check(self, given: Sequence[str], multirun: bool) -> None:
        """Find what is wrong with overrides, of one run or of a sweep."""
        overrides = [each for text in given for each in self._parse(text)]
        fixed, swept = _split(overrides)
        config = self._compose(fixed)
        if config is None:
            return
        if multirun or config.hydra.mode == RunMode.MULTIRUN:
            self._check_sweep(fixed, swept, config)
        else:
            self.problems += [about_override(each.input_line or "") for each in swept]
        self.problems += check_hydra(config.hydra)
        if not swept:
            self._check_job(config)

    def _parse(self, text: str) -> list[Override]:
        try:
            return list(self.parser.parse_overrides([text]))
        except OverrideParseException as error:
            self.problems.append(in_words(error, [text], None)[0])
            return []

    def _compose(self, overrides: Sequence[str]) -> DictConfig | None:
        """Return what overrides compose, without those that are a mistake; these are noted."""
        rest, mistakes, config = list(overrides), [], None
        while config is None:
            try:
                config = hydra.compose("config", [*rest, *self.folder], return_hydra_config=True)
            except (HydraException, OmegaConfBaseException, OSError) as error:
                mistakes.append((error, rest))
                left = in_words(error, rest, None)[1]
                if len(left) == len(rest):
                    break
                rest = left
        self.problems += [in_words(error, given, config)[0] for error, given in mistakes]
        return config

    def _check_job(self, config: DictConfig) -> None:
        """Find what is wrong with the configuration of a run."""
        keys = [str(key) for key in config if key != "hydra"]
        job = OmegaConf.masked_copy(config, keys)
        resume = job.get("resume")
        if resume in (None, "auto") or not isinstance(resume, str):  # else it is the saved one's
            self.problems += find_problems(job)
        try:
            str(config.hydra.run.dir), str(config.hydra.sweep.dir)
        except OmegaConfBaseException as error:
            if isinstance(error.__cause__, UserError):
                raise error.__cause__ from None
            if not self.problems:
                self.problems.append(Problem("hydra.run.dir", str(error).splitlines()[0]))

    def _check_sweep(self, fixed: list[str], swept: Sequence[Override], config: DictConfig) -> None:
        """Find what is wrong with the jobs of a sweep: each value, beside the first of others."""
        params = config.hydra.sweeper.get("params") or {}
        named = set(map(_key, [*fixed, *(each.input_line or "" for each in swept)]))
        listed = [f"{key}={params[key]}" for key in params if key not in named]
        more, ranges = _split([each for text in listed for each in self._parse(text)])
        values = self._all_values([*ranges, *swept], "direction" in config.hydra.sweeper)
        fixed = [*fixed, *more]
        base = self._compose([*fixed, *(texts[0] for _, texts in values)])
        if base is None:
            return
        self._check_job(base)
        for override, texts in values:
            others = [*fixed, *(each[0] for key, each in values if key is not override)]
            self._check_values(override, texts[1:], others, base)

    def _check_values(
        self, override: Override, texts: list[str], others: list[str], base: DictConfig
    ) -> None:
        for text in texts:
            self._check_value(override, text, others, base)

    def _all_values(
        self, swept: Sequence[Override], searches: bool
    ) -> list[tuple[Override, list[str]]]:
        """Return each swept key with its values, those without a value aside."""
        found = [(override, self._values(override, searches)) for override in swept]
        return [(override, texts) for override, texts in found if texts]

    def _check_value(
        self, override: Override, text: str, others: list[str], base: DictConfig
    ) -> None:
        """Find what is wrong with one value of a swept key."""
        key = override.key_or_group
        plain = "/" not in key and key not in GROUPS and OmegaConf.select(base, key) is not None
        if not plain or key in ("experiment", "debug", "natural_metric"):
            config = self._compose([*others, text])
        else:
            config = base.copy()
            (parsed,) = self._parse(text)
            OmegaConf.update(config, key, parsed.value(), merge=False)
        if config is not None:
            self._check_job(config)

    def _values(self, override: Override, searches: bool) -> list[str]:
        """Return the overrides of a swept key; the ends of an interval."""
        key, line = override.key_or_group, override.input_line
        if override.is_interval_sweep():
            value: Any = override.value()
            start, end = value.start, value.end
            reason = ""
            if not searches:
                reason = f"{line} is an interval, which needs hydra/sweeper=optuna"
            elif not start < end:
                way = f"interval({end:g},{start:g})" if start > end else f"{key}={start:g}"
                reason = f"{line} must be an interval from a lower to a higher number; try {way}"
            elif "log" in value.tags and start <= 0:
                reason = f"{line} must begin above 0, on a logarithmic scale"
            if reason:
                self.problems.append(Problem(key, reason))
                return []
            return [f"{override.get_key_element()}={each}" for each in (start, end)]
        texts = list(islice(self._discrete(override), MOST_VALUES))
        if not texts:
            text = f"{line} has no values, so that the sweep has no job; for instance {key}=0,1,2"
            self.problems.append(Problem(key, text))
        return texts

    def _discrete(self, override: Override) -> Iterator[str]:
        try:
            for each in override.sweep_string_iterator():
                yield f"{override.get_key_element()}={each}"
        except (HydraException, ValueError, TypeError) as error:
            text = f"{override.input_line} cannot be followed: {str(error).splitlines()[0]}"
            self.problems.append(Problem(override.key_or_group, text))
