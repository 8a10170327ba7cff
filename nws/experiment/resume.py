"""Where a run starts: new, or from what a checkpoint has; and what may change then."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from nws.errors import UserError
from nws.experiment.checkpoints import State, load_checkpoint
from nws.experiment.config import check_trust, flatten, override_key, to_dict
from nws.experiment.run import RunDirectory, open_run, parse_yaml, remove_empty, with_data_here
from nws.files import CONF

#: What a resumed run keeps: its draws or its best value depend on it, or only a start takes it.
FIXED = ["seed", "name", "trainer.batch_size", "algorithm", "model", "data"]
FIXED += ["trainer.evaluation_samples", "trainer.evaluation_points"]
FIXED += ["optimizer.amsgrad", "optimizer.centered"]  # gathered from the first step on
#: Options of the data that may change: where files are, and how images are shown.
FREE = ("data.root", "data.path", "data.shape", "data.where")
#: What changes no number, or only chooses other options: two runs that differ in it are the same.
ASIDE = (
    "resume", "trust", "progress", "data.root", "data.where", "logger", "experiment", "debug",
    "natural_metric", "tuned",
)  # fmt: skip
#: What is said of a key that differs.
ANOTHER = (
    "holds a run of another configuration: {key} is {there} there, and {here} is asked for; nothing"
    " was changed. Give the options of that run, or another directory"
)
KEPT = "keeps its {key}, which is {there}, got {here}; start a new run instead"
PATIENCE = 5.0  # seconds that resume=auto waits for a process that is just ending


@dataclass(frozen=True)
class Start:
    """Where a run starts."""

    run: RunDirectory
    config: DictConfig
    state: State | None = None  # the last checkpoint; None for a new run
    changed: set[str] = field(default_factory=set)  # groups with overrides, which win over `state`


def resume_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line on which the groups of a run to go on with are chosen as it has them.

    So overrides such as optimizer.momentum=0.5 are composed beside the options that the run has. A
    choice whose file is not in conf/ is left out: the run has its configuration in full. The path
    of the run is quoted for Hydra, so that it may have any signs.
    """
    given = {override_key(text): text.partition("=")[2] for text in arguments}
    path = given.get("resume", "null")
    if path[:1] in ("'", '"') and path[-1] == path[0]:
        path = path[1:-1]
    if path in ("", "null", "auto"):
        return list(arguments)
    if not (last := open_run(path)[0].last).exists():
        others = "copies by nws export, and runs without their checkpoints, can only be looked at"
        raise UserError(f"expected a checkpoint at {last}, found none; {others}")
    choices = load_checkpoint(last)["choices"]
    there = {path.relative_to(CONF).with_suffix("").as_posix() for path in CONF.rglob("*.yaml")}
    known = {k: v for k, v in choices.items() if f"{k}/{v}" in there and not k.startswith("hydra")}
    added = [f"{name}={known[name]}" for name in known if override_key(name) not in given]
    rest = [text for text in arguments if override_key(text) != "resume"]
    return [*rest, *added, "resume='{}'".format(path.replace("'", "\\'"))]


@contextmanager
def starting_point(
    config: DictConfig, overrides: Sequence[str], output: Path, named: bool
) -> Iterator[Start]:
    """Give what `resume` stands for, its directory owned; auto keeps to a `named` directory."""
    output = output.absolute()
    try:
        for key in ("root", "path"):  # so that a run works from any working directory
            if config.data.get(key) is not None:
                config.data[key] = os.path.abspath(os.path.expanduser(str(config.data[key])))
        path, patience = output, 0.0
        if config.resume == "auto":
            path, patience = output if named else left_run(output, config), PATIENCE
        elif config.resume is not None:
            path = open_run(config.resume)[0].path
        if path != output:
            remove_empty(output)
        run = RunDirectory(path)
        with run.owned(patience):
            start = _start(run, config, overrides)
            resolved = to_dict(start.config) | {"resume": None, "trust": []}
            yield replace(start, config=OmegaConf.create(resolved))
    finally:
        remove_empty(output)


def _start(run: RunDirectory, config: DictConfig, overrides: Sequence[str]) -> Start:
    state = load_checkpoint(run.last) if run.last.exists() and config.resume else None
    if state is None:  # a run that resume names has its checkpoint: see resume_arguments
        run.check_free()
        return Start(run, config)
    saved = parse_yaml(state["configuration"], run.last)
    if config.resume == "auto":
        check_same(config, saved, run.path, ANOTHER)
        return Start(run, config, state)
    check_trust(saved, config.trust or [], run.path)
    as_before = {f"{name}={choice}" for name, choice in state["choices"].items()}
    new = (text for text in overrides if text not in as_before)
    overrides = [text for text in new if override_key(text) not in ("resume", "trust")]
    keys = {override_key(text) for text in overrides}
    saved = saved if "data.root" in keys else with_data_here(saved)
    return Start(run, override(saved, config, overrides), state, {k.split(".")[0] for k in keys})


def left_run(output: Path, config: DictConfig) -> Path:
    """Return the newest unfinished run of a configuration beside a new directory, or the latter."""
    if RunDirectory(output).last.exists():  # as of a job of a sweep
        return output
    for last in sorted(output.parent.glob("*/checkpoints/last.pt"), reverse=True):
        with suppress(UserError):  # of another configuration, or of a damaged file
            run, saved = open_run(last.parent.parent)
            check_same(config, saved, run.path, ANOTHER)
            if not load_checkpoint(last)["finished"]:
                return run.path
    return output


def check_same(
    here: DictConfig, there: DictConfig, subject: object, text: str, only: Sequence[str] = ()
) -> None:
    """Raise `UserError` for the first key in which two configurations differ.

    `text` says it of the subject. `only` are the keys and groups compared, else all but `ASIDE`.
    """
    ours, theirs = (flatten(to_dict(each)) for each in (here, there))
    for key in dict.fromkeys([*ours, *theirs]):
        within = is_in(key, only) and key not in FREE if only else not is_in(key, ASIDE)
        if within and ours.get(key) != theirs.get(key):
            ask, found = (repr(flat[key]) if key in flat else "none" for flat in (ours, theirs))
            raise UserError(f"{subject} {text.format(key=key, here=ask, there=found)}")


def is_in(key: str, groups: Sequence[str]) -> bool:
    """Whether a key is one of these keys, or in one of these groups."""
    return any(key == each or key.startswith(f"{each}.") for each in groups)


def override(saved: DictConfig, composed: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """Return a saved configuration with overrides, by their values in the `composed` one."""
    config = saved.copy()
    for text in overrides:
        key = override_key(text)
        if text.startswith("~") or is_in(key, ("experiment", "debug", "natural_metric", "tuned")):
            raise UserError(f"a resumed run keeps its {key}, got {text}; start a new run instead")
        OmegaConf.update(config, key, OmegaConf.select(composed, key), merge=False, force_add=True)
    check_same(config, saved, "a resumed run", KEPT, FIXED)
    return config
